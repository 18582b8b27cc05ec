"""Runs every query of docs/export.md with DuckDB in a folder that has tables, and counts rows with pyarrow.

    python tests/targets/read_tables.py FOLDER docs/export.md

Prints one line of JSON: {"queries": [[row, ...], ...], "rows": {table: rows}, "columns": {table: [name, ...]}}.
"""
import json
import os
import re
import sys

import duckdb
import pyarrow.parquet

os.chdir(sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as page:
    queries = re.findall(r"```sql\n(.*?)```", page.read(), re.DOTALL)
tables = {name: pyarrow.parquet.read_table(f"tables/{name}") for name in sorted(os.listdir("tables"))}
print(
    json.dumps(
        {
            "queries": [duckdb.sql(query).fetchall() for query in queries],
            "rows": {name: table.num_rows for name, table in tables.items()},
            "columns": {name: table.column_names for name, table in tables.items()},
        },
        default=int,
    )
)
