#!/usr/bin/env bash
# Sets up the tools that read what memspy exports: DuckDB, Arrow, protocol buffers, JSON schemas, from PyPI.
#
#   scripts/setup-readers.sh      into target/envs/readers; about 270 MB, half a minute to a minute and a half
#
# Used by 'scripts/test.sh --all': the tests of tests/live/export_readers.rs.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
readers=target/envs/readers
[ ! -e $readers/.installed ] || exit 0
python3 -m venv $readers
$readers/bin/pip install --quiet --disable-pip-version-check duckdb pyarrow protobuf jsonschema
touch $readers/.installed
