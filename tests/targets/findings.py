"""Jobs with one mistake each, the same jobs with the change made (KIND_fixed), and healthy ones: python findings.py KIND.

Prints {"used": bytes} when the situation stands: what is allocated, reserved or page-locked, whatever the change is about. Works on
until its input ends.
"""
import collections
import copy
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time

import torch
from torch import nn

MIB = 1 << 20


def told(used):
    print(json.dumps({"pid": os.getpid(), "used": used}), flush=True)
    print("READY", flush=True)


def allocated():
    return torch.cuda.memory_allocated()


def reserved():
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def rounds(pause=0.05):
    """Until nothing more is asked."""
    while not select.select([sys.stdin], [], [], 0)[0]:
        yield
        time.sleep(pause)


def layers(count, width=1024):
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count))).cuda()


def step(model, optimizer, width=1024):
    optimizer.zero_grad()
    loss = model(torch.ones(8, width, device="cuda")).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def forever(work, used=allocated, before=3):
    """Works on; tells what is used after some rounds."""
    for number, _ in enumerate(rounds()):
        work()
        if number == before:
            told(used())


# Autocast.


def autocast(fixed):
    model = layers(6).eval()

    @torch.no_grad()
    def answer():
        model(torch.zeros(4, 1024, device="cuda"))

    def request():
        with torch.autocast("cuda", dtype=torch.float16):
            answer()

    if fixed:
        return forever(request)
    with torch.autocast("cuda", dtype=torch.float16):
        forever(answer)


