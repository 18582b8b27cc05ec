# The newest CPythons, 3.14 and 3.15, in a Debian unstable tree.
#
#   scripts/setup.sh pythons
#
# Versions 3.8 to 3.13 come from pyenv or the system if present; nothing is installed for them.
# The tree is target/envs/debian-unstable/ (about 330 MB, half a minute). It needs root and
# debootstrap, which is installed if missing. Prints the versions that scripts/with-python can run.

# shellcheck shell=bash
tree=target/envs/debian-unstable
mkdir -p target/envs
exec 9>target/envs/.lock
flock 9

skip() { echo "setup pythons: skipping CPython 3.14 and 3.15: $*" >&2; }

provide_tree() {
  [ ! -x $tree/usr/bin/python3.15 ] || return 0
  [ "$(id -u)" -eq 0 ] || { skip "a Debian tree needs root (chroot)"; return 0; }
  if ! command -v debootstrap >/dev/null; then
    scripts/setup.sh packages debootstrap debian-archive-keyring || { skip "there is no debootstrap"; return 0; }
  fi
  rm -rf $tree.partial
  if debootstrap --variant=minbase --include=python3.14,python3.15 unstable $tree.partial >$tree.log 2>&1; then
    rm -rf $tree.partial/var/cache/apt $tree.partial/var/lib/apt/lists
    rm -rf $tree && mv $tree.partial $tree
  else
    rm -rf $tree.partial
    skip "debootstrap failed, see $tree.log"
  fi
}

provide_tree
echo "CPythons to test against: $(scripts/with-python --list | tr '\n' ' ')"
