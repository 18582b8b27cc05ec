"""Jobs that delete a reference: what `memspy` says that it frees, and what it frees.

All of `SITUATIONS` stand at the same time: the target prints their references, as memspy names them, and READY. At the
next line one after the other is really removed, and the target prints the bytes by which
`torch.cuda.memory_allocated()` fell, and by which it fell further with `gc.collect()`. With `busy` a thread makes and
frees objects beside theirs until that line.
"""
import collections
import contextvars
import dataclasses
import functools
import gc
import json
import sys
import threading
import types
import weakref

import handshake
import torch
from torch import nn

MIB = 1 << 20


def mib(count, **options):
    return torch.empty(count * MIB // 4, device="cuda", **options)


class Plain:
    pass


class Slotted:
    __slots__ = ("held", "other")


@dataclasses.dataclass
class Batch:
    inputs: object
    targets: object


class Cached:
    @functools.cached_property
    def table(self):
        return mib(3)


class Linked:
    def __init__(self, size):
        self.own = self
        self.held = mib(size)


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 2)
        return x * 3

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


class KeepsOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x * 2
        ctx.out = out
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad


SITUATIONS = {}
CURRENT = threading.local()


class Situation:
    """One on a thread of its own, where its variables are those of a running function."""

    def __init__(self, function):
        self.function = function
        self.reference = self.freed = self.before = None
        self.stands, self.may_go = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        self.stands.wait()

    def run(self):
        CURRENT.situation = self
        self.function()
        gone()

    def remove(self):
        self.may_go.set()
        self.thread.join()
        gc.collect()
        return self.freed


def situation(function):
    SITUATIONS[function.__name__] = function
    return function


def stand(name):
    own = CURRENT.situation
    own.reference = name
    own.stands.set()
    own.may_go.wait()
    own.before = torch.cuda.memory_allocated()


def gone(*still_there):
    own = CURRENT.situation
    if own.freed is None:
        at_once = torch.cuda.memory_allocated()
        gc.collect()
        own.freed = [own.before - at_once, at_once - torch.cuda.memory_allocated()]


# Each names the reference once it stands, removes it, and says when that is done; what is given to `gone` is there
# still. Without, all of it has gone when the function returns.


@situation
def one_tensor():
    only = mib(2)
    stand("one_tensor: only")
    del only


@situation
def odd_size():
    odd = torch.empty(1000, device="cuda")
    stand("odd_size: odd")
    del odd


@situation
def two_names():
    first = second = mib(2)
    stand("two_names: first")
    del first
    gone(second)


@situation
def slice_keeps_all():
    piece = mib(8)[::64]
    stand("slice_keeps_all: piece")
    del piece


@situation
def base_and_view():
    whole = mib(4)
    view = whole[10:20]
    stand("base_and_view: whole")
    del whole
    gone(view)


@situation
def view_of_base():
    whole = mib(4)
    view = whole.view(2, -1)
    stand("view_of_base: view")
    del view
    gone(whole)


@situation
def detached_slice():
    piece = mib(4, requires_grad=True).detach()[::8]
    stand("detached_slice: piece")
    del piece


@situation
def list_of_all():
    kept = [mib(1) for _ in range(7)]
    stand("list_of_all: kept")
    del kept


@situation
def item_of_list():
    kept = [mib(1), mib(2)]
    stand("item_of_list: kept[1]")
    kept[1] = None
    gone(kept)


@situation
def twice_in_list():
    one = [mib(2)]
    kept = one * 2
    one.clear()
    stand("twice_in_list: kept[0]")
    kept[0] = None
    gone(kept)


@situation
def shared_checkpoint():
    weights = [mib(2) for _ in range(4)]
    checkpoint = {"model": list(weights), "moments": [mib(3), mib(5)]}
    stand("shared_checkpoint: checkpoint")
    del checkpoint
    gone(weights)


@situation
def state_dict():
    model = nn.Linear(512, 1024, device="cuda")
    checkpoint = {"model": model.state_dict(), "copy": {k: v.clone() for k, v in model.state_dict().items()}}
    stand("state_dict: checkpoint")
    del checkpoint
    gone(model)


def trained():
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.ones(8, 512, device="cuda")).sum().backward()
    optimizer.step()
    return model, optimizer


@situation
def model_in_optimizer():
    model, optimizer = trained()
    stand("model_in_optimizer: model")
    del model
    gone(optimizer)


