"""Checks a recording of all ranks on a machine with two or more real GPUs and NCCL. Needs no Rust.

    python scripts/check-ranks-on-gpu.py MEMSPY [--ranks N] [-o FILE]

torchrun starts a data-parallel training (NCCL) under `memspy record -s --exact`. For every rank the
peak in the flamegraph is max_memory_allocated() to the byte, every allocation was seen, and the
driver memory of NCCL has the line that caused it. Meanwhile the parts in `memspy devices -p`
(PyTorch, outside PyTorch) are compared with the driver's figure for the process. Also measures the
job's speed alone, sampled and exact. Prints JSON; exit code 1 if a check failed.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

JOB = r'''
import json, os, pathlib, sys, time
import torch, torch.distributed as dist
folder, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)

def make_communicator():
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    dist.barrier()

make_communicator()
layers = [torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.GELU(), torch.nn.Linear(8192, 2048)) for _ in range(12)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
optimizer = torch.optim.AdamW(model.parameters())
(folder / f"pid-{rank}").write_text(str(os.getpid()))
begin, steps, pace = time.monotonic(), 0, []
while True:
    now = time.monotonic()
    model(torch.randn(1024, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    pace.append(time.monotonic() - now)
    steps += 1
    over = torch.tensor(float(time.monotonic() - begin > seconds), device="cuda")
    dist.all_reduce(over)
    if over.item():
        break
stats = torch.cuda.memory_stats()
truth = {"rank": rank, "pid": os.getpid(), "steps": steps, "step_seconds": sorted(pace)[len(pace) // 2],
         "peak": torch.cuda.max_memory_allocated(), "allocations": stats["allocation.all.allocated"],
         "segments": stats["segment.all.allocated"]}
(folder / f"truth-{rank}.json").write_text(json.dumps(truth))
dist.barrier()
dist.destroy_process_group()
'''

failed = []


def check(what, holds, told):
    if not holds:
        failed.append(f"{what}: {told}")


def run(memspy, ranks, seconds, words, look=None):
    """One run of the job: its truths, and the files that memspy wrote."""
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "job.py").write_text(JOB)
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    job += [str(folder / "job.py"), str(folder), str(seconds)]
    command = job if words is None else [memspy, "record", "-s", *words, "-o", str(folder / "rank-%r.bin"), "--", *job]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        looked = look(folder) if look else None
        code = process.wait(timeout=300)
    check("the job ends well", code == 0, (folder / "log").read_text()[-1500:])
    truths = [json.loads((folder / f"truth-{rank}.json").read_text()) for rank in range(ranks)]
    return folder, truths, looked


def collapsed(memspy, trace, *words):
    out = subprocess.run([memspy, "flame", str(trace), "-f", "collapsed", "-o", "-", *words], capture_output=True, text=True)
    if "no allocation of this kind" in out.stderr:
        return []
    check(f"flame {' '.join(words)}", out.returncode == 0, out.stderr)
    split = [line.rsplit(" ", 1) for line in out.stdout.splitlines()]
    return [(stack, int(size)) for stack, size in split]


def devices(memspy, ranks):
    """Reads `memspy devices` while all ranks train."""
    def look(folder):
        pids = [folder / f"pid-{rank}" for rank in range(ranks)]
        end = time.monotonic() + 120
        while not all(pid.exists() for pid in pids) and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(6)
        words = [word for pid in pids for word in ("-p", pid.read_text())]
        out = subprocess.run([memspy, "devices", "--json", *words], capture_output=True, text=True)
        check("devices", out.returncode == 0, out.stderr)
        return json.loads(out.stdout or "null")
    return look


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    arguments = parser.parse_args()
    memspy, ranks = os.path.abspath(arguments.memspy), arguments.ranks
    figures = {}
    _, alone, _ = run(memspy, ranks, arguments.seconds, None)
    folder, exact, looked = run(memspy, ranks, arguments.seconds, ["--exact"], devices(memspy, ranks))
    _, sampled, _ = run(memspy, ranks, arguments.seconds, ["--follow"])
    pace = lambda truths: max(truth["step_seconds"] for truth in truths)
    figures["step_seconds"] = {"alone": pace(alone), "sampled": pace(sampled), "exact": pace(exact)}
    figures["devices"] = looked
    figures["ranks"] = []
    for truth in exact:
        rank = truth["rank"]
        trace = folder / f"rank-{rank}.bin"
        check("its trace", trace.exists(), (folder / "log").read_text()[-1500:])
        peak = sum(size for _, size in collapsed(memspy, trace, "--gpu", str(rank)))
        check(f"peak of rank {rank}", peak == truth["peak"], f"{peak} for {truth['peak']}")
        driver = collapsed(memspy, trace, "--memory", "driver")
        physical = collapsed(memspy, trace, "--memory", "physical")
        of_nccl = [(stack, size) for stack, size in driver + physical if "make_communicator" in stack]
        nccl = sum(size for _, size in of_nccl)
        check(f"NCCL's memory of rank {rank}", nccl > 0, driver[:5] + physical[:5])
        figures["ranks"].append({
            **truth, "peak_drawn": peak, "nccl_bytes": nccl, "driver_bytes": sum(size for _, size in driver),
            "physical_bytes": sum(size for _, size in physical), "nccl_stacks": of_nccl[:4],
            "trace_bytes": trace.stat().st_size,
        })
    figures["log"] = (folder / "log").read_text()[-3000:]
    figures["failed"] = failed
    text = json.dumps(figures, indent=1)
    print(text)
    if arguments.output:
        arguments.output.write_text(text)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
