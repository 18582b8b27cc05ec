"""Iterations of one or two milliseconds with a peak of their own each, and what the allocator itself says these were.

    python tests/targets/iterations_truth.py [--device cuda|cpu]

After READY: `local EPOCHS STEPS` counts in a function called for every epoch, `nested EPOCHS STEPS` in one function,
`closed EPOCHS STEPS` in a variable that a closure shares, `named STEPS` in a global variable, `optimizer STEPS` by Adam's own
counter; each is answered by a list of [epoch, step, peak]. `backward STEPS` trains a chain whose gradients have known sizes:
[step, peak, intermediate gradients]. `holding STEPS` keeps activations: [step, peak, their bytes]. `slow STEPS` counts in a variable of a
function that returns: [step, peak, allocated at its end]. The peaks are PyTorch's own, put back at the begin of each iteration.
"""
import argparse
import json
import time

import handshake
import torch

counted = 0


class Body:
    """What an iteration does: as much as its number says, and something kept until the next one begins."""

    def __init__(self, device):
        self.device, self.kept, self.n = device, None, 0
        self.found = []

    def begin(self):
        torch.cuda.reset_peak_memory_stats()

    def work(self):
        self.n += 1
        new = lambda n: torch.empty(n * 1000, device=self.device)  # noqa: E731
        self.kept = None
        first = new(self.n * 7 % 13 * 10 + 1)
        second = new(self.n * 5 % 11 * 10 + 1)
        del first
        time.sleep(0.001)
        third = new(self.n * 3 % 17 * 10 + 1)
        del second, third
        # Every third ends so high that the next one never comes there again.
        self.kept = new(2000 if self.n % 3 == 0 else 1)

    def end(self, epoch, step):
        self.found.append([epoch, step, torch.cuda.max_memory_allocated()])


def epoch_of(body, epoch, steps):
    for step in range(steps):
        body.begin()
        body.work()
        body.end(epoch, step)


def validate(body, epoch, steps):
    """Between two epochs, which still counts to the last iteration: numbers where `epoch_of` had its step."""
    for number in range(7000, 7020):
        large = torch.empty(1_000_000 + number, device=body.device)
        del large
    body.found[-1][2] = torch.cuda.max_memory_allocated()


def local(body, epochs, steps):
    for epoch in range(epochs):
        epoch_of(body, epoch, steps)
        validate(body, epoch, steps)


def nested(body, epochs, steps):
    for epoch in range(epochs):
        between = torch.empty(5_000_000, device=body.device)
        del between
        for step in range(steps):
            body.begin()
            body.work()
            body.end(epoch, step)


def closed(body, epochs, steps):
    for epoch in range(epochs):
        for step in range(steps):
            body.begin()
            (lambda: body.end(epoch, step) if step < 0 else body.work())()
            body.end(epoch, step)


def named(body, steps):
    global counted
    for number in range(1, steps + 1):
        counted = number + 1000
        body.begin()
        body.work()
        body.end(None, counted)


def counted_in_function(body, steps):
    """[step, peak, allocated at the end]: of three levels, each for a while."""
    for number in range(steps):
        body.begin()
        large = torch.empty(3_000_000 + 1000 * number, device=body.device)
        time.sleep(0.05)
        body.kept = large[:1].clone()
        small = torch.empty(1_000_000 + 1000 * number, device=body.device)
        del large
        time.sleep(0.05)
        del small
        time.sleep(0.05)
        body.found.append([number, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()])


def by_optimizer(body, model, optimizer, steps):
    def at_step(*_):
        # The counter of the last step rises right after this, before anything is allocated.
        body.end(None, int(optimizer.state[model.weight]["step"].item()) + 1)
        body.begin()

    hook = optimizer.register_step_pre_hook(at_step)
    for _ in range(steps):
        body.work()
        model(torch.ones(body.n % 5 * 100 + 1, 64, device=body.device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    hook.remove()


class Widen(torch.autograd.Function):
    """Makes its input longer; its gradient is as long as the input, and made of nothing else."""

    @staticmethod
    def forward(ctx, x, width):
        ctx.width = x.numel()
        return torch.empty(width, device=x.device)

    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.001)
        return torch.empty(ctx.width, device=grad.device), None


def backward(body, steps):
    """Of each node the gradient that comes and the one that goes are there at once. The first gradient is made by the
    caller of backward(), and that of the parameter stays."""
    global counted
    weight = torch.nn.Parameter(torch.empty(50_000, device=body.device))
    for number in range(steps):
        counted = number + 5000
        body.begin()
        weight.grad = None
        widths = [(number * k % 7 + 1) * 10_000 for k in (3, 5, 2)]
        x = weight
        for width in (*widths, 1):
            x = Widen.apply(x, width)
        x.backward()
        del x
        held = [(a if n > 0 else 0) + b for n, (a, b) in enumerate(zip([1, *widths[::-1]], widths[::-1]))]
        held.append(widths[0])
        body.found.append([counted, torch.cuda.max_memory_allocated(), 4 * max(held)])
        time.sleep(0.001)


def holding(body, model, steps):
    """The result of a layer is kept, and its input with it: [step, peak, both of them]."""
    global counted
    for number in range(steps):
        counted = max(counted, 8999) + 1
        body.begin()
        inputs = torch.empty(number % 5 * 100 + 100, 64, device=body.device)
        time.sleep(0.01)
        kept = model(inputs)
        time.sleep(0.3)
        body.found.append([counted, torch.cuda.max_memory_allocated(), inputs.nbytes + kept.nbytes])
        del kept, inputs
        time.sleep(0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    model = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3, 64, device=device)).sum().backward()
    optimizer.step()
    handshake.ready({"allocated": torch.cuda.memory_allocated()})
    for request, *numbers in handshake.requests():
        body = Body(device)
        numbers = list(map(int, numbers))
        if request == "optimizer":
            by_optimizer(body, model, optimizer, *numbers)
        elif request == "holding":
            holding(body, model, *numbers)
        elif request == "slow":
            counted_in_function(body, *numbers)
        else:
            {"local": local, "nested": nested, "closed": closed, "named": named, "backward": backward}[request](body, *numbers)
        body.kept = None
        print(json.dumps(body.found), flush=True)


if __name__ == "__main__":
    main()
