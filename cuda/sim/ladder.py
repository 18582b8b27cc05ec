#!/usr/bin/env python3
"""Climbs what PyTorch programs do on a GPU, step by step, on the simulated device; exits 1 if a step fails.

    scripts/with-sim python cuda/sim/ladder.py [STEP ...]      all steps, or the named ones

Each step prints OK or FAIL, its name and its time. Steps that need other settings run in a process of their own.
"""
import os
import subprocess
import sys
import time
import traceback

STEPS = {}
MIB = 1 << 20


def step(**environment):
    """Registers a step; with an environment it gets a fresh process."""

    def register(function):
        STEPS[function.__name__] = (function, environment)
        return function

    return register


def equal(found, expected):
    assert found == expected, f"{found!r}, expected {expected!r}"


# ---- the allocator ----


@step()
def device_is_there():
    import torch

    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    equal(torch.cuda.get_device_capability(), (9, 0))
    properties = torch.cuda.get_device_properties(0)
    equal((properties.total_memory, properties.multi_processor_count, properties.warp_size), (80 << 30, 132, 32))
    equal(properties.max_threads_per_multi_processor, 2048)
    equal(properties.shared_memory_per_block_optin, 232448)


@step(SIM_CUDA_VALUES="zero")
def counters_of_one_tensor():
    import torch

    tensor = torch.empty(1000, 1000, device="cuda")
    equal(tensor.data_ptr() % (2 * MIB), 0)
    equal((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()), (4000256, 20971520))
    segment = torch.cuda.memory_snapshot()[0]
    equal([(b["size"], b["state"]) for b in segment["blocks"]], [(4000256, "active_allocated"), (16971264, "inactive")])


@step()
def elementwise_and_copies():
    import torch

    a, b = torch.zeros(1024, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda")
    equal(torch.relu(a + b).sum().item(), 0.0)  # nothing is computed; what is read back is zero
    equal(torch.arange(10.0).cuda().cpu().tolist(), list(range(10)))  # what was only copied is not lost
    assert torch.ones(3).pin_memory().is_pinned()
    str(a)


@step(SIM_CUDA_TOTAL_BYTES="4G")
def out_of_memory():
    import torch

    try:
        kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(8)]
        raise AssertionError("8 GiB fit on a 4 GiB card")
    except torch.cuda.OutOfMemoryError as error:
        assert "total capacity of 4.00 GiB" in str(error), error
        kept = None
    stats = torch.cuda.memory_stats()
    equal((stats["num_ooms"], kept), (1, None))


@step(SIM_CUDA_FAIL_ALLOC_N="2")
def retry_after_one_failure():
    import torch

    first = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    del first
    torch.empty(60 * MIB, dtype=torch.uint8, device="cuda")
    stats = torch.cuda.memory_stats()
    equal((stats["num_ooms"], stats["num_alloc_retries"]), (0, 1))


@step()
def memory_history():
    import torch

    torch.cuda.memory._record_memory_history(max_entries=10000)
    tensor = torch.empty(5 * MIB, device="cuda")
    del tensor
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    actions = [entry["action"] for entry in trace if entry["size"] == 20 * MIB]
    equal([a for a in actions if "segment" not in a], ["alloc", "free_requested", "free_completed"])
    assert trace[-1]["frames"]


