#!/usr/bin/env bash
# Builds a Debian package with the program, its man pages and its completions:
# target/debian/memspy_VERSION_amd64.deb
#
#   scripts/build-deb.sh [PROGRAM]     [default: the program of scripts/build-wheel.sh, which runs
#                                      with an old glibc; else 'cargo build --release', which needs
#                                      this machine's glibc or a newer one]
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

program=${1:-target/x86_64-unknown-linux-gnu/release/memspy}
if [ -z "${1:-}" ] && [ ! -x "$program" ]; then
  program=target/release/memspy
  cargo build --release
fi
version=$("$program" --version | cut -d' ' -f2)
glibc=$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 | cut -d_ -f2)

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
share=$root/usr/share
install -Dm755 "$program" "$root/usr/bin/memspy"
mkdir -p "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/vendor-completions" \
  "$share/fish/vendor_completions.d" "$share/doc/memspy" "$root/DEBIAN"
"$program" man -o "$share/man/man1"
"$program" completions bash >"$share/bash-completion/completions/memspy"
"$program" completions zsh >"$share/zsh/vendor-completions/_memspy"
"$program" completions fish >"$share/fish/vendor_completions.d/memspy.fish"
cp README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$share/doc/memspy/"
cp LICENSE "$share/doc/memspy/copyright"
gzip -9n "$share"/man/man1/*.1 "$share/doc/memspy/CHANGELOG.md"
chmod -R u=rwX,go=rX "$share"
cat >"$root/DEBIAN/control" <<CONTROL
Package: memspy
Version: $version
Architecture: amd64
Maintainer: The memspy developers <memspy@localhost>
Depends: libc6 (>= $glibc)
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Section: devel
Priority: optional
Description: py-spy for GPU memory
 Attaches to a Python/PyTorch job that is already running and says what holds
 the memory of its GPUs, and which line put it there. It only reads.
CONTROL
mkdir -p target/debian
rm -f target/debian/memspy_*.deb
dpkg-deb --root-owner-group --build "$root" "target/debian/memspy_${version}_amd64.deb"
