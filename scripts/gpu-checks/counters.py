"""Counters, blocks and the peak of a recording against PyTorch's own figures.

1. At rest: every counter and every block of several allocator states.
2. A training job recorded from outside: the peak to the byte; leaves flamegraph and tables in
   the folder of --out.
For the cost of a recording see benches/overhead.py.
"""
import json
import os
import re

from harness import ROOT, TARGETS, Job, python, run


def add_options(parser):
    parser.add_argument("--out", metavar="FOLDER", default=os.path.join(ROOT, "target/gpu-checks"))
    parser.add_argument("--seconds", type=float, default=20, help="of the recording")
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--modes", default="plain,expandable,graph_pool,streams,init_only")
    parser.add_argument("--job", type=str.split, default=[], help="more arguments for tests/targets/train.py: '--layers 12 --width 1024'")


def same_counters(found, truth):
    """Keys of torch.cuda.memory_stats that memspy lacks or reports differently."""
    ignored = {"max_split_size", "active.compressed"}
    return {key: (found.get(key), value) for key, value in truth.items()
            if key not in ignored and found.get(key) != value}


def flat(segments):
    """Segments and blocks as comparable tuples."""
    result = []
    for s in sorted(segments, key=lambda s: s["address"]):
        blocks = [(b["address"], b["size"], b["state"], 0 if b["state"] == "inactive" else b["requested_size"])
                  for b in s["blocks"]]
        result.append((s["address"], s["total_size"], s["stream"], s["segment_type"],
                       tuple(s.get("segment_pool_id", (0, 0))), bool(s.get("is_expandable", False)), tuple(blocks)))
    return result


def standing_still(args, verdicts, mode):
    target = Job(python(os.path.join(TARGETS, "allocator_truth.py"), mode))
    truths = target.said
    for turn in ("first", "again"):
        if turn == "again":
            target.say("again")
            truths = target.until()
        truth = json.loads(truths[-1])
        done = run(args.memspy, "dump", "--json", "-p", target.pid)
        if done.returncode != 0:
            verdicts.that(f"{mode} {turn}", False, done.stderr.strip())
            break
        devices = {d["cuda_index"]: d for d in json.loads(done.stdout)["devices"]}
        for of in truth["devices"]:
            found = devices.get(of["device"], {})
            name = f"{mode} {turn} GPU {of['device']}"
            wrong = same_counters(found.get("memory_stats") or {}, of["stats"])
            verdicts.that(f"{name}: {len(of['stats'])} counters equal", not wrong, trouble=wrong)
            if of.get("snapshot") is None:
                continue
            mine, theirs = flat(found.get("segments") or []), flat(of["snapshot"])
            count = sum(len(s[-1]) for s in theirs)
            verdicts.that(f"{name}: {len(theirs)} segments, {count} blocks equal", mine == theirs,
                          trouble=f"{[m for m in mine if m not in theirs][:2]} / {[t for t in theirs if t not in mine][:2]}")
            driver = of["total"] - of["free"]
            if found.get("used"):
                print(f"     GPU {of['device']}: cudaMemGetInfo used {driver:,}; NVML used {found['used']:,}, reserved by "
                      f"PyTorch {found['reserved']:,}, outside PyTorch {found['outside_pytorch']}")
        print(f"     dump took {done.seconds * 1000:.0f} ms")
    target.end()


def training(args, verdicts):
    trace, lines = os.path.join(args.out, "trace.bin"), os.path.join(args.out, "lines.json")
    job = Job(python(os.path.join(TARGETS, "train.py"), "--seconds", args.seconds + 12, "--device", "cuda", *args.job), ready="step     1 ")
    done = run(args.memspy, "record", "-p", job.pid, "-d", args.seconds, "-r", args.rate, "-o", trace, "--force")
    print(done.stderr)
    verdicts.that(f"record {args.seconds:g} s", done.returncode == 0)
    done = run(args.memspy, "dump", "-p", job.pid)
    print(done.stdout)
    verdicts.that("dump of the running job", done.returncode == 0, f"{done.seconds * 1000:.0f} ms")
    print(run(args.memspy, "doctor", "-p", job.pid).stdout)
    said = job.process.stdout.read()
    job.end()
    for words, name in ((["flame", trace], "flame.svg"), (["flame", trace, "-f", "collapsed"], "flame.txt"),
                        (["lines", trace], "lines.txt"), (["lines", trace, "--json"], "lines.json")):
        done = run(args.memspy, *words, "-o", os.path.join(args.out, name), "--force")
        verdicts.that(name, done.returncode == 0, f"{done.seconds * 1000:.0f} ms {done.stderr.strip()}")
    with open(lines, encoding="utf-8") as file:
        found = json.load(file)
    for key, ours in (("max_memory_allocated", "peak_allocated"), ("max_memory_reserved", "peak_reserved")):
        verdicts.equal(key, found[ours]["bytes"], int(re.search(rf"{key} (\d+)", said).group(1)))


def check(args, verdicts):
    os.makedirs(args.out, exist_ok=True)
    for mode in args.modes.split(","):
        standing_still(args, verdicts, mode)
    training(args, verdicts)
