#!/usr/bin/env bash
# Builds all that a release consists of, tries it, and puts it into target/dist:
# wheel, Debian package, container image, man pages, completions, notes, SHA256SUMS.
#
#   scripts/release.sh [--no-try] [PROGRAM]
#
# PROGRAM: a program of this version that was built before. Without it scripts/build-wheel.sh builds
# one (4 minutes on two quiet cores). --no-try leaves out the installations in fresh systems
# (Debian 11, Ubuntu 20.04, Debian 13), which need root and debootstrap; their trees are kept in
# target/chroots.
set -euo pipefail
cd "$(dirname "$0")/.."
try=1
case "${1:-}" in
  -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
  --no-try) try=; shift ;;
esac

most=$((10 << 20)) # of PyPI and crates.io
fits() { # FILE
  local size
  size=$(stat -c %s "$1")
  [ "$size" -le "$most" ] || { echo "release: $1 has $size bytes, more than $most" >&2; exit 1; }
}

dist=target/dist
rm -rf "$dist"
mkdir -p "$dist"
if [ -n "${1:-}" ]; then
  program=$1
  scripts/release/pack-wheel.py "$program" "$dist"
else
  scripts/build-wheel.sh
  program=target/x86_64-unknown-linux-gnu/release/memspy
  cp target/wheels/memspy-*.whl "$dist/"
fi
version=$("$program" --version | cut -d' ' -f2)
stated=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[ "$version" = "$stated" ] || { echo "release: $program is $version, Cargo.toml says $stated" >&2; exit 1; }
fits "$dist"/memspy-*.whl

scripts/build-deb.sh "$program"
scripts/build-image.sh "$program"
cp "target/debian/memspy_${version}_amd64.deb" target/image/memspy.tar "$dist/"

pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
mkdir -p "$pages/man/man1" "$pages/completions"
"$program" man -o "$pages/man/man1"
for shell in bash zsh fish elvish powershell; do
  "$program" completions "$shell" >"$pages/completions/memspy.$shell"
done
pack() { tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$pages" -czf "$dist/$1" "$2"; }
pack "memspy-$version-man.tar.gz" man
pack "memspy-$version-completions.tar.gz" completions

# The section of this version; before it is dated, what is not released yet.
scripts/release/notes.sh "$version" >"$dist/notes.md"

cargo publish --dry-run --no-verify --allow-dirty
fits "target/package/memspy-$version.crate"
(cd "$dist" && sha256sum -- * >SHA256SUMS)

if [ -n "$try" ]; then
  scripts/release/try.sh "$dist"
fi
ls -l "$dist"
