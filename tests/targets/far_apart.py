"""A job of objects that lie far apart: each on a page of its own, so that reading one costs a page.

    python tests/targets/far_apart.py [--objects N]
"""
import argparse
import gc

import handshake
import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--objects", type=int, default=30_000)
    words = parser.parse_args()
    gc.disable()
    wide = type("Wide", (), {"__slots__": [f"slot{n}" for n in range(508)]})
    objects = [wide() for _ in range(words.objects)]
    tensor = torch.ones(1000, device="cuda")
    handshake.ready(len(objects))
    handshake.hold()
    del tensor


if __name__ == "__main__":
    main()
