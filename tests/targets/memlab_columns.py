"""Functions whose lines pytorch_memlab's LineProfiler measures, and what it says of them.

    python tests/targets/memlab_columns.py plain      runs them once, as fast as they go
    python tests/targets/memlab_columns.py memlab     runs them under the profiler and prints its figures as JSON:
                                                      {function: {line: {statistic: value}}}, of each the greatest
                                                      of one execution of the line
"""
import json
import sys
import time

import torch

MIB = 1 << 20


class Blob:
    def __init__(self, mib):
        self.data = torch.empty(mib * MIB + 100, dtype=torch.uint8, device="cuda")


def straight():
    small = torch.empty(1000, device="cuda")
    large = torch.empty(3 * MIB + 1, dtype=torch.uint8, device="cuda")
    both = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (700, 2 * MIB)]
    del large
    more = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    return small, both, more


def temporaries():
    kept = Blob(1)
    total = (kept.data + 1).sum()
    kept = Blob(4)
    del total
    return kept


def several_lines():
    f = (Blob(1),
         Blob(2),
         Blob(3))
    g = [
        Blob(4).data[:10],
        torch.empty(10, device="cuda"),
    ]
    return f, g


def loops():
    held = []
    for n in (1, 3, 2):
        part = torch.empty(n * MIB, dtype=torch.uint8, device="cuda")
        held.append(part + 1)
        del part
    return held


def nested():
    a = straight()
    b = temporaries()
    return a, b


FUNCTIONS = [straight, temporaries, several_lines, loops, nested]


def main():
    if sys.argv[1] == "plain":
        # The recorder looks for the allocator a few times a second; what comes before it found it is not compared to the byte.
        torch.cuda.init()
        time.sleep(2)
        for function in FUNCTIONS:
            function()
        return
    from pytorch_memlab import LineProfiler
    from pytorch_memlab.line_profiler.line_records import _line_records
    with LineProfiler(*FUNCTIONS) as profiler:
        for function in FUNCTIONS:
            function()
    records = _line_records(profiler._raw_line_records, profiler._code_infos).groupby(level=[0, 1]).max()
    figures = {}
    for (function, line), row in records.iterrows():
        figures.setdefault(function, {})[int(line)] = {
            ".".join(key): int(value) for key, value in row.items() if all(isinstance(part, str) for part in key)}
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
