"""What a recording costs a job on a GPU: the job's steps while memspy runs and while it is stopped, in turns of a tenth of a second.

    python benches/following_cost.py MEMSPY [--job transformer] [--rounds 2] [--seconds 9] [--whole | --pairs] [OPTIONS ...]

OPTIONS are those of `memspy record`, one argument for each kind of recording: '--cpu 200' '-r 200'. 'nothing' and 'spin' (two processes that only
use a processor each) are there to compare with. memspy is stopped and continued by signals, so that what a machine does to both sides is the same;
one round of windows of seconds, each with a recording of its own, cannot tell 3 % from nothing. With --whole each round is one recording, from memspy's start
to its end, against the seconds around it: what attaching and learning cost is in it. With --pairs each round is such a recording and as many seconds of
nothing, in random order; what nothing is by the nothing of the round before is the noise. Beside each is what memspy itself said. The jobs are those of scripts/gpu-checks/attribution/jobs.py.
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


def begin(options, memspy, pid, folder):
    if options == "nothing":
        return []
    if options == "spin":
        return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    trace = ["-o", os.path.join(folder, "trace.bin"), "--force"]
    with open(os.path.join(folder, said_file(options)), "a") as said:
        return [subprocess.Popen([memspy, "record", "-p", str(pid), *trace, *options.split()], stdout=subprocess.DEVNULL, stderr=said)]


def said_file(options):
    return "said" + options.replace(" ", "").replace("/", "")


def own_figures(options, folder):
    """What each recording of this kind said of its own cost."""
    path = Path(folder, said_file(options))
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split("cost to the job: ")[1] for line in lines if "cost to the job: " in line]


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
    spans = {kind: [], "nothing": []}
    for _ in range(rounds):
        for each in random.sample(list(spans), 2):
            spans[each].append(one_recording(each, memspy, pid, folder, seconds))
            time.sleep(PAUSE)
    time.sleep(PAUSE)
    beside, nothing = ([steps.speed(*span) for span in spans[each]] for each in (kind, "nothing"))
    return [a / b for a, b in zip(beside, nothing)], [b / a for a, b in zip(nothing, nothing[1:])]


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
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--seconds", type=float, default=9)
    how = arguments.add_mutually_exclusive_group()
    how.add_argument("--whole", action="store_true", help="each round is one recording, from its start to its end")
    how.add_argument("--pairs", action="store_true", help="each round is one recording and as many seconds of nothing")
    given, kinds = arguments.parse_known_args()
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
    run_job(*sys.argv[2:]) if sys.argv[1:2] == ["run-job"] else main()
