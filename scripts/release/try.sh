#!/usr/bin/env bash
# Installs a release in fresh systems, runs it, removes it, and says what is left: nothing.
#
#   scripts/release/try.sh FOLDER [SYSTEM ...]     [default: bullseye focal trixie]
#
# FOLDER has the wheel and the Debian package. A system is a tree of debootstrap in target/chroots
# (or the folder CHROOTS), made once. Needs root.
set -euo pipefail
cd "$(dirname "$0")/../.."
case "${1:-}" in "" | -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
folder=$(readlink -f "$1")
shift
[ $# -gt 0 ] || set -- bullseye focal trixie
trees=${CHROOTS:-$PWD/target/chroots}
mkdir -p "$trees"
[ "$(id -u)" = 0 ] || { echo "try: needs root, for chroot" >&2; exit 1; }

mounted=()
unmount() {
  for at in "${mounted[@]}"; do umount "$at" 2>/dev/null || umount -l "$at"; done
  mounted=()
}
trap unmount EXIT

make_tree() { # SYSTEM
  [ -x "$trees/$1/usr/bin/python3" ] && return
  command -v debootstrap >/dev/null || { echo "try: needs debootstrap" >&2; exit 1; }
  local mirror=http://deb.debian.org/debian options=()
  [ -e "/usr/share/debootstrap/scripts/$1" ] || { echo "try: debootstrap does not know $1" >&2; exit 1; }
  case "$1" in bionic | focal | jammy | noble) mirror=http://archive.ubuntu.com/ubuntu options=(--components=main,universe) ;; esac
  # Ubuntu's keys are a package of their own.
  case "$mirror" in *ubuntu*) [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || options+=(--no-check-gpg) ;; esac
  debootstrap --variant=minbase "${options[@]}" --include=python3,python3-venv,python3-pip,ca-certificates "$1" "$trees/$1" "$mirror" >"$trees/$1.log"
}

# What a removal must leave as it was.
listing() { find "$1" -xdev \( -path "$1/proc" -o -path "$1/sys" -o -path "$1/tmp" -o -path "$1/var/lib/dpkg" -o -path "$1/var/log" -o -path "$1/var/cache" \) -prune -o -print | sort; }

# A job without PyTorch, read by its own user; then by root.
attach='
set -e
memspy --version
setpriv --reuid=65534 --regid=65534 --clear-groups python3 -c "import time; time.sleep(60)" & job=$!
sleep 0.5
seconds=$(date +%s.%N)
setpriv --reuid=65534 --regid=65534 --clear-groups $(command -v memspy) dump -p $job >/tmp/user.txt
grep -q "<module>" /tmp/user.txt
memspy dump -p $job | grep -q "<module>"
memspy doctor -p $job >/tmp/doctor.txt || true
grep -i "exact" /tmp/doctor.txt | head -n 1 || true
kill $job
echo "$seconds $(date +%s.%N)" | awk "{ printf \"attached as a user and as root in %.1f s\n\", \$2 - \$1 }"
rm -f /tmp/user.txt /tmp/doctor.txt
'

try_in() { # SYSTEM
  local tree=$trees/$1 began before after
  make_tree "$1"
  mount -t proc proc "$tree/proc"
  mounted+=("$tree/proc")
  rm -rf "$tree/tmp/venv" "$tree/tmp/release" # of a run that was interrupted
  mkdir -p "$tree/tmp/release"
  cp "$folder"/memspy-*.whl "$folder"/memspy_*.deb "$tree/tmp/release/"
  before=$(listing "$tree")
  echo "== $1: $(chroot "$tree" ldd --version | head -n 1 | grep -o '[0-9.]*$'), Python $(chroot "$tree" python3 -c 'import sys; print(*sys.version_info[:2], sep=".")')"

  began=$(date +%s.%N)
  chroot "$tree" sh -ec 'python3 -m venv /tmp/venv && /tmp/venv/bin/pip install -q --no-index /tmp/release/memspy-*.whl'
  echo "   wheel installed in $(date +%s.%N | awk -v began="$began" '{ printf "%.1f", $1 - began }') s, $(du -sm "$tree/tmp/venv/bin/memspy" | cut -f1) MB"
  chroot "$tree" bash -c "export PATH=/tmp/venv/bin:\$PATH; chmod 755 /tmp; $attach" | sed 's/^/   /'
  chroot "$tree" sh -ec '/tmp/venv/bin/pip uninstall -q -y memspy; ! find /tmp/venv -iname "*memspy*" | grep .'
  rm -rf "$tree/tmp/venv"

  began=$(date +%s.%N)
  chroot "$tree" sh -ec 'dpkg -i /tmp/release/memspy_*.deb >/dev/null'
  echo "   package installed in $(date +%s.%N | awk -v began="$began" '{ printf "%.1f", $1 - began }') s"
  chroot "$tree" bash -c "$attach" | sed 's/^/   /'
  chroot "$tree" sh -ec 'dpkg --purge memspy >/dev/null 2>&1'
  rm -rf "$tree/tmp/release"
  after=$(listing "$tree")
  if [ "$before" != "$after" ]; then
    echo "try: $1: these were left or are missing:" >&2
    diff <(echo "$before") <(echo "$after") >&2 || true
    exit 1
  fi
  echo "   removed: nothing is left"
  unmount
}

for system in "$@"; do
  try_in "$system"
done
