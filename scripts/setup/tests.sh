# All that the tests run: env, pythons, readers, JAX, pairs of versions, a browser, other mallocs.
#
#   scripts/setup.sh tests [--all]    --all: also for scripts/test.sh --all, some minutes more
#
# PyTorch runs through scripts/with-sim, CPythons through scripts/with-python. The pairs are those
# of scripts/torch-versions.txt. Reports and skips what this machine cannot provide.

# shellcheck shell=bash
all=
[ "${1:-}" != --all ] || all=yes
missing=()
# The kernel program is compiled anew and compared with the tree's.
{ command -v clang >/dev/null && [ -e /usr/include/bpf/bpf_helpers.h ]; } || missing+=(clang libbpf-dev)
command -v tmux >/dev/null || missing+=(tmux) # the live view is tested in a terminal
for package in libjemalloc2/libjemalloc.so.2 libtcmalloc-minimal4/libtcmalloc_minimal.so.4; do # PyTorch under another malloc
  [ -e "/usr/lib/$(uname -m)-linux-gnu/${package#*/}" ] || missing+=("${package%/*}")
done
[ ${#missing[@]} -eq 0 ] || scripts/setup.sh packages "${missing[@]}"

# A browser tests the page of 'memspy report'. Ubuntu's is a snap, which containers cannot install.
mkdir -p target
rm -f target/no-browser
if ! command -v chromium >/dev/null && ! scripts/setup.sh packages chromium; then
  echo "no package chromium: the page of 'memspy report' is not tested in a browser" | tee target/no-browser >&2
fi

timed() {
  local start=$SECONDS
  "$@" >/dev/null
  echo "setup tests: $*: $((SECONDS - start)) s"
}
timed scripts/setup.sh env
timed scripts/setup.sh pythons
timed scripts/setup.sh readers ${all:+--all} # what memspy exports is opened by its real readers
# transformers' Trainer, followed beside PyTorch's own history. Its own environment: PyTorch's stays
# as memspy's users have it, and accelerate would add gigabytes of CUDA libraries.
install_transformers() {
  local place=target/envs/transformers
  [ ! -e $place/.installed ] || return 0
  rm -rf $place
  local pip=(target/envs/torch-2.11/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --target "$place")
  # PyTorch lacks CUDA's libraries on purpose.
  "${pip[@]}" "transformers>=5,<6" 2> >(grep -v "^torch .* requires\|dependency resolver" >&2)
  "${pip[@]}" --no-deps --upgrade "accelerate>=1.12,<2" psutil 2> >(grep -v "^torch .* requires\|dependency resolver" >&2)
  touch $place/.installed
}
timed install_transformers
timed scripts/setup.sh jax
pairs() { # of a kind, with a GIL or without one
  awk -v kind="$1" -v without="$2" '$3 == kind && ($2 ~ /t$/) == without { print $1, $2 }' scripts/torch-versions.txt | while read -r torch cpython; do
    if scripts/with-python --where "$cpython" >/dev/null 2>&1; then
      timed scripts/setup.sh env "$torch" "$cpython" </dev/null
    else
      echo "setup tests: no CPython $cpython here: PyTorch $torch is not set up for it" >&2
    fi
  done
}
pairs always 0
if [ -n "$all" ]; then
  scripts/setup.sh packages prometheus # the exporter is scraped by a real one
  # The client library that calls the tools of 'memspy mcp'.
  target/mcp-client/bin/python -c 'import mcp' 2>/dev/null || { python3 -m venv --clear target/mcp-client && target/mcp-client/bin/pip install -q "mcp>=1.12,<2"; }
  timed scripts/setup.sh freethreaded
  pairs nightly 0
  pairs nightly 1
fi
