"""Threads that allocate and free without pause, as those of a server do, and what PyTorch counted meanwhile.

    python tests/targets/busy_server.py [--threads N] [--bursts] [--resets]

--bursts: all threads rest for some milliseconds now and then, together. --resets: one of them resets PyTorch's running
counts again and again, as a line profiler inside the job does. Requests, each answered with one line of JSON:
    start   lets the threads work, from a fresh peak
    stop    waits until they rest; tells the counters before and after, the peak, and the blocks that are live
"""
import argparse
import json
import random
import threading
import time

import handshake
import torch

KEPT = 6


class Server:
    def __init__(self, options):
        self.options = options
        self.works = threading.Event()
        self.resting = threading.Barrier(options.threads + 1)
        self.shared = []
        self.lock = threading.Lock()
        for number in range(options.threads):
            threading.Thread(target=self.work, args=(number,), name=f"worker-{number}", daemon=True).start()

    def work(self, number):
        dice = random.Random(number)
        while True:
            self.works.wait()
            kept = []
            while self.works.is_set():
                for _ in range(20):
                    kept.append(self.answer(dice))
                    if len(kept) > KEPT:
                        kept.pop(dice.randrange(KEPT))
                self.hand_over(kept)
                if self.options.bursts and dice.randrange(4) == 0:
                    time.sleep(0.004)
                if self.options.resets and number == 0:
                    torch.cuda.reset_accumulated_memory_stats()
            self.shared.append(kept.pop())
            del kept
            self.resting.wait()

    def answer(self, dice):
        """Large requests get blocks that are up to 1 MiB larger, where the rest of a cached block is not split off."""
        size = dice.choice((700, 40_000, 900_000, 1_300_000, 3_000_000, 7_654_321)) + dice.randrange(600_000)
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    def hand_over(self, kept):
        """Another thread frees it."""
        with self.lock:
            self.shared.append(kept.pop())
            if len(self.shared) > 8:
                del self.shared[0]

    def start(self):
        torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_stats()
        self.works.set()

    def stop(self):
        self.works.clear()
        self.resting.wait()
        blocks = [block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"]]
        live = {block["address"]: block["size"] for block in blocks if block["state"] == "active_allocated"}
        after = torch.cuda.memory_stats()
        keys = ("allocation.all.allocated", "allocated_bytes.all.allocated", "allocated_bytes.all.freed")
        return {"grown": {key: after[key] - self.before[key] for key in keys},
                "current": after["allocated_bytes.all.current"], "peak": after["allocated_bytes.all.peak"], "live": live}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--bursts", action="store_true")
    parser.add_argument("--resets", action="store_true")
    server = Server(parser.parse_args())
    torch.zeros(1, device="cuda")
    handshake.ready()
    for request, *_ in handshake.requests():
        if request == "start":
            server.start()
            print("{}", flush=True)
        elif request == "stop":
            print(json.dumps(server.stop()), flush=True)


if __name__ == "__main__":
    main()
