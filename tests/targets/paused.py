"""Threads that count, come and go, sleep, and take signals, while somebody stops the process again and again.

After READY each line read is answered with the counts so far as JSON.
"""
import json
import select
import signal
import threading
import time

import handshake

counts = {"signals": 0, "work": 0, "threads": 0, "sleeps": 0, "selects": 0, "errors": []}


def on_signal(*_):
    counts["signals"] += 1


def work():
    while True:
        counts["work"] += 1


def come_and_go():
    while True:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        counts["threads"] += 1


def sleep():
    """Waits that the kernel has to take up again where they were."""
    while True:
        started = time.monotonic()
        time.sleep(0.01)
        if time.monotonic() - started < 0.01:
            counts["errors"].append("woke too early")
        counts["sleeps"] += 1
        try:
            select.select([], [], [], 0.005)
            counts["selects"] += 1
        except OSError as error:
            counts["errors"].append(str(error))


def main():
    signal.signal(signal.SIGUSR1, on_signal)
    for target in (work, come_and_go, sleep):
        threading.Thread(target=target, daemon=True).start()
    handshake.ready()
    for _ in handshake.requests():
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
