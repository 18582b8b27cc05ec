"""All ranks of an FSDP2 training, recorded together: figures, costs, a killed rank, a full one.

torchrun starts jobs/fsdp.py once for each GPU: FSDP2 over a decoder of 7.5 billion parameters, or of
the given size. With the training's first steps: `record -s`. The counters and peaks of all ranks equal
PyTorch's own, NCCL's memory has its line, the rank that keeps outputs is named by `lines --merge`,
`summary -s` and `top -s`, and the page of all ranks has at most 20 MB. Then one rank is killed, and one has no memory
left: the reports name it. With --rounds, also the speed: windows without memspy, with the default and with
--exact, in shuffled order, and the stops of `summary -s`.
"""
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

from harness import FOLDER, JOBS, collapsed, python, run

MB = 1000 * 1000


def add_options(parser):
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--job", default="", metavar="WORDS", help="options of jobs/fsdp.py, as --job='--layers 2 --width 256'")
    parser.add_argument("--seconds", type=float, default=8, help="of training for each recording")
    parser.add_argument("--rounds", type=int, default=0, help="of windows that measure what memspy costs")
    parser.add_argument("--looks", type=int, default=0, help="by summary -s, for the stops")
    parser.add_argument("--parts", default="record,live,killed,full", help="which to run")
    parser.add_argument("-o", "--output", help="folder for what was printed, and for the page of all ranks")


class Ranks:
    """The running job, with or without memspy before it."""

    def __init__(self, args, *words, memspy=None):
        self.args, self.folder = args, pathlib.Path(tempfile.mkdtemp(dir=FOLDER))
        job = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", args.ranks,
                     os.path.join(JOBS, "fsdp.py"), self.folder, *args.job.split(), *words)
        self.traces = [self.folder / f"rank-{rank}.bin" for rank in range(args.ranks)]
        if memspy is not None:
            job = [args.memspy, "record", "-s", *memspy, "-o", str(self.folder / "rank-%r.bin"), "--", *job]
        self.log = self.folder / "log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(job, stdout=log, stderr=log)

    def wait_for(self, name, seconds=240):
        files = [self.folder / name.replace("RANK", str(rank)) for rank in range(self.args.ranks)]
        end = time.monotonic() + seconds
        while not all(file.exists() for file in files):
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit(f"the job shows no {name}: {self.log.read_text()[-3000:]}")
            time.sleep(0.1)

    def pids(self):
        self.wait_for("pid-RANK")
        return [int((self.folder / f"pid-{rank}").read_text()) for rank in range(self.args.ranks)]

    def wait_for_probes(self, seconds=60):
        """Until all ranks are recorded exactly; with few processors that takes a second a rank."""
        end = time.monotonic() + seconds
        while self.log.read_text().count("probes are in place") < self.args.ranks and time.monotonic() < end:
            time.sleep(0.2)

    def truths(self):
        """Ends the training; all ranks stand still until `let_go`."""
        (self.folder / "end").touch()
        self.wait_for("truth-RANK.json")
        return [json.loads((self.folder / f"truth-{rank}.json").read_text()) for rank in range(self.args.ranks)]

    def let_go(self):
        (self.folder / "seen").touch()
        return self.ended()

    def ended(self, seconds=180):
        code = self.process.wait(timeout=seconds)
        return code, self.log.read_text()


def keep(args, name, text):
    if args.output:
        folder = pathlib.Path(args.output)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def counters(verdicts, args, ranks, truths):
    """What `devices` reads of each rank, which stands still, beside PyTorch's own figures."""
    words = [word for pid in ranks.pids() for word in ("-p", str(pid))]
    done = run(args.memspy, "devices", "--json", *words)
    verdicts.that("devices", done.returncode == 0, trouble=done.stderr)
    keep(args, "devices.json", done.stdout)
    processes = {process["pid"]: process for process in json.loads(done.stdout)["processes"]}
    for truth in truths:
        devices = processes[truth["pid"]]["devices"]
        for name in ("allocated", "reserved"):
            verdicts.equal(f"{name} of rank {truth['rank']}", sum(device[name] or 0 for device in devices), truth[name])


