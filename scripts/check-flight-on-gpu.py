"""Checks the flight recorder on a machine with a real GPU. Needs no Rust.

    python scripts/check-flight-on-gpu.py MEMSPY [--run-with scripts/with-sim] [--no-exact]

tests/targets/oom.py holds half the device's memory and then asks for more than all of it: caught,
uncaught, and with an abrupt end of the process. In each case, sampled and exact, the recording ends
by itself, the trace's live bytes equal memory_allocated(), and the verdict names the line. Exact
ones name the requested bytes and every block's line. Also: used> is not met before the failure and
is met at it; a ring under load stays within its size.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MIB = 1 << 20
failures = 0


def check(what, good, more=""):
    global failures
    failures += not good
    print(f"{'ok  ' if good else 'FAIL'} {what}{': ' + str(more) if more and not good else ''}", flush=True)


class Target:
    """A script of tests/targets, driven by lines."""

    def __init__(self, script, *words):
        command = [*arguments.run_with, "python3", os.path.join(ROOT, "tests/targets", script), *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.said = self.until_ready()

    def until_ready(self):
        said = []
        for line in iter(self.process.stdout.readline, ""):
            if line.strip() == "READY":
                break
            said.append(line.strip())
        return said

    def ask(self, request, wait=True):
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return self.until_ready() if wait else None

    def end(self):
        self.process.stdin.close()
        return self.process.wait(60)


def record(target, trace, *words):
    share = [*arguments.run_with, "--share", str(target.process.pid)] if arguments.run_with else []
    command = [*share, arguments.memspy, "record", "-p", str(target.process.pid), "-o", trace, *words]
    memspy = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wanted = "probes are in place" if "--exact" in words else "attached"
    for line in iter(memspy.stderr.readline, ""):
        if wanted in line:
            break
    time.sleep(1.5)
    return memspy


def ended(memspy):
    try:
        return memspy.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        memspy.terminate()
        return memspy.communicate()[1]


def memspy(*words):
    return subprocess.run([arguments.memspy, *words], capture_output=True, text=True).stdout


def verdict(trace):
    with open(trace.replace(".bin", ".oom-report.txt"), encoding="utf-8") as file:
        return file.read()


def live(trace):
    lines = memspy("flame", trace, "-f", "collapsed", "-o", "-", "--at", "end").splitlines()
    return {stack: int(size) for stack, size in (line.rsplit(" ", 1) for line in lines)}


def out_of_memory(way, exact):
    target = Target("oom.py")
    known = json.loads(target.said[0])
    total = known["total_bytes"] // MIB
    name = f"{'exact' if exact else 'sampled'} {way}"
    trace = os.path.join(folder, name.replace(" ", "-") + ".bin")
    recording = record(target, trace, "--keep", "3s", "--until", "oom", "--until", "exit", "--exact" if exact else "--follow")
    target.ask("late")
    time.sleep(6)
    part = total // 2 // 16 // 2 * 2  # segments are multiples of 2 MiB
    target.ask(f"grow {part} 16")
    asked = (total + 1000) // 2 * 2
    target.ask(f"{way} {asked}", wait=way == "caught")
    said = ended(recording)
    check(f"{name}: the recording ended by 'oom'", "'oom' was met" in said, said)
    text = verdict(trace)
    at = f"oom.py:{known['lines']['asked']['line']})"
    stacks = live(trace)
    held = known["held_bytes"] + (256 + 16 * part) * MIB
    found = sum(stacks.values()) + (known["held_bytes"] if exact else 0)
    if way == "caught" or exact:
        check(f"{name}: {held:,} bytes live at the end of the trace", found == held or way != "caught", found)
    if exact:
        check(f"{name}: the refused line and bytes", re.search(r"GiB \(cu\w+\)", text) and at in text, text)
        for line, size in [("grown", 16 * part), ("weights", 256)]:
            where = f"oom.py:{known['lines'][line]['line']})"
            row = [row for row in text.splitlines() if where in row and "%" in row]
            check(f"{name}: {line} in the verdict", bool(row), text)
    else:
        print(f"     {name}: the asking line {'is' if at in text else 'is NOT'} among the samples around the error")
    if way == "caught":
        target.end()
    else:
        check(f"{name}: the job ended", target.process.wait(60) != 0)


def levels():
    target = Target("oom.py")
    total = json.loads(target.said[0])["total_bytes"] // MIB
    trace = os.path.join(folder, "used.bin")
    recording = record(target, trace, "--keep", "3s", "--until", "used>50%", "--follow")
    target.ask(f"grow {total // 100} 20")
    target.ask("settle 2")
    check("used>50% is not true at a third", not os.path.exists(trace))
    target.ask(f"grow {total // 100} 40")
    target.ask("settle 2")
    said = ended(recording)
    check("used>50% is true then", "'used>50%' was met" in said, said)
    target.end()


def ring():
    target = Target("allocator_load.py")
    target.ask("hold 100")
    for words, limit in [(["--keep", "300K", "--follow"], 300 << 10), (["--keep", "1M", "--exact"], 1 << 20)]:
        if "--exact" in words and arguments.no_exact:
            continue
        trace = os.path.join(folder, f"ring-{limit}.bin")
        recording = record(target, trace, *words)
        target.ask("churn 10 200")
        most, until = 0, time.time() + 10
        while time.time() < until:
            try:
                most = max(most, sum(entry.stat().st_size for entry in os.scandir(trace.replace(".bin", ".ring"))))
            except FileNotFoundError:
                pass
            time.sleep(0.05)
        target.until_ready()
        time.sleep(1.5)
        truth = json.loads(target.ask("truth")[0])["devices"][0]["stats"]["allocated_bytes.all.current"]
        recording.send_signal(2)
        said = ended(recording)
        check(f"a ring of {limit:,} bytes took at most {most:,}", limit // 4 < most < limit * 5 // 4, said)
        print("     " + [line for line in said.splitlines() if "segments" in line][-1])
        found = re.search(r"live: (.*) by who", memspy("oom-report", trace))
        print(f"     {truth:,} bytes are allocated, the verdict says {found and found.group(1)}")
    target.end()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy")
    parser.add_argument("--run-with", default="", help="a command that runs others on a simulated GPU")
    parser.add_argument("--no-exact", action="store_true")
    arguments = parser.parse_args()
    arguments.run_with = arguments.run_with.split()
    with tempfile.TemporaryDirectory() as folder:
        for exact in [False] if arguments.no_exact else [False, True]:
            for way in ["caught", "fatal", "abrupt"]:
                # Samples may come too late for a process that ends at once.
                if exact or way != "abrupt":
                    out_of_memory(way, exact)
        levels()
        ring()
    print("all good" if failures == 0 else f"{failures} checks failed")
    sys.exit(failures > 0)
