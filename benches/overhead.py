#!/usr/bin/env python3
"""What a profiler costs a running job: windows with and without it, in turn, in one process.

    benches/overhead.py --memspy target/release/memspy [--rounds 4] [--seconds 3] [--rate 200 1000]
                        [--run-with scripts/with-sim] [--python python3] [--peers] [--top] [--exact] [--native [SIZE ...]] [--follow [PERCENT ...]] [--against OTHER] [--settle 4]

The job is the 12-layer transformer loop of tests/targets/transformer12.py. Each round measures every
contender in a window of its own between two windows without any; the figure is its iterations per second over
the mean of these two. The contenders of a round come in a shuffled order; one does nothing: its spread is the noise of the machine.
`--exact`, `--native` (exact, with native frames from these sizes on) and `--follow` (with the processor shares given) add these ways to record, `--against` the same by another build of memspy (of the commit before). `--peers` adds py-spy (from PyPI, if installed) and PyTorch's own memory history,
`--top` adds `memspy top` on a terminal of 80 x 24 that this script reads.
Prints one line a contender and, last, everything as JSON; Ctrl-C lets the round under way end and prints what there is.
"""
import argparse
import fcntl
import json
import os
import pty
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Job:
    """The training loop, spoken to through its standard input and output."""

    def __init__(self, arguments):
        command = [*arguments.run_with, arguments.python,
                   os.path.join(HERE, "tests/targets/transformer12.py"), *arguments.job]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        process_group=0)
        self.hello = []
        while (line := self.process.stdout.readline().strip()) != "READY":
            if not line and self.process.poll() is not None:
                sys.exit("the job ended before it was ready")
            self.hello.append(line)

    def ask(self, request):
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def window(self, seconds):
        """Its answer, and how far it came with a second of its own processor time: on a busy machine that tells more."""
        before = processor_seconds(self.process.pid)
        answer = json.loads(self.ask(f"window {seconds}"))
        used = processor_seconds(self.process.pid) - before
        answer["iterations_per_processor_s"] = answer["iterations_per_s"] * answer["seconds"] / used
        return answer


