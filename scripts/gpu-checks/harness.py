"""What the checks share: verdicts, a job and its lines, memspy and its recordings."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGETS = os.path.join(ROOT, "tests/targets")
JOBS = os.path.join(HERE, "jobs")
# For recordings. The runner removes it unless a check failed.
FOLDER = tempfile.mkdtemp(prefix="memspy-check-")


def new_file(ending):
    return os.path.join(FOLDER, f"{time.monotonic_ns()}{ending}")


class Verdicts:
    """What was checked, what failed, and the measured figures."""

    def __init__(self):
        self.count, self.failed, self.figures = 0, [], {}

    def that(self, what, holds, detail="", trouble=""):
        """Prints one verdict: `detail` always, `trouble` only if it failed."""
        self.count += 1
        if not holds:
            self.failed.append(what)
        more = [str(part) for part in (detail, "" if holds else trouble) if part not in ("", None)]
        print(f"{'ok   ' if holds else 'FAIL '}{': '.join([what, *more])}", flush=True)

    def equal(self, what, ours, truth):
        self.that(f"{what}: memspy {ours:,}, the job {truth:,}", ours == truth)

    def end(self, report):
        """Prints the figures and the sum, and writes both to the file `report` if there is one."""
        text = json.dumps({**self.figures, "checks": self.count, "failed": self.failed}, indent=1)
        if self.figures:
            print(text)
        if report:
            with open(report, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        if self.count:
            print(f"{len(self.failed)} of {self.count} checks failed" if self.failed else f"all {self.count} checks passed")
        return not self.failed


def python(script, *words):
    """The command of a Python program."""
    return [sys.executable, script, *map(str, words)]


class Job:
    """A program that prints READY, then obeys lines. `said` has the lines before READY."""

    def __init__(self, command, ready="READY", **streams):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **streams)
        self.pid = self.process.pid
        self.said = self.until(ready)

    def until(self, start="READY"):
        """The lines before the one that begins so."""
        said = []
        for line in iter(self.process.stdout.readline, ""):
            if line.startswith(start):
                return said
            said.append(line.rstrip("\n"))
        raise SystemExit(f"the job ended with {self.process.wait()} before '{start}': {said[-20:]}")

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the job ended with {self.process.wait()} and gave no answer")
        return line.strip()

    def end(self):
        self.process.stdin.close()
        return self.process.wait(120)


def run(memspy, *words):
    """The ended command, with its output and `seconds`."""
    started = time.perf_counter()
    done = subprocess.run([memspy, *map(str, words)], capture_output=True, text=True)
    done.seconds = time.perf_counter() - started
    return done


def collapsed(memspy, trace, *words):
    """The stacks of `memspy flame -f collapsed`, each with its bytes."""
    done = run(memspy, "flame", trace, "-f", "collapsed", "-o", "-", *words)
    if "no allocation of this kind" in done.stderr:
        return []
    if done.returncode != 0:
        raise SystemExit(f"memspy flame {trace} {' '.join(words)}: {done.stderr}")
    split = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    return [(stack, int(size)) for stack, size in split]


class Recording:
    """`memspy record` of a process; attached after construction."""

    def __init__(self, memspy, pid, *words, trace=None):
        self.memspy, self.trace, self.said = memspy, trace or new_file(".bin"), []
        command = [memspy, "record", "-p", str(pid), "-o", self.trace, *words]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        attached = "probes are in place" if "--exact" in words else "attached to process"
        for line in self.process.stderr:
            self.said.append(line.rstrip())
            if attached in line:
                return
        raise SystemExit("memspy did not attach: " + " | ".join(self.said))

    def stop(self):
        """Stops it, and gives all that it said."""
        self.process.send_signal(signal.SIGINT)
        return self.rest()

    def ended(self, seconds=60):
        """All that it said, once it has ended by itself; stops it after some seconds."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.terminate()
        return self.rest()

    def rest(self):
        self.said += self.process.stderr.read().splitlines()
        self.process.wait()
        return "\n".join(self.said)

    def collapsed(self, *words):
        return collapsed(self.memspy, self.trace, *words)

    def total(self, *words):
        return sum(size for _, size in self.collapsed(*words))

    def number(self, pattern):
        """A number that it said, such as '1,234 lost'."""
        return int(re.search(pattern, " ".join(self.said)).group(1).replace(",", ""))


def print_machine():
    import torch
    print(json.dumps({"torch": torch.__version__, "python": sys.version.split()[0], "gpu": torch.cuda.get_device_name(),
                      "kernel": os.uname().release, "processors": os.cpu_count()}), flush=True)
