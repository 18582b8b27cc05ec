"""Raises an error in several ways and stands still while it is alive; says where it was raised and by whom it was called.

    python tests/targets/raised.py

Prints {"lines": {name: {"line", "function"}}} and READY; then one request per line on stdin, READY while its error is alive and
again, after the next line, when it is gone:

    handled       by a handler
    nested        by a handler, while a handler within it handles another one
    chained       as the cause of another error, that is being handled
    context       the same without "from"
    threaded      by a handler in another thread
    generator     in a generator, by a handler of its user
    last          by nobody: an interactive console printed it
    other         an error of another class, by a handler
"""
import code
import sys
import threading

import handshake


class OutOfMemoryError(RuntimeError):
    pass


def fail(what):
    raise OutOfMemoryError("Tried to allocate %s. \u00e9" % what)  # line: raised


def between(what):
    fail(what)  # line: called


def alive():
    handshake.ready()
    handshake.hold()


def handled():
    try:
        between("1.00 GiB")  # line: asked
    except OutOfMemoryError:
        alive()  # line: handler


def nested():
    try:
        between("2.00 GiB")
    except OutOfMemoryError:
        try:
            raise KeyError("other")
        except KeyError:
            alive()


def convert(cause):
    try:
        between("3.00 GiB")
    except OutOfMemoryError as error:
        if cause:
            raise ValueError("no batch fits") from error
        raise ValueError("no batch fits")


def chained(cause=True):
    try:
        convert(cause)
    except ValueError:
        alive()


def threaded():
    thread = threading.Thread(target=handled, name="asker")
    thread.start()
    thread.join()


def steps():
    yield 1
    between("4.00 GiB")


def generator():
    try:
        for _ in steps():
            pass
    except OutOfMemoryError:
        alive()


def last():
    console = code.InteractiveInterpreter({"between": between})
    console.write = lambda text: None
    console.runsource("between('5.00 GiB')")
    alive()
    for name in ("last_exc", "last_value", "last_type", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)


def other():
    try:
        raise MemoryError("Tried to allocate 6.00 GiB")
    except MemoryError:
        alive()


def main():
    marks = handshake.marked_lines(__file__, r"  # line: (\w+)$")
    lines = {mark.group(1): {"line": number, "function": function} for number, function, mark in marks}
    handshake.ready({"lines": lines})
    doing = {"handled": handled, "nested": nested, "chained": chained, "context": lambda: chained(False),
             "threaded": threaded, "generator": generator, "last": last, "other": other}
    for name, in handshake.requests():
        doing[name]()
        handshake.ready()


if __name__ == "__main__":
    main()
