"""What a recording costs a job on a GPU: the job's steps while memspy runs and while it is stopped, in turns of a tenth of a second.

    python benches/following_cost.py MEMSPY [--job transformer] [--rounds 2] [--seconds 9] [--whole | --pairs] [OPTIONS ...]
    python benches/following_cost.py MEMSPY --rates [--rounds 5] [--seconds 10] [OPTIONS]

OPTIONS are those of `memspy record`, one argument for each kind of recording: '--cpu 200' '-r 200'. 'nothing' and 'spin' (two processes that only
use a processor each) are there to compare with. memspy is stopped and continued by signals, so that what a machine does to both sides is the same;
one round of windows of seconds, each with a recording of its own, cannot tell 3 % from nothing. With --whole each round is one recording, from memspy's start
to its end, against the seconds around it: what attaching and learning cost is in it. With --pairs each round is such a recording and as many seconds of
nothing, in random order; what nothing is by the nothing of the round before is the noise. Beside each is what memspy itself said. The jobs are those of scripts/gpu-checks/attribution/jobs.py.

With --rates the job is a 12-layer transformer with so much other work on its thread that it makes about 5,000, 15,000 and 46,000 allocations a second,
and rounds are pairs. It prints what the job lost in each pair, the mean with its 90 % interval, and memspy's own figure. Five rounds take under six minutes.
"""
import argparse
import bisect
import collections
import mmap
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KEPT = 1 << 16
# Polls keep the budget from the first second (src/sampler/follow/slices.rs); what they cost from now on is measured.
SETTLES = 6.0
WINDOW = 0.1
# The first milliseconds after a signal belong to neither side.
EDGE = 0.003
# A whole recording is compared with so many seconds before it and after it.
AROUND = 3.0
# Between two windows of a pair.
PAUSE = 0.3
RATES = [5_000, 15_000, 46_000]
# 95 % of Student's distribution lie below, for 1, 2 ... degrees of freedom; then the normal distribution's.
STUDENT = [6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76, 1.75]


class Steps:
    """The times of a job's steps, in a file that both processes have mapped."""

    def __init__(self, path):
        with open(path, "r+b") as file:
            self.page = mmap.mmap(file.fileno(), 8 + 8 * KEPT)

    def forward_done(self):
        count = self.count()
        self.page[self.place(count)] = struct.pack("d", time.perf_counter())
        self.page[:8] = struct.pack("q", count + 1)

    def count(self):
        return struct.unpack("q", self.page[:8])[0]

    def times(self, first, last):
        return [struct.unpack("d", self.page[self.place(n)])[0] for n in range(max(first, last - KEPT), last)]

    def place(self, number):
        at = 8 + 8 * (number % KEPT)
        return slice(at, at + 8)

    def speed(self, start, stop):
        """Steps a second between two moments that have passed, with the parts of the steps under way at both."""
        times = self.times(0, self.count())

        def until(moment):
            done = bisect.bisect_right(times, moment)
            if done in (0, len(times)):
                return done
            return done + (moment - times[done - 1]) / (times[done] - times[done - 1])

        return (until(stop) - until(start)) / (stop - start)


def run_job(name, path):
    sys.path.insert(0, str(Path(__file__).parent.parent / "scripts/gpu-checks"))
    from attribution.jobs import JOBS
    JOBS[name](Steps(path))


