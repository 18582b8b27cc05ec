"""Objects of every kind, and what Python itself says of them: ids of all that is tracked, contents, local variables.

    python tests/targets/heap_truth.py [COUNT]      COUNT further small objects, for measuring
"""
import array
import asyncio
import collections
import contextvars
import functools
import gc
import itertools
import queue
import sys
import threading
import types
import weakref

import handshake


class Plain:
    def __init__(self):
        self.one = [1]
        self.two = {"k": "v"}


class Slotted:
    __slots__ = ("left", "right", "unset")

    def __init__(self):
        self.left = (1, [2])
        self.right = {3: [4]}


class SlottedChild(Slotted):
    def __init__(self):
        super().__init__()
        self.extra = ["e"]


class MyDict(dict):
    pass


class MyTuple(tuple):
    pass


class Named(collections.namedtuple("Base", "a b")):
    """A tuple with attributes: its dictionary is counted from its end."""


def shared(value):
    other = [value]

    def inner(default=[5], *, keyword={"kw": [6]}):
        return value, other

    return inner


def generate():
    kept = ["in a generator"]
    yield kept
    yield kept


def many_attributes():
    plain = Plain()
    for i in range(100):
        setattr(plain, "a%d" % i, [i])
    return plain


def waits(started, until):
    in_thread = ["thread"]
    in_cell = ["cell"]

    def use():
        return in_cell

    started.set()
    until.wait()
    return in_thread, use


def left_behind():
    """Objects of threads that have ended, some of them freed by another thread."""
    kept = []

    def make():
        kept.append([[i] for i in range(3000)] + [Plain() for _ in range(300)])

    for _ in range(3):
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
    for things in kept:
        del things[::3]
    running = threading.Thread(target=lambda: (make(), done.set(), until.wait()), daemon=True)
    done, until = threading.Event(), threading.Event()
    running.start()
    done.wait()
    del kept[-1][::2]
    return kept


def items_of(samples):
    """Contents by sample: a list of [how, id]."""
    said = {}
    for name, value in samples.items():
        if isinstance(value, dict):
            said[name] = [[key if isinstance(key, str) else id(key), id(v)] for key, v in value.items()]
        elif isinstance(value, (list, tuple, collections.deque)):
            said[name] = [[i, id(v)] for i, v in enumerate(value)]
        elif isinstance(value, (set, frozenset)):
            said[name] = sorted([["", id(v)] for v in value])
    return said


def attributes_of(samples):
    said = {}
    for name, value in samples.items():
        found = {}
        for slot in ("left", "right", "unset"):
            if isinstance(value, Slotted) and hasattr(value, slot):
                found[slot] = id(getattr(value, slot))
        # Not vars(): it would make a dictionary out of values that are stored without one.
        for attribute in getattr(value, "tested", None) or dir(value):
            if attribute.startswith("__") or attribute in found or attribute in ("unset",):
                continue
            if attribute in type(value).__dict__ or any(attribute in b.__dict__ for b in type(value).__mro__):
                continue
            found[attribute] = id(getattr(value, attribute))
        said[name] = sorted(found.items())
    return said


@functools.lru_cache(maxsize=None)
def cached(number):
    return [number]


@functools.lru_cache(maxsize=4)
def cached_some(number):
    return [number]


def raised(error):
    try:
        try:
            raise ValueError(["first"])
        except ValueError as first:
            raise error from first
    except BaseException as caught:
        return caught


async def waits_for(future):
    kept = ["in a coroutine"]
    await future
    return kept


def contexts():
    """Contexts, the nodes of the trees of their variables, and tokens."""
    variables = [contextvars.ContextVar("v%d" % n, default=["default"]) for n in range(40)]
    context = contextvars.Context()
    tokens = [context.run(variable.set, ["set"]) for variable in variables]
    nodes = [context.copy(), context]
    for node in nodes:
        nodes += [other for other in gc.get_referents(node) if "hamt" in type(other).__name__]
    return variables[:1] + tokens[:1] + nodes


