# PyTorch that runs device='cuda' without a GPU, and the simulated CUDA libraries.
#
#   scripts/setup.sh env [TORCH_VERSION [CPYTHON]]      default: that of scripts/torch-versions.txt,
#                                                       with the newest Python that fits
#
# The environment is target/envs/torch-<major.minor>/, with libraries in
# target/sim/torch-<major.minor>/. With a CPython (3.9), for which scripts/with-python must have an
# interpreter, the environment is torch-<major.minor>-py<CPYTHON> and has only PyTorch.
# MEMSPY_PYTHON names the Python that builds the environment (3.10 or newer).

# shellcheck shell=bash
torch_version=${1:-$(awk '$3 == "default" { print $1 }' scripts/torch-versions.txt)}
cpython=${2:-}
short=${torch_version%.*}
environment=target/envs/torch-$short${cpython:+-py$cpython}
libraries=target/sim/torch-$short
# All that `import torch` and the optimizers need. No nvidia-* wheels: torch's libraries find them
# through an RPATH, which precedes LD_LIBRARY_PATH and so the simulated device.
packages=("torch==$torch_version" typing_extensions sympy mpmath filelock)
if [ -z "$cpython" ]; then
  packages+=(jinja2 markupsafe fsspec networkx numpy) # for torch.profiler and the simulated device's ladder
  # Older tools with their dependencies: memspy is compared with their reports from inside.
  packages+=(trumpy==0.1.2 pytorch_memlab==0.3.0 calmsize "pandas<3" python-dateutil pytz tzdata six)
else
  packages+=(fsspec networkx)
fi

mkdir -p target/envs target/sim
exec 9>target/envs/.lock
flock 9 # two test binaries may call this at once

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
[ ${#missing[@]} -eq 0 ] || scripts/setup.sh packages "${missing[@]}"
python=$(newest_usable_python) || { echo "setup env: no Python 3.10 or newer with venv found" >&2; exit 1; }

# In its own environment.
install_here() {
  # An environment without pip is incomplete.
  if [ ! -x "$environment/bin/pip" ]; then
    rm -rf "$environment"
    "$1" -m venv "$environment"
  fi
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile "${packages[@]}"
}

# For a CPython of the Debian tree: outside the tree, downloaded by this machine's Python, run
# through scripts/with-python.
install_in_tree() {
  local tag=cp${cpython/./} platform platforms=()
  for platform in manylinux_2_28 manylinux_2_17 manylinux2014 manylinux1 linux; do
    platforms+=(--platform "${platform}_$(uname -m)")
  done
  rm -rf "$environment" "$tree$site"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --only-binary=:all: --implementation cp \
    --python-version "$cpython" --abi "$tag" --abi none "${platforms[@]}" --target "$tree$site" "${packages[@]}"
  mkdir -p "$environment/bin"
  cat >"$environment/bin/python" <<LAUNCHER
#!/bin/sh
PYTHONPATH=$site exec "$PWD/scripts/with-python" $cpython "\$@"
LAUNCHER
  chmod +x "$environment/bin/python"
}

# Compile the imported modules now (a tenth of all installed), not in the first programs in
# parallel. Needs the libraries.
compile_imported() {
  [ ! -e "$environment/.compiled" ] || return 0
  env -u PYTHONDONTWRITEBYTECODE LD_LIBRARY_PATH="$PWD/$libraries" "$environment/bin/python" -W ignore -c '
import importlib
for name in ["torch._dynamo", "torch.distributed.fsdp", "torch.profiler"]:
    try:
        importlib.import_module(name)
    except ImportError:  # not every PyTorch has all of them without numpy
        pass
'
  touch "$environment/.compiled"
}

tree=$PWD/target/envs/debian-unstable
site=/opt/memspy/${environment##*/}/lib/python${cpython}/site-packages
interpreter=
if [ -n "$cpython" ]; then
  interpreter=$(scripts/with-python --where "$cpython") || exit 1
fi
if [ "$(cat "$environment/.installed" 2>/dev/null)" != "${packages[*]}" ]; then
  echo "setup env: installing ${packages[0]} into $environment (up to 800 MB to fetch)" >&2
  case $interpreter in
    "$tree"/*) install_in_tree ;;
    *) install_here "${interpreter:-$python}" ;;
  esac
  echo "${packages[*]}" >"$environment/.installed"
fi

wanted="$torch_version $(find cuda/sim -name '*.[ch]' -o -name build.py | LC_ALL=C sort | xargs cat | sha256sum)"
if [ "$(cat "$libraries/.built" 2>/dev/null)" != "$wanted" ]; then
  echo "setup env: building the simulated CUDA libraries in $libraries" >&2
  rm -rf "$libraries"
  torch_lib=$tree$site/torch/lib
  [ -d "$torch_lib" ] ||
    torch_lib=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib") + "/torch/lib")')
  "$python" cuda/sim/build.py --strict "$torch_lib" "$libraries" >&2
  echo "$wanted" >"$libraries/.built"
fi
if [ -d "$tree$site" ] && [ "$(cat "$tree$PWD/$libraries/.built" 2>/dev/null)" != "$wanted" ]; then
  rm -rf "$tree$PWD/$libraries"
  mkdir -p "$tree$PWD/$libraries"
  cp -RL "$libraries/." "$tree$PWD/$libraries"
fi
compile_imported

echo "PATH=$PWD/$environment/bin:\$PATH"
echo "LD_LIBRARY_PATH=$PWD/$libraries"
