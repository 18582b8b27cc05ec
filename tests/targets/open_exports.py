"""Opens one recording in every format that memspy exports, each with its real reader, in one process.

    python tests/targets/open_exports.py FOLDER MEMORY_VIZ docs/export.md

FOLDER has memory-viz, speedscope, pprof, csv, json and the folder tables; MEMORY_VIZ is torch/cuda/_memory_viz.py.
Prints one line of JSON with what each reader makes of its file.
"""
import json
import os
import pickle
import re
import runpy
import sys

import duckdb
from read_formats import pprof_sums, speedscope_sum

folder, memory_viz, page = sys.argv[1:]
with open(page, encoding="utf-8") as text:
    queries = re.findall(r"```sql\n(.*?)```", text.read(), re.DOTALL)
os.chdir(folder)

# torch's own script. Its pictures are drawn by a Perl script that it would download: what is given to that is taken.
viz = runpy.run_path(memory_viz)
with open("memory-viz", "rb") as file:
    snapshot = pickle.load(file)
drawn = {"format_flamegraph": lambda lines: lines}
live = [line.rsplit(" ", 1) for line in viz["memory"](snapshot, **drawn).splitlines()]
plot = viz["trace_plot"](snapshot)


def rows(sql):
    return [list(row) for row in duckdb.sql(sql).fetchall()]


print(
    json.dumps(
        {
            "memory-viz": {
                "live": sum(int(size) for stack, size in live if "inactive" not in stack),
                "trace": len(snapshot["device_traces"][0]),
                "is plotted": "trace_plot" in plot or "MemoryViz" in plot,
            },
            "speedscope": speedscope_sum("speedscope"),
            "pprof": pprof_sums("pprof"),
            "csv": rows("SELECT sum(live_bytes), sum(allocated_bytes), sum(allocations) FROM read_csv('csv')"),
            "json": rows(
                "SELECT moment.live_bytes, list_sum([s.live_bytes FOR s IN moment.stacks]) "
                "FROM (SELECT unnest(moments) AS moment FROM read_json('json'))"
            ),
            "parquet": {
                name: rows(f"SELECT count(*) FROM read_parquet('tables/{name}/*.parquet')")[0][0]
                for name in sorted(os.listdir("tables"))
            },
            "queries": [len(rows(query)) for query in queries],
            "lines": [[function, bytes] for _, _, function, bytes, _ in rows(queries[1])],
            "held": rows(
                "SELECT sum(size) FROM read_parquet('tables/blocks/*.parquet') WHERE state = 'active_allocated'"
            )[0][0],
        },
        default=int,
    )
)
