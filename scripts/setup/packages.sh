# Debian packages: installs those of the named ones that are missing.
#
#   scripts/setup.sh packages PACKAGE ...
#
# Fails with a line that names them where it cannot: without root, without apt, without the package.

# shellcheck shell=bash
missing_of() {
  local package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || echo "$package"
  done
}

mapfile -t missing < <(missing_of "$@")
[ ${#missing[@]} -gt 0 ] || exit 0
cannot() { echo "please install: ${missing[*]} ($*)" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || cannot "only root can do it from here"
command -v apt-get >/dev/null || cannot "there is no apt-get"
exec 8>"${TMPDIR:-/tmp}/memspy-apt.lock"
flock 8
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq || true
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null || cannot "apt-get failed"
