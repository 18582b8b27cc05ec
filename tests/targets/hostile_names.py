"""A job that calls everything it can name something that is no name.

The first argument has the names' harm as JSON: a string. Functions, files, classes, modules, threads, variables,
parameters and autograd nodes are called that.
"""
import json
import sys
import threading

import torch

import handshake

HARM = json.loads(sys.argv[1])


def called(function, name):
    """The same function with another name, in another file."""
    code = function.__code__.replace(co_name=name, co_filename=f"/tmp/{name}.py")
    if hasattr(code, "co_qualname"):
        code = code.replace(co_qualname=name)
    return type(function)(code, function.__globals__, name, function.__defaults__, function.__closure__)


def forward(ctx, x):
    ctx.save_for_backward(x)
    return x * 2


def backward(ctx, gradient):
    return gradient * 2


torch.__version__ = HARM
Function = type(
    f"Node{HARM}",
    (torch.autograd.Function,),
    {"forward": staticmethod(forward), "backward": staticmethod(backward)},
)
Module = type(f"Module{HARM}", (torch.nn.Module,), {"__module__": f"package{HARM}"})
model = Module()
model._parameters[f"weight{HARM}"] = torch.nn.Parameter(torch.ones(1 << 20, device="cuda"))
globals()[f"variable{HARM}"] = torch.ones(3 << 20, device="cuda")
kept = {f"key{HARM}": torch.ones(2 << 20, device="cuda")}
result = Function.apply(next(iter(model.parameters())))
other = result.exp()


def work():
    return [torch.ones(1 << 18, device="cuda") for _ in range(4)]


def go_on(stop):
    while not stop.is_set():
        worker()


worker = called(work, f"work{HARM}")
stop = threading.Event()
thread = threading.Thread(target=called(go_on, f"go_on{HARM}"), args=(stop,), name=f"thread{HARM}")
thread.start()
handshake.ready()
for _ in handshake.requests():
    pass
stop.set()
thread.join()