def tasks():
    """Tasks and futures of an event loop that stands still."""
    loop = asyncio.new_event_loop()
    future, result, failed = loop.create_future(), loop.create_future(), loop.create_future()
    waiting = loop.create_task(waits_for(future))
    many = loop.create_task(waits_for(waiting))
    done = loop.create_task(asyncio.sleep(0, ["result"]))
    loop.run_until_complete(done)
    result.set_result(["result"])
    failed.set_exception(ValueError(["failed"]))
    failed.exception()
    for task in (waiting, many):
        task.add_done_callback(shared(task))
    return [future, result, failed, waiting, many, done, future.__await__()]


def locals_of_threads():
    local = threading.local()
    local.kept = ["in a local"]
    return local


class Failure(Exception):
    pass


def tees():
    first, second = itertools.tee(iter([["a"], ["b"], ["c"]]))
    next(second), next(second)
    return [first, second] + [other for other in gc.get_referents(first) if other is not type(first)]


def queues():
    """What pools of threads keep their work in: a new one, and one that has gone round its room."""
    few, many = queue.SimpleQueue(), queue.SimpleQueue()
    for n in range(11):
        few.put([n])
        many.put([n])
        if n > 4:
            many.get()
    return [few, many]


def known_types():
    """Objects of types written in C whose references are known, each with something of its own to hold."""
    function = shared(["in a closure"])
    error = raised(Failure(["argument"]))
    error.beside = ["beside"]
    stop, leave, missing = raised(StopIteration(["value"])), raised(SystemExit(["code"])), None
    try:
        Plain().missing
    except AttributeError as caught:
        missing = caught
    return [
        functools.partial(function, ["a"], key=["b"]), property(function, shared(1)), staticmethod(function), classmethod(function),
        collections.deque([["a"], ["b"]]), collections.defaultdict(function, a=["a"]), types.MappingProxyType({"a": ["a"]}),
        {"a": ["a"]}.values(), {"a": ["a"]}.items(), {"a": ["a"]}.keys(), collections.OrderedDict(a=["a"]).values(),
        iter([["a"]]), iter((["a"],)), iter({"a": ["a"]}.values()), iter({"a": ["a"]}.items()), iter({"a": ["a"]}), iter({("a",)}),
        iter(function, ["end"]), reversed([["a"]]), reversed((["a"],)), enumerate([["a"]]), map(function, [["a"]]),
        filter(function, [["a"]]), zip([["a"]], [["b"]]), slice(["a"], ["b"], ["c"]), [["a"]].append, [["a"]].__len__,
        itertools.chain([["a"]], [["b"]]), itertools.cycle([["a"]]), itertools.repeat(["a"]), itertools.islice(iter([["a"]]), 1),
        itertools.starmap(function, [["a"]]), itertools.takewhile(function, [["a"]]), itertools.dropwhile(function, [["a"]]),
        itertools.filterfalse(function, [["a"]]), itertools.accumulate([["a"]], function, initial=["i"]),
        itertools.compress([["a"]], [1]), itertools.zip_longest([["a"]], [["b"]], fillvalue=["f"]), itertools.product([["a"]], [["b"]]),
        itertools.permutations([["a"], ["b"]]), itertools.groupby([["a"]], function), weakref.ref(function, shared(2)),
        weakref.proxy(function, shared(3)), weakref.WeakMethod(Plain().__init__, shared(4)), error, error.__traceback__, error.__cause__, stop, leave,
        *contexts(), *tasks(), locals_of_threads(), *tees(), *queues(), waits_for(None).__await__(),
        *([types.GenericAlias(list, (["a"],))] if hasattr(types, "GenericAlias") else []),
        missing, shared(5).__closure__[0], Plain().__init__, types.SimpleNamespace(a=["a"]),
    ]


def held(thing):
    """What it holds that can be part of a cycle, as its own `tp_traverse` says; its class is held by heap types since 3.9.
    What its attributes hold in place of the dictionary that has them."""
    others = [other for other in gc.get_referents(thing) if other is not type(thing)]
    if issubclass(type(thing), (BaseException, types.SimpleNamespace, staticmethod, classmethod)):
        others = [other for other in others if other is not thing.__dict__] + list(thing.__dict__.values())
    return [id(other) for other in others if gc.is_tracked(other)]


