#!/usr/bin/env python3
"""Records the traces of tests/corpus, each with PyTorch's own history as the truth.

    scripts/record-corpus.py MEMSPY --out FOLDER --machine h200 [--only NAME,NAME] [--prefix fresh-]
    scripts/with-sim scripts/record-corpus.py MEMSPY --out FOLDER --machine simulated
        --env target/envs/torch-2.11

The first form runs on a machine with a GPU and 16 or more processors, the second on the simulated
device. Both need root: recordings "as a user" drop their rights, and all run in their own mount and
host namespaces, so that paths and names in a trace belong to no machine. Each recording is a
process of its own; those on two processors run in parallel if there are enough.
`cargo test --test score` judges the result (tests/corpus/README.md).
"""
import argparse
import collections
import concurrent.futures
import ctypes
import gzip
import json
import os
import queue
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PLACE = "/tmp/memspy-corpus"  # What runs lies there, so traces have no other path of the program.
USER = 65534
PR_SET_PTRACER, ANY = 0x59616D61, -1

# One recording per line. `mode`: arguments of 'memspy record'; it follows without any. `after`:
# seconds after the job's start, 0: from the start.
Plan = collections.namedtuple("Plan", "name machine job processors load user after seconds mode")


def plans():
    table = """
trainer-start       h200 trainer                16 quiet  root 0 1   --cpu 200
lora                h200 trainer,_LoRA          16 quiet  root 3 0.7   --cpu 200
lightning           h200 lightning_and_timm     16 quiet  user 3 2   --cpu 200
generate            h200 generate               16 quiet  root 2 0.4   --cpu 200
transformer         h200 transformer            16 quiet  user 2 0.9  --cpu 200
detection           h200 detection              16 quiet  root 3 1.3   --cpu 200
compiled            h200 compiled               16 quiet  root 20 1.2 --cpu 200
texts               h200 texts_of_all_lengths   16 quiet  root 3 4   --cpu 200
accumulation-100    h200 accumulation           16 quiet  user 2 1.1 --cpu 100
two-optimizers-25   h200 two_optimizers         16 quiet  root 2 2.6  --cpu 25
trainer-loaded      h200 trainer                16 loaded root 3 2   --cpu 200
transformer-loaded  h200 transformer            16 loaded user 2 1.5 --cpu 200
mixed-precision     h200 mixed_precision        16 quiet  user 3 0.6   --cpu 200
server-a            h200 server                 16 quiet  root 2 0.45 --cpu 200
server-b            h200 server                 16 quiet  user 3 0.45 --cpu 200
server-c            h200 server                 16 quiet  root 4 0.45 --cpu 100
server-d            h200 server                 16 quiet  user 2 0.45 --cpu 100
loader-a            h200 loader                 16 quiet  user 2 0.65 --cpu 200
loader-b            h200 loader                 16 quiet  root 3 0.65 --cpu 200
loader-c            h200 loader                 16 quiet  user 4 0.65 --cpu 100
transformer-exact   h200 transformer            16 quiet  root 2 1   --exact
server-exact        h200 server                 16 quiet  root 2 0.5   --exact
trainer-200hz       h200 trainer                16 quiet  root 3 3   -r 200
conv-net-200hz      h200 conv_net               16 quiet  user 2 3   -r 200
trainer-two         h200 trainer                2  quiet  root 3 3   --cpu 10
transformer-two     h200 transformer            2  quiet  user 2 2   --cpu 25
accumulation-two    h200 accumulation           2  quiet  root 2 2   --cpu 100
lightning-two       h200 lightning_and_timm     2  loaded user 4 3   --cpu 10
mixed-two           h200 mixed_precision        2  loaded root 4 3   --cpu 25
conv-net-two        h200 conv_net               2  loaded root 2 4   --cpu 200
trainer-two-200hz   h200 trainer                2  loaded user 4 3   -r 200
server-two-a        h200 server                 2  quiet  user 2 0.8   --cpu 25
server-two-b        h200 server                 2  quiet  root 3 0.8   --cpu 100
server-two-loaded   h200 server                 2  loaded root 2 1.2   --cpu 10
loader-two          h200 loader                 2  quiet  user 2 4   --cpu 10
conv-net-sim        simulated conv_net          2  quiet  root 3 2   --cpu 25
loader-sim          simulated loader            2  quiet  user 3 1.6   --cpu 100
server-sim          simulated server            2  loaded root 3 1.2   --cpu 25
lstm-sim-200hz      simulated lstm              2  loaded user 3 3   -r 200
transformer-exact-sim simulated transformer     2  loaded root 3 1   --exact
"""
    for line in table.strip().splitlines():
        name, machine, job, processors, load, user, after, seconds, *mode = line.split()
        yield Plan(name, machine, job.replace("_", " "), int(processors), load, user, float(after), float(seconds), mode)


