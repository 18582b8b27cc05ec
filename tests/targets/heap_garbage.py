"""Garbage in cycles of every kind, and things alive beside it; what survives `gc.collect()` is printed when asked for.

After READY a line makes it collect and print the ids of all objects that are no garbage, one a line, then READY.
"""
import collections
import functools
import gc
import itertools
import sys
import sysconfig
import threading
import types
import weakref

import handshake

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class Plain:
    pass


class Slotted:
    __slots__ = ("other", "payload")


class MyDict(dict):
    pass


class MyList(list):
    pass


def in_list():
    cycle = []
    cycle.append((cycle, ["payload"]))
    return [cycle, cycle[0], cycle[0][1]]


def in_dict():
    cycle = {"n": {1: ["payload"]}}
    cycle["self"] = cycle
    return [cycle, cycle["n"], cycle["n"][1]]


def in_instances(with_dict):
    one, two = Plain(), Plain()
    one.other, two.other, two.payload = two, one, ["payload"]
    if with_dict:
        one.__dict__
    return [one, two, two.payload]


def in_many_attributes():
    one = Plain()
    for i in range(60):
        setattr(one, "a%d" % i, [i])
    one.self = one
    return [one, one.a59]


def in_slots():
    one, two = Slotted(), Slotted()
    one.other, two.other, two.payload = two, one, ["payload"]
    return [one, two, two.payload]


def in_subclasses():
    one, two = MyDict(), MyList()
    one["two"], one.payload = two, ["payload"]
    two.append(one)
    return [one, two, one.payload]


def in_closure():
    payload = ["payload"]

    def use(default=[1]):
        return payload, use

    return [use, payload]


def in_method():
    one = Plain()
    one.method = one.__init_subclass__
    one.bound = in_method.__get__(one)
    one.set = {one}
    return [one, one.set]


def with_borrowed():
    """Each connection names the module's exceptions, and no count says so (Modules/_sqlite/connection.h)."""
    try:
        import sqlite3
    except ImportError:  # this Python was built without it
        return []
    return [sqlite3.connect(":memory:") for _ in range(20)]


def alive():
    """The same shapes, with somebody outside who keeps them."""
    return [with_borrowed(), in_list(), in_dict(), in_instances(False), in_instances(True), in_slots(), in_closure()]


def in_generator():
    """In a variable of it, in a cell of it, on its stack, and in one that has not begun."""
    holder, shared = [], ["payload"]

    def generate(given):
        kept = ["payload"]

        def use():
            return shared, kept

        for one in [given, ["on the stack"]]:
            yield one, use, holder

    running, fresh = generate(["given"]), generate(["given"])
    first = next(running)
    holder += [running, fresh]
    return [holder, running, fresh, shared, first[0], first[1]]


def in_delegation():
    holder = []

    def inner():
        kept = ["payload"]
        yield kept

    def outer():
        yield from inner()
        yield holder

    running = outer()
    kept = next(running)
    holder.append(running)
    return [holder, running, kept]


class Suspended:
    def __await__(self):
        yield


def in_coroutine():
    holder = []

    async def wait():
        kept = ["payload"]
        holder.append(kept)
        await Suspended()
        return kept

    waiting = wait()
    waiting.send(None)
    holder.append(waiting)
    return [holder, holder[0], waiting]


def in_async_generator():
    holder = []

    async def generate():
        kept = ["payload"]
        holder.append(kept)
        yield kept, holder

    running = generate()
    try:
        running.asend(None).send(None)
    except StopIteration:
        pass
    holder.append(running)
    return [holder, holder[0], running]


class Failure(Exception):
    pass


def in_traceback():
    """An exception that a frame of its own traceback keeps: `error = e`, written everywhere."""
    def fail(payload):
        raise Failure(payload, ["more"])

    def call():
        payload = ["payload"]
        try:
            fail(payload)
        except Failure as error:
            kept = error
        return kept

    error = call()
    inner = error.__traceback__.tb_next
    return [error, error.__traceback__, inner, error.args[0], error.args[1], inner.tb_frame]


def in_handling():
    """An exception that was raised while another one was handled, and one with an attribute."""
    def call():
        try:
            try:
                raise Failure(["first"])
            except Failure as first:
                first.beside = ["beside"]
                raise KeyError(["second"])
        except KeyError as second:
            kept = second
        return kept

    error = call()
    return [error, error.args[0], error.__context__, error.__context__.args[0], error.__context__.beside]


def in_generator_that_handles():
    holder = []

    def generate():
        try:
            raise Failure(["payload"])
        except Failure:
            yield holder

    running = generate()
    next(running)
    holder.append(running)
    return [holder, running]


def in_builtins():
    """What types written in C hold."""
    holder = []
    payloads = [["payload %d" % i] for i in range(20)]

    def function(*_):
        return holder

    made = [
        functools.partial(function, payloads[0], key=payloads[1]), property(function),
        collections.deque([payloads[2]]), collections.defaultdict(function, key=payloads[3]),
        types.MappingProxyType({"key": payloads[4]}), {"key": payloads[5]}.values(), {"key": payloads[6]}.items(),
        iter([payloads[7]]), iter((payloads[8], 1)), iter({"key": payloads[9]}.values()), enumerate([payloads[10]]),
        map(function, [payloads[11]]), filter(function, [payloads[12]]), zip([payloads[13]], [holder]), reversed([payloads[14]]),
        itertools.chain([payloads[15]], holder), itertools.cycle([payloads[16]]), itertools.repeat(payloads[17]),
        itertools.islice(iter([payloads[18]]), 3), itertools.starmap(function, [(payloads[19],)]), [].append, slice(holder, holder),
    ]
    made.append(weakref.ref(in_builtins, function))
    if not FREE_THREADED:  # there not all references to these are counted: they are taken to be alive
        made += [staticmethod(function), classmethod(function)]
    holder += made
    return [holder, function] + made + payloads


def main():
    keeps = alive()
    thread_local = threading.local()
    thread_local.keeps = in_instances(False)
    gc.collect()
    gc.disable()
    ids, names = [], {}
    # Without a GIL, collections leave this one alone for as long as the process runs, though nothing counts a reference to it.
    handling = [] if FREE_THREADED else [in_generator_that_handles]
    for make in (in_list, in_dict, lambda: in_instances(False), lambda: in_instances(True), in_many_attributes, in_slots,
                 in_subclasses, in_closure, in_method, in_generator, in_delegation, in_coroutine,
                 in_async_generator, in_traceback, in_handling, *handling, in_builtins):
        names.update((id(thing), "%s: %s" % (make.__name__, type(thing).__name__)) for thing in make() if gc.is_tracked(thing))
    ids += names
    handshake.ready({"garbage": ids, "names": names, "alive": [id(thing) for things in keeps for thing in things]})
    handshake.hold()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    # Generators are closed in a collection, and what they held is freed at once: no garbage is saved of it.
    survivors = gc.get_objects()
    saved = {id(thing) for thing in gc.garbage}
    # CPython 3.13 does not list the dictionary of an instance that shares its values with it.
    saved.update(id(thing.__dict__) for thing in gc.garbage if type(thing) is Plain)
    for thing in survivors:
        if id(thing) not in saved:
            sys.stdout.write("%d\n" % id(thing))
    handshake.ready()
    handshake.hold()
    del keeps


if __name__ == "__main__":
    main()
