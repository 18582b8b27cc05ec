"""Adds the block size of each allocation, which PyTorch's memory history leaves out.

The history has the requested bytes. The allocator rounds them up to 512, takes the best-fitting
free block, and splits off the rest only if it is large enough (`should_split` in
c10/cuda/CUDACachingAllocator.cpp); otherwise it uses the whole block. The address identifies the
block, if all earlier splits and merges are known.
"""
import bisect

# c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize, kSmallSize.
SMALLEST, SMALL = 512, 1 << 20


def rounded(size):
    return max((size + SMALLEST - 1) // SMALLEST * SMALLEST, SMALLEST)


class Segment:
    """Memory that the allocator took from the driver, cut into blocks without gaps."""

    def __init__(self, start, size):
        self.starts, self.ends, self.is_free = [start], [start + size], [True]

    def find(self, address):
        at = bisect.bisect_left(self.starts, address)
        return at if at < len(self.starts) and self.starts[at] == address else None

    def cut(self, at, size):
        """Splits a block; the second part is free."""
        self.starts.insert(at + 1, self.starts[at] + size)
        self.ends.insert(at, self.starts[at] + size)
        self.is_free.insert(at + 1, True)

    def release(self, at):
        self.is_free[at] = True
        for left in (at, at - 1):
            if left >= 0 and left + 1 < len(self.starts) and self.is_free[left] and self.is_free[left + 1]:
                del self.starts[left + 1], self.ends[left], self.is_free[left + 1]


class Blocks:
    """All segments of one device, starting from a `torch.cuda.memory._snapshot` taken before the
    history.
    """

    def __init__(self, snapshot, device):
        self.starts, self.segments = [], []
        for segment in snapshot["segments"]:
            if segment["device"] == device:
                made = self.add(segment["address"], segment["total_size"])
                for number, block in enumerate(segment["blocks"]):
                    if number + 1 < len(segment["blocks"]):
                        made.cut(number, block["size"])
                    made.is_free[number] = block["state"] == "inactive"

    def add(self, start, size):
        at = bisect.bisect_left(self.starts, start)
        self.starts.insert(at, start)
        self.segments.insert(at, Segment(start, size))
        return self.segments[at]

    def remove(self, start):
        at = bisect.bisect_left(self.starts, start)
        if at < len(self.starts) and self.starts[at] == start:
            del self.starts[at], self.segments[at]

    def find(self, address):
        segment = bisect.bisect_right(self.starts, address) - 1
        if segment < 0:
            return None, None
        segment = self.segments[segment]
        return segment, segment.find(address)

    def take(self, event):
        """The block size of an allocation; `None` for other events or an unknown block."""
        action, address = event["action"], event["addr"]
        if action == "segment_alloc":
            self.add(address, event["size"])
        elif action == "segment_free":
            self.remove(address)
        elif action in ("alloc", "free_completed"):
            segment, at = self.find(address)
            if at is None:
                return None
            if action == "free_completed":
                segment.release(at)
                return None
            size, wanted = segment.ends[at] - segment.starts[at], rounded(event["size"])
            rest = size - wanted
            if rest > SMALL if wanted > SMALL else rest >= SMALLEST:
                segment.cut(at, wanted)
                size = wanted
            segment.is_free[at] = False
            return size
        return None


def with_block_sizes(events, before, device):
    """Adds to each allocation and free in a device's history its "block", the size of the block."""
    blocks, alive, unknown = Blocks(before, device), {}, 0
    for segment in before["segments"]:
        if segment["device"] == device:
            for block in segment["blocks"]:
                alive[block["address"]] = block["size"]
    for event in events:
        size = blocks.take(event)
        if event["action"] == "alloc":
            unknown += size is None
            event["block"] = alive[event["addr"]] = rounded(event["size"]) if size is None else size
        elif event["action"] == "free_requested":
            event["block"] = alive.pop(event["addr"], rounded(event["size"]))
    return unknown