def table_of(stacks, frames):
    """Stacks as lists of frame numbers, with their bytes."""
    return [[[frames.setdefault(frame, len(frames)) for frame in stack if isinstance(frame, tuple)], mark(stack), size]
            for stack, size in stacks.items() if size]


def mark(stack):
    """The label of a stack that Python does not know."""
    return next((frame for frame in stack if not isinstance(frame, tuple)), None)


def record_here(plan, out):
    """Inside the job: records, and saves the trace and the truth."""
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(ANY), 0, 0, 0)  # the job starts the memspy that reads it
    import torch
    import torch._dynamo  # an import during the recording would fill most of the trace
    if "trainer" in plan.job:
        from transformers import LlamaForCausalLM, Trainer
    from attribution import jobs, recording
    torch.zeros(1, device="cuda")
    job = jobs.JOBS[plan.job]
    beside = recording.BesideHistory(f"{PLACE}/memspy", plan.mode, job, 4, plan.after, plan.seconds)
    frames = {}
    truth = {
        "job": plan.job, "machine": plan.machine, "processors": plan.processors, "load": plan.load, "user": plan.user,
        "start": "attached" if plan.after else "start", "words": plan.mode,
        "threads": plan.job if plan.job in ("server", "loader") else "one",
        "torch": torch.__version__, "python": sys.version.split()[0],
        "live": table_of(beside.live, frames), "every": table_of(beside.every, frames),
        "peaks": [table_of(peak, frames) for peak in beside.peaks],
    }
    truth["frames"] = [list(frame) for frame in frames]
    shutil.copy(beside.recording.trace, f"{out}/{plan.name}.bin")
    with gzip.GzipFile(f"{out}/{plan.name}.truth.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps(truth, separators=(",", ":")).encode())
    size = os.path.getsize(f"{out}/{plan.name}.bin")
    print(f"{plan.name}: {size >> 10} KiB, truth {os.path.getsize(f'{out}/{plan.name}.truth.json.gz') >> 10} KiB, "
          f"{sum(size for *_, size in truth['every']) / 1e9:.2f} GB in {len(truth['every'])} stacks; "
          f"{beside.recording.followed()}", flush=True)


def start(plan, args, processors):
    """Starts one recording on these processors, with background load."""
    command = [sys.executable, f"{PLACE}/record-corpus.py", "--one", plan.name, "--out", args.out, "--prefix", args.prefix]
    if plan.user == "user":
        command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", *command]
    on_these = lambda: os.sched_setaffinity(0, processors)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: sorted(range(50_000), key=lambda n: -n)"], preexec_fn=on_these)
            for _ in range(len(processors) if plan.load == "loaded" else 0)]
    environment = {**os.environ, "HOME": "/tmp", "USER": plan.user, "PYTHONDONTWRITEBYTECODE": "1",
                   "TORCHINDUCTOR_CACHE_DIR": f"{PLACE}/torchinductor_{plan.user}", "SIM_CUDA_STATE": f"{PLACE}/card-{plan.name}"}
    try:
        done = subprocess.run(command, preexec_fn=on_these, cwd=PLACE, env=environment, timeout=180, capture_output=True, text=True)
        lines = (done.stdout + done.stderr).strip().splitlines()
        print("\n".join(lines if done.returncode else lines[-1:]), flush=True)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        print(f"{plan.name}: not done after 180 s", flush=True)
        return False
    finally:
        for process in busy:
            process.kill()
            process.wait()


