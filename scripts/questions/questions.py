"""The ten questions: what runs, which command is asked, and which of its lines the page shows."""
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

from chart import chart
from workplace import PACKAGES, Failed


class Answer:
    """What a page shows: screens as text, and one picture: an SVG, or a screen to draw."""

    def __init__(self, screens, picture):
        self.screens, self.picture = screens, picture


def indentation(line):
    return len(line) - len(line.lstrip())


def excerpt(shown, *patterns, whole=(), limit=18):
    """A command and the lines that a pattern matches, and for `whole` what is indented below them.

    `…` stands for other lines.
    """
    command, printed = shown
    printed = printed if isinstance(printed, list) else printed.lines()
    kept, left_out, above = [], False, None
    matches = lambda line, some: any(re.search(pattern, line) for pattern in some)
    for line in filter(str.strip, printed):
        above = above if above is not None and indentation(line) > above else None
        above = indentation(line) if above is None and matches(line, whole) else above
        if len(kept) < limit and (above is not None or matches(line, patterns)):
            kept += ["…", line] if left_out else [line]
            left_out = False
        else:
            left_out = True
    if not kept:
        raise Failed(f"{command} printed none of the lines to show:\n" + "\n".join(printed))
    return command, kept + (["…"] if left_out else [])


def oom(place):
    place.memspy("record", "--exact", "--until", "oom", "-o", "run.bin", "--", "python3", "evaluate.py", seconds=90, codes=(0, 1))
    report = place.memspy("oom-report", "run.bin")
    shown = excerpt(report, r"^'oom' was met", r"^In short", r"^What PyTorch", r"asked for .*as PyTorch", r"called by the program",
                    whole=[r"most of what grew", r"the cache had"])
    return Answer([shown], place.picture("run.bin", "--at", "oom"))


def leak(place):
    job = place.start("python3", "history.py")
    job.wait_for("step 20")
    growth = place.memspy("growth", "-p", job.pid, "--for", "10s", beside=job.pid, seconds=90)
    summary = place.memspy("-p", job.pid, beside=job.pid)
    return Answer([excerpt(growth, r"snapshots over", r"a second .*owner", r"history\[", r"memspy why", r"^GPU \d", limit=9)], summary)


def more_than_pytorch(place):
    forgotten = place.start("python3", "complete.py")
    forgotten.wait_for("prompt 2")
    job = place.start("python3", "complete.py", beside=forgotten.pid)
    job.wait_for("prompt 2")
    devices = place.memspy("devices", "-p", job.pid, beside=job.pid)
    summary = place.memspy("-p", job.pid, beside=job.pid)
    shown = excerpt(devices, r"^GPU +pid", r"complete.py$", r" [ca]  ", r"f  = c", r"in use on the device", r"this process  ", r"reserved by", r"outside PyTorch",
                    r"other process", r"empty_cache\(\) would")
    return Answer([shown], summary)


def fragmentation(place):
    recorder = place.start("memspy", "record", "--exact", "-o", "run.bin", "--", "python3", "features.py")
    pid = int(recorder.wait_for(r"attached to process (\d+)")[1])
    recorder.wait_for("features are there")
    time.sleep(3)
    summary = place.memspy("-p", pid, beside=pid)
    os.kill(pid, signal.SIGTERM)
    recorder.wait()
    python = ["--python", "python3"] if shutil.which("python") is None and not place.machine.is_simulated else []
    settings = place.memspy("what-if", "run.bin", *python, seconds=150)
    shown = excerpt(settings, whole=[r"reserves .* less", r"^The replay", r"^Next"])
    return Answer([excerpt(summary, r"allocated .*cached .*free", r"features\[", whole=[r"^\* .*cached and free"]), shown], summary)


def notebook(place):
    if not place.machine.is_simulated and importlib.util.find_spec("IPython") is None:
        raise Failed(f"{sys.executable} has no IPython: install it, or name a folder that has it in PYTHONPATH")
    if place.machine.is_simulated and not os.path.isdir(PACKAGES):
        place.say("pip install ipython")
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", PACKAGES, "ipython"], check=True, timeout=120)
    packages = {"PYTHONPATH": PACKAGES} if place.machine.is_simulated else {}
    job = place.start("python3", "notebook.py", **packages)
    job.wait_for("the cells are done")
    time.sleep(1)
    summary = place.memspy("-p", job.pid, beside=job.pid)
    shown = excerpt(summary, r"allocated .*cached .*free", r"held by", r" __main__\.Out",
                    whole=[r"^ .*(saved for backward|parameters of)", r"^\* .*Out"], limit=17)
    return Answer([shown], summary)