def ddp(fixed):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
    model = nn.parallel.DistributedDataParallel(layers(8), gradient_as_bucket_view=fixed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def work():
        model(torch.ones(8, 1024, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    forever(work)


def cublas(fixed):
    """Warm-ups, each on a stream of its own."""
    model, side = layers(2, 512), torch.cuda.Stream()
    with torch.no_grad():
        for _ in range(5):
            with torch.cuda.stream(side if fixed else torch.cuda.Stream()):
                model(torch.ones(8, 512, device="cuda"))
        torch.cuda.synchronize()
        if fixed:
            torch._C._cuda_clearCublasWorkspaces()
        forever(lambda: model(torch.ones(8, 512, device="cuda")))


def graphs(fixed):
    model, captured, pool = layers(2, 512).eval(), [], None
    with torch.no_grad():
        model(torch.ones(8, 512, device="cuda"))
        for rows in (16384, 8192, 4096):
            rows_of = torch.zeros(rows, 512, device="cuda")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool if fixed else None):
                result = model(rows_of)
            pool = pool or graph.pool()
            captured.append((graph, rows_of, result))
            del result

    forever(lambda: [graph.replay() for graph, _, _ in captured], reserved)


# Autograd.


def create_graph(fixed):
    model, kept = layers(2), []

    def work():
        if len(kept) == 8:
            return
        kept.append(0)
        loss = (model(torch.ones(1024, 1024, device="cuda", requires_grad=True)) ** 2).mean()
        if fixed:
            gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            sum((g ** 2).sum() for g in gradients).detach()
        else:
            loss.backward(create_graph=True)

    forever(work, before=9)


def gradients(fixed):
    """Zeroed in place, they live on in the forward pass."""
    model = layers(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def work():
        model(torch.ones(8, 1024, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=fixed)

    forever(work, before=20)


def logits(fixed):
    """The loss wants float32."""
    tokens, words = torch.zeros(4, 128, dtype=torch.long, device="cuda"), 8192
    model = nn.Sequential(nn.Embedding(words, 64), nn.Linear(64, words, bias=False)).cuda().half().eval()
    kept = {}

    def work():
        with torch.no_grad():
            kept["logits"] = model(tokens)
            if not fixed:
                kept["scores"] = kept["logits"].float()

    forever(work)


def losses(fixed):
    model, history = layers(2), []

    def work():
        loss = (model(torch.ones(1024, 1024, device="cuda")) ** 2).mean()
        if len(history) < 8:
            history.append(loss.detach() if fixed else loss)

    forever(work, before=9)


# Models and optimizers.


def removed(fixed):
    """A head is replaced; the optimizer keeps the old one."""
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 4096)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer, 512)
    model[1] = nn.Linear(512, 4096).cuda()
    if fixed:
        optimizer = torch.optim.AdamW(model.parameters())
    else:
        optimizer.zero_grad()
        optimizer.add_param_group({"params": list(model[1].parameters())})
    forever(lambda: step(model, optimizer, 512))


def checkpoint(fixed):
    with tempfile.TemporaryDirectory() as folder:
        model = layers(6)
        torch.save({"model": model.state_dict(), "epoch": 3}, folder + "/last.pt")
        checkpoint = torch.load(folder + "/last.pt", map_location="cpu" if fixed else None)
    model.load_state_dict(checkpoint["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    forever(lambda: step(model, optimizer))
    return checkpoint


def twice(fixed):
    """A copy of the model before training."""
    model = layers(6)
    before = None if fixed else copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    forever(lambda: step(model, optimizer))
    return before


def notebook(fixed):
    globals()["Out"] = {cell: torch.ones(2 * MIB, device="cuda") for cell in range(1, 5)}
    globals()["_4"] = globals()["_"] = Out[4]  # noqa: F821, as IPython does
    # With a graph: exp saves its result, mul what it multiplies.
    Out[5] = torch.ones(MIB, device="cuda", requires_grad=True).exp() * 2  # noqa: F821
    if fixed:
        for name in ("Out", "_4", "_"):
            del globals()[name]
    forever(lambda: torch.ones(MIB, device="cuda").sum())


def added(fixed):
    """The sum for a log has a graph."""
    weight = torch.ones(1, device="cuda", requires_grad=True)
    running_loss = 0.0
    for _ in range(12):
        loss = (weight * torch.ones(MIB, device="cuda")).exp().mean()
        loss.backward(retain_graph=True)
        running_loss += loss.item() if fixed else loss
    del loss
    forever(lambda: torch.ones(MIB, device="cuda").sum())


class Shell:
    """As IPython's: its formatter of errors keeps the last traceback."""


def last_error(fixed):
    shell = globals()["shell"] = Shell()
    shell.InteractiveTB = Shell()

    def predict(model, weight):
        hidden = torch.ones(2 * MIB, device="cuda") * weight
        return model(hidden)

    try:
        predict(None, torch.ones(2 * MIB, device="cuda", requires_grad=True))
    except TypeError as error:
        sys.last_value, sys.last_traceback = error, error.__traceback__
    if fixed:
        sys.last_value = sys.last_traceback = None
    shell.InteractiveTB.tb = sys.last_traceback
    forever(lambda: torch.ones(MIB, device="cuda").sum())


def slices(fixed):
    logs = []

    def work():
        z = torch.ones(2048, 1024, device="cuda")
        if len(logs) < 6:
            logs.append(z[::64].clone() if fixed else z[::64])

    forever(work, before=8)


def handled(fixed):
    """An exception is handled for long; its traceback keeps the frames, and these their tensors."""
    def attempt():
        activations = torch.ones(16 * MIB, dtype=torch.uint8, device="cuda")
        raise RuntimeError("no room for " + str(activations.shape))

    if fixed:
        failed = False
        try:
            attempt()
        except RuntimeError:
            failed = True
        if failed:
            forever(lambda: torch.ones(MIB, device="cuda").sum())
    else:
        try:
            attempt()
        except RuntimeError:
            forever(lambda: torch.ones(MIB, device="cuda").sum())


def pinning(fixed):
    """Small tensors between large ones keep their segments."""
    registry = []
    if fixed:
        registry = [torch.ones(MIB, device="cuda") for _ in range(8)]
    for _ in range(8):
        segment = torch.empty(15 * MIB, dtype=torch.float32, device="cuda")  # a segment of 60 MiB
        del segment
        if not fixed:
            registry.append(torch.ones(MIB, device="cuda"))
            registry.append(torch.ones(56 * MIB // 4, device="cuda"))
    del registry[1::2]
    forever(lambda: None, reserved)


# The host.


def rounding(fixed):
    if fixed:
        buffers = [torch.empty(33 * MIB, dtype=torch.uint8) for _ in range(6)]
        for buffer in buffers:
            torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), buffer.nbytes, 0)
        used = sum(buffer.nbytes for buffer in buffers)
    else:
        buffers = [torch.empty(33 * MIB, dtype=torch.uint8, pin_memory=True) for _ in range(6)]
        used = 6 * 64 * MIB  # rounded up
    staging = torch.empty(33 * MIB, dtype=torch.uint8, device="cuda")
    forever(lambda: [staging.copy_(buffer) for buffer in buffers], lambda: used)


def history(fixed):
    weight = torch.ones(64, 1024, device="cuda")
    torch.cuda.memory._record_memory_history(stacks="python", **({"max_entries": 1000} if fixed else {}))

    def work():
        for _ in range(1000):
            weight.mul(2)

    forever(work, lambda: 0, before=20)


def profiler(fixed):
    """Without a schedule it keeps all events."""
    weight = torch.ones(64, 1024, device="cuda")
    schedule = torch.profiler.schedule(wait=1_000_000, warmup=1, active=1) if fixed else None
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule)
    profile.start()

    def work():
        for _ in range(2000):
            weight.mul(2)
        profile.step()

    forever(work, lambda: 0, before=5)


# Other processes.


def device_used():
    free, total = torch.cuda.mem_get_info()
    return total - free


def touch(fixed, everybody):
    torch.ones(4, device="cpu" if fixed else "cuda")
    everybody.wait()


def workers(fixed):
    """Each worker has a context, and nothing in it."""
    model, context = layers(2), torch.multiprocessing.get_context("spawn")
    everybody = context.Barrier(3)
    with context.Pool(2, touch, (fixed, everybody)):
        everybody.wait()
        forever(lambda: model(torch.ones(8, 1024, device="cuda")), device_used)


def orphan(fixed):
    """The launcher of another process was killed; that one holds its memory until the input ends."""
    model = layers(2)
    words = [sys.executable, __file__, "orphan_launcher" + "_fixed" * fixed]
    launcher = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    launcher.stdout.readline()
    if not fixed:
        launcher.wait()
    forever(lambda: model(torch.ones(8, 1024, device="cuda")))


def orphan_launcher(fixed):
    child = subprocess.Popen([sys.executable, __file__, "orphan_worker"], stdin=sys.stdin, stdout=subprocess.PIPE,
                             start_new_session=True, env={**os.environ, "LAUNCHER_PID": str(os.getpid())})
    child.stdout.readline()
    print("READY", flush=True)
    if fixed:
        child.wait()
    os._exit(0)


def orphan_worker(_):
    cache = torch.empty(128 * MIB, dtype=torch.uint8, device="cuda")
    forever(lambda: cache[:MIB].add_(1))


def stray(fixed):
    """Two GPUs: a thread without set_device()."""
    torch.cuda.set_device(1)
    model = layers(16)
    stop = threading.Event()

    def warm_up_batches():
        if fixed:
            torch.cuda.set_device(1)
        norm = torch.ones(3, device="cuda")
        while not stop.wait(0.2):
            norm.mul_(1)

    threading.Thread(target=warm_up_batches, name="loader", daemon=True).start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    forever(lambda: step(model, optimizer))
    stop.set()


# Healthy jobs.


def healthy_training():
    model = nn.Sequential(layers(3), nn.Dropout(), nn.LayerNorm(1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    total = torch.zeros((), device="cuda")

    def work():
        total.add_(step(model, optimizer))
        scheduler.step()

    forever(work)


def healthy_accumulation():
    model = layers(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def work():
        for _ in range(4):
            model(torch.ones(64, 1024, device="cuda")).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    forever(work)


def healthy_autocast():
    """One autocast a step, most of the time inside."""
    model = layers(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")

    def work():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.ones(64, 1024, device="cuda")).float().mean()
            time.sleep(0.2)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    forever(work)


def healthy_server():
    model = layers(6).eval()

    def work():
        with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
            return model(torch.zeros(4, 1024, device="cuda")).cpu()

    forever(work)


def healthy_average():
    model = layers(4)
    ema = copy.deepcopy(model).requires_grad_(False)
    swa = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters())

    def work():
        step(model, optimizer)
        with torch.no_grad():
            for average, weight in zip(ema.parameters(), model.parameters()):
                average.lerp_(weight, 0.1)
        swa.update_parameters(model)

    forever(work)


def healthy_two_models():
    """Two networks of one shape, each with its optimizer; a target network."""
    first, second = layers(3), layers(3)
    target = copy.deepcopy(first)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (first, second)]
    log_alpha = nn.Parameter(torch.zeros(1, device="cuda"))
    alphas = torch.optim.Adam([log_alpha])

    def work():
        for model, optimizer in zip((first, second), optimizers):
            step(model, optimizer)
        with torch.no_grad():
            target(torch.ones(8, 1024, device="cuda"))
        log_alpha.exp().backward()
        alphas.step()

    forever(work)


def healthy_streams():
    """One stream to copy, page-locked buffers of powers of two."""
    side, host = torch.cuda.Stream(), [torch.empty(MIB, dtype=torch.uint8, pin_memory=True) for _ in range(4)]
    model = layers(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def work():
        with torch.cuda.stream(side):
            batch = host[0].to("cuda", non_blocking=True).float()
        torch.cuda.current_stream().wait_stream(side)
        batch.record_stream(torch.cuda.current_stream())
        step(model, optimizer)

    forever(work)


def healthy_graph():
    model, rows = layers(2, 512).eval(), torch.zeros(16384, 512, device="cuda")
    side = torch.cuda.Stream()
    with torch.no_grad():
        with torch.cuda.stream(side):
            model(rows)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = model(rows)
    forever(lambda: (graph.replay(), result.sum()))


def healthy_recomputation():
    from torch.utils.checkpoint import checkpoint as recomputed
    model = layers(4)
    optimizer = torch.optim.AdamW(model.parameters())

    def work():
        optimizer.zero_grad()
        x = torch.ones(256, 1024, device="cuda", requires_grad=True)
        for layer in model:
            x = recomputed(layer, x, use_reentrant=False)
        x.mean().backward()
        optimizer.step()

    forever(work)


def healthy_frozen():
    """A frozen backbone in eval(), a head that learns."""
    backbone, head = layers(4).eval().requires_grad_(False), layers(1)
    optimizer = torch.optim.AdamW(head.parameters())

    def work():
        optimizer.zero_grad()
        with torch.no_grad():
            features = backbone(torch.ones(64, 1024, device="cuda"))
        head(features).mean().backward()
        optimizer.step()

    forever(work)


def healthy_cache():
    """A key-value cache of fixed size, and views of it."""
    cache = torch.zeros(16, 8, 1024, 64, device="cuda")
    lengths = [0]

    def work():
        lengths[0] = (lengths[0] + 1) % 1024
        view = cache[:, :, :lengths[0] + 1]
        view.sum()

    forever(work)


def replay(fixed):
    """A replay buffer that is being filled, for more than any GPU has, or for 100 MiB."""
    memory = collections.deque(maxlen=400 if fixed else 11_000_000)
    forever(lambda: memory.append((torch.ones(1 << 16, device="cuda"), len(memory))))


def healthy_clients():
    """Each client of federated learning has a model."""
    clients = [layers(2) for _ in range(4)]

    def work():
        for model in clients:
            step(model, torch.optim.SGD(model.parameters(), lr=0.1))

    forever(work)


def healthy_sizes():
    """Lengths change from batch to batch."""
    model = layers(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    number = [0]

    def work():
        number[0] += 1
        optimizer.zero_grad()
        model(torch.ones(64 + 97 * (number[0] * 7919 % 13), 1024, device="cuda")).mean().backward()
        optimizer.step()

    forever(work, before=20)


def healthy_fsdp():
    """FSDP2 on one rank; a layer's weight is gathered for most of the time."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    torch.distributed.init_process_group("nccl", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
    model = layers(4)
    for layer in model:
        layer.register_forward_hook(lambda *_: time.sleep(0.1))
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())

    def work():
        model(torch.ones(64, 1024, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    forever(work)


def healthy_recorder():
    torch.cuda.memory._record_memory_history(max_entries=1000)
    healthy_training()


def main():
    kind, fixed = sys.argv[1].removesuffix("_fixed"), sys.argv[1].endswith("_fixed")
    if kind.startswith("healthy"):
        return globals()[kind]()
    return globals()[kind](fixed)


if __name__ == "__main__":
    main()
