"""compare.py MEMSPY FOLDER: what 'memspy what-if' says of record.sh's recordings, beside PyTorch's own figures."""
import json
import os
import subprocess
import sys


def replays(memspy, trace):
    command = [memspy, "what-if", trace, "--json", "--alloc-conf", "expandable_segments:True"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main(memspy, folder):
    truth = {}
    with open(os.path.join(folder, "figures.jsonl")) as file:
        for row in map(json.loads, file):
            settings = "-expandable" if "expandable" in (row.get("settings") or "") else ""
            truth[row["job"] + settings] = row["reserved"]
    for job, reserved in truth.items():
        if job.endswith("-expandable"):
            continue
        answer = replays(memspy, os.path.join(folder, job + ".bin"))
        own, expandable = answer["settings"][:2]
        line = f"{job}: {reserved} reserved, replayed {own['reserved_peak'] / reserved - 1:+.2%}"
        known = truth.get(job + "-expandable")
        if known:
            line += f"; expandable {known}, predicted {expandable['reserved_peak'] / known - 1:+.2%}"
        print(f"{line}; {answer['allocations']} allocations in {own['seconds']:.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:3])