def main():
    with_dict = Plain()
    with_dict.__dict__
    named = Named([1], [2])
    named.more = ["m"]
    deque = collections.deque([i] for i in range(200))
    for i in range(70):
        deque.popleft()
        deque.append([i])
    deleted = {str(i): [i] for i in range(50)}
    for i in range(0, 50, 3):
        del deleted[str(i)]
    containers = {
        "dict": {"a": [1], "b": (2, [3])}, "mixed": {1: [1], "x": [2], (3,): [4]}, "deleted": deleted,
        "default": collections.defaultdict(list, {"d": [1]}), "ordered": collections.OrderedDict(o=[1], p=[2]),
        "mydict": MyDict(q=[1]), "list": [[i] for i in range(1000)], "tuple": ([1], "text", [2]),
        "mytuple": MyTuple([[1], [2]]), "set": {(1,), (2,), frozenset([3])}, "large": {i: [i] for i in range(70000)},
        "deque": deque, "unicode": {"ключ": [1], "🚀": [2]}, "empty": {}, "emptylist": [],
    }
    instances = {
        "plain": Plain(), "with_dict": with_dict, "many": many_attributes(), "slotted": Slotted(),
        "child": SlottedChild(), "named": named, "second": Plain(),
    }
    function = shared(["closed over"])
    generator = generate()
    next(generator)
    method = instances["plain"].__init__
    partial = functools.partial(waits, 1)
    known = known_types()
    for iterates in known:
        if type(iterates).__module__ == "itertools" and type(iterates).__name__ in ("chain", "cycle", "zip_longest", "accumulate"):
            next(iterates)
    cached(1), cached_some(2)
    references = {
        "function": [id(function), [id(function.__defaults__), id(function.__kwdefaults__), id(function.__closure__)]],
        "cell": [id(function.__closure__[0]), [id(function.__closure__[0].cell_contents)]],
        "generator": [id(generator), [id(generator.gi_frame.f_locals["kept"])]],
        "method": [id(method), [id(method.__self__), id(method.__func__)]],
    }
    started, until = threading.Event(), threading.Event()
    thread = threading.Thread(target=waits, args=(started, until), daemon=True)
    thread.start()
    started.wait()
    frame = sys._current_frames()[thread.ident]
    while frame.f_code.co_name != "waits":
        frame = frame.f_back
    in_thread, in_cell = id(frame.f_locals["in_thread"]), id(frame.f_locals["in_cell"])
    del frame
    left = left_behind()
    more = [[i] for i in range(int(sys.argv[1]))] if len(sys.argv) > 1 else []
    truth = {
        "containers": {name: id(value) for name, value in containers.items()},
        "items": items_of(containers),
        "instances": {name: id(value) for name, value in instances.items()},
        "attributes": attributes_of(instances),
        "references": references,
        "known": [[id(thing), type(thing).__name__, held(thing)] for thing in known],
        "cached": [[id(cached), id(cached(1))], [id(cached_some), id(cached_some(2))]],
        "locals": {"main.containers": id(containers), "main.left": id(left), "main.more": id(more), "main.function": id(function),
                   "waits.in_thread": in_thread, "waits.in_cell": in_cell, "main.partial": id(partial)},
        "globals": {"Plain": id(Plain), "gc": id(gc)},
    }
    gc.collect()
    gc.freeze()
    thawed = [[i] for i in range(100)]
    truth["locals"]["main.thawed"] = id(thawed)
    gc.disable()
    tracked = array.array("Q")
    handshake.ready(truth)
    handshake.hold()
    # Frozen objects are in no generation: thawed for the list, and frozen again.
    gc.unfreeze()
    for thing in gc.get_objects():
        tracked.append(id(thing))
    gc.freeze()
    for address in tracked:
        sys.stdout.write("%d\n" % address)
    handshake.ready()
    handshake.hold()


if __name__ == "__main__":
    main()
