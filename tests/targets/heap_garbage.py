"""Garbage in cycles of every kind, and things alive beside it; what `gc.collect()` finds is printed when asked for.

After READY a line makes it collect and print the ids of all that it would have freed, one a line, then READY.
"""
import gc
import sys
import threading

import handshake


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


def alive():
    """The same shapes, with somebody outside who keeps them."""
    return [in_list(), in_dict(), in_instances(False), in_instances(True), in_slots(), in_closure()]


def generator_in_cycle():
    """What generators keep is not known to be garbage: found or not, both are right."""
    holder = []

    def generate():
        kept = ["in a generator"]
        yield kept, holder

    running = generate()
    next(running)
    holder.append(running)
    return []


def main():
    keeps = alive()
    thread_local = threading.local()
    thread_local.keeps = in_instances(False)
    gc.collect()
    gc.disable()
    ids = []
    for make in (in_list, in_dict, lambda: in_instances(False), lambda: in_instances(True), in_many_attributes, in_slots,
                 in_subclasses, in_closure, in_method, generator_in_cycle):
        ids += [id(thing) for thing in make()]
    handshake.ready({"garbage": ids, "alive": [id(thing) for things in keeps for thing in things]})
    handshake.hold()
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    for thing in gc.garbage:
        sys.stdout.write("%d\n" % id(thing))
        # CPython 3.13 does not list the dictionary of an instance that shares its values with it.
        if type(thing) is Plain:
            sys.stdout.write("%d\n" % id(thing.__dict__))
    handshake.ready()
    handshake.hold()
    del keeps


if __name__ == "__main__":
    main()
