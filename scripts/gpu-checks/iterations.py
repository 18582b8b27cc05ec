"""Iterations of exact recordings, each with its own peak.

short: iterations of 1 to 2 ms in tests/targets/iterations_truth.py, counted by a local, nested or
global variable and by Adam's counter, and a chain with known intermediate gradients. Compares each
iteration with PyTorch's own peak. Training: a transformer with fused AdamW, whose counter is on the
GPU, counted by its loop's variables. compiled: an owner snapshot of a model run by torch.compile,
with and without CUDA graphs: sums, bytes in graph pools, and how long the job was stopped.
"""
import json
import os
import time

from harness import JOBS, TARGETS, Job, Recording, python, run


def add_options(parser):
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", default="short,compiled")


def recorded(args, job, words, request):
    """The job's output, and its iterations according to memspy."""
    recording = Recording(args.memspy, job.pid, "--exact", *words)
    job.say(request)
    truth = json.loads(job.answer())
    said = recording.stop()
    done = run(args.memspy, "iterations", "--json", recording.trace)
    if done.returncode:
        raise SystemExit(f"{request}: {done.stderr} {said}")
    return truth, json.loads(done.stdout)["iterations"]


def compare(verdicts, name, truth, rows, what="peak_allocated"):
    """The truth maps (epoch, step) to a number."""
    known = {(row["epoch"], row["step"]): row for row in rows if row["steps"] == 1}
    exact = {key: row for key, row in known.items() if row["peak_is_exact"]}
    both = [key for key in truth if key in exact]
    wrong = [(key, exact[key][what], truth[key]) for key in both if exact[key][what] != truth[key]]
    verdicts.that(f"{name:38} {len(truth):5} iterations, {len(both):5} exact, {len(wrong)} wrong", both and not wrong, trouble=wrong[:3])


def short(args, verdicts):
    steps = args.steps
    job = Job(python(os.path.join(TARGETS, "iterations_truth.py")))
    loop = ("--iter-var", "step", "--epoch-var", "epoch")
    number = ("--iter-var", "counted")
    for name, words, request, width in [
        ("local variable, 4 epochs", loop, f"local 4 {steps}", 3), ("nested loops, 4 epochs", loop, f"nested 4 {steps}", 3),
        ("global variable", number, f"named {steps}", 3), ("Adam's counter", ("--owners=5",), f"optimizer {4 * steps}", 3),
        ("intermediate gradients", number, f"backward {steps}", 0),
    ]:
        truth, rows = recorded(args, job, words, request)
        if width:
            compare(verdicts, name, {(epoch, step): peak for epoch, step, peak in truth}, rows)
        else:
            compare(verdicts, name + ": peaks", {(None, step): peak for step, peak, _ in truth}, rows)
            compare(verdicts, name, {(None, step): held for step, _, held in truth}, rows, "intermediate_gradients")
    job.end()
    job = Job(python(os.path.join(JOBS, "iterations.py"), TARGETS))
    begin = time.monotonic()
    truth, rows = recorded(args, job, ("--iter-var", "train:step", "--epoch-var", "epoch"), f"train 5 {steps}")
    rate = 5 * steps / (time.monotonic() - begin)
    compare(verdicts, f"training, at least {rate:.0f} steps/s", {(epoch, step): peak for epoch, step, peak in truth}, rows)
    job.end()


def compiled(args, verdicts):
    for backend in ("aot_eager", "cudagraphs"):
        job = Job(python(os.path.join(TARGETS, "compiled.py"), backend))
        truth = json.loads(job.said[-1])
        done = run(args.memspy, "tensors", "-p", job.pid, "--json")
        look = json.loads(done.stdout)
        sums = look["devices"]["cuda:0"]
        verdicts.equal(f"{backend}: kept by the graph", look["saved_for_backward"]["all"], truth["graph"]["bytes"])
        verdicts.equal(f"{backend}: in pools", sums["in_graph_pools"], truth["in_pools"])
        print(f"     elsewhere {sums['elsewhere']}; {done.stderr.strip()}", flush=True)
        job.end()


def check(args, verdicts):
    if "short" in args.only:
        short(args, verdicts)
    if "compiled" in args.only:
        compiled(args, verdicts)
