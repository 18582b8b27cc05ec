"""`memspy summary` names what fills the memory, in five common kinds of jobs.

Each job runs in its own process. After N seconds, `memspy summary` and `memspy tensors` run once
each; the expected text must be in the first three owner rows or in the findings. Prints the job's
longest stop and the commands' time: a summary is there in 3 s, or 8 s on fewer than four cores. With
-o, keeps the output for the documentation.
Jobs with missing libraries (transformers, peft, lightning, timm) are skipped and listed.
"""
import os
import pathlib
import re
import statistics
import subprocess
import time

from harness import JOBS, python, run

# The jobs of jobs/summary.py: each with what to find in the first three rows or the findings.
WANTED = {
    "server": r"sessions",
    "lora": r"saved for backward|parameters of",
    "lightning": r"saved for backward|optimizer state",
    "metrics": r"history\b.*loss",
    "two": r"(?i)other process|another process",
}


def add_options(parser):
    parser.add_argument("--jobs", default=",".join(WANTED))
    parser.add_argument("--seconds", type=float, default=12, help="of work before the summary")
    parser.add_argument("--looks", type=int, default=0, help="more looks by tensors, for the median of their stops")
    parser.add_argument("-o", "--output", help="folder for what was printed")


def pauses(args, pid):
    """The longest stop of the job, in ms, for each of several snapshots."""
    for _ in range(args.looks):
        done = run(args.memspy, "tensors", "-p", pid)
        found = re.search(r"was stopped for ([\d.]+) (ms|s)", done.stdout + done.stderr)
        if found:
            yield float(found[1]) * (1000 if found[2] == "s" else 1)


def first_rows_and_findings(text):
    """The first three owner rows and the findings."""
    lines = text.splitlines()
    head = next((at for at, line in enumerate(lines) if "held by" in line), len(lines))
    rows = [line for line in lines[head + 1:] if re.match(r"\s*[\d.]+ [KMGT]?i?B ", line)][:3]
    return rows + [line for line in lines if line.startswith("* ")]


def check_job(args, verdicts, name, process):
    process.stdin.write("go\n")
    process.stdin.flush()
    time.sleep(args.seconds)
    if process.poll() is not None:
        said = process.stderr.read()
        if "ImportError" in said or "ModuleNotFoundError" in said:
            print(f"{name}: left out: {said.strip().splitlines()[-1:]}")
        else:
            verdicts.that(name, False, "the job ended", trouble=said[-600:])
        return
    summary = run(args.memspy, "summary", "-p", process.pid)
    tensors = run(args.memspy, "tensors", "-p", process.pid)
    found = any(re.search(WANTED[name], line) for line in first_rows_and_findings(summary.stdout))
    lines = summary.stdout.splitlines()
    stops = sorted(pauses(args, process.pid))
    if stops:
        print(f"{name}: {len(stops)} looks by tensors stopped the job for {statistics.median(stops):.1f} ms (median), at most {stops[-1]:.1f}")
    still = [line.strip() for line in (summary.stdout + tensors.stdout).splitlines() if "was stopped" in line]
    verdicts.that(f"{name}: found", found, f"summary took {summary.seconds:.1f} s, {len(lines)} lines, widest "
                  f"{max(map(len, lines), default=0)}; tensors took {tensors.seconds:.2f} s; {'; '.join(still)}",
                  trouble=summary.stdout + summary.stderr)
    limit = 3.2 if os.cpu_count() >= 4 else 8.2  # with the start of a process
    verdicts.that(f"{name}: in time", summary.seconds <= limit, f"{summary.seconds:.1f} s of {limit} s")
    if args.output:
        folder = pathlib.Path(args.output)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text(f"$ memspy summary -p {process.pid}\n{summary.stdout}{summary.stderr}\n"
                                            f"$ memspy tensors -p {process.pid}\n{tensors.stdout}")


def check(args, verdicts):
    # Not `Job`, which waits: they import in parallel and work one after the other.
    start = lambda name: subprocess.Popen(python(os.path.join(JOBS, "summary.py"), name), text=True, stdin=subprocess.PIPE,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    processes = {name: start(name) for name in args.jobs.split(",")}
    for name, process in processes.items():
        if process.stdout.readline().strip() != "READY":
            print(f"{name}: left out: {process.stderr.read().strip().splitlines()[-1:]}")
            continue
        check_job(args, verdicts, name, process)
        process.kill()
        process.wait()