def recorded(args, verdicts):
    """From the first step on, with one rank that keeps outputs."""
    odd = args.ranks - 1
    ranks = Ranks(args, "--odd", odd, memspy=[])
    ranks.pids()
    ranks.wait_for_probes()
    time.sleep(args.seconds)
    truths = ranks.truths()
    counters(verdicts, args, ranks, truths)
    code, log = ranks.let_go()
    keep(args, "record.txt", log)
    verdicts.that("the job under record -s ends well", code == 0, trouble=log[-1500:])
    figures = verdicts.figures["recorded"] = {"parameters": truths[0]["parameters"], "ranks": []}
    for truth, trace in zip(truths, ranks.traces):
        rank = truth["rank"]
        verdicts.that(f"trace of rank {rank}", trace.exists(), trouble=log[-1500:])
        lines = json.loads(run(args.memspy, "lines", "--json", trace, "--gpu", rank).stdout)
        verdicts.equal(f"peak of rank {rank}", lines["peak_allocated"]["bytes"], truth["peak"])
        drawn = sum(size for _, size in collapsed(args.memspy, trace, "--gpu", str(rank)))
        # PyTorch's own segments are cudaMalloc's.
        physical = collapsed(args.memspy, trace, "--memory", "physical")
        nccl = sum(size for _, size in physical)
        figures["ranks"].append({"rank": rank, "peak": truth["peak"], "drawn": drawn, "nccl_bytes": nccl,
                                 "trace_bytes": trace.stat().st_size, "steps": len(truth["steps"])})
        is_simulated = "SIM_CUDA_STATE" in os.environ  # where NCCL takes its memory otherwise
        verdicts.that(f"NCCL's memory of rank {rank}", nccl > 0 or is_simulated, f"{nccl:,} bytes", trouble=physical[:5])
    verdicts.that("record -s names the rank with the highest peak", f"(rank {odd} (" in log.split("peak allocated: greatest")[-1].split(",")[0], trouble=log[-800:])
    merged = run(args.memspy, "lines", "--merge", "--limit", "8", *ranks.traces)
    keep(args, "lines-merge.txt", merged.stdout)
    greatest = re.search(r"greatest [^,]*\(rank (\d+)\)", merged.stdout)
    verdicts.that("lines --merge names it", greatest and int(greatest[1]) == odd, greatest and greatest[0], trouble=merged.stderr + merged.stdout[:500])
    page = pathlib.Path(args.output or ranks.folder) / "ranks.html"
    done = run(args.memspy, "report", *ranks.traces, "-o", page, "--force")
    size = page.stat().st_size if page.exists() else 0
    verdicts.that("the page of all ranks has at most 20 MB", 0 < size <= 20 * MB, f"{size:,} bytes in {done.seconds:.1f} s", trouble=done.stderr)
    figures |= {"page_bytes": size, "page_seconds": done.seconds}


def screen(args, pid):
    """`top -s` on a terminal of 120x40, after some seconds."""
    if not shutil.which("tmux"):
        return None
    tmux = ["tmux", "-L", f"memspy-fsdp-{pid}"]
    subprocess.run([*tmux, "new-session", "-d", "-x", "120", "-y", "40", f"{args.memspy} top -s -p {pid}"], check=True)
    time.sleep(4 + args.ranks)
    shown = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True).stdout
    subprocess.run([*tmux, "kill-server"])
    return shown


def stops(text):
    """The longest stop of each rank in a `summary`, in milliseconds."""
    found = re.findall(r"was stopped .*?([\d.]+) (ms|s)(?: at most)?$", text, re.MULTILINE)
    return [float(number) * (1000 if unit == "s" else 1) for number, unit in found]


def live(args, verdicts):
    """The running job: `summary -s`, `top -s`, and what memspy costs."""
    odd = args.ranks - 1
    ranks = Ranks(args, "--odd", odd)
    ranks.pids()
    time.sleep(3)
    summary = run(args.memspy, "summary", "-s", "-p", ranks.process.pid)
    keep(args, "summary.txt", summary.stdout)
    first = (summary.stdout.splitlines() or [""])[0]
    verdicts.that("summary -s names the odd rank first", first.startswith(f"rank {odd} (process ") and " holds " in first, first, trouble=summary.stderr)
    shown = screen(args, ranks.process.pid)
    if shown is None:
        print("top -s: left out, there is no tmux")
    else:
        keep(args, "top.txt", shown)
        rows = [line for line in shown.splitlines() if re.match(r"\s*\d+ +\d+ ", line)]
        wide = max(map(len, shown.splitlines()), default=0)
        verdicts.that("top -s has a row for each rank", len(rows) == args.ranks and wide <= 120, trouble=shown)
    found = []
    for _ in range(args.looks):
        look = run(args.memspy, "summary", "-s", "-p", ranks.process.pid)
        found += stops(look.stdout)
    if args.looks:
        found.sort()
        verdicts.figures["stops_ms"] = {"count": len(found), "median": statistics.median(found), "most": found[-1]}
        print("stops:", verdicts.figures["stops_ms"], flush=True)
    windows = cost(args, ranks) if args.rounds else []
    truths = ranks.truths()
    code, log = ranks.let_go()
    verdicts.that("the job ends well", code == 0, trouble=log[-1500:])
    if windows:
        verdicts.figures["cost"] = paces(windows, truths[0]["steps"])
        print("cost:", json.dumps(verdicts.figures["cost"]), flush=True)


