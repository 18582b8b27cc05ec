"""Scenes of Python and of storages: the many ways in which a program can hold a tensor."""
import collections
import dataclasses
import functools
import gc
import linecache
import os
import sys
import types
import weakref

import kinds
import torch

KILO, MEGA = 1 << 10, 1 << 20
in_module = {}


def views(device, show):
    """Many tensors, few storages: a small view can keep a large storage alive."""
    base = torch.arange(24.0, device=device).reshape(2, 3, 4)
    row, turned, strided = base[1], base.transpose(0, 2), base[:, 1:, ::2]
    spread = base[:, :1].expand(2, 5, 4)
    detached, complex_view = base.detach(), torch.view_as_real(torch.zeros(4, 4, dtype=torch.complex64, device=device))
    last_of_large = torch.zeros(MEGA, device=device)[-10:]
    pieces = torch.zeros(6, 4, device=device).unbind(0)
    as_bytes = torch.zeros(8, device=device).view(torch.uint8)
    counted = torch.zeros(3, device=device)
    counted.add_(1).mul_(2)
    empty, scalar = torch.empty(0, 3, device=device), torch.tensor(1.5, device=device)
    deep = torch.zeros(1, 2, 1, 2, 1, 2, 1, device=device)
    grown = torch.zeros(10, device=device)
    grown.untyped_storage().resize_(4096)
    show("base", "row", "turned", "strided", "spread", "detached", "complex_view", "last_of_large", "pieces[3]", "as_bytes",
         "counted", "empty", "scalar", "deep", "grown")


def sparse(device, show):
    """Layouts whose memory is in tensors of their own; a sparse gradient."""
    coo = torch.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3), device=device)
    csr = torch.sparse_csr_tensor([0, 1, 2], [2, 0], [3.0, 4.0], (2, 3), device=device)
    table = torch.nn.Embedding(100, 8, sparse=True).to(device)
    table(torch.arange(5, device=device)).sum().backward()
    show("coo", "csr", "table")


def unusual(device, show):
    """Tensors that are not plain: what has no memory of its own, and whose memory is in others."""
    made = kinds.of(device)
    # A jagged one comes with torch 2.3.
    within = ["made.wrapper.inner"] + (["made.jagged._values", "made.jagged._offsets"] if hasattr(made, "jagged") else [])
    show(*(f"made.{name}" for name in sorted(vars(made))), *within)


@dataclasses.dataclass
class Batch:
    inputs: torch.Tensor
    labels: dict


@dataclasses.dataclass(frozen=True)
class SlottedBatch:
    __slots__ = ("inputs",)
    inputs: torch.Tensor


Pair = collections.namedtuple("Pair", "left right")


class Slots:
    __slots__ = ("held", "unset")
    shared = None


class Keeper:
    def __init__(self, tensor):
        self.cache = {"steps": [tensor]}

    def method(self):
        return self.cache

    @property
    def steps(self):
        return self.cache["steps"]


class TensorWithExtras(torch.Tensor):
    """Instances have a dictionary."""


def closing_over(tensor):
    def use(scale=tensor * 0, *, offset=tensor + 1):
        return tensor * scale + offset
    return use


def generating(tensor):
    kept = tensor + 1
    yield kept
    yield tensor


async def awaiting(tensor):
    inner = tensor + 1
    await suspended()
    return inner


@types.coroutine
def suspended():
    yield


