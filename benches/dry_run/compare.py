#!/usr/bin/env python3
"""Compares two outputs of run_all.py: compare.py REAL SIMULATED prints the tables of benches/dry_run.md."""
import json
import sys

FIGURES = ("allocated", "reserved", "process")


def rows(path):
    return [json.loads(line) for line in open(path)]


def peaks(path):
    """By job; of several processes that with the most."""
    found = {}
    for row in rows(path):
        if row.get("limit") is None and row.get("allocated") and "fit" not in row:
            if row["allocated"] > found.get(row["job"], {}).get("allocated", 0):
                found[row["job"]] = row
    return found


def short(path):
    return {(row["job"], share): row for job in ("resnet50", "gpt", "bert")
            for share, row in enumerate(r for r in rows(path) if r["job"] == job and r.get("limit") and not r["arguments"])}


def main():
    real, simulated = sys.argv[1:3]
    here, there = peaks(simulated), peaks(real)
    print("| job | allocated | | reserved | | process | | seconds |\n|---|---|---|---|---|---|---|---|")
    for job, row in there.items():
        other = here.get(job)
        if not other:
            continue
        cells = []
        for figure in FIGURES:
            a, b = row[figure], other[figure]
            cells += [f"{a / 2**30:.3f} GiB", "equal" if a == b else f"{100 * (b - a) / a:+.2f} %"]
        print(f"| {job} | {' | '.join(cells)} | {row['seconds']:.0f} / {other['seconds']:.0f} |")
    print()
    ours, theirs = short(simulated), short(real)
    for key, row in theirs.items():
        print(key, row["limit"], row.get("oom"), ours.get(key, {}).get("oom"), ours.get(key, {}).get("limit"))
    for path in (real, simulated):
        print([row for row in rows(path) if "fit" in row])


if __name__ == "__main__":
    main()
