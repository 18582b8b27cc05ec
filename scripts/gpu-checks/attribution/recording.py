"""Records this process with memspy beside the truth: PyTorch's own memory history with Python
stacks.
"""
import collections
import os
import re
import time

import torch

import harness

from .blocks import with_block_sizes
from .jobs import Done, Watched

ENGINE = "[autograd thread]"
BEFORE = "[before recording]"
# Far fewer allocations and frees happen after memspy attached.
HISTORY = 2_000_000


def with_mode(words):
    """The arguments for `memspy record`; adds a mode if there is none, because the automatic
    mode depends on the machine.
    """
    modes = {"--mode", "--exact", "--follow", "--cpu", "-r", "--rate"}
    return [*words] if modes & set(words) else [*words, "--follow"]


class Recording(harness.Recording):
    """A memspy that follows this process; attached after construction."""

    def __init__(self, memspy, words):
        super().__init__(memspy, os.getpid(), *with_mode(words))
        time.sleep(0.5)

    def stacks(self, *words):
        """Bytes by stack: innermost frame first, as (file, line)."""
        stacks = collections.Counter()
        for path, count in self.collapsed("--full-filenames", *words):
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
            stacks[key] += count
        return stacks

    def followed(self):
        said = " ".join(self.said)
        found = re.search(r"followed: (.*?)(?:GPU|no GPU|warning|Next|$)", said)
        return found[1].strip() if found else "it was not followed"


def places(of):
    return tuple((frame["filename"], frame["line"]) for frame in of.get("frames", []))


def at_the_peak(events, older):
    """Live bytes by stack at the peaks of one device's history; `older` bytes predate it.

    Of equal peaks, only those with the fewest older bytes count: the stacks of older bytes are
    unknown. An iteration can have several: what one call frees and the next allocates often has the
    same size. Each is a peak; equal ones are given once.
    """

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
    """From PyTorch's own history: live bytes by stack, all allocated bytes by stack, and the live
    bytes at each peak.

    `before` is the snapshot taken before the history.
    """
    stacks, every = collections.Counter(), collections.Counter()
    snapshot, device = torch.cuda.memory._snapshot(), torch.cuda.current_device()
    unknown = with_block_sizes(snapshot["device_traces"][device], before, device)
    if unknown:
        print(f"    of {unknown} allocations the block is not known, only what was asked for")
    # Allocations of the engine's threads, and those older than the history, have no frames.
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
    """Runs a job with memspy and PyTorch's history at the same time.

    With `after`, both start that many seconds after the job. The job ends in the middle of a step,
    after `seconds` or `steps`, whichever is later.
    """

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
