#!/usr/bin/env bash
# Builds a container image with only the program, its C library and its loader:
# target/image/memspy.tar, for 'docker load -i' and 'podman load -i'. Needs no docker or podman.
#
#   scripts/build-image.sh [PROGRAM]     [default: the program of scripts/build-wheel.sh]
#
# The program is not linked statically: it loads the driver's libnvidia-ml.so.1, which the NVIDIA
# container toolkit puts into the container, and a static program cannot load libraries.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

program=${1:-target/x86_64-unknown-linux-gnu/release/memspy}
version=$("$program" --version | cut -d' ' -f2)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
install -Dm755 "$program" "$root/usr/bin/memspy"
# Includes what libnvidia-ml.so.1 needs.
libraries=$(ldd "$program" | grep -o '/[^ ]*'; for name in libdl.so.2 libpthread.so.0 libm.so.6 librt.so.1; do
  ldconfig -p | awk -v name=$name '$1 == name && /x86-64/ { print $NF; exit }'; done)
for library in $(sort -u <<<"$libraries"); do
  install -Dm755 "$(readlink -f "$library")" "$root$library"
done
# The kernel expects the loader here, whatever the distribution.
[ -e "$root/lib64/ld-linux-x86-64.so.2" ] || install -Dm755 "$(readlink -f /lib64/ld-linux-x86-64.so.2)" "$root/lib64/ld-linux-x86-64.so.2"
mkdir -p "$root/tmp" "$root/work" "$root/etc"
chmod 1777 "$root/tmp"

sum() { sha256sum "$1" | cut -d' ' -f1; }
pack() { tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$1" -cf "$2" "${@:3}"; }
pack "$root" "$work/layer.tar" .
cat >"$work/config.json" <<CONFIG
{"architecture": "amd64", "os": "linux",
 "config": {"Entrypoint": ["/usr/bin/memspy"], "WorkingDir": "/work", "Env": ["PATH=/usr/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$(sum "$work/layer.tar")"]}}
CONFIG
config=$(sum "$work/config.json").json
mv "$work/config.json" "$work/$config"
echo "[{\"Config\": \"$config\", \"RepoTags\": [\"memspy:$version\", \"memspy:latest\"], \"Layers\": [\"layer.tar\"]}]" >"$work/manifest.json"
mkdir -p target/image
pack "$work" target/image/memspy.tar manifest.json "$config" layer.tar
echo "build-image: target/image/memspy.tar ($(du -h target/image/memspy.tar | cut -f1)), memspy:$version"
