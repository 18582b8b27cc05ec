"""Jobs whose memory has a known maker, for following the allocator.

    python tests/targets/followed.py sleepy   sleeps in one function, allocates 16 MiB in another, in turn
    python tests/targets/followed.py train    a small transformer trains; PyTorch's own memory history is the truth
    python tests/targets/followed.py images   the same with a conv net and images of changing size
    python tests/targets/followed.py decode   the same with a model that generates tokens, whose keys and values are kept
    python tests/targets/followed.py generated  the same with a function as TorchInductor writes it, whose buffers are made by lines of microseconds
    python tests/targets/followed.py trainer  the same with transformers' Trainer and a small LLaMA

READY when CUDA is in use; at a line on standard input the job begins, and READY again when it stands still. Then it prints
{"allocated", "allocated_in_all", "allocations", "frees", "line", "stacks", "every"}: live bytes, PyTorch's sums and counts since READY,
the line that allocates (sleepy), and (but for sleepy) [[bytes, [[file, line], ...]], ...] of live blocks, and of every allocation, with
the innermost frame first, without frames where C++ threads allocated. Each further line makes it keep one small block more; it ends
when stdin closes.
"""
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
import time

import torch
from torch import nn

kept = []


def load_batch():
    time.sleep(0.1)


def keep():
    kept.append(torch.empty(16 << 20, dtype=torch.uint8, device="cuda"))


def sleepy():
    for _ in range(25):
        load_batch()
        keep()


def images():
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(25):
        time.sleep(0.01)
        size = (24, 32, 40)[step % 3]
        batch = torch.randn(8, 3, size, size, device="cuda")
        labels = torch.zeros(8, dtype=torch.long, device="cuda")
        loss = nn.functional.cross_entropy(model(batch), labels)
        if step == 24:
            return loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


GENERATED = """
import time
import torch
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda

def kernel(*buffers):
    end = time.perf_counter() + 0.002
    while time.perf_counter() < end:
        pass

def call(args):
    buf0 = empty_strided_cuda((1024, 1024), (1024, 1), torch.float32)
    kernel(buf0)
    buf1 = empty_strided_cuda((1024, 512), (512, 1), torch.float32)
    buf2 = empty_strided_cuda((300, 300), (300, 1), torch.int64)
    buf3 = empty_strided_cuda((16, ), (1, ), torch.bfloat16)
    kernel(buf1, buf2, buf3)
    buf4 = empty_strided_cuda((1024, 1024), (1024, 1), torch.float32)
    kernel(buf4)
    return (buf0, buf1, buf2, buf3, buf4)
"""


def generated():
    # The name of such a file: c and the beginning of a hash.
    name = "c" + ("abcdefghijklmnop234567" * 3)[:51]
    file = os.path.join(tempfile.mkdtemp(), name + ".py")
    with open(file, "w") as out:
        out.write(GENERATED)
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # All are kept: which of alike buffers was freed is another question.
    results = []
    for _ in range(60):
        time.sleep(0.004)
        results.append(module.call([]))
    return results


@torch.no_grad()
def decode():
    width, layers = 256, 3
    weights = [[torch.randn(width, width, device="cuda") for _ in range(4)] for _ in range(layers)]
    cache = [None] * layers
    token = torch.randn(4, 1, width, device="cuda")
    for _ in range(25):
        time.sleep(0.01)
        for layer, (query, key, value, out) in enumerate(weights):
            keys, values = token @ key, token @ value
            if cache[layer] is not None:
                keys = torch.cat([cache[layer][0], keys], dim=1)
                values = torch.cat([cache[layer][1], values], dim=1)
            cache[layer] = (keys, values)
            token = token + nn.functional.scaled_dot_product_attention(token @ query, keys, values) @ out
    return weights, cache, token


def train():
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(13):
        loss = model(torch.randn(8, 64, 256, device="cuda")).square().mean()
        if step == 12:
            return loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def trainer():
    """What scripts/setup.sh tests installed beside PyTorch; importing it takes seconds, so that comes before READY."""
    sys.path.append(os.path.join(os.path.dirname(__file__), "../../target/envs/transformers"))
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    config = LlamaConfig(vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4)
    words = {"input_ids": torch.arange(64), "labels": torch.arange(64)}
    folder = tempfile.mkdtemp()
    options = TrainingArguments(folder, per_device_train_batch_size=4, max_steps=20, report_to=[], save_strategy="no", disable_tqdm=True)

    def work():
        whole = Trainer(LlamaForCausalLM(config), options, train_dataset=[words] * 100)
        # Its words on standard output are no answers.
        with contextlib.redirect_stdout(sys.stderr):
            whole.train()
        os.rmdir(folder)
        return whole
    return work


def places(of):
    return [[frame["filename"], frame["line"]] for frame in of.get("frames", [])]


def live_stacks(snapshot):
    blocks = (block for segment in snapshot["segments"] for block in segment["blocks"])
    return [[block["size"], places(block)] for block in blocks if block["state"] == "active_allocated"]


def every_allocation(snapshot):
    """With the bytes asked for, as blocks have them that are no larger: a multiple of 512."""
    sums = {}
    for event in (event for events in snapshot["device_traces"] for event in events if event["action"] == "alloc"):
        key = json.dumps(places(event))
        sums[key] = sums.get(key, 0) + (event["size"] + 511) // 512 * 512
    return [[size, json.loads(key)] for key, size in sums.items()]


JOBS = {"sleepy": sleepy, "train": train, "images": images, "decode": decode, "generated": generated}


def main():
    torch.zeros(1, device="cuda")
    job = trainer() if sys.argv[1] == "trainer" else JOBS[sys.argv[1]]
    print("READY", flush=True)
    sys.stdin.readline()
    if sys.argv[1] != "sleepy":
        torch.cuda.memory._record_memory_history(enabled="all", stacks="python", max_entries=1_000_000)
    before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
    held = job()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    snapshot = None if sys.argv[1] == "sleepy" else torch.cuda.memory._snapshot()
    print(json.dumps({
        "allocated_in_all": stats["allocated_bytes.all.allocated"] - before,
        "allocated": torch.cuda.memory_allocated(),
        "allocations": stats["allocation.all.allocated"],
        "frees": stats["allocation.all.freed"],
        "line": keep.__code__.co_firstlineno + 1,
        "file": __file__,
        "stacks": live_stacks(snapshot) if snapshot else [],
        "every": every_allocation(snapshot) if snapshot else [],
    }))
    print("READY", flush=True)
    for _ in sys.stdin:
        kept.append(torch.empty(1, device="cuda"))
    del held


if __name__ == "__main__":
    main()