def cost(args, ranks):
    """(what ran, from, to) in shuffled order: no memspy, the default, --exact."""
    windows, random_ = [], random.Random(1)
    for _ in range(args.rounds):
        kinds = ["nothing", "default", "exact"]
        random_.shuffle(kinds)
        for kind in kinds:
            with contextlib.ExitStack() as stack:
                if kind != "nothing":
                    words = ["--exact"] if kind == "exact" else []
                    command = [args.memspy, "record", "-s", *words, "-p", str(ranks.process.pid), "--force", "-o", str(ranks.folder / f"{kind}-%r.bin")]
                    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
                    stack.callback(process.wait)
                    stack.callback(process.send_signal, signal.SIGINT)
                    time.sleep(3)  # attaching, and auto's choice
                began = time.time()
                time.sleep(args.seconds)
                windows.append((kind, began, time.time()))
            time.sleep(0.5)
    return windows


def paces(windows, steps):
    """The median step of each kind of window, and the share by which it is longer than with nothing."""
    medians = {}
    for kind, began, ended in windows:
        inside = [seconds for start, seconds in steps if began <= start and start + seconds <= ended]
        if inside:
            medians.setdefault(kind, []).append(statistics.median(inside))
    found = {kind: {"step_seconds": statistics.median(values), "windows": len(values)} for kind, values in medians.items()}
    for kind in ("default", "exact"):
        pairs = [ours / nothing - 1 for ours, nothing in zip(medians.get(kind, []), medians.get("nothing", []))]
        if pairs:
            found[kind]["slower_percent"] = {"median": 100 * statistics.median(pairs), "least": 100 * min(pairs), "most": 100 * max(pairs)}
    return found


def killed(args, verdicts):
    """One rank is killed in the fifth step. All traces can be read, and memspy says which rank ended first."""
    ranks = Ranks(args, "--dies", 1, memspy=[])
    code, log = ranks.ended()
    keep(args, "killed.txt", log)
    verdicts.that("the job with a killed rank fails", code != 0)
    for rank, trace in enumerate(ranks.traces):
        done = run(args.memspy, "lines", trace)
        verdicts.that(f"the trace of rank {rank} can be read", done.returncode == 0, trouble=done.stderr)
    first = re.search(r"rank (\d+) \(process \d+\) ended first, .*", log)
    verdicts.that("record -s tells that rank 1 ended first", first and first[1] == "1", first and first[0], trouble=log[-2500:])


def full(args, verdicts):
    """One rank asks for more than the card has: the report names the rank, the line and the request."""
    last = args.ranks - 1
    ranks = Ranks(args, "--full", last, memspy=["--keep", "120s", "--until", "oom"])
    code, log = ranks.ended()
    keep(args, "full.txt", log)
    verdicts.that("the job with a full rank fails", code != 0)
    verdicts.that("record -s names the rank", re.search(rf"rank {last} \(process \d+\).*oom", log), trouble=log[-2500:])
    done = run(args.memspy, "oom-report", ranks.traces[last])
    keep(args, "oom-report.txt", done.stdout)
    for what, pattern in (("request", r"1\.00 TiB|1,024\.00 GiB|1024\.00 GiB"), ("line", r"load_long_batch")):
        verdicts.that(f"oom-report names the {what}", re.search(pattern, done.stdout), trouble=done.stderr + done.stdout[:1500])


def check(args, verdicts):
    parts = {"record": recorded, "live": live, "killed": killed, "full": full}
    for name in args.parts.split(","):
        started = time.monotonic()
        parts[name](args, verdicts)
        print(f"-- {name}: {time.monotonic() - started:.0f} s", flush=True)
