# A cargo new enough to build memspy.
#
#   scripts/setup.sh rust
#
# Without cargo, takes the rustup package of Debian or Ubuntu (needs root), then the stable
# toolchain.

# shellcheck shell=bash
needed=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' Cargo.toml)
needed=${needed:-1.95}

explain() {
  echo "setup rust: $*" >&2
  echo "setup rust: memspy needs Rust $needed or newer; with rustup: rustup toolchain install stable" >&2
  exit 1
}

apt_install() { scripts/setup.sh packages "$@" || explain "$* cannot be installed from here"; }

command -v cc >/dev/null || apt_install build-essential
if ! command -v cargo >/dev/null; then
  # A distribution's cargo package is years older than the toolchains of its rustup package.
  apt_install rustup ca-certificates
  rustup toolchain install stable --profile minimal --component clippy --component rustfmt
  rustup default stable
fi

found=$(cargo --version | cut -d' ' -f2)
if [ "$(printf '%s\n%s\n' "$needed" "${found%%-*}" | sort -V | head -n 1)" != "$needed" ]; then
  explain "cargo here is $found"
fi
