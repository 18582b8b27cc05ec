"""A distributed job: data parallel (ddp) or fully sharded (fsdp), with DataLoader workers.

Under torchrun this is a rank. It trains for so many seconds, or until FOLDER/seen is there, and writes its truth into
FOLDER/rank-N.json. With `--launch` it starts two ranks itself: the second one when a line comes in on standard input.
"""
import argparse
import itertools
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def make_model(kind, width, device):
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4))).to(device)
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def train(model, optimizer, batch):
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def goes_on(round_, rank, arguments):
    """The same answer on every rank, or one would wait for the other for ever."""
    if arguments.seconds is not None:
        return round_ < arguments.seconds * 10
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        ends = (arguments.folder / "seen").exists() or round_ > 1000  # nobody looks any more
        store.set(f"round {round_}", "ends" if ends else "goes on")
    answer = store.get(f"round {round_}")
    if answer == b"ends":
        store.set(f"heard by {rank}", "")
        if rank == 0:  # the store ends with this rank
            store.wait([f"heard by {other}" for other in range(dist.get_world_size())])
    return answer == b"goes on"


def launch(command):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(2):
        if rank:
            print("READY", flush=True)
            sys.stdin.readline()
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([sys.executable, *command], env=environment))
    return max(rank.wait() for rank in ranks)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["ddp", "fsdp"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, help="else until FOLDER/seen is there")
    parser.add_argument("--launch", action="store_true", help="start two ranks")
    parser.add_argument("--dies", type=int, help="this rank dies in the middle")
    arguments = parser.parse_args()
    if arguments.launch:
        sys.exit(launch([word for word in sys.argv if word != "--launch"]))
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    width = 512
    model = make_model(arguments.kind, width, f"cuda:{rank}")
    optimizer = torch.optim.AdamW(model.parameters())
    data = DataLoader(TensorDataset(torch.randn(64, width)), batch_size=16, num_workers=2, persistent_workers=True)
    folder = arguments.folder
    begin = time.monotonic()
    for round_ in itertools.count():
        if not goes_on(round_, rank, arguments):
            break
        time.sleep(0.05)
        for (batch,) in data:
            train(model, optimizer, batch.to(f"cuda:{rank}"))
        if rank == arguments.dies and time.monotonic() - begin > 1.5:
            os.kill(os.getpid(), 9)
    stats = torch.cuda.memory_stats()
    truth = {
        "rank": rank, "pid": os.getpid(), "peak": torch.cuda.max_memory_allocated(),
        "allocated": torch.cuda.memory_allocated(), "allocations": stats["allocation.all.allocated"],
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(truth))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
