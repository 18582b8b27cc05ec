"""Holds known amounts on known lines and runs out of memory on another one, as often as it is told.

    python tests/targets/oom.py [--fraction PART] [--observer]

Prints {"lines": {name: {"line", "function"}}, "held_bytes", "total_bytes"} and READY; then one request per line on stdin:

    caught MIB    asks for so many MiB that the device does not have, and catches the error; READY
    handled MIB   the same, with a handler that takes a while; READY
    chained MIB   the same, and raises another error out of its handler, whose handler takes a while; READY
    threaded MIB  the same as handled, in another thread; READY
    module MIB    the same as handled, out of a module of PyTorch's; READY
    fatal MIB     the same, uncaught: the process dies of it
    abrupt MIB    the same, caught, and the process ends at once without any clean-up
    grow MIB N    holds N more blocks of so many MiB, 20 ms apart; READY
    late          makes the same as at its beginning once more, and keeps it; READY
    drop          lets go of what "grow" and "late" took; READY
    settle S      does nothing for so many seconds; READY
"""
import argparse
import json
import os
import threading
import time

import handshake
import torch

MIB = 1 << 20
kept = []


def pause(*_):
    """What a failing request takes on a card where freeing memory is slow; --observer puts it there."""
    time.sleep(0.03)


def blocks(count, size):
    return [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for _ in range(count)]


def make_weights():
    return blocks(4, 64)  # line: weights


def make_state():
    return blocks(2, 64)  # line: state


def ask(size):
    time.sleep(0.02)
    return torch.empty(size * MIB, dtype=torch.uint8, device="cuda")  # line: asked


def caught(size):
    try:
        ask(size)
    except torch.OutOfMemoryError:
        pass
    time.sleep(0.02)


def clean_up():
    """What handlers do: free, log, wait."""
    torch.cuda.empty_cache()
    time.sleep(0.05)


def handled(size, request=ask):
    try:
        request(size)
    except torch.OutOfMemoryError:
        clean_up()


def ask_or_explain(size):
    try:
        ask(size)
    except torch.OutOfMemoryError as error:
        raise RuntimeError("no batch of this size fits") from error


def chained(size):
    try:
        ask_or_explain(size)
    except RuntimeError:
        clean_up()


def threaded(size):
    thread = threading.Thread(target=handled, args=(size,), name="loader")
    thread.start()
    thread.join()


def ask_module(size):
    torch.nn.Linear(size, MIB // 4, bias=False, device="cuda")  # line: module


def grow(size, count):
    # It works before and after: a thread that sleeps at two samples is not charged with what it allocated in between.
    for _ in range(count):
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass
        kept.append(torch.empty(size * MIB, dtype=torch.uint8, device="cuda"))  # line: grown
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass


def known_lines():
    marks = handshake.marked_lines(__file__, r"  # line: (\w+)$")
    return {mark.group(1): {"line": number, "function": function} for number, function, mark in marks}


def main(arguments):
    torch.empty(1, device="cuda")
    if arguments.fraction:
        torch.cuda.set_per_process_memory_fraction(arguments.fraction)
    if arguments.observer:
        torch._C._cuda_attach_out_of_memory_observer(pause)
    time.sleep(0.05)
    weights = make_weights()
    time.sleep(0.05)
    state = make_state()
    handshake.ready({"pid": os.getpid(), "lines": known_lines(), "held_bytes": torch.cuda.memory_allocated(),
                     "total_bytes": torch.cuda.mem_get_info()[1]})
    for name, *words in handshake.requests():
        if name == "caught":
            caught(int(words[0]))
        elif name in ("handled", "chained", "threaded"):
            {"handled": handled, "chained": chained, "threaded": threaded}[name](int(words[0]))
        elif name == "module":
            handled(int(words[0]), ask_module)
        elif name == "fatal":
            ask(int(words[0]))
        elif name == "abrupt":
            try:
                ask(int(words[0]))
            except torch.OutOfMemoryError:
                os._exit(9)
        elif name == "grow":
            grow(int(words[0]), int(words[1]))
        elif name == "drop":
            kept.clear()
        elif name == "late":
            kept.append(make_weights())
        elif name == "settle":
            time.sleep(float(words[0]))
        handshake.ready()
    del weights, state


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fraction", type=float)
    parser.add_argument("--observer", action="store_true")
    main(parser.parse_args())