@step(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", SIM_CUDA_TOTAL_BYTES="2G")
def expandable_segments():
    import torch

    kept = [torch.empty(40 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
    segments = torch.cuda.memory_snapshot()
    equal([s["is_expandable"] for s in segments], [True])
    before = torch.cuda.mem_get_info()[0]
    kept.clear()
    torch.cuda.empty_cache()
    equal(torch.cuda.memory_reserved(), 0)
    equal(torch.cuda.mem_get_info()[0] - before, 320 * MIB)
    try:
        kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(3)]
        raise AssertionError("3 GiB fit on a 2 GiB card")
    except torch.cuda.OutOfMemoryError:
        pass


@step(PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
def async_backend():
    import torch

    kept = [torch.empty(5 * MIB, dtype=torch.uint8, device="cuda") for _ in range(10)]
    equal((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()), (50 * MIB, 64 * MIB))
    kept.clear()
    equal((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()), (0, 64 * MIB))
    torch.cuda.empty_cache()
    equal(torch.cuda.memory_reserved(), 0)


@step(SIM_CUDA_DEVICES="4")
def four_devices():
    import torch

    equal(torch.cuda.device_count(), 4)
    kept = [torch.empty(10 * MIB * (1 + d), dtype=torch.uint8, device=f"cuda:{d}") for d in range(4)]
    equal([torch.cuda.memory_allocated(d) // MIB for d in range(4)], [10, 20, 30, 40])
    equal(kept[1].to("cuda:0").device.index, 0)


@step(SIM_CUDA_BUSY_QUERIES="1000000")
def streams_and_pending_frees():
    import torch

    stream = torch.cuda.Stream()
    tensor = torch.ones(MIB, device="cuda")
    tensor.record_stream(stream)
    del tensor
    blocks = [b for s in torch.cuda.memory_snapshot() for b in s["blocks"]]
    assert any(b["state"] == "active_pending_free" for b in blocks), blocks


@step()
def events():
    import torch

    first, second = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    second.record()
    torch.cuda.synchronize()
    assert 0 <= first.elapsed_time(second) < 1000 and second.query()


@step()
def private_pools():
    import torch

    graph, static = torch.cuda.CUDAGraph(), torch.zeros(MIB, device="cuda")
    with torch.cuda.graph(graph):
        captured = static * 2 + 1
    graph.replay()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        pooled = torch.empty(MIB, device="cuda")
    pools = {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}
    equal(len(pools), 3)
    equal((captured.shape, pooled.shape), (static.shape, static.shape))


# ---- training ----


def train(model, batch, optimizer, steps=3):
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch()).float().pow(2).mean().backward()
        optimizer.step()


@step()
def mlp_with_adamw():
    import torch

    layers = [m for _ in range(4) for m in (torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.LayerNorm(1024))]
    model = torch.nn.Sequential(*layers, torch.nn.Dropout(0.1)).cuda()
    train(model, lambda: torch.randn(256, 1024, device="cuda"), torch.optim.AdamW(model.parameters()))
    x = torch.randn(8, 1024, device="cuda")
    torch.nn.functional.cross_entropy(model(x), torch.randint(0, 1024, (8,), device="cuda")).backward()


@step()
def transformer_with_autocast():
    import torch

    model = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True).cuda()
    optimizer, scaler = torch.optim.Adam(model.parameters(), fused=True), torch.amp.GradScaler("cuda")
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(8, 128, 512, device="cuda")).float().pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@step()
def attention_in_every_type():
    import torch

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        q = torch.randn(2, 4, 64, 64, device="cuda", dtype=dtype, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()


@step()
def products():
    import torch

    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64):
        a = torch.randn(64, 64, device="cuda", dtype=dtype)
        torch.bmm((a @ a).expand(4, 64, 64), a.expand(4, 64, 64))
        torch.addmm(a, a, a)
        torch.dot(a[0], a[0])


@step()
def convolutions():
    import torch

    for enabled in (True, False):
        with torch.backends.cudnn.flags(enabled=enabled):
            model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
                                        torch.nn.MaxPool2d(2), torch.nn.ConvTranspose2d(16, 3, 2)).cuda()
            train(model, lambda: torch.randn(4, 3, 64, 64, device="cuda"), torch.optim.SGD(model.parameters(), 0.1))


@step()
def recurrent_networks():
    import torch

    for model in (torch.nn.LSTM(64, 128, 2), torch.nn.GRU(64, 32, 1, bidirectional=True), torch.nn.RNN(64, 16),
                  torch.nn.LSTM(64, 128, proj_size=32)):
        output, _ = model.cuda()(torch.randn(10, 4, 64, device="cuda"))
        output.sum().backward()


@step()
def embeddings_sorts_and_indices():
    import torch

    embedding = torch.nn.Embedding(1000, 64).cuda()
    y = embedding(torch.randint(0, 1000, (32,), device="cuda"))
    y.sum().backward()
    torch.sort(y.flatten())
    torch.topk(y, 3)
    equal(torch.nonzero(y).shape[0], 0)  # stale bytes would make this a billion rows


@step()
def solvers_and_transforms():
    import torch

    a = torch.eye(16, device="cuda")
    equal(torch.linalg.inv(a).shape, a.shape)
    equal(torch.fft.fft(torch.randn(128, device="cuda")).shape, (128,))


@step()
def unsimulated_calls_refuse():
    import torch

    sparse = torch.eye(4).to_sparse_csr().cuda()
    for call in (lambda: torch.linalg.eigh(torch.eye(16, device="cuda")), lambda: sparse @ torch.ones(4, 4, device="cuda")):
        try:
            call()
        except RuntimeError as error:
            assert "cusolver error" in str(error) or "not supported by the simulated cuSPARSE" in str(error), error
        else:
            raise AssertionError("a call that nobody simulates claimed to have worked")


@step()
def profiler():
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as run:
        torch.zeros(10, device="cuda") + 1
    assert run.events()


# ---- several threads, processes, ranks ----


@step(SIM_CUDA_TOTAL_BYTES="4G")
def threads():
    import threading

    import torch

    def churn():
        for i in range(500):
            try:
                torch.empty((1 + i % 30) * 10 * MIB, dtype=torch.uint8, device="cuda")
            except torch.cuda.OutOfMemoryError:
                pass

    workers = [threading.Thread(target=churn) for _ in range(8)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    equal(torch.cuda.memory_allocated(), 0)


@step(SIM_CUDA_CTX_BYTES="512M")
def two_processes_and_nvml():
    import ctypes
    import tempfile

    with tempfile.NamedTemporaryFile() as state:
        os.environ["SIM_CUDA_STATE"] = state.name
        holder = ("import sys, torch; x = torch.empty(20 << 30, dtype=torch.uint8, device='cuda'); print('READY', flush=True);"
                  "sys.stdin.read()")
        jobs = [subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                for _ in range(2)]
        for job in jobs:
            equal(job.stdout.readline(), b"READY\n")

        class Process(ctypes.Structure):
            _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gpu", ctypes.c_uint),
                        ("compute", ctypes.c_uint)]

        nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        equal(nvml.nvmlInit_v2(), 0)
        equal(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)), 0)

        def processes():
            count, room = ctypes.c_uint(16), (Process * 16)()
            equal(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), room), 0)
            return {p.pid: p.used for p in room[: count.value]}

        used = (20 << 30) + 512 * MIB
        equal(processes(), {job.pid: used for job in jobs})
        jobs[0].kill()  # not yet waited for: a zombie holds no GPU memory either
        deadline = time.monotonic() + 10
        while len(processes()) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        equal(processes(), {jobs[1].pid: used})
        for job in jobs:
            job.stdin.close()
            job.wait()
        equal(processes(), {})


