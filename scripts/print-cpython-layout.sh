#!/bin/sh
# Prints rows of src/python/layouts/layout_tables.rs (and src/python/heap/blocks.rs), one per
# include directory of a CPython given as argument:
# scripts/print-cpython-layout.sh ~/.pyenv/versions/3.1*/include/python3.1* | rustfmt --edition 2024
# Needs a C compiler. EXTRA may name more include directories (Debian keeps pyconfig.h apart);
# CFLAGS=-DPy_GIL_DISABLED prints the row of a free-threaded build from the headers of any other.
set -eu
source=$(dirname "$0")/print-cpython-layout.c
program=$(mktemp)
trap 'rm -f "$program"' EXIT
for include in "$@"; do
    # The headers of an interpreter being read, not its library: nothing of it is linked.
    # shellcheck disable=SC2086
    ${CC:-cc} -w ${CFLAGS:-} -I"$include" -I"$include/internal" ${EXTRA:+-I$EXTRA} -o "$program" "$source"
    "$program"
done
