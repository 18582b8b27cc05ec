"""The program of gpu_mem_track's README, and the lines that the tool logs at each `gpu_tracker.track()`.

    python tests/targets/oracle_memtrack.py [--device cuda|cpu] [--readme]

At each call it prints {"point", "lines", "came", "went", "used", "allocated", "where"} and READY, and waits for a line.
After those of the README come points for what the tool gets wrong; `--readme` leaves them out. The tool is not on PyPI:
`MemTracker` follows its rule as its source has it. With `--device cpu` it looks at tensors in main memory.
"""
import argparse
import gc
import inspect
import os

import handshake
import torch
from memtrack import Vgg19

# `torch.int16: 2` is overwritten by `torch.short: 16/6`, which is the same type.
BYTES = {torch.float64: 8, torch.float32: 4, torch.float16: 2, torch.bfloat16: 2, torch.int64: 8, torch.int32: 4,
         torch.int16: 16 / 6, torch.uint8: 1, torch.int8: 1, torch.bool: 1}


class MemTracker:
    def __init__(self, device):
        self.device = device
        self.last = set()
        self.point = 0

    def tensors(self):
        return [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor) and t.device.type == self.device]

    def rows(self, tensors):
        """The count is of all that are alike in size and type of element, whatever their class."""
        counts = {}
        for tensor in tensors:
            like = (tuple(tensor.size()), tensor.dtype)
            counts[like] = counts.get(like, 0) + 1
        return {(type(t), tuple(t.size()), counts[tuple(t.size()), t.dtype], self.mib(t), t.dtype) for t in tensors}

    @staticmethod
    def mib(tensor):
        """Of what the tensor shows, not of its storage; each view counts again."""
        return tensor.numel() * BYTES[tensor.dtype] / 1024 ** 2

    def track(self):
        caller = inspect.stack()[1]
        where = f"{os.path.basename(caller.filename)} line {caller.lineno}: {caller.function}"
        del caller
        tensors = self.tensors()
        rows, used = self.rows(tensors), sum(map(self.mib, tensors))
        del tensors
        came, went, self.last = rows - self.last, self.last - rows, rows
        allocated = torch.cuda.memory_allocated() if self.device == "cuda" else None
        totals = (f"At {where:<50} Total Tensor Used Memory:{used:<7.1f}Mb "
                  f"Total Allocated Memory:{(allocated or 0) / 1024 ** 2:<7.1f}Mb")
        handshake.ready({
            "point": self.point, "where": where, "used": used, "allocated": allocated,
            "came": sorted(map(plain, came)), "went": sorted(map(plain, went)),
            "lines": [line("+", row) for row in came] + [line("-", row) for row in went] + [totals]})
        self.point += 1
        handshake.hold()

    def clear_cache(self):
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()


def plain(row):
    kind, size, count, mib, dtype = row
    return [kind.__name__, list(size), count, mib, str(dtype)]


def line(sign, row):
    """`[:6]` cuts exponents off: four bytes are "3.8146 M"."""
    kind, size, count, mib, dtype = row
    return f"{sign} | {count} * Size:{str(size):<20} | Memory: {str(mib * count)[:6]} M | {str(kind):<20} | {dtype}"


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
parser.add_argument("--readme", action="store_true")
arguments = parser.parse_args()
device = arguments.device
if device == "cuda":
    torch.cuda.init()

# As in the README, at the top of the module: its variables are globals. "elsewhere" is where `.cpu()` goes there.
elsewhere = "cpu" if device == "cuda" else "meta"
gpu_tracker = MemTracker(device)

gpu_tracker.track()
cnn = Vgg19().features.to(device).eval()
gpu_tracker.track()

dummy_tensor_1 = torch.zeros(30, 3, 512, 512).float().to(device)
dummy_tensor_2 = torch.zeros(40, 3, 512, 512).float().to(device)
dummy_tensor_3 = torch.zeros(60, 3, 512, 512).float().to(device)

gpu_tracker.track()

dummy_tensor_4 = torch.zeros(120, 3, 512, 512).float().to(device)
dummy_tensor_5 = torch.zeros(80, 3, 512, 512).float().to(device)

gpu_tracker.track()

dummy_tensor_4 = dummy_tensor_4.to(elsewhere)
dummy_tensor_2 = dummy_tensor_2.to(elsewhere)
gpu_tracker.clear_cache()

gpu_tracker.track()

if not arguments.readme:
    # A third tensor of a size gives "+ 3" and "- 2"; views count again; int16 has 2.667 bytes; 4 bytes are "3.8146 M".
    one, two = torch.zeros(7, 100, device=device), torch.zeros(7, 100, device=device)
    gpu_tracker.track()
    three, view = torch.zeros(7, 100, device=device), one[:3]
    gpu_tracker.track()
    short, scalar = torch.zeros(300, dtype=torch.int16, device=device), torch.tensor(1.0, device=device)
    parameter = torch.nn.Parameter(torch.zeros(7, 100, device=device))
    del two
    gpu_tracker.track()
handshake.ready({"last": True})
handshake.hold()