RANK = """
import os, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
rank = int(os.environ["RANK"]); torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8, 512, device="cuda")).sum().backward(); optimizer.step()
sharded = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)]).cuda()
for layer in sharded: fully_shard(layer)
fully_shard(sharded)
sharded(torch.randn(8, 256, device="cuda")).sum().backward()
dist.barrier(); dist.destroy_process_group()
"""


@step(SIM_CUDA_DEVICES="2")
def data_parallel_ranks():
    """DDP and FSDP over two ranks; DDP compares shapes through the device, so copied values must survive."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(2):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(port))
        ranks.append(subprocess.Popen([sys.executable, "-c", RANK], env=environment, stderr=subprocess.PIPE, text=True))
    for rank in ranks:
        errors = rank.communicate(timeout=120)[1]
        assert rank.returncode == 0, errors[-2000:]


def run_here(name):
    started = time.monotonic()
    try:
        STEPS[name][0]()
        verdict = "OK  "
    except Exception:
        verdict = "FAIL"
        traceback.print_exc()
    print(f"{verdict} {name} {time.monotonic() - started:.2f}s", flush=True)
    return verdict == "OK  "


def run_apart(name):
    # A card of its own: on this process's one it would find this process's settings.
    environment = dict(os.environ, SIM_CUDA_STATE="")
    for key, value in STEPS[name][1].items():
        environment.pop(key, None)
        if value:
            environment[key] = value
    return subprocess.run([sys.executable, __file__, "--here", name], env=environment).returncode == 0


def main(arguments):
    here = arguments[:1] == ["--here"]
    names = arguments[1:] if here else arguments or list(STEPS)
    if not set(names) <= set(STEPS):
        sys.exit(f"unknown step; the steps are {', '.join(STEPS)}")
    good = [run_here(name) if here or not STEPS[name][1] else run_apart(name) for name in names]
    if not here:
        print(f"{sum(good)} of {len(good)} steps OK")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