def record_all(args):
    chosen = [plan for plan in plans() if plan.machine == args.machine and (not args.only or plan.name in args.only.split(","))]
    mine = sorted(os.sched_getaffinity(0))
    failed = []
    pairs = [set(mine[i:i + 2]) for i in range(0, len(mine) - 1, 2)]
    alone = [plan for plan in chosen if plan.processors > 2 or len(pairs) < 4]
    for plan in alone:
        if not start(plan, args, set(mine[:plan.processors])):
            failed.append(plan.name)
    # Every second pair, so that the GPU driver's work has its own processors.
    free = queue.Queue()
    for pair in pairs[::2]:
        free.put(pair)

    def on_a_pair(plan):
        pair = free.get()
        try:
            return start(plan, args, pair)
        finally:
            free.put(pair)

    beside = [plan for plan in chosen if plan not in alone]
    with concurrent.futures.ThreadPoolExecutor(free.qsize()) as pool:
        failed += [plan.name for plan, done in zip(beside, pool.map(on_a_pair, beside)) if not done]
    if failed:
        raise SystemExit("not recorded: " + ", ".join(failed))


def enter_namespaces(args):
    """Restarts itself where paths and the host name say nothing about this machine."""
    shutil.rmtree(PLACE, ignore_errors=True)
    shutil.copytree(f"{HERE}/gpu-checks/attribution", f"{PLACE}/attribution", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(f"{HERE}/gpu-checks/harness.py", PLACE)
    shutil.copy(__file__, f"{PLACE}/record-corpus.py")
    shutil.copy(args.memspy, f"{PLACE}/memspy")
    os.makedirs(args.out, exist_ok=True)
    os.chmod(args.out, 0o777)
    os.chmod(PLACE, 0o777)
    inside = ["hostname recorded"]
    python = sys.executable
    if args.env:
        real = os.path.realpath(f"{args.env}/bin/python")
        base = os.path.dirname(os.path.dirname(real))
        version = os.path.basename(real).removeprefix("python")
        inside += ["mkdir -p /opt/python /opt/torch", f"mount --bind {base} /opt/python", f"mount --bind {os.path.abspath(args.env)} /opt/torch",
                   f"export PYTHONPATH=/opt/torch/lib/python{version}/site-packages"]
        python = f"/opt/python/bin/python{version}"
    again = [python, f"{PLACE}/record-corpus.py", args.memspy, "--out", os.path.abspath(args.out), "--machine", args.machine, "--inside",
             "--only", args.only, "--prefix", args.prefix]
    os.execvp("unshare", ["unshare", "--mount", "--uts", "sh", "-ec", "; ".join([*inside, 'exec "$@"']), "sh", *again])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy", nargs="?")
    parser.add_argument("--out", required=True, help="the folder for traces and truths")
    parser.add_argument("--machine", choices=["h200", "simulated"])
    parser.add_argument("--only", default="", help="names of recordings, with commas")
    parser.add_argument("--env", help="the environment of the simulated device's PyTorch")
    parser.add_argument("--prefix", default="", help="before each name: for recordings beside those of the set")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        plan = next(plan for plan in plans() if plan.name == args.one)
        return record_here(plan._replace(name=args.prefix + plan.name), args.out)
    if not args.inside:
        return enter_namespaces(args)
    began = time.monotonic()
    record_all(args)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