def server(place):
    job = place.start("python3", "serve.py")
    port = job.wait_for(r"port (\d+)")[1]
    place.start("python3", "clients.py", port)
    time.sleep(3)
    place.memspy("record", "--exact", "-p", job.pid, "-d", "5s", "-o", "run.bin", beside=job.pid)
    lines = place.memspy("lines", "run.bin", "--limit", "6")
    return Answer([excerpt(lines, r"^ live at", r"^ +peak +share", r"B .*\.py:\d")], place.picture("run.bin", "--threads"))


def ranks(place):
    # Two ranks on one GPU talk through gloo, which looks for a network.
    job = ["python3", "-m", "torch.distributed.run", "--nproc-per-node", "2", "ranks.py"]
    place.memspy("record", "-s", "--exact", "-o", "rank-%r.bin", "--", *job, seconds=90, SIM_CUDA_DEVICES="2", GLOO_SOCKET_IFNAME="lo")
    lines = place.memspy("lines", "rank-0.bin", "rank-1.bin", "--merge", "--limit", "5")
    return Answer([excerpt(lines, r"^\d ranks, peak", r"^ +live,", r"^ +sum ", r"B .*\.py:\d")], place.picture("rank-0.bin", "rank-1.bin"))


def before_and_after(place):
    train = ["python3", "train.py", "--steps", "8"]
    place.memspy("record", "--exact", "-o", "before.bin", "--", *train, "--checkpointing")
    place.memspy("record", "--exact", "-o", "after.bin", "--", *train)
    difference = place.memspy("diff", "before.bin", "after.bin", "--limit", "5")
    return Answer([excerpt(difference, r"peak", r"difference", r"\.py:\d")], place.picture("after.bin", "--diff", "before.bin"))


SERIES = re.compile(r'^memspy_(\w+)\{pid="(\d+)",gpu="0",(.*)\} ([\d.e+]+)$')


def scraped():
    text = urllib.request.urlopen("http://127.0.0.1:9400/metrics", timeout=10).read().decode()
    return [line for line in text.splitlines() if line.startswith("memspy_")]


def dashboard(place):
    job = place.start("python3", "history.py")
    job.wait_for("step 20")
    exporter = place.start("memspy", "exporter", "-p", job.pid, "--owners=10", beside=job.pid)
    said = exporter.wait_for("memspy: serving.*")[0]
    began, series = time.monotonic(), {}
    while time.monotonic() - began < 20:
        lines, at = scraped(), time.monotonic() - began
        for found in filter(None, map(SERIES.match, lines)):
            name = {"allocated_bytes": "allocated", "reserved_bytes": "reserved"}.get(found[1])
            owner = re.search(r'owner="(.*)"$', found[3])
            if owner and "history" in owner[1]:
                name = owner[1].replace('\\"', '"')
            if name:
                series.setdefault(name, []).append((at, float(found[4])))
        time.sleep(0.5)
    shown = [re.sub(r'device="[^"]*",model="[^"]*"', "…", line) for line in lines]
    wanted = r"^memspy_(allocated_bytes|reserved_bytes|outside_pytorch|time_to_full|ooms_total|owner_bytes.*history)"
    screens = [(exporter.name, [said]), excerpt(("curl -s http://127.0.0.1:9400/metrics", shown), wanted)]
    return Answer(screens, chart(f"GPU memory of process {job.pid}, from memspy exporter", series))


def fit(place):
    words = ["--card", "24GiB", "--fit", "batch=1..64", "--", "python3", "train.py", "--batch", "{batch}"]
    answer = place.memspy("dry-run", "-o", "fit.bin", *words, seconds=240, codes=(0, 3))
    return Answer([excerpt(answer, r"is the largest", r"^(FITS|DOES NOT)", r" ±", r"^Peak in", r"^ .*\.py:\d", limit=9)], place.picture("fit.bin"))


# The names of the pages.
QUESTIONS = {
    "out-of-memory": oom, "leak": leak, "more-than-pytorch": more_than_pytorch, "fragmentation": fragmentation, "notebook": notebook,
    "server": server, "which-rank": ranks, "before-and-after": before_and_after, "dashboard": dashboard, "will-it-fit": fit,
}
