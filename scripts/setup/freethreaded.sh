# A CPython without a GIL, built from source: no distribution packages one.
#
#   scripts/setup.sh freethreaded [3.14]       or 3.13, 3.15; into target/envs/python-<minor>t
#
# Uses the newest source that Debian or Ubuntu lists and the mirror has. Downloads about 24 MB;
# takes three minutes on two cores and 65 MB. If this machine lacks something, says so and ends
# without error.

# shellcheck shell=bash
version=${1:-3.14}
prefix=$PWD/target/envs/python-${version}t
[[ $version =~ ^3\.1[3-9]$ ]] || { echo "setup freethreaded: 3.13 or newer is built, not '$version'" >&2; exit 2; }
mkdir -p target/envs
exec 9>"$prefix.lock"
flock 9 # two may ask at once

skip() { echo "setup freethreaded: skipping CPython ${version}t: $*" >&2; exit 0; }
[ ! -x "$prefix/bin/python${version}t" ] || exit 0

scripts/setup.sh packages gcc libc6-dev make pkg-config xz-utils curl zlib1g-dev libssl-dev libffi-dev libbz2-dev liblzma-dev ||
  skip "packages to build it with are missing"

work=$prefix.partial
rm -rf "$work"
mkdir "$work"
trap 'rm -rf "$work"' EXIT

# Version, URL and SHA-256 or SHA-512 of the source in an archive's list, if it has one.
listed() {
  local archive=$1 list=$1/dists/$2/source/Sources.xz
  curl -fsS --max-time 120 "$list" -o "$work/Sources.xz" 2>/dev/null || return 0
  xz -dc "$work/Sources.xz" | awk -v package="python$version" -v archive="$archive" '
    BEGIN { RS = ""; FS = "\n" }
    $1 == "Package: " package {
      delete sum
      for (n = 1; n <= NF; n++) {
        if ($n ~ /^Directory: /) directory = substr($n, 12)
        split($n, word, " ")
        if ($n ~ /^ / && word[3] ~ /\.orig\.tar\.xz$/) {
          file = word[3]
          if (length(word[1]) >= 64 && (!(file in sum) || length(word[1]) == 64)) sum[file] = word[1]
        }
      }
      release = file
      gsub(/^.*_|\.orig\.tar\.xz$/, "", release)
      if (file in sum) print release, archive "/" directory "/" file, sum[file]
    }'
}

candidates() {
  local suite
  for suite in unstable testing stable; do listed http://deb.debian.org/debian "$suite/main"; done
  # Long-term releases and the next one.
  for suite in devel resolute; do
    listed http://archive.ubuntu.com/ubuntu "$suite/main"
    listed http://archive.ubuntu.com/ubuntu "$suite/universe"
  done
}

fetch() {
  local release address sum tool
  while read -r release address sum; do
    [ ${#sum} -eq 64 ] && tool=sha256sum || tool=sha512sum
    # An archive may list files that its mirror lacks.
    if curl -fsS --max-time 600 "$address" -o "$work/source.tar.xz" 2>/dev/null &&
      echo "$sum  $work/source.tar.xz" | $tool --check --status; then
      echo "setup freethreaded: building CPython $release without a GIL in $prefix (some minutes)" >&2
      return
    fi
  done < <(candidates | sort -u -k2,2 | sort -V -r -k1,1)
  return 1
}

fetch || skip "no archive has the source of Python $version"
mkdir "$work/source"
tar -xJf "$work/source.tar.xz" -C "$work/source" --strip-components 1
build() {
  cd "$work/source" &&
    ./configure --prefix="$prefix" --disable-gil --disable-test-modules OPT="-DNDEBUG -fwrapv -O1" &&
    make -j"$(nproc)" &&
    make install DESTDIR="$work/installed" COMPILEALL_OPTS=--help # modules are compiled when they are imported
}
if ! (build) >"$prefix.log" 2>&1; then
  skip "the build failed, see $prefix.log"
fi
# Install atomically.
rm -rf "$prefix"
mv "$work/installed$prefix" "$prefix"
