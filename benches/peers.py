#!/usr/bin/env python3
"""memspy and other memory and Python profilers on one training loop, in turn, in one run.

    benches/peers.py --memspy target/release/memspy [--run-with scripts/with-sim] [--python python3] [--minutes 8]
                     [--rounds N] [--seconds 1.5] [--rate 100] [--peers-from DIR] [--newest-python PYTHON]
                     [--newest-sampler 'COMMAND'] [-- JOB ARGUMENTS]
    benches/peers.py --fetch DIR [--for 3.12] [--without pytorch_memlab]      gets the peers from PyPI into DIR,
        for that version of Python: 75 MiB, 45 MiB without pytorch_memlab, which needs pandas
The job is the 12-layer transformer loop of tests/targets/transformer12.py. A round measures every contender in a window of its
own, in a shuffled order, between two windows without any; the figure is its iterations per second over the mean of these two.
What cannot attach to a running job (Scalene) runs in a job of its own, with its windows between two of the plain one; what needs
Python 3.15 (its sampling profiler) attaches to a job of that Python, between two windows of the same. One contender does
nothing: its spread is the noise of the machine. Rounds begin until --minutes are over. A peer that is not there is a row with
the reason. Prints a table in Markdown (medians and quartiles), then everything as JSON.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(HERE, "benches"))
from overhead import peak_memory, processor_seconds  # noqa: E402

LOOP = os.path.join(HERE, "tests/targets/transformer12.py")
# Without what comes with PyTorch (numpy, jinja2) and without what only other commands of theirs need.
PEERS = {
    "py-spy": ["py-spy"],
    "memray": ["memray", "rich", "markdown-it-py", "mdurl", "pygments", "textual", "platformdirs", "mdit-py-plugins",
               "linkify-it-py", "uc-micro-py"],
    "scalene": ["scalene", "cloudpickle", "nvidia-ml-py", "psutil", "pydantic", "pydantic-core", "annotated-types",
                "typing-inspection", "pyyaml"],
    "pytorch_memlab": ["pytorch_memlab", "pandas", "python-dateutil", "pytz", "tzdata", "six"],
}
SOURCE_ONLY = ["calmsize"]
SAMPLER_315 = "profiling.sampling (3.15)"


class NotHere(Exception):
    """Why a contender is not measured."""


def fetch(folder, version, without):
    """Gets the peers into a folder that needs nothing else; PyTorch and what it brings stay out."""
    packages = [name for peer, names in PEERS.items() for name in names if peer not in without]
    tags = ["manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_5_x86_64"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade",
               "--target", folder]
    of_tags = [word for tag in tags for word in ("--platform", tag)]
    subprocess.run([*command, "--only-binary=:all:", "--python-version", version, *of_tags, *packages], check=True)
    # PyPI has no wheel of these, and they are Python only.
    subprocess.run([*command, *SOURCE_ONLY], check=True)
    for root, _, files in os.walk(folder):
        for name in files:
            if (".so" in name or os.path.basename(root) == "bin") and shutil.which("strip"):
                subprocess.run(["strip", "--strip-unneeded", os.path.join(root, name)], check=False, capture_output=True)
        if os.path.basename(root) in ("tests", "__pycache__"):
            shutil.rmtree(root)
    size = subprocess.run(["du", "-sm", folder], check=True, capture_output=True, text=True).stdout.split()[0]
    print(f"{folder}: {size} MiB, for Python {version}")


def with_peers(arguments):
    """The environment in which the peers are found."""
    paths = [arguments.peers_from, os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def with_newest(arguments):
    """That of the newest Python."""
    return {**os.environ, **({"MEMSPY_SIM": arguments.newest_sim} if arguments.newest_sim else {})}


class Job:
    """The training loop, spoken to through its standard input and output."""

    def __init__(self, arguments, python, around=(), environment=None):
        environment = environment or with_peers(arguments)
        command = [*arguments.run_with, python, *(around or [LOOP, *arguments.job])]
        self.said = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True,
                                        env=environment)
        self.pid = self.process.pid
        while (line := self.process.stdout.readline().strip()) != "READY":
            if not line and self.process.poll() is not None:
                raise NotHere(f"its job ended before it was ready: {self.last_words()}")
            if line.startswith("{"):
                # Under a profiler that starts it, the job is not the process that was started.
                self.pid = json.loads(line).get("pid", self.pid)

    def last_words(self):
        self.said.seek(0)
        lines = self.said.read().strip().splitlines()
        return lines[-1] if lines else f"exit code {self.process.returncode}"

    def ask(self, request):
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline()).startswith("{"):
            if not line:
                raise NotHere(f"its job ended: {self.last_words()}")
        return json.loads(line)

    def window(self, seconds):
        """Its answer, and how far it came with a second of its own processor time: on a busy machine that tells more."""
        before = processor_seconds(self.pid)
        answer = self.ask(f"window {seconds}")
        used = processor_seconds(self.pid) - before
        return {**answer, "iterations_per_processor_s": answer["iterations"] / max(used, 0.01)}

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Contender:
    """What is measured: it is switched on, a window is measured, it is switched off."""

    def __init__(self, name, job, note=""):
        self.name, self.job, self.note = name, job, note
        self.ratios, self.by_processor, self.figures = [], [], {}

    def on(self):
        pass

    def off(self):
        pass

    def measure(self, seconds):
        before = self.job.window(seconds)
        self.on()
        try:
            during = self.measured().window(seconds)
        finally:
            self.off()
        after = self.job.window(seconds)
        for ratios, figure in [(self.ratios, "iterations_per_s"), (self.by_processor, "iterations_per_processor_s")]:
            ratios.append(during[figure] / ((before[figure] + after[figure]) / 2))

    def measured(self):
        """The job whose window counts."""
        return self.job


class InProcess(Contender):
    """Switched by the job itself."""

    def __init__(self, name, job, request, note=""):
        super().__init__(name, job, note)
        self.request = request

    def on(self):
        self.job.ask(self.request[0])

    def off(self):
        # Once is enough: with C++ frames the first one takes many seconds.
        if self.request[0].startswith("history") and "dumps" not in self.figures:
            self.figures.setdefault("dumps", []).append(self.job.ask("dump"))
        self.job.ask(self.request[1])


class Attached(Contender):
    """A profiler that attaches to the job from outside."""

    def __init__(self, name, job, command, note="", environment=None, settles=1.5):
        super().__init__(name, job, note)
        self.command, self.environment, self.settles, self.process = command, environment, settles, None

    def on(self):
        self.said = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, stdout=self.said, stderr=subprocess.STDOUT, env=self.environment)
        # What attaching costs the job is not in the window.
        time.sleep(self.settles)
        if self.process.poll() not in (None, 0):
            raise NotHere(f"'{os.path.basename(self.command[0])}' ended at once: {self.words()[-1]}")
        self.used, self.since = self.processor(), time.monotonic()

    def processor(self):
        return processor_seconds(self.process.pid) if self.process.poll() is None else None

    def words(self):
        self.said.seek(0)
        return self.said.read().strip().splitlines() or ["nothing"]

    def off(self):
        if self.process.poll() is None:
            share = (self.processor() - self.used) / (time.monotonic() - self.since)
            self.figures.setdefault("processor_shares", []).append(share)
            self.figures["memory"] = peak_memory(self.process.pid)
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.count_samples("\n".join(self.words()))

    def count_samples(self, said):
        """Samples that failed, of all, as the profiler itself tells them."""
        found = re.search(r"Samples: (\d+) Errors: (\d+)", said)  # py-spy
        if found:
            self.figures.setdefault("failed", []).append(int(found[2]) / max(1, int(found[1]) + int(found[2])))
        found = re.search(r"[Ee]rror rate: ([\d.]+)", said)  # profiling.sampling
        if found:
            self.figures.setdefault("failed", []).append(float(found[1]) / 100)
        found = re.search(r"missed[^%]*?([\d.]+) %", said)  # memspy
        if found:
            self.figures.setdefault("failed", []).append(float(found[1]) / 100)


class Memray(Attached):
    """memray attaches and leaves again with commands that end at once."""

    def on(self):
        self.run("attach", "-f", "-o", self.command[-1])

    def run(self, verb, *words):
        said = tempfile.TemporaryFile("w+")
        command = [*self.command[:-1], verb, *words, str(self.job.pid)]
        process = subprocess.Popen(command, env=self.environment, stdout=said, stderr=subprocess.STDOUT)
        # It comes in where the job calls malloc: a job that waits for its next request never does.
        deadline = time.monotonic() + 60
        while process.poll() is None:
            self.job.window(0.2)
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise NotHere(f"'memray {verb}' was not done within 60 s")
        if process.returncode != 0:
            said.seek(0)
            last = said.read().strip().splitlines() or ["nothing"]
            raise NotHere(f"'memray {verb}' failed: {last[-1]}")

    def off(self):
        self.run("detach")


class OwnJob(Contender):
    """A profiler that has to start the job: its window stands between two of the plain job."""

    def __init__(self, name, job, start, note=""):
        super().__init__(name, job, note)
        self.start, self.own = start, None

    def measured(self):
        if self.own is None:
            self.own = self.start()
            self.own.window(1)
        return self.own


def contenders(arguments, job, newest, scratch):
    """All of them, and those that are not there with the reasons."""
    pid = str(job.pid)
    share = [*arguments.run_with, "--share", pid] if arguments.run_with else []
    trace = os.path.join(scratch, "trace.bin")
    rate = str(arguments.rate)

    def memspy(*words):
        return [*share, arguments.memspy, "record", "-p", pid, *words, "-o", trace, "--force"]

    environment = with_peers(arguments)
    missing, found = [], [
        Contender("nothing (noise)", job),
        Attached(f"memspy record -r {rate}", job, memspy("-r", rate), "GPU memory by stack, sampled"),
        Attached("memspy record --exact", job, memspy("--exact"), "every allocation and free, with stacks"),
        Attached("memspy record --follow", job, memspy("--follow"), "every change of the counters, without probes"),
        InProcess("torch history, stacks=python", job, ("history python", "history off"), "every allocation, in the process"),
        InProcess("torch history, stacks=all", job, ("history all", "history off"), "with C++ frames"),
    ]

    def add(name, make):
        try:
            found.append(make())
        except NotHere as why:
            missing.append((name, str(why)))

    def python_has(module):
        code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
        if subprocess.run([*arguments.run_with, arguments.python, "-c", code], env=environment, check=False).returncode != 0:
            raise NotHere(f"not installed: {module}")

    def py_spy(*words):
        own = os.path.join(arguments.peers_from or "/nowhere", "bin/py-spy")
        program = own if os.path.exists(own) else shutil.which("py-spy")
        if program is None:
            raise NotHere("not installed: py-spy")
        command = [program, "record", "-p", pid, "-r", rate, "-d", "999", *words, "-f", "raw", "-o"]
        name = " ".join(["py-spy record -r", rate, *words])
        return Attached(name, job, [*command, os.path.join(scratch, "pyspy.txt")], "time by stack, no memory")

    def memlab():
        python_has("pytorch_memlab")
        return InProcess("pytorch_memlab LineProfiler", job, ("memlab on", "memlab off"), "peak per line of one function")

    def memray():
        python_has("memray")
        if not (shutil.which("gdb") or shutil.which("lldb")):
            raise NotHere("needs gdb or lldb to attach (before Python 3.14)")
        command = [*arguments.run_with, arguments.python, "-m", "memray", os.path.join(scratch, "memray.bin")]
        return Memray("memray attach", job, command, "the host's memory, not the GPU's", environment)

    def scalene():
        python_has("scalene")
        # The job sees Scalene's options among its own arguments, wherever '---' stands: it gets them in a file instead.
        start = os.path.join(scratch, "loop.py")
        with open(start, "w", encoding="utf-8") as file:
            file.write(f"import runpy, sys\nsys.path.insert(0, {os.path.dirname(LOOP)!r})\n"
                       f"sys.argv = {[LOOP, *arguments.job]!r}\nrunpy.run_path({LOOP!r}, run_name='__main__')\n")
        out = os.path.join(scratch, "scalene.json")
        around = ["-m", "scalene", "run", "--gpu", "--program-path", os.path.dirname(LOOP), "-o", out, start]
        return OwnJob("scalene run --gpu", job, lambda: Job(arguments, arguments.python, around), "cannot attach: starts the job")

    def sampling():
        if not isinstance(newest, Job):
            raise NotHere(newest)
        sampler = arguments.newest_sampler or [*arguments.run_with, arguments.newest_python]
        command = [*sampler, "-m", "profiling.sampling", "attach", "-r", rate, "-d", "999",
                   "--collapsed", "-o", "/dev/null", str(newest.pid)]
        note = "time by stack, no memory; its job runs Python 3.15"
        # A Python has to start, and to import its profiler.
        return Attached(SAMPLER_315, newest, command, note, with_newest(arguments), settles=4)

    for name, make in [("py-spy record", lambda: py_spy()), ("py-spy record --nonblocking", lambda: py_spy("--nonblocking")),
                       ("pytorch_memlab LineProfiler", memlab), ("memray attach", memray), ("scalene run --gpu", scalene),
                       (SAMPLER_315, sampling)]:
        add(name, make)
    return found, missing


def measure(arguments):
    started = time.monotonic()
    scratch = tempfile.mkdtemp()
    job, newest = Job(arguments, arguments.python), None
    reason = "no Python 3.15 with PyTorch here (--newest-python)"
    if arguments.newest_python:
        try:
            newest = Job(arguments, arguments.newest_python, environment=with_newest(arguments))
        except (NotHere, OSError) as why:
            reason = str(why)
    found, missing = contenders(arguments, job, newest or reason, scratch)
    job.window(arguments.seconds)
    rounds, longest = 0, 0.0
    while rounds < arguments.rounds and time.monotonic() - started + longest < 60 * arguments.minutes:
        began = time.monotonic()
        for contender in random.sample(found, len(found)):
            try:
                contender.measure(arguments.seconds)
            except (NotHere, subprocess.TimeoutExpired) as why:
                found.remove(contender)
                missing.append((contender.name, str(why)))
        rounds += 1
        longest = max(longest, time.monotonic() - began)
    allocations = job.window(arguments.seconds)["allocations_per_s"]
    for other in [job, newest, *(c.own for c in found if isinstance(c, OwnJob))]:
        if other is not None:
            other.end()
    shutil.rmtree(scratch, ignore_errors=True)
    return found, missing, rounds, allocations


def quartiles(values):
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def row(contender):
    low, middle, high = quartiles(contender.ratios)
    of_processor = statistics.median(contender.by_processor)
    figures, more = contender.figures, []
    if shares := figures.get("processor_shares"):
        more.append(f"{statistics.median(shares):.1%} of a core, {figures['memory'] >> 20} MiB")
    if failed := figures.get("failed"):
        more.append(f"{statistics.median(failed):.2%} of its samples failed or missed")
    if dumps := figures.get("dumps"):
        dump = {key: statistics.median(d[key] for d in dumps) for key in dumps[0]}
        more.append(f"dump of {dump['entries']:.0f} entries: {dump['snapshot_s'] + dump['pickle_s']:.2f} s, "
                    f"{dump['bytes'] / 1e6:.0f} MB")
    return f"| {contender.name} | ×{middle:.3f} ({low:.3f}–{high:.3f}) | ×{of_processor:.3f} | {'; '.join(more)} | {contender.note} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memspy", default=os.path.join(HERE, "target/release/memspy"))
    parser.add_argument("--python", default="python3", help="the Python with PyTorch")
    parser.add_argument("--newest-python", help="a Python 3.15 with PyTorch, for its sampling profiler")
    parser.add_argument("--newest-sim", help="the set-up of scripts/with-sim that has it (torch-2.15-py3.15)")
    parser.add_argument("--newest-sampler", type=str.split, help="runs that Python for the sampler itself, where the other one has no "
                        "/proc: 'scripts/with-python --outside 3.15'")
    parser.add_argument("--run-with", type=str.split, default=[], help="runs the job and memspy, such as scripts/with-sim")
    parser.add_argument("--minutes", type=float, default=8, help="no round begins that would end later")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each window")
    parser.add_argument("--rate", type=int, default=100, help="samples a second of those that sample")
    parser.add_argument("--peers-from", type=os.path.abspath, help="a folder that --fetch made")
    parser.add_argument("--fetch", metavar="DIR", help="get the peers from PyPI into this folder, and do nothing else")
    parser.add_argument("--for", dest="version", default=".".join(map(str, sys.version_info[:2])), help="Python of --fetch")
    parser.add_argument("--without", nargs="*", default=[], choices=list(PEERS), help="peers that --fetch leaves out")
    parser.add_argument("job", nargs="*", help="arguments of the job, after --")
    arguments = parser.parse_args()
    if arguments.fetch:
        fetch(arguments.fetch, arguments.version, arguments.without)
        return
    found, missing, rounds, allocations = measure(arguments)
    print(f"{rounds} rounds of {arguments.seconds} s windows, {allocations:,.0f} allocations a second\n")
    print("| contender | speed of the job, median (quartiles) | by the job's processor time | itself | what it tells |\n"
          "|---|---|---|---|---|")
    measured = [contender for contender in found if contender.ratios]
    for contender in sorted(measured, key=lambda c: -statistics.median(c.ratios)):
        print(row(contender))
    for name, why in missing:
        print(f"| {name} | not measured | | | {why} |")
    print()
    print(json.dumps({"rounds": rounds, "allocations_per_s": allocations, "missing": missing,
                      "contenders": {c.name: {"ratios": c.ratios, "by_processor": c.by_processor, **c.figures} for c in measured}}))


if __name__ == "__main__":
    main()
