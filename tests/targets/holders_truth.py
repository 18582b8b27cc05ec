"""A training job with tensors in many places, and where each of them is; for tests of who holds memory.

    python tests/targets/holders_truth.py [--device cuda|cpu]

After READY: `more N` keeps N more tensors, `less` lets them go, `train N` trains N steps (`train` until the next line comes);
each is answered by the bytes allocated. `iterate N` trains N slow steps and answers with the optimizer's step and the peak of each.
"""
import argparse
import dataclasses
import gc
import inspect
import json
import struct
import time

import handshake
import torch
from torch import nn

in_module = {}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.inner = nn.Linear(width, width)
        self.register_buffer("mask", torch.ones(width, width))
        self.cache = None

    def forward(self, x):
        return self.inner(self.norm(x)).relu() @ self.mask


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Linear(width, width, bias=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, width, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@dataclasses.dataclass
class Batch:
    inputs: torch.Tensor
    labels: dict


class Slots:
    __slots__ = ("held",)
    shared = None


def closing_over(tensor):
    def use(scale=tensor * 0):
        return tensor * scale
    return use


def generating(tensor):
    kept = tensor + 1
    yield kept
    yield tensor


def step(model, optimizer, batch):
    loss = model(batch.inputs).square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return model(batch.inputs).square().mean()


def iterate(model, optimizer, batch, count):
    """Each iteration works on a larger batch than the one before, or on a smaller one."""
    found = []
    for i in range(count):
        torch.cuda.reset_peak_memory_stats()
        inputs = batch.inputs.repeat(100 * (i % 5 + 1), 1)
        model(inputs).square().mean().backward()
        time.sleep(0.04)  # Peaks are long past when the counter rises.
        del inputs
        peak = torch.cuda.max_memory_allocated()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found.append([int(optimizer.state[model.embed.weight]["step"].item()), peak])
        time.sleep(0.04)
    return found


def steady(model, optimizer, batch, epochs, steps):
    """All iterations are alike. How many allocations each makes, and the peak of each."""
    made, peaks = [], []
    for epoch in range(epochs):
        for i in range(steps):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_stats()["allocation.all.allocated"]
            inputs = batch.inputs.repeat(100, 1)
            time.sleep(0.005)
            loss = model(inputs).square().mean()
            time.sleep(0.005)
            loss.backward()
            time.sleep(0.02)  # The line that a test looks for.
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            del inputs, loss
            made.append(torch.cuda.memory_stats()["allocation.all.allocated"] - before)
            peaks.append(torch.cuda.max_memory_allocated())
            time.sleep(0.01)
    return made, peaks


def thirds(model, optimizer, batch):
    """Steps with as long a wait after the forward pass, after the backward pass and after the optimizer; until the next line."""
    made = 0
    for made in handshake.until_asked():
        loss = model(batch.inputs.repeat(100, 1)).square().mean()
        time.sleep(0.15)
        loss.backward()
        time.sleep(0.15)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        del loss
        time.sleep(0.15)
    return made


@dataclasses.dataclass
class TrainerState:
    """As transformers has it, in the attributes that tell."""

    epoch: float = 0.0
    global_step: int = 0


TrainerState.__module__ = "transformers.trainer_callback"


def counted_elsewhere(model, batch, state, steps):
    """The counter of a fused optimizer is on the GPU; a scheduler counts, and a Trainer if `state` is one. Both at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for _ in range(2):
        step(model, optimizer, batch)
    print("MADE", flush=True)
    handshake.hold()
    for _ in range(steps):
        step(model, optimizer, batch)
        time.sleep(0.05)
        scheduler.step()
        if state is not None:
            state.global_step += 1
        time.sleep(0.05)
    return [scheduler.last_epoch, state and state.global_step]


def unique(tensors):
    """Bytes of distinct storages."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def owner(holder):
    """The instance of which a dictionary is the `__dict__`, else the holder itself."""
    if type(holder) is not dict:
        return holder
    owners = (o for o in gc.get_referrers(holder) if isinstance(o, (torch.nn.Module, Batch)) and vars(o) is holder)
    return next(owners, holder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    width = 64
    model = Model(width).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = Batch(torch.randn(32, width, device=device), {"y": torch.zeros(32, device=device), 3: torch.ones(7, device=device)})
    loss = step(model, optimizer, batch)
    new = lambda n: torch.zeros(n, 1000, device=device)  # noqa: E731
    in_list = [new(1), (new(2), [new(3)])]
    slots = Slots()
    slots.held = new(4)
    Slots.shared = new(5)
    closure = closing_over(new(6))
    generator = generating(new(7))
    next(generator)
    in_module["x"] = new(8)
    model.blocks[1].cache = new(9)
    view = in_list[0][:, 10:20]
    names = {
        "embed.weight": model.embed.weight, "head.weight": model.embed.weight, "blocks.0.inner.bias": model.blocks[0].inner.bias,
        "blocks.1.mask": model.blocks[1].mask, "blocks.0.norm.running_mean": model.blocks[0].norm.running_mean,
        "AdamW.exp_avg[embed.weight]": optimizer.state[model.embed.weight]["exp_avg"],
        "AdamW.exp_avg_sq[blocks.1.inner.weight]": optimizer.state[model.blocks[1].inner.weight]["exp_avg_sq"],
        "embed.weight.grad": model.embed.weight.grad, "main: loss": loss, "main: view": view,
        "main: batch.inputs": batch.inputs, 'main: batch.labels["y"]': batch.labels["y"], "main: batch.labels[3]": batch.labels[3],
        "main: in_list[0]": in_list[0], "main: in_list[1][0]": in_list[1][0], "main: in_list[1][1][0]": in_list[1][1][0],
        "main: slots.held": slots.held, "__main__.Slots.__dict__[\"shared\"]": Slots.shared,
        "main: closure.__closure__[0].cell_contents": closure.__closure__[0].cell_contents,
        "main: closure.__defaults__[0]": closure.__defaults__[0],
        "main: generator.<locals>.kept": generator.gi_frame.f_locals["kept"],
        '__main__.in_module["x"]': in_module["x"], "main: model._modules[\"blocks\"]._modules[\"1\"].cache": model.blocks[1].cache,
    }
    gc.collect()
    parameters = list(model.parameters())
    truth = {
        "names": {name: id(tensor) for name, tensor in names.items()},
        "parameters": unique(parameters), "buffers": unique(b for b in model.buffers() if b.device.type == device),
        "gradients": unique(p.grad for p in parameters),
        "optimizer_state": unique(v for s in optimizer.state.values() for v in s.values() if v.device.type == device),
        "allocated": torch.cuda.memory_allocated() if device == "cuda" else None,
    }
    truth["referrers"] = {
        name: [id(owner(r)) for r in gc.get_referrers(tensor) if not inspect.isframe(r) and r is not names and r is not parameters and not (type(r) is tuple and r[0] == name)]
        for name, tensor in names.items()
    }
    del names, parameters
    handshake.ready(truth)
    kept = []
    for request, *argument in handshake.requests():
        if request == "more":
            kept += [torch.zeros(1000, 1000, device=device) for _ in range(int(argument[0]))]
        elif request == "less":
            kept.clear()
        elif request == "iterate":
            print(json.dumps(iterate(model, optimizer, batch, int(argument[0]))), flush=True)
            continue
        elif request == "steady":
            print(json.dumps(steady(model, optimizer, batch, *map(int, argument))), flush=True)
            continue
        elif request == "reuse":
            # What lies where the counters were looks like a count.
            for state, memory in zip(optimizer.state.values(), counters):
                state["step"] = state["step"].clone()
                memory[:] = struct.pack("f", 7806941921280.0)
            for _ in range(20):
                kept.append(torch.zeros(1000, device=device))
                time.sleep(0.02)
            print(len(counters), flush=True)
            continue
        elif request == "own":
            # Memory that stays when the counter is gone.
            counters = [bytearray(struct.pack("f", s["step"].item())) for s in optimizer.state.values()]
            for state, memory in zip(optimizer.state.values(), counters):
                state["step"] = torch.frombuffer(memory, dtype=torch.float32)[0]
            print(len(counters), flush=True)
            continue
        elif request in ("trainer", "scheduler"):
            del optimizer
            gc.collect()
            state = TrainerState(global_step=1000) if request == "trainer" else None
            print(json.dumps(counted_elsewhere(model, batch, state, int(argument[0]))), flush=True)
            continue
        elif request == "thirds":
            print(json.dumps(thirds(model, optimizer, batch)), flush=True)
            continue
        elif request == "leak":
            # A model and a tensor that only cycles hold, beside what is alive.
            gc.disable()
            gone = Model(width).to(device)
            gone.itself = gone
            cycle = {"big": torch.zeros(500, 1000, device=device)}
            cycle["self"] = cycle
            held = torch.cuda.memory_allocated()
            del gone, cycle
        elif request == "collect":
            gc.collect()
            torch.cuda.synchronize()
            reserved = torch.cuda.memory_reserved()
            allocated = torch.cuda.memory_allocated()
            torch.cuda.empty_cache()
            print(json.dumps([held - allocated, reserved - torch.cuda.memory_reserved()]), flush=True)
            continue
        elif request == "train":
            for _ in range(int(argument[0])) if argument else handshake.until_asked():
                loss = step(model, optimizer, batch)
        print(json.dumps(torch.cuda.memory_allocated() if device == "cuda" else None), flush=True)


if __name__ == "__main__":
    main()
