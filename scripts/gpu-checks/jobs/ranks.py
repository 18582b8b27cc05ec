"""The job of the check ranks: torchrun starts one for each rank, which trains for some seconds.

    torchrun ... jobs/ranks.py FOLDER SECONDS     FOLDER: gets pid-RANK and truth-RANK.json
"""
import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist

folder, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)


def make_communicator():
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    dist.barrier()


make_communicator()
layers = [torch.nn.Sequential(torch.nn.Linear(2048, 8192), torch.nn.GELU(), torch.nn.Linear(8192, 2048)) for _ in range(12)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
optimizer = torch.optim.AdamW(model.parameters())
(folder / f"pid-{rank}").write_text(str(os.getpid()))
begin, steps, pace = time.monotonic(), 0, []
while True:
    now = time.monotonic()
    model(torch.randn(1024, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    pace.append(time.monotonic() - now)
    steps += 1
    over = torch.tensor(float(time.monotonic() - begin > seconds), device="cuda")
    dist.all_reduce(over)
    if over.item():
        break
stats = torch.cuda.memory_stats()
truth = {"rank": rank, "pid": os.getpid(), "steps": steps, "step_seconds": sorted(pace)[len(pace) // 2],
         "peak": torch.cuda.max_memory_allocated(), "allocations": stats["allocation.all.allocated"],
         "segments": stats["segment.all.allocated"]}
(folder / f"truth-{rank}.json").write_text(json.dumps(truth))
dist.barrier()
dist.destroy_process_group()