def closures(device, show):
    count = iter(range(1, 1000))
    new = lambda: torch.zeros(next(count), 100, device=device)  # noqa: E731
    in_list = [new(), (new(), [new()], {"deep": {"deeper": new()}})]
    by_number, in_deque = {3: new()}, collections.deque([new(), new()])
    pair, batch, slotted = Pair(new(), new()), Batch(new(), {"y": new()}), SlottedBatch(new())
    slots, keeper, space = Slots(), Keeper(new()), types.SimpleNamespace(x=new())
    slots.held = new()
    Slots.shared = new()
    closure, generator, coroutine = closing_over(new()), generating(new()), awaiting(new())
    next(generator)
    coroutine.send(None)
    bound, partial = Keeper(new()).method, functools.partial(torch.add, new(), other=new())
    in_module["x"] = new()
    extras = new().as_subclass(TensorWithExtras)
    extras.note = new()
    by_tensor = {new(): "a tensor as key"}
    weak = weakref.ref(in_list[0])
    captured = new()
    use_captured = lambda: captured  # noqa: E731  (makes `captured` a cell of this very function)
    new = None
    show("in_list[0]", "in_list[1][0]", "in_list[1][1][0]", 'in_list[1][2]["deep"]["deeper"]', "by_number[3]", "in_deque[1]",
         "pair[1]", "batch.inputs", 'batch.labels["y"]', "slotted.inputs", "slots.held", 'scenes_python.Slots.__dict__["shared"]',
         'keeper.cache["steps"][0]', "space.x", "closure.__closure__[0].cell_contents", "closure.__defaults__[0]",
         'closure.__kwdefaults__["offset"]', 'generator.gi_frame.f_locals["kept"]', 'generator.gi_frame.f_locals["tensor"]',
         'coroutine.cr_frame.f_locals["inner"]', 'bound.__self__.cache["steps"][0]', "partial.args[0]", 'partial.keywords["other"]',
         'scenes_python.in_module["x"]', "extras", "extras.note", "next(iter(by_tensor))", "captured")
    coroutine.close()
    del weak, use_captured


class Failed(Exception):
    """Has room for a tensor of its own."""


def fails(tensor):
    inner = tensor + 1
    raise Failed(tensor * 2, inner.shape)


def exceptions(device, show):
    """What a stored exception keeps: its arguments and attributes, and every variable of the functions that it came through."""
    errors = []
    for size in (3, 5):
        try:
            fails(torch.zeros(size, 100, device=device))
        except Failed as error:
            error.beside = torch.ones(size, 50, device=device)
            errors.append(error)
    error = None
    show("errors[0].args[0]", "errors[1].beside", 'errors[0].__traceback__.tb_next.tb_frame.f_locals["inner"]',
         'errors[1].__traceback__.tb_next.tb_frame.f_locals["tensor"]')
    del error


class Node:
    def __init__(self, tensor):
        self.tensor = tensor
        self.itself = self


def garbage(device, show):
    """Cycles that nothing leads to, which the collector would free, and segments that `empty_cache()` would give back."""
    gc.collect()
    gc.disable()
    alive = Node(torch.zeros(3 * KILO, device=device))
    set_aside = torch.zeros(700, device=device)
    gc.freeze()  # what lives by now is in no generation any more
    for size in (KILO, 2 * KILO, MEGA):
        Node(torch.zeros(size, device=device))
    pair = [torch.zeros(500, device=device), torch.ones(300, device=device)[10:]]
    pair.append({"back": pair})
    large = [torch.zeros(30 * MEGA, dtype=torch.uint8, device=device) for _ in range(3)]
    kept = large[1]
    del large, pair
    show("alive.tensor", "kept", "set_aside")


CELL = """\
import torch
weights = torch.zeros(256, 256, device=device)
history = []
def accumulate(n):
    for i in range(n):
        history.append(weights[i] * 2)
    show("__main__.weights", "__main__.history[2]", cells=cells)
enter(3)
"""


def notebook(device, show):
    """Cells as IPython runs them: compiled under a name that is no file, its lines in `linecache`, run in `__main__`.
    The name is `<ipython-input-N-HASH>` up to IPython 7, and a file of ipykernel's that does not exist since."""
    cells = {"<ipython-input-1-0123456789ab>": "def enter(n):\n    accumulate(n)\n",
             f"/tmp/ipykernel_{os.getpid()}/1234567890.py": CELL}
    vars(sys.modules["__main__"]).update(device=device, show=show, cells=cells)
    for name, text in cells.items():
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), vars(sys.modules["__main__"]))


SCENES = (views, sparse, unusual, closures, exceptions, garbage, notebook)
