"""Owner snapshots: their sums, their cost, and a memspy that is killed during one.

A training job of N GiB or more (GPT-like, AdamW, live activations) runs in its own process; memspy
attaches late. Sums: while the job is paused, categories add up to memory_allocated(); prints the
part with a name or node. Load: snapshots at full speed, none of which may be inconsistent.
Kills: memspy is killed at random moments of a snapshot, and the job continues. Cost: the stop, the
whole command, and the job's iterations per second with snapshots at 1 % of the time.
"""
import json
import os
import random
import statistics
import subprocess
import time

from harness import JOBS, Job, python, run

PARTS = ["parameters", "buffers", "gradients", "optimizer_state", "saved_for_backward", "other_tensors", "in_cpp", "rounding", "in_no_tensor"]


def add_options(parser):
    parser.add_argument("--gib", type=float, default=20)
    parser.add_argument("--looks", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--model", default="50304,2048,12,1024", help="its vocabulary, width, layers and length of texts [%(default)s]")


def look(args, job):
    """A snapshot, or None; and the command that took it."""
    done = run(args.memspy, "tensors", "--json", "-p", job.pid)
    return (json.loads(done.stdout) if done.returncode == 0 else None), done


def check_sums(args, verdicts, job):
    job.say("stand")
    allocated = int(job.answer())
    seen, done = look(args, job)
    if seen is None:
        raise SystemExit(f"no snapshot of the job: {done.stderr}")
    sums = seen["devices"]["cuda:0"]
    total = sum(sums[part] for part in PARTS)
    verdicts.equal("sum of all parts", total, allocated)
    verdicts.equal("blocks", sums["allocated"], allocated)
    print(f"{allocated / 2**30:.1f} GiB:")
    for part in PARTS:
        print(f"    {part:20} {sums[part]:>16,} {100 * sums[part] / allocated:7.3f} %")
    explained = allocated - sums["unnamed"] - sums["in_no_tensor"]
    print(f"with a name, a node or a cause: {100 * explained / allocated:.3f} %")
    print(f"pause {seen['pause_seconds'] * 1e3:.1f} ms for {seen['objects']:,} objects; whole command {done.seconds * 1e3:.0f} ms", flush=True)
    print(run(args.memspy, "tensors", "-p", job.pid, "--limit", "12").stdout)
    print(run(args.memspy, "graph", "-p", job.pid).stdout[:1500], flush=True)


def check_load(args, verdicts, job, kind, looks):
    job.say(f"run {kind}")
    pauses, wrong, refused = [], 0, 0
    for _ in range(looks):
        seen, done = look(args, job)
        if seen is None:
            refused += 1
            print("refused:", done.stderr.strip())
            continue
        sums = seen["devices"]["cuda:0"]
        wrong += sum(sums[part] for part in PARTS) != sums["allocated"]
        pauses.append(seen["pause_seconds"] * 1e3)
    job.say("end")
    rate = float(job.answer())
    stops = f"pause median {statistics.median(pauses):.1f} ms, largest {max(pauses):.1f} ms" if pauses else "none taken"
    verdicts.that(f"{kind}: no look is inconsistent", pauses and not wrong,
                  f"{len(pauses)} looks, {wrong} inconsistent, {refused} refused; {stops}; the job at {rate:.2f} steps/s")


def check_kills(args, verdicts, job):
    job.say("run train")
    killed = 0
    for _ in range(args.kills):
        process = subprocess.Popen([args.memspy, "tensors", "-p", str(job.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(0.005, 0.12))
        if process.poll() is None:
            process.kill()
            killed += 1
        process.wait()
    time.sleep(0.05)
    stopped = []
    for task in os.listdir(f"/proc/{job.pid}/task"):
        with open(f"/proc/{job.pid}/task/{task}/stat") as stat:
            state = stat.read().rsplit(")", 1)[1].split()[0]
        if state in "Tt":
            stopped.append(task)
    job.say("end")
    verdicts.that(f"killed {killed} of {args.kills}: no thread is left standing", not stopped,
                  f"{len(stopped)} left standing; the job at {float(job.answer()):.2f} steps/s")


def measure_cost(args, job):
    rates = {"alone": [], "looks": []}
    for _ in range(3):
        for kind in rates:
            job.say("run train")
            end = time.perf_counter() + 4
            while time.perf_counter() < end:
                seen, done = look(args, job) if kind == "looks" else (None, None)
                # Stopped for at most 1 % of the time.
                time.sleep(max(0, 99 * seen["pause_seconds"] - done.seconds) if seen else 0.1)
            job.say("end")
            rates[kind].append(float(job.answer()))
    alone, looks = (statistics.median(rates[kind]) for kind in ("alone", "looks"))
    print(f"looks at 1 % of the time: x{looks / alone:.3f} of {alone:.2f} steps/s")


def check(args, verdicts):
    job = Job(python(os.path.join(JOBS, "holders.py"), args.gib, *args.model.split(",")))
    check_sums(args, verdicts, job)
    check_load(args, verdicts, job, "train", args.looks)
    check_load(args, verdicts, job, "allocate", args.looks // 2)
    check_kills(args, verdicts, job)
    measure_cost(args, job)
    job.end()
