"""A recording of this process by memspy, and beside it the truth: PyTorch's own memory history with Python stacks."""
import collections
import os
import re
import signal
import subprocess
import tempfile
import time

import torch

from .blocks import with_block_sizes
from .jobs import Done, Watched

FOLDER = tempfile.mkdtemp(prefix="memspy-check-")
ENGINE = "[autograd thread]"
BEFORE = "[before recording]"
# Allocations and frees since memspy attached are fewer.
HISTORY = 2_000_000


def with_mode(words):
    """The words for `memspy record`, which follows where they have no mode: left to itself, it takes the mode that this machine allows."""
    modes = {"--mode", "--exact", "--follow", "--cpu", "-r", "--rate"}
    return [*words] if modes & set(words) else [*words, "--follow"]


class Recording:
    """memspy following this process: attached after construction."""

    def __init__(self, memspy, words):
        self.memspy, self.trace, self.said = memspy, os.path.join(FOLDER, f"{time.monotonic_ns()}.bin"), []
        command = [memspy, "record", "-p", str(os.getpid()), "-o", self.trace, *with_mode(words)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            self.said.append(line.rstrip())
            if "attached to process" in line:
                time.sleep(0.5)
                return
        raise SystemExit("memspy did not attach: " + " | ".join(self.said))

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.said += self.process.stderr.read().splitlines()
        self.process.wait()

    def stacks(self, *words):
        """Bytes by stack: innermost frame first, as (file, line)."""
        command = [self.memspy, "flame", self.trace, "-f", "collapsed", "-o", "-", "--full-filenames", *words]
        flame = subprocess.run(command, capture_output=True, text=True)
        if flame.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: {flame.stderr}")
        stacks = collections.Counter()
        for line in flame.stdout.splitlines():
            path, count = line.rsplit(" ", 1)
            frames = path.split(";")
            places = [re.fullmatch(r".* \((.*):(\d+)\)", frame) for frame in frames]
            if ENGINE in frames:
                key = (ENGINE,)
            elif BEFORE in frames:
                key = (BEFORE,)
            elif all(places):
                key = tuple((place[1], int(place[2])) for place in reversed(places))
            else:
                key = (frames[-1],)
            stacks[key] += int(count)
        return stacks

    def followed(self):
        said = " ".join(self.said)
        found = re.search(r"followed: (.*?)(?:GPU|no GPU|warning|Next|$)", said)
        return found[1].strip() if found else "it was not followed"


def places(of):
    return tuple((frame["filename"], frame["line"]) for frame in of.get("frames", []))


def at_the_peak(events, older):
    """Live bytes by stack at the moments when the most was allocated, as the history of one device has them: `older` bytes are older than it.

    Of moments that are equally high it is those with the fewest older bytes: of these nobody knows the stack. In an iteration there can be several:
    what is freed in one call and made in the next is often of one size. Each of them is the peak; those that are alike are given once."""

    def moments():
        alive, left = {}, older
        total = left
        for event in events:
            if event["action"] == "alloc":
                alive[event["addr"]] = event
                total += event["block"]
            elif event["action"] == "free_requested":
                left -= 0 if alive.pop(event["addr"], None) else event["block"]
                total -= event["block"]
            yield total, alive, left

    highest = min(((-total, left) for total, _, left in moments()), default=None)
    peaks = {}
    for total, alive, left in moments():
        if (-total, left) == highest:
            stacks = collections.Counter({(BEFORE,): left})
            for event in alive.values():
                stacks[places(event) or (ENGINE,)] += event["block"]
            peaks[frozenset(stacks.items())] = stacks
    return list(peaks.values()) or [collections.Counter()]


def truth(older, before):
    """Live bytes by stack, all allocated bytes by stack, and the live bytes at each peak, as PyTorch's own history has them.

    `before` is the snapshot before the history."""
    stacks, every = collections.Counter(), collections.Counter()
    snapshot, device = torch.cuda.memory._snapshot(), torch.cuda.current_device()
    unknown = with_block_sizes(snapshot["device_traces"][device], before, device)
    if unknown:
        print(f"    of {unknown} allocations the block is not known, only what was asked for")
    # Neither what the engine's threads allocated has frames, nor what is older than the history.
    since, last, unlike = set(), {}, 0
    for event in snapshot["device_traces"][device]:
        if event["action"] == "alloc":
            since.add(event["addr"])
            last[event["addr"]] = event["block"]
            every[places(event) or (ENGINE,)] += event["block"]
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                is_older = block["address"] not in since
                stacks[places(block) or (BEFORE if is_older else ENGINE,)] += block["size"]
                unlike += last.get(block["address"], block["size"]) != block["size"]
    if unlike:
        print(f"    {unlike} blocks are larger or smaller than replayed from the history")
    return stacks, every, at_the_peak(snapshot["device_traces"][device], older)


def run(job, watched):
    torch.cuda.empty_cache()
    try:
        job(watched)
    except Done:
        pass
    return watched


class BesideHistory:
    """A run of a job, recorded by memspy and by PyTorch's history at the same time.

    With `after`, both begin that many seconds after the job. The job ends in the middle of a step, `seconds` later or after
    `steps` steps, whichever is later."""

    def __init__(self, memspy, words, job, steps, after=0, seconds=0):
        def begin():
            self.recording = Recording(memspy, words)
            self.older, before = torch.cuda.memory_allocated(), torch.cuda.memory._snapshot()
            torch.cuda.memory._record_memory_history(enabled="all", stacks="python", max_entries=HISTORY)
            self.before = before

        def at_last():
            self.live, self.every, self.peaks = truth(self.older, self.before)
            time.sleep(1.5)
            self.recording.stop()

        if after:
            run(job, Watched(steps, at_last, begin, after, seconds))
        else:
            begin()
            run(job, Watched(steps, at_last, seconds=seconds))
        torch.cuda.memory._record_memory_history(enabled=None)
