"""Tensors that something holds which is no plain attribute or container, and the name that each should have.

    python tests/targets/hidden_names.py

Prints {"names": {id: name}, "of_script": {id: name}, "cached": [ids]} and READY.
"""
import asyncio
import contextvars
import itertools
import threading
import types
import weakref

import handshake
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

NAMES = {}


def named(name):
    """A tensor that should be called so."""
    tensor = torch.zeros(32768)
    NAMES[id(tensor)] = name
    return tensor


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.seen = named("<node TwiceBackward>.seen")
        ctx.parts = [named("<node TwiceBackward>.parts[0]")]
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Waits:
    def __await__(self):
        inner = named("work: tasks[0]._coro.cr_await.<locals>.inner")
        yield from asyncio.get_running_loop().create_future()
        return inner


async def waits():
    held = named("work: tasks[0]._coro.<locals>.held")
    await Waits()
    return held


async def wait_deep(depth):
    if depth:
        await wait_deep(depth - 1)
    else:
        held = named("work: tasks[1]._coro" + 12 * ".cr_await" + ".<locals>.held")
        await asyncio.get_running_loop().create_future()
        return held


class Watcher:
    def __init__(self, tensor):
        self.kept = tensor

    def saw(self, *_):
        pass


def hook_with(name):
    """A hook whose closure holds the tensor."""
    tensor = named(name + ".__closure__[0].cell_contents")
    return lambda *_: None if tensor is None else None


class Link:
    def __init__(self, name, before):
        self.kept = named(name)
        self.before = before


def chain(name, length):
    """A linked list; what lies deep in it is called by the step that is repeated."""
    last = None
    for n in reversed(range(length)):
        way = ".before" * n if n <= 7 else ".before…"
        last = Link(name + way + ".kept", last)
    return last


def wrapping(inner, name):
    """A function that calls another one, as handlers that are put before others do."""
    tensor = named(name)
    return lambda *args: (inner(*args), tensor)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(8, 8)
        self.b = nn.BatchNorm1d(8)

    def forward(self, x):
        return self.b(self.l(x))


def main():
    leaf = torch.ones(4, requires_grad=True)
    made = Twice.apply(leaf * 1).cos()
    # Hooks are numbered as they come.
    leaf.register_hook(hook_with("main: leaf._backward_hooks[0]"))
    between = leaf * 3
    between.register_hook(hook_with("main: between._backward_hooks[1]"))
    gone = leaf.sin()
    gone.register_hook(hook_with("<node SinBackward0>.<hooks>[2]"))
    out = gone.sum()
    del gone
    out.grad_fn.register_hook(hook_with("main: out.grad_fn.<hooks>[3]"))
    out.grad_fn.register_prehook(hook_with("main: out.grad_fn.<hooks>[4]"))
    leaf.register_post_accumulate_grad_hook(hook_with("main: leaf._post_accumulate_grad_hooks[5]"))

    deep = nn.Linear(4, 4)
    path = "main: model"
    model = deep
    for _ in range(6):
        model = nn.Sequential(model)
        path += '._modules["0"]'
    deep.register_forward_hook(Watcher(named(path + "._forward_hooks[6].__self__.kept")).saw)
    deep.register_forward_hook(hook_with(path + "._forward_hooks[7]"))
    model[0][0].register_forward_pre_hook(hook_with('main: model._modules["0"]._modules["0"]._forward_pre_hooks[8]'))

    del deep

    watched = threading.Event()
    weakref.finalize(watched, hook_with("weakref.finalize._registry[…].func"))
    weakref.finalize(watched, print, named("weakref.finalize._registry[…].args[0]"))
    register_module_forward_hook(hook_with("torch.nn.modules.module._global_forward_hooks[9]"))
    links = chain("main: links", 40)
    handler = print
    for n in reversed(range(12)):
        way = n * ".__closure__[0].cell_contents" + ".__closure__[1]" if n < 2 else ".__closure__[1]…"
        handler = wrapping(handler, f"main: handler{way}.cell_contents")

    variable = contextvars.ContextVar("variable")
    variable.set(named("main: variable.get()"))
    contextvars.Context().run(variable.set, torch.zeros(1))
    crowd = [contextvars.ContextVar("crowd%d" % n) for n in range(60)]
    for n, one in enumerate(crowd):
        one.set(named("main: crowd[%d].get()" % n))
    del one

    local, ready, until = threading.local(), threading.Event(), threading.Event()
    local.mine = named("in_thread: of_thread.mine")

    def in_thread(of_thread):
        of_thread.others = named("in_thread: of_thread.others")
        ready.set()
        until.wait()

    threading.Thread(target=in_thread, args=(local,), daemon=True).start()
    ready.wait()

    tee, other = itertools.tee(iter([named("main: tee.<buffer>[0]"), 1, 2]))
    next(other)
    alias = types.GenericAlias(list, (named("main: alias.__args__[0]"),))

    alone, outer = torch.jit.script(Net()), nn.Sequential(torch.jit.script(Net()), nn.Linear(8, 2))
    scripts = {}
    for name, module in (("alone", alone), ("outer", outer)):
        held = itertools.chain(module.named_parameters(), module.named_buffers())
        scripts.update({id(tensor): name + "." + path for path, tensor in held})
    del module, held

    async def work():
        tasks = [asyncio.create_task(waits()), asyncio.create_task(wait_deep(12))]
        await asyncio.sleep(0)
        cache = {(n, n): torch.zeros(2) for n in range(40)}
        val_losses = [torch.zeros(3)]
        handshake.ready({"names": NAMES, "of_script": scripts, "cached": [id(tensor) for tensor in cache.values()],
                         "val_loss": id(val_losses[0])})
        handshake.hold()
        return tasks

    asyncio.run(work())
    return made, between, model, tee, alias, watched, links, handler


if __name__ == "__main__":
    main()
