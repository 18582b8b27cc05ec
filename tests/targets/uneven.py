"""A launcher of ranks that hold different amounts.

    python tests/targets/uneven.py

It starts rank 0 at once, which prints "rank 0 READY". Then it takes a request per line on stdin, for the rank R:

    start R    starts it: it holds (1 + 2 R) x 64 MiB on GPU R and prints "rank R READY"
    grow R     it holds another GiB, made in the function "grow", and prints "rank R grown"
    end R      it ends; "rank R ended"

End of input ends all of them.
"""
import os
import subprocess
import sys
import time

MIB = 1 << 20
kept = []


def hold(rank):
    import torch

    torch.cuda.set_device(rank)
    return torch.empty((1 + 2 * rank) * 64 * MIB, dtype=torch.uint8, device=f"cuda:{rank}")


def grow(rank):
    import torch

    # It works before and after: a thread that sleeps at two samples is not charged with what it allocated in between.
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass
    kept.append(torch.empty(1024 * MIB, dtype=torch.uint8, device=f"cuda:{rank}"))
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass


def be_rank(rank):
    kept.append(hold(rank))
    print(f"rank {rank} READY", flush=True)
    for line in iter(sys.stdin.readline, ""):
        if line.strip() == "end":
            break
        grow(rank)
        print(f"rank {rank} grown", flush=True)


def start(rank):
    environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2")
    return subprocess.Popen([sys.executable, __file__], env=environment, stdin=subprocess.PIPE, text=True)


def main():
    ranks = {0: start(0)}
    for line in iter(sys.stdin.readline, ""):
        word, rank = line.split()[0], int(line.split()[1])
        if word == "start":
            ranks[rank] = start(rank)
            continue
        print(word, file=ranks[rank].stdin, flush=True)
        if word == "end":
            ranks.pop(rank).wait()
            print(f"rank {rank} ended", flush=True)
    for process in ranks.values():
        process.stdin.close()
    for process in ranks.values():
        process.wait()


if __name__ == "__main__":
    if "RANK" in os.environ:
        be_rank(int(os.environ["RANK"]))
    else:
        main()