def run_at_rate(rate, path):
    """Trains with other work between the layers; prints the allocations of a step once their rate is right."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "scripts/gpu-checks"))
    import torch
    from attribution.jobs import encoder
    steps, work, layers = Steps(path), 0, 12
    model = encoder(256, layers).cuda()

    def other_work(*_):
        for _ in range(work):
            pass

    for layer in model.layers:
        layer.register_forward_pre_hook(other_work)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 32, 256, device="cuda")

    def step():
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def timed():
        """Seconds and allocations of a step."""
        torch.cuda.synchronize()
        before, start, count = torch.cuda.memory_stats()["allocation.all.allocated"], time.perf_counter(), 0
        while time.perf_counter() < start + 0.5:
            step()
            count += 1
        torch.cuda.synchronize()
        after, stop = torch.cuda.memory_stats()["allocation.all.allocated"], time.perf_counter()
        return (stop - start) / count, (after - before) / count

    timed()
    start = time.perf_counter()
    work = 1_000_000
    other_work()
    one, work = (time.perf_counter() - start) / work, 0
    for _ in range(3):
        seconds, allocations = timed()
        work = max(0, work + int((allocations / rate - seconds) / layers / one))
    print(allocations, flush=True)
    while True:
        step()
        steps.forward_done()


def begin(options, memspy, pid, folder):
    if options == "nothing":
        return []
    if options == "spin":
        return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    trace = ["-o", os.path.join(folder, "trace.bin"), "--force"]
    with open(os.path.join(folder, said_file(options)), "a") as said:
        return [subprocess.Popen([memspy, "record", "-p", str(pid), *trace, *options.removeprefix("default").split()], stdout=subprocess.DEVNULL, stderr=said)]


def said_file(options):
    return "said" + options.replace(" ", "").replace("/", "")


def said_lines(options, folder):
    path = Path(folder, said_file(options))
    return path.read_text().splitlines() if path.exists() else []


def own_figures(options, folder):
    """What each recording of this kind said of its own cost."""
    return [line.split("cost to the job: ")[1] for line in said_lines(options, folder) if "cost to the job: " in line]


def modes(options, folder):
    """What the recordings said of their mode."""
    words = ("memspy: following", "memspy: sampling", "memspy: exact stacks")
    return [line for line in said_lines(options, folder) if line.startswith(words)]


def ratios(beside, steps, seconds):
    """For each window beside something: the time of a step in the windows around it, by that of a step in it."""
    first, now = steps.count(), time.perf_counter()
    edges, end, runs = [(now, True)], now + seconds, True
    while now < end:
        time.sleep(WINDOW * random.uniform(0.8, 1.2))
        runs = not runs
        for process in beside:
            process.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
        now = time.perf_counter()
        edges.append((now, runs))
    for process in beside:
        process.send_signal(signal.SIGCONT)
    times = steps.times(first, steps.count())
    windows = []
    for (start, _), (stop, _) in zip(edges, edges[1:]):
        inside = [b - a for a, b in zip(times, times[1:]) if a >= start + EDGE and b <= stop]
        windows.append(statistics.mean(inside) if inside else None)
    # The first one runs, the second one does not, and so on.
    around = [(windows[at - 1], windows[at], windows[at + 1]) for at in range(2, len(windows) - 1, 2)]
    return [(before + after) / 2 / own for before, own, after in around if before and own and after]


def end(kind, beside):
    for process in beside:
        if process.poll() is not None:
            sys.exit(f"'{kind}' ended before it was stopped")
        process.send_signal(signal.SIGINT)
        process.wait()


def settled_recording(kind, memspy, pid, folder, steps, seconds):
    """The ratios of one recording, from when it has learned the job."""
    beside = begin(kind, memspy, pid, folder)
    time.sleep(SETTLES)
    speeds = ratios(beside, steps, seconds)
    end(kind, beside)
    return speeds


def one_recording(kind, memspy, pid, folder, seconds):
    """When it began and ended."""
    start = time.perf_counter()
    beside = begin(kind, memspy, pid, folder)
    time.sleep(seconds)
    end(kind, beside)
    return start, time.perf_counter()


def whole_recording(kind, memspy, pid, folder, steps, seconds):
    """The job's speed during one recording, by that in the seconds around it."""
    time.sleep(AROUND)
    start, stop = one_recording(kind, memspy, pid, folder, seconds)
    time.sleep(AROUND)
    around = (steps.speed(start - AROUND, start) + steps.speed(stop, stop + AROUND)) / 2
    return [steps.speed(start, stop) / around]


def pairs(kind, memspy, pid, folder, steps, rounds, seconds):
    """The job's speed during recordings, by that during as many seconds of nothing; and that of nothing by the one of the round before."""
    beside, nothing = paired_speeds(kind, memspy, pid, folder, steps, rounds, seconds)
    return [a / b for a, b in zip(beside, nothing)], [b / a for a, b in zip(nothing, nothing[1:])]


def paired_speeds(kind, memspy, pid, folder, steps, rounds, seconds):
    """Steps a second during each recording, and during the nothing of its round."""
    spans = {kind: [], "nothing": []}
    for _ in range(rounds):
        for each in random.sample(list(spans), 2):
            spans[each].append(one_recording(each, memspy, pid, folder, seconds))
            time.sleep(PAUSE)
    time.sleep(PAUSE)
    return ([steps.speed(*span) for span in spans[each]] for each in (kind, "nothing"))


def mean_and_error(values):
    """The mean, and half of its 90 % interval."""
    freedom = len(values) - 1
    quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else 1.7
    return statistics.mean(values), quantile * statistics.stdev(values) / len(values) ** 0.5


