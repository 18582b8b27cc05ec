"""A job that allocates from stacks that never come again: deep recursion on ever other lines, out of code that is made anew.

    python tests/targets/new_stacks.py [--depth N] [--device cuda|cpu]

After READY, `run N` allocates from N new stacks and answers with how many allocations were made, then READY.
"""
import argparse
import sys

import handshake
import torch

CELL = """
def cell_{number}(way, depth, device):
    if depth == 0:
        return torch.empty(256, device=device)
    if way & 1:
        return cell_{number}(way >> 1, depth - 1, device)
    if way & 2:
        return cell_{number}(way >> 2, depth - 1, device)
    return cell_{number}(way >> 1, depth - 1, device)
"""
# Stacks out of one piece of code; the next one has another name, and its memory.
OF_ONE_CELL = 200


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, default=120)
    parser.add_argument("--device", default="cuda")
    words = parser.parse_args()
    sys.setrecursionlimit(10 * words.depth + 1000)
    torch.empty(256, device=words.device)
    made, number = 0, 0
    kept = []
    handshake.ready()
    for request in handshake.requests():
        for _ in range(int(request[1])):
            if made % OF_ONE_CELL == 0:
                number += 1
                scope = {"torch": torch}
                exec(compile(CELL.format(number=number), f"<cell {number}>", "exec"), scope)
                cell = scope[f"cell_{number}"]
            made += 1
            # The lowest bits are those of the outermost frames: no two stacks have more than these in common.
            kept.append(cell(made * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << words.depth), words.depth, words.device))
            if len(kept) > 100:
                kept.clear()
        print(made, flush=True)
        handshake.ready()


if __name__ == "__main__":
    main()
