"""A recording of all ranks, on two or more GPUs with NCCL.

torchrun starts a data-parallel training (NCCL) under `memspy record -s --exact`. For every rank the
peak in the flamegraph is max_memory_allocated() to the byte, and the driver memory of NCCL has the
line that caused it. Meanwhile the parts in `memspy devices -p` (PyTorch, outside PyTorch) are
read beside the driver's figure for the process. Also measures the job's speed alone, sampled and
exact.
"""
import json
import os
import pathlib
import subprocess
import tempfile
import time

from harness import FOLDER, JOBS, collapsed, python, run


def add_options(parser):
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12)


def run_job(args, verdicts, words, look=None):
    """One run of the job: its folder, its truths, and what `look` saw meanwhile."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=FOLDER))
    job = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", args.ranks, os.path.join(JOBS, "ranks.py"), folder, args.seconds)
    command = job if words is None else [args.memspy, "record", "-s", *words, "-o", str(folder / "rank-%r.bin"), "--", *job]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        looked = look(folder) if look else None
        code = process.wait(timeout=300)
    how = "alone" if words is None else " ".join(words)
    verdicts.that(f"{how}: the job ends well", code == 0, trouble=(folder / "log").read_text()[-1500:])
    truths = [json.loads((folder / f"truth-{rank}.json").read_text()) for rank in range(args.ranks)]
    return folder, truths, looked


def devices(args, verdicts):
    """Reads `memspy devices` while all ranks train."""
    def look(folder):
        pids = [folder / f"pid-{rank}" for rank in range(args.ranks)]
        end = time.monotonic() + 120
        while not all(pid.exists() for pid in pids) and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(6)
        words = [word for pid in pids for word in ("-p", pid.read_text())]
        done = run(args.memspy, "devices", "--json", *words)
        verdicts.that("devices", done.returncode == 0, trouble=done.stderr)
        return json.loads(done.stdout or "null")
    return look


def check(args, verdicts):
    _, alone, _ = run_job(args, verdicts, None)
    folder, exact, looked = run_job(args, verdicts, ["--exact"], devices(args, verdicts))
    _, sampled, _ = run_job(args, verdicts, ["--follow"])
    pace = lambda truths: max(truth["step_seconds"] for truth in truths)
    figures = verdicts.figures
    figures["step_seconds"] = {"alone": pace(alone), "sampled": pace(sampled), "exact": pace(exact)}
    figures["devices"] = looked
    figures["ranks"] = []
    log = (folder / "log").read_text()
    for truth in exact:
        rank = truth["rank"]
        trace = folder / f"rank-{rank}.bin"
        verdicts.that(f"trace of rank {rank}", trace.exists(), trouble=log[-1500:])
        peak = sum(size for _, size in collapsed(args.memspy, trace, "--gpu", str(rank)))
        verdicts.equal(f"peak of rank {rank}", peak, truth["peak"])
        driver = collapsed(args.memspy, trace, "--memory", "driver")
        physical = collapsed(args.memspy, trace, "--memory", "physical")
        of_nccl = [(stack, size) for stack, size in driver + physical if "make_communicator" in stack]
        nccl = sum(size for _, size in of_nccl)
        verdicts.that(f"NCCL's memory of rank {rank}", nccl > 0, f"{nccl:,} bytes", trouble=driver[:5] + physical[:5])
        figures["ranks"].append({
            **truth, "peak_drawn": peak, "nccl_bytes": nccl, "driver_bytes": sum(size for _, size in driver),
            "physical_bytes": sum(size for _, size in physical), "nccl_stacks": of_nccl[:4],
            "trace_bytes": trace.stat().st_size,
        })
    figures["log"] = log[-3000:]
