"""The example of pytorch_memlab's README, repeated until stdin closes, without pytorch_memlab.

    python tests/targets/memlab_outer_inner.py [--pause MS]

Each line pauses before and after it allocates, and longer between rounds, so that a sampler sees every line
of every round; --pause 0 runs the example as fast as it goes.

Its published line profile, as peak active bytes: in outer 0 at the `def`, 40.00K after `linear`, 80.00K
after `linear2`, 120.00K at `inner()`; in inner 80.00K at the `def`, 120.00K after its Linear; 2.00M reserved.
"""
import json
import os
import select
import sys
import time

import handshake
import torch

PAUSE = float(sys.argv[2]) / 1000 if sys.argv[1:2] == ["--pause"] else 0.005


def inner():
    slowly(torch.nn.Linear(100, 100).cuda)


def outer():
    linear = slowly(torch.nn.Linear(100, 100).cuda)
    linear2 = slowly(torch.nn.Linear(100, 100).cuda)
    inner()


def slowly(work):
    time.sleep(PAUSE)
    result = work()
    time.sleep(PAUSE)
    return result


def main():
    torch.cuda.init()
    handshake.ready({"pid": os.getpid(), "file": os.path.abspath(__file__),
                     "lines": {"outer.linear": outer.__code__.co_firstlineno + 1,
                               "outer.linear2": outer.__code__.co_firstlineno + 2,
                               "outer.inner": outer.__code__.co_firstlineno + 3,
                               "inner.linear": inner.__code__.co_firstlineno + 1}})
    rounds = 0
    while not (select.select([sys.stdin], [], [], 0)[0] and not sys.stdin.readline()):
        outer()
        rounds += 1
        time.sleep(4 * PAUSE)
    stats = torch.cuda.memory_stats()
    print(json.dumps({"rounds": rounds, "active_peak": stats["active_bytes.all.peak"],
                      "reserved_peak": stats["reserved_bytes.all.peak"]}), flush=True)


if __name__ == "__main__":
    main()
