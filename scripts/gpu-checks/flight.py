"""The flight recorder when a job runs out of memory.

tests/targets/oom.py holds half the device's memory and then asks for more than all of it: caught,
uncaught, and with an abrupt end of the process. In each case, sampled and exact, the recording ends
by itself, the trace's live bytes equal memory_allocated(), and the verdict names the line. Exact
ones name the requested bytes and every block's line. Also: used> is not met before the failure and
is met at it; a ring under load stays within its size.
"""
import json
import os
import re
import subprocess
import time

from harness import FOLDER, TARGETS, Job, Recording, python, run

MIB = 1 << 20


def add_options(parser):
    parser.add_argument("--no-exact", action="store_true")


def target(script):
    return Job(python(os.path.join(TARGETS, script)), stderr=subprocess.DEVNULL)


def ask(job, request):
    job.say(request)
    return job.until()


def record(args, job, name, *words):
    recording = Recording(args.memspy, job.pid, *words, trace=os.path.join(FOLDER, name + ".bin"))
    time.sleep(1.5)
    return recording


def out_of_memory(args, verdicts, way, exact):
    job = target("oom.py")
    known = json.loads(job.said[0])
    total = known["total_bytes"] // MIB
    name = f"{'exact' if exact else 'sampled'} {way}"
    mode = "--exact" if exact else "--follow"
    recording = record(args, job, name.replace(" ", "-"), "--keep", "3s", "--until", "oom", "--until", "exit", mode)
    ask(job, "late")
    time.sleep(6)
    part = total // 2 // 16 // 2 * 2  # segments are multiples of 2 MiB
    ask(job, f"grow {part} 16")
    job.say(f"{way} {(total + 1000) // 2 * 2}")
    if way == "caught":
        job.until()
    said = recording.ended()
    verdicts.that(f"{name}: the recording ended by 'oom'", "'oom' was met" in said, trouble=said)
    with open(recording.trace.replace(".bin", ".oom-report.txt"), encoding="utf-8") as file:
        text = file.read()
    at = f"oom.py:{known['lines']['asked']['line']})"
    held = known["held_bytes"] + (256 + 16 * part) * MIB
    found = recording.total("--at", "end") + (known["held_bytes"] if exact else 0)
    if way == "caught" or exact:
        verdicts.that(f"{name}: {held:,} bytes live at the end of the trace", found == held or way != "caught", trouble=found)
    if exact:
        verdicts.that(f"{name}: the refused line and bytes", re.search(r"GiB \(cu\w+\)", text) and at in text, trouble=text)
        for line in ("grown", "weights"):
            where = f"oom.py:{known['lines'][line]['line']})"
            row = [row for row in text.splitlines() if where in row and "%" in row]
            verdicts.that(f"{name}: {line} in the verdict", row, trouble=text)
    else:
        print(f"     {name}: the asking line {'is' if at in text else 'is NOT'} among the samples around the error")
    if way == "caught":
        job.end()
    else:
        verdicts.that(f"{name}: the job ended", job.process.wait(60) != 0)


def levels(args, verdicts):
    job = target("oom.py")
    total = json.loads(job.said[0])["total_bytes"] // MIB
    recording = record(args, job, "used", "--keep", "3s", "--until", "used>50%", "--follow")
    ask(job, f"grow {total // 100} 20")
    ask(job, "settle 2")
    verdicts.that("used>50% is not true at a third", not os.path.exists(recording.trace))
    ask(job, f"grow {total // 100} 40")
    ask(job, "settle 2")
    said = recording.ended()
    verdicts.that("used>50% is true then", "'used>50%' was met" in said, trouble=said)
    job.end()


def ring(args, verdicts):
    job = target("allocator_load.py")
    ask(job, "hold 100")
    for words, limit in [(["--keep", "300K", "--follow"], 300 << 10), (["--keep", "1M", "--exact"], 1 << 20)]:
        if "--exact" in words and args.no_exact:
            continue
        recording = record(args, job, f"ring-{limit}", *words)
        ask(job, "churn 10 200")  # READY at once, and again at its end
        most, until = 0, time.time() + 10
        while time.time() < until:
            try:
                most = max(most, sum(entry.stat().st_size for entry in os.scandir(recording.trace.replace(".bin", ".ring"))))
            except FileNotFoundError:
                pass
            time.sleep(0.05)
        job.until()
        time.sleep(1.5)
        truth = json.loads(ask(job, "truth")[0])["devices"][0]["stats"]["allocated_bytes.all.current"]
        said = recording.stop()
        verdicts.that(f"a ring of {limit:,} bytes took at most {most:,}", limit // 4 < most < limit * 5 // 4, trouble=said)
        print("     " + [line for line in said.splitlines() if "segments" in line][-1])
        found = re.search(r"live: (.*) by who", run(args.memspy, "oom-report", recording.trace).stdout)
        print(f"     {truth:,} bytes are allocated, the verdict says {found and found.group(1)}")
    job.end()


def check(args, verdicts):
    for exact in [False] if args.no_exact else [False, True]:
        for way in ["caught", "fatal", "abrupt"]:
            # Samples may come too late for a process that ends at once.
            if exact or way != "abrupt":
                out_of_memory(args, verdicts, way, exact)
    levels(args, verdicts)
    ring(args, verdicts)
