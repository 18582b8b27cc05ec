#!/usr/bin/env bash
# Installs a wheel of memspy into a fresh virtual environment and tests it on the simulated device:
# the program on the PATH, the magics in a real kernel, the marker in a real pytest.
#
#   scripts/test-wheel.sh [WHEEL]     [default: that of scripts/build-wheel.sh in target/wheels]
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
wheel=${1:-$(ls target/wheels/memspy-*.whl)}

scripts/setup-env.sh >/dev/null
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
