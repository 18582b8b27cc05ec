"""A job that records its own history with `torch.cuda.memory._record_memory_history` and says what is in it.

    python tests/targets/recorded_history.py MODE [ENTRIES]

Prints READY; on the line "truth" it prints `torch.cuda.memory._snapshot()` as a line of JSON, on "viz PATH" what
torch's own `_memory_viz.py` says of that file. It allocates nothing meanwhile.
"""
import argparse
import os
import pickle
import time

import handshake

MIB = 1 << 20
MODES = {
    "python": {"stacks": "python"},  # the frames of Python alone
    "all": {"stacks": "all"},  # with those of C++
    "state": {"context": "state", "stacks": "python"},  # stacks of live blocks only
    "ring": {"stacks": "python"},  # more events than the ring has room for
    "expandable": {"stacks": "python"},
    "two_devices": {"stacks": "python"},
    "oom": {"stacks": "python"},
    "off": None,  # nothing is recorded
    "stopped": {"stacks": "python"},  # recorded for a while, then no longer
    "busy": {"stacks": "python"},  # goes on allocating
}


def layer(size, device):
    return torch.empty(size, dtype=torch.uint8, device=device)


def model(sizes, device="cuda"):
    kept = [layer(size, device) for size in sizes]
    scratch = [layer(3 * MIB, device) for _ in range(4)]
    del scratch[::2]
    exec(compile("made = torch.empty(77777, dtype=torch.uint8, device=device)", "<a cell>", "exec"), globals() | {"device": device})
    return kept + [(lambda: layer(5 * MIB, device))() for _ in range(2)]


def work(mode):
    kept = []
    for device in range(torch.cuda.device_count()):
        for step in range(60 if mode == "ring" else 3):
            kept.append(model([700, 40_000, 2 * MIB, 30 * MIB // (step + 1)], f"cuda:{device}"))
            if step % 2:
                kept.pop(0)
    # A stack that is used by more than one event, and one from another thread's backward.
    weight = torch.ones(1024, 1024, device="cuda", requires_grad=True)
    (weight * 2).sum().backward()
    kept.append(weight)
    if mode == "oom":
        try:
            layer(1 << 50, "cuda")
        except torch.cuda.OutOfMemoryError:
            pass
    return kept


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=sorted(MODES))
    parser.add_argument("entries", nargs="?", type=int)
    ARGS = parser.parse_args()
    if ARGS.mode == "two_devices":
        os.environ.setdefault("SIM_CUDA_DEVICES", "2")
    if ARGS.mode == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    import torch
    from torch.cuda import _memory_viz

    torch.cuda.init()
    OLDER = layer(11 * MIB, "cuda")
    OPTIONS = MODES[ARGS.mode]
    if OPTIONS is not None:
        entries = ARGS.entries or (100 if ARGS.mode == "ring" else 100_000)
        torch.cuda.memory._record_memory_history(max_entries=entries, **OPTIONS)
    KEPT = work(ARGS.mode)
    if ARGS.mode == "stopped":
        torch.cuda.memory._record_memory_history(None)
    handshake.ready()
    if ARGS.mode == "busy":
        while os.getppid() > 1:
            KEPT[len(KEPT) // 2 :] = [model([1000, 2000])]
            time.sleep(0.0005)  # a whole ring is not to be overwritten faster than it can be read
    for REQUEST in handshake.requests():
        if REQUEST[0] == "truth":
            handshake.ready(torch.cuda.memory._snapshot())
        else:
            with open(REQUEST[1], "rb") as file:
                snapshot = pickle.load(file)
            text = [f(snapshot) for f in (_memory_viz.trace, _memory_viz.segsum, _memory_viz.trace_plot)]
            handshake.ready({"lengths": [len(t) for t in text], "trace": text[0]})