@situation
def optimizer_of_model():
    model, optimizer = trained()
    stand("optimizer_of_model: optimizer")
    del optimizer
    gone(model)


@situation
def both_in_one():
    holder = Plain()
    holder.model, holder.optimizer = trained()
    stand("both_in_one: holder")
    del holder


@situation
def gradients():
    model, optimizer = trained()
    stand("gradients of gradients: model")
    optimizer.zero_grad(set_to_none=True)
    gone(model)


@situation
def gradient_of_leaf():
    leaf = mib(2, requires_grad=True)
    leaf.grad = mib(2)
    stand("gradient_of_leaf: leaf")
    del leaf


@situation
def gradient_alone():
    leaf = mib(2, requires_grad=True)
    leaf.grad = mib(2)
    stand("gradient_alone: leaf.grad")
    leaf.grad = None
    gone(leaf)


@situation
def kept_graph():
    weight = mib(1, requires_grad=True)
    losses = [(weight * 2).exp().sum() for _ in range(3)]
    stand("kept_graph: losses")
    del losses
    gone(weight)


@situation
def output_of_linear():
    """Over three dimensions with a bias, it is a view of a sum that nobody else has."""
    model = nn.Linear(64, 1024, device="cuda")
    output = model(torch.ones(4, 256, 64, device="cuda", requires_grad=True) * 2)
    stand("output_of_linear: output")
    del output
    gone(model)


@situation
def graph_and_leaf():
    loss = (mib(2, requires_grad=True) * 2).exp().sum()
    stand("graph_and_leaf: loss")
    del loss


@situation
def graph_under_other():
    hidden = (mib(1, requires_grad=True) * 2).exp()
    loss = (hidden * 3).sin().sum()
    stand("graph_under_other: loss")
    del loss
    gone(hidden)


@situation
def own_function():
    out = Gate.apply(mib(2, requires_grad=True))
    stand("own_function: out")
    del out


@situation
def context_keeps_output():
    out = KeepsOutput.apply(mib(2, requires_grad=True))
    stand("context_keeps_output: out")
    del out


@situation
def closure():
    def outer():
        held = mib(3)
        return lambda: held

    call = outer()
    stand("closure: call")
    del call


@situation
def shared_variable():
    held = mib(3)

    def show():
        return held

    stand("shared_variable: held")
    del held
    gone(show)


@situation
def attribute():
    holder = Plain()
    holder.held = mib(2)
    holder.other = mib(1)
    stand("attribute: holder.held")
    del holder.held
    gone(holder)


@situation
def attribute_with_dict():
    holder = Plain()
    holder.held = mib(2)
    vars(holder)["other"] = mib(1)
    stand("attribute_with_dict: holder.held")
    del holder.held
    gone(holder)


@situation
def slots():
    holder = Slotted()
    holder.held, holder.other = mib(2), mib(1)
    stand("slots: holder.held")
    del holder.held
    gone(holder)


@situation
def nested_dict():
    cache = {"a": {"keys": [mib(1), mib(2)]}, "b": mib(4)}
    stand('nested_dict: cache["a"]')
    del cache["a"]
    gone(cache)


@situation
def data_class():
    batch = Batch(mib(1), [mib(2), mib(3)])
    stand("data_class: batch")
    del batch


@situation
def named_tuple():
    kind = collections.namedtuple("Pair", "left right")
    pair = kind(mib(1), mib(2))
    stand("named_tuple: pair")
    del pair, kind


@situation
def queue():
    recent = collections.deque((mib(1) for _ in range(5)), maxlen=5)
    stand("queue: recent")
    del recent


@situation
def members():
    kept = {mib(1), mib(2)}
    stand("members: kept")
    del kept


@situation
def weak_reference():
    only = mib(2)
    weak = weakref.ref(only)
    stand("weak_reference: only")
    del only
    gone(weak)


@situation
def cached_property():
    holder = Cached()
    holder.table
    stand("cached_property: holder.table")
    del holder.table
    gone(holder)


@situation
def cached_calls():
    @functools.lru_cache
    def table(size):
        return mib(size)

    table(1), table(2)
    stand("cached_calls: table.<cache>")
    table.cache_clear()
    gone(table)


