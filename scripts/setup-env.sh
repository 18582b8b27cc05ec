#!/usr/bin/env bash
# Sets up a PyTorch that runs device='cuda' without a GPU: a virtual environment and the simulated CUDA libraries.
#
#   scripts/setup-env.sh [TORCH_VERSION]      default 2.11.0
#
# Environment in target/envs/torch-<major.minor>/, libraries in target/sim/torch-<major.minor>/. Run it again
# at any time: what is up to date is left alone. As root it installs missing Debian packages by name.
# MEMSPY_PYTHON names the Python to build the environment with (3.10 or newer).
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

torch_version=${1:-2.11.0}
name=torch-${torch_version%.*}
environment=target/envs/$name
libraries=target/sim/$name
# Everything `import torch`, the optimizers and torch.profiler need. The nvidia-* wheels stay out: torch's
# libraries look for them through an RPATH, which would beat LD_LIBRARY_PATH and so the simulated device.
packages=("torch==$torch_version" typing_extensions sympy mpmath filelock jinja2 markupsafe fsspec networkx numpy)
# Older tools, whose reports from inside a process memspy is checked against from outside; with what they need.
packages+=(trumpy==0.1.2 pytorch_memlab==0.3.0 calmsize "pandas<3" python-dateutil pytz tzdata six)

mkdir -p target/envs target/sim
exec 9>target/envs/.lock
flock 9 # two test binaries may call this at once

install_packages() {
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "setup-env: please install: $*" >&2
    exit 1
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

newest_usable_python() {
  local candidate
  for candidate in ${MEMSPY_PYTHON:-} python3 python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

missing=()
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
command -v readelf >/dev/null || missing+=(binutils)
newest_usable_python >/dev/null || missing+=(python3 python3-venv)
[ ${#missing[@]} -eq 0 ] || install_packages "${missing[@]}"
python=$(newest_usable_python) || { echo "setup-env: no Python 3.10 or newer with venv found" >&2; exit 1; }

if [ "$(cat "$environment/.installed" 2>/dev/null)" != "${packages[*]}" ]; then
  echo "setup-env: installing ${packages[0]} into $environment (about 550 MB to fetch)" >&2
  [ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "${packages[@]}"
  echo "${packages[*]}" >"$environment/.installed"
fi

wanted="$torch_version $(find cuda/sim -name '*.[ch]' -o -name build.py | LC_ALL=C sort | xargs cat | sha256sum)"
if [ "$(cat "$libraries/.built" 2>/dev/null)" != "$wanted" ]; then
  echo "setup-env: building the simulated CUDA libraries in $libraries" >&2
  rm -rf "$libraries"
  torch_lib=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib") + "/torch/lib")')
  "$environment/bin/python" cuda/sim/build.py "$torch_lib" "$libraries" >&2
  echo "$wanted" >"$libraries/.built"
fi

echo "PATH=$PWD/$environment/bin:\$PATH"
echo "LD_LIBRARY_PATH=$PWD/$libraries"
