"""Threads that wait in every way while others allocate, and a thread that waits between its own allocations.

    python tests/targets/waits.py SECONDS

READY when CUDA is in use; at a line on standard input it begins, and READY again when it stands still. Then it prints {"waits": the lines on
which threads wait, "live", "every": [[bytes, line], ...] of live blocks and of every allocation, by PyTorch's own memory history, "allocated",
"allocated_in_all"}; it ends when stdin closes.

The main thread waits in turn for: a time (by Python and by C), a futex, a pipe, a lock, a queue, an event, a socket, a child. One worker
allocates with hardly a pause, another one is asked for each of its allocations and sleeps on a futex of its own after it.
"""
import ctypes
import os
import queue
import socket
import subprocess
import sys
import threading
import time

import handshake
import torch

MILLISECOND = 1_000_000
FUTEX = {"x86_64": 202}.get(os.uname().machine, 98)
libc = ctypes.CDLL(None)
words = [ctypes.c_int(0) for _ in range(2)]
pause = (ctypes.c_long * 2)(0, 2 * MILLISECOND)
lock, filled, go = threading.Lock(), queue.Queue(), threading.Event()
asked = queue.Queue()
read_end, write_end = os.pipe()
here, there = socket.socketpair()
kept = []
over = False


def sleep():
    time.sleep(0.002)  # waits


def sleep_in_c():
    libc.usleep(2000)  # waits


def futex(word):
    libc.syscall(FUTEX, ctypes.byref(word), 0, 0, pause, 0, 0)  # waits


def pipe():
    os.read(read_end, 1)  # waits


def locked():
    lock.acquire()  # waits


def queued():
    filled.get()  # waits


def told():
    go.wait()  # waits
    go.clear()


def received():
    here.recv(1)  # waits


def child():
    running = subprocess.Popen(["sleep", "0.02"])
    running.wait()  # waits


def helper():
    """Ends the waits of the main thread, each after a moment."""
    endings = [lambda: os.write(write_end, b"x"), lock.release, lambda: filled.put(1), go.set, lambda: there.send(b"x")]
    while not over:
        libc.usleep(1500)  # waits
        endings[turn % len(endings)]()
        ended.acquire()  # waits


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def allocate():
    kept.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
    spin(0.0002)
    scratch = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(4):
        part = torch.empty(2048, device="cuda")
        kept.append(torch.cat([part, part]))
    del scratch


def busy():
    while not over:
        allocate()
        spin(0.002)


def serve():
    while True:
        if asked.get() is None:  # waits
            return
        kept.append(torch.empty(5 << 20, dtype=torch.uint8, device="cuda"))
        futex(words[1])


turn = 0
ended = threading.Semaphore(0)


def run(seconds):
    global over, turn
    lock.acquire()
    threads = [threading.Thread(target=target, daemon=True) for target in (helper, busy, serve)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        asked.put(1)
        sleep()
        sleep_in_c()
        futex(words[0])
        for way in (pipe, locked, queued, told, received):
            way()
            turn += 1
            ended.release()
        child()
    over = True
    asked.put(None)
    for thread in threads[1:]:
        thread.join()


def line(of):
    return next((frame["line"] for frame in of.get("frames", []) if frame["filename"] == __file__), 0)


def truth(before):
    snapshot = torch.cuda.memory._snapshot()
    blocks = (block for segment in snapshot["segments"] for block in segment["blocks"])
    events = (event for events in snapshot["device_traces"] for event in events)
    return {
        "waits": [number for number, _, _ in handshake.marked_lines(__file__, r"  # waits$")],
        "live": [[block["size"], line(block)] for block in blocks if block["state"] == "active_allocated"],
        "every": [[event["size"], line(event)] for event in events if event["action"] == "alloc"],
        "allocated": torch.cuda.memory_allocated(),
        "allocated_in_all": torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - before,
    }


def main():
    torch.zeros(1, device="cuda")
    handshake.ready()
    sys.stdin.readline()
    torch.cuda.memory._record_memory_history(enabled="all", stacks="python", max_entries=1_000_000)
    before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
    run(float(sys.argv[1]))
    handshake.ready(truth(before))
    handshake.hold()
    # One of its threads waits for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
