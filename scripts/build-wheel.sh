#!/usr/bin/env bash
# Builds the Python wheel with memspy's program, which 'pip install' puts on the PATH:
# target/wheels/memspy-*.whl
#
#   scripts/build-wheel.sh [MAJOR.MINOR]       the oldest glibc that it must run on
#                                              [default: 2.17, every distribution since 2014]
#   scripts/build-wheel.sh --test [WHEEL]      tests a wheel that was built
#
# zig (PyPI) links the program against that glibc, whatever the glibc here. The build prints the
# glibc that the program really needs.
# The test installs the wheel into a fresh virtual environment, on the simulated device: the program
# on the PATH, the magics in a real kernel, the marker in a real pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

test_wheel() {
  local wheel=$1 torch python
  scripts/setup.sh env >/dev/null
  torch=$(scripts/with-sim python -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
  python=$(scripts/with-sim python -c 'import sys; print(sys._base_executable or sys.executable)')
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  "$python" -m venv "$folder/venv"
  "$folder/venv/bin/pip" install -q "$wheel" ipykernel jupyter_client pytest
  # Takes PyTorch, which is large, from the other tests' environment.
  echo "$torch" >"$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"
  export PATH="$folder/venv/bin:$PATH" JUPYTER_PATH="$folder/venv/share/jupyter" IPYTHONDIR="$folder/ipython"
  [ "$(command -v memspy)" = "$folder/venv/bin/memspy" ]
  memspy --version
  python -m memspy --version
  scripts/with-sim "$folder/venv/bin/python" -m pytest -q -p no:cacheprovider "$PWD/scripts/wheel/tests" --rootdir "$folder" -c /dev/null
}
if [ "${1:-}" = --test ]; then
  wheel=${2:-$(ls target/wheels/memspy-*.whl)}
  test_wheel "$wheel"
  exit
fi

glibc=${1:-2.17}
scripts/setup.sh rust
tools=target/wheel-tools
[ -x $tools/bin/maturin ] || { python3 -m venv $tools && $tools/bin/pip install -q "maturin>=1.7,<2" "ziglang>=0.13,<0.16"; }
# In its own folder, apart from wheels of other versions.
out=$PWD/target/wheels
mkdir -p "$out"
rm -f "$out"/memspy-*.whl
# Drop flags for another linker (a user's ~/.cargo/config.toml): zig's does not take them.
export RUSTFLAGS="${MEMSPY_RUSTFLAGS- }" PATH="$PWD/$tools/bin:$PATH"
(cd scripts/wheel && maturin build --release --zig --target x86_64-unknown-linux-gnu --compatibility "manylinux_${glibc/./_}" --out "$out")

program=target/x86_64-unknown-linux-gnu/release/memspy
if command -v objdump >/dev/null; then
  needs=$(objdump -T $program | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
  echo "build-wheel: the program needs ${needs/_/ } or newer"
fi
ls -l "$out"/memspy-*.whl