@situation
def cached_function():
    table = functools.lru_cache(lambda size: mib(size))
    table(1), table(2)
    stand("cached_function: table")
    del table


@situation
def cycle():
    head = Linked(4)
    stand("cycle: head")
    del head


@situation
def cycle_and_plain():
    pair = [Linked(4), mib(3)]
    stand("cycle_and_plain: pair")
    del pair


@situation
def behind_cycle():
    left, right = Plain(), Plain()
    left.right, right.left = right, left
    right.buffers = {"x": mib(5)}
    del left
    stand("behind_cycle: right")
    del right


@situation
def exception():
    def fails():
        scratch = mib(6)
        raise ValueError(scratch.shape)

    errors = []
    try:
        fails()
    except ValueError as error:
        errors.append(error)
    stand("exception: errors")
    del errors


@situation
def module_attribute():
    module = types.ModuleType("held_by_module")
    sys.modules["held_by_module"] = module
    module.table = mib(2)
    del module
    stand("held_by_module.table")
    del sys.modules["held_by_module"].table
    gone()
    del sys.modules["held_by_module"]


@situation
def generator():
    def batches():
        buffer = mib(4)
        while True:
            yield buffer[:1]

    stream = batches()
    next(stream)
    stand("generator: stream")
    del stream


@situation
def thread_local():
    local = threading.local()
    local.held = mib(2)
    stand("thread_local: local.held")
    del local.held
    gone(local)


@situation
def context_variable():
    variable = contextvars.ContextVar("held")
    context = contextvars.copy_context()
    context.run(variable.set, mib(2))
    stand("context_variable: variable")
    del variable
    gone(context)


@situation
def partial():
    call = functools.partial(torch.add, mib(2), other=mib(1))
    stand("partial: call")
    del call


@situation
def bound_method():
    holder = Linked(2)
    holder.own = None
    call = holder.__init__
    stand("bound_method: holder")
    del holder
    gone(call)


@situation
def default_value():
    def call(x=mib(2)):
        return x

    stand("default_value: call")
    del call


@situation
def hook():
    leaf = mib(1, requires_grad=True)
    scratch = mib(3)
    leaf.register_hook(lambda grad, scratch=scratch: grad)
    del scratch
    stand("hook: leaf")
    del leaf


@situation
def sparse():
    grid = torch.sparse_coo_tensor(torch.zeros(1, 64, dtype=torch.long, device="cuda"), mib(1)[:64], (8,))
    stand("sparse: grid")
    del grid


@situation
def in_cpp_only():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(mib(2))

        def forward(self, x):
            return x + self.weight

    scripted = torch.jit.script(Model())
    stand("in_cpp_only: scripted")
    del scripted


@situation
def storage_of_tensor():
    whole = mib(2)
    storage = whole.untyped_storage()
    stand("storage_of_tensor: whole")
    del whole
    gone(storage)


@situation
def storage_looked_at():
    whole = mib(2)
    whole.untyped_storage().nbytes()
    stand("storage_looked_at: whole")
    del whole


@situation
def iterator():
    stream = iter([mib(1), mib(2)])
    stand("iterator: stream")
    del stream


@situation
def checkpointed():
    from torch.utils.checkpoint import checkpoint
    weight = mib(1, requires_grad=True)
    loss = checkpoint(lambda x: (x * 2).exp().sin(), weight, use_reentrant=False).sum()
    stand("checkpointed: loss")
    del loss
    gone(weight)


def make_and_free(is_over):
    kept = collections.deque(maxlen=20_000)
    weight = mib(1, requires_grad=True)
    while not is_over.is_set():
        out = weight * 2
        out.sum().backward()
        kept.extend([Plain(), {"out": out.detach()}, (len(kept), [torch])] for _ in range(100))


def main():
    gc.disable()
    torch.empty(1, device="cuda")
    is_over = threading.Event()
    busy = threading.Thread(target=make_and_free, args=(is_over,))
    if "busy" in sys.argv:
        busy.start()
    situations = {name: Situation(function) for name, function in SITUATIONS.items()}
    gc.collect()  # Frames that an optimizer leaves behind keep the model.
    handshake.ready({name: own.reference for name, own in situations.items()})
    handshake.hold()
    is_over.set()
    if "busy" in sys.argv:
        busy.join()
        del busy
    handshake.ready({name: own.remove() for name, own in situations.items()})
    handshake.hold()


main()