def at_rates(memspy, options, rounds, seconds):
    for rate in RATES:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "steps")
            Path(path).write_bytes(bytes(8 + 8 * KEPT))
            steps = Steps(path)
            job = subprocess.Popen([sys.executable, __file__, "run-at-rate", str(rate), path], stdout=subprocess.PIPE, text=True)
            try:
                line = job.stdout.readline()
                if not line:
                    sys.exit("the job ended before its first step")
                beside, nothing = paired_speeds(options, memspy, job.pid, folder, steps, rounds, seconds)
            finally:
                job.kill()
                job.wait()
            lost = [100 * (1 - a / b) for a, b in zip(beside, nothing)]
            mean, error = mean_and_error(lost)
            print(f"{float(line) * statistics.mean(nothing):,.0f} allocations a second, '{options}': "
                  f"the job lost {mean:.1f} % ({mean - error:.1f} to {mean + error:.1f} %, 90 % interval of {rounds} pairs)")
            print(f"    each pair: {', '.join(f'{one:.1f}' for one in lost)}")
            for line in [*dict.fromkeys(modes(options, folder)), *(f"memspy's own figure: {each}" for each in own_figures(options, folder))]:
                print(f"    {line}", flush=True)


def trimmed_mean(values):
    """The mean without a tenth at either end, and its standard error."""
    values = sorted(values)
    tenth = len(values) // 10
    kept = values[tenth:len(values) - tenth]
    clipped = [min(max(value, kept[0]), kept[-1]) for value in values]
    return statistics.mean(kept), statistics.stdev(clipped) / (len(kept) / len(values)) / len(values) ** 0.5


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("memspy")
    arguments.add_argument("--job", default="transformer")
    arguments.add_argument("--rounds", type=int)
    arguments.add_argument("--seconds", type=float)
    how = arguments.add_mutually_exclusive_group()
    how.add_argument("--whole", action="store_true", help="each round is one recording, from its start to its end")
    how.add_argument("--pairs", action="store_true", help="each round is one recording and as many seconds of nothing")
    how.add_argument("--rates", action="store_true", help="pairs at three rates of allocations, with one kind of recording: by default, what memspy chooses")
    given, kinds = arguments.parse_known_args()
    given.rounds, given.seconds = given.rounds or (5 if given.rates else 2), given.seconds or (10 if given.rates else 9)
    if given.rates:
        return at_rates(given.memspy, kinds[0] if kinds else "default", given.rounds, given.seconds)
    kinds = kinds or ["--cpu 200", "-r 200", "nothing", "spin"]
    said = {}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "steps")
        Path(path).write_bytes(bytes(8 + 8 * KEPT))
        steps = Steps(path)
        job = subprocess.Popen([sys.executable, __file__, "run-job", given.job, path], stdout=subprocess.DEVNULL)
        try:
            while steps.count() < 20:
                if job.poll() is not None:
                    sys.exit(f"the job {given.job!r} ended before its 20th step")
                time.sleep(0.1)
            found = collections.defaultdict(list, {kind: [] for kind in kinds})
            if given.pairs:
                for kind in [kind for kind in kinds if kind != "nothing"]:
                    found[kind], noise = pairs(kind, given.memspy, job.pid, folder, steps, given.rounds, given.seconds)
                    found["nothing"] += noise
            else:
                measure = whole_recording if given.whole else settled_recording
                for _ in range(given.rounds):
                    for kind in random.sample(kinds, len(kinds)):
                        found[kind] += measure(kind, given.memspy, job.pid, folder, steps, given.seconds)
        finally:
            job.kill()
            job.wait()
            said = {kind: own_figures(kind, folder) for kind in kinds}
    unit = "recordings" if given.whole else "pairs" if given.pairs else "windows"
    print(f"{given.job}: speed beside it, {given.rounds} rounds of {given.seconds:g} s each")
    for kind, speeds in found.items():
        if len(speeds) < 4:
            print(f"    {kind:14} too few rounds or steps to tell")
            continue
        low, middle, high = statistics.quantiles(speeds, n=4)
        mean, error = trimmed_mean(speeds)
        print(f"    {kind:14} x{mean:.3f} +- {error:.3f} in {len(speeds)} {unit}, median x{middle:.3f} (quartiles {low:.3f}-{high:.3f})")
        for figure in said.get(kind, []):
            print(f"        memspy's own figure: {figure}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run-job"]:
        run_job(*sys.argv[2:])
    elif sys.argv[1:2] == ["run-at-rate"]:
        run_at_rate(int(sys.argv[2]), sys.argv[3])
    else:
        main()