def attached(command):
    """Starts a profiler and gives it a moment to attach; what attaching costs the job is not in the window."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0)
    time.sleep(1.0)
    if process.poll() is not None:
        sys.exit(f"{' '.join(command)} ended at once: {process.stderr.read().strip()}")
    return process


class OnTerminal:
    """A program on a terminal of its own, whose output is read and counted."""

    def __init__(self, command):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True,
                                        env=environment)
        os.close(theirs)
        self.pid, self.send_signal, self.written, self.last = self.process.pid, self.process.send_signal, 0, b""
        self.reader = threading.Thread(target=self.read, args=(ours,), daemon=True)
        self.reader.start()
        time.sleep(1.0)

    def read(self, ours):
        while True:
            try:
                self.last = os.read(ours, 1 << 16)
            except OSError:  # the program has ended
                return
            self.written += len(self.last)

    def communicate(self, timeout):
        return None, self.process.communicate(timeout=timeout)[1] + f"{self.written} bytes to the terminal"


def peak_memory(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+)", status.read()).group(1)) * 1024


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(arguments):
    job = Job(arguments)
    pid = str(job.process.pid)
    scratch = tempfile.mkdtemp()
    trace = os.path.join(scratch, "trace.bin")
    run_with = [*arguments.run_with, "--share", pid] if arguments.run_with else []
    contenders = {"nothing (noise)": ["sleep", "999"]}
    ways = {f"-r {rate}": ["-r", str(rate)] for rate in arguments.rate}
    ways |= {"--exact": ["--exact"]} if arguments.exact else {}
    ways |= {f"--native-from {size}": ["--exact", "--native", "--native-from", size] for size in arguments.native or []}
    ways |= {"--native": ["--exact", "--native"]} if arguments.native == [] else {}
    ways |= {f"--cpu {percent}": ["--follow", "--cpu", str(percent)] for percent in arguments.follow or []}
    ways |= {"--follow": ["--follow"]} if arguments.follow == [] else {}
    builds = {"memspy": arguments.memspy} | ({"the other": arguments.against} if arguments.against else {})
    for way, words in ways.items():
        for build, program in builds.items():
            contenders[f"{build} {way}"] = [*run_with, program, "record", "-p", pid, *words, "-o", trace, "--force"]
    if arguments.top:
        contenders["memspy top"] = [*run_with, arguments.memspy, "top", "-p", pid]
    if arguments.peers and shutil.which("py-spy"):
        contenders["py-spy --nonblocking"] = ["py-spy", "record", "-p", pid, "-r", str(max(arguments.rate, default=100)), "-d", "999",
                                              "--nonblocking", "-f", "raw", "-o", os.path.join(scratch, "pyspy.txt")]
    histories = ["python", "all"] if arguments.peers else []
    ratios = {name: [] for name in [*contenders, *(f"torch history {h}" for h in histories)]}
    by_processor = {name: [] for name in ratios}
    notes = {}
    is_over = []
    signal.signal(signal.SIGINT, lambda *_: is_over.append(True))
    job.window(arguments.seconds)
    for _ in range(arguments.rounds):
        if is_over:
            break
        for name in random.sample(list(ratios), len(ratios)):
            before = job.window(arguments.seconds)
            if name in contenders:
                profiler = (OnTerminal if name == "memspy top" else attached)(contenders[name])
                if arguments.settle:
                    job.window(arguments.settle)
                used = processor_seconds(profiler.pid)
                during = job.window(arguments.seconds)
                notes.setdefault(name, {})["peak_memory_bytes"] = peak_memory(profiler.pid)
                notes[name]["processor_share"] = (processor_seconds(profiler.pid) - used) / during["seconds"]
                profiler.send_signal(2)
                notes[name]["said"] = profiler.communicate(timeout=60)[1]
            else:
                job.ask(f"history {name.rsplit(' ', 1)[1]}")
                during = job.window(arguments.seconds)
                job.ask("history off")
            after = job.window(arguments.seconds)
            def ratio(figure):
                return during[figure] / ((before[figure] + after[figure]) / 2)

            ratios[name].append(ratio("iterations_per_s"))
            by_processor[name].append(ratio("iterations_per_processor_s"))
            notes.setdefault(name, {})["allocations_per_s"] = before["allocations_per_s"]
    job.process.stdin.close()
    job.process.wait(timeout=60)
    for name, by_its_processor in by_processor.items():
        middle = statistics.median(by_its_processor)
        notes[name]["by_the_jobs_processor_time"] = f"x{middle:.4f} ({min(by_its_processor):.4f} to {max(by_its_processor):.4f})"
    return {"ratios": ratios, "notes": notes, "rate": arguments.rate, "job": job.hello,
            "trace_bytes": os.path.getsize(trace) if os.path.exists(trace) else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memspy", default=os.path.join(HERE, "target/release/memspy"))
    parser.add_argument("--python", default="python3")
    parser.add_argument("--run-with", type=str.split, default=[], help="runs the job and memspy, such as scripts/with-sim")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--settle", type=float, default=0.0,
                        help="seconds that the job goes on beside a profiler before its window")
    parser.add_argument("--rate", type=int, nargs="*", default=[200, 1000], help="memspy's samples a second")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--top", action="store_true")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--native", nargs="*", metavar="SIZE", help="with the default of --native-from, or with these")
    parser.add_argument("--follow", type=int, nargs="*", metavar="PERCENT", help="with the default of --cpu, or with these")
    parser.add_argument("--against", help="another build of memspy, measured beside it")
    parser.add_argument("job", nargs="*", help="arguments of the job, after --")
    result = measure(parser.parse_args())
    for name, ratios in result["ratios"].items():
        middle = statistics.median(ratios)
        quartiles = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [middle] * 3
        print(f"{name:24} x{middle:.4f} of the speed without it  (quartiles {quartiles[0]:.4f} to {quartiles[2]:.4f}, "
              f"min {min(ratios):.4f}, max {max(ratios):.4f}, {len(ratios)} rounds)")
        for key, value in result["notes"][name].items():
            print(f"    {key}: {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
