"""Parks threads at known places in every kind of Python frame, and prints where each of them stands.

Pure Python, 3.8 and newer. Prints {"pid", "version", "reporter", "threads": [{"ident", "native_id", "name",
"frames": [[filename, function, qualname or null, line], ...]}]}, innermost frame first, then READY. The
stacks stay as printed, the main thread's included, until stdin closes. Thread "reporter" prints all this
and is not part of it; it is gone a moment after READY.
"""
import asyncio
import contextlib
import functools
import json
import os
import sys
import threading
import time

RECURSION_DEPTH = 100
parked = threading.Semaphore(0)
never = threading.Lock()
never.acquire()


def park():
    """The innermost frame of nearly every thread: blocked in C on a lock that is never released."""
    parked.release()
    never.acquire()


def nested():
    def middle():
        def innermost():
            park()

        innermost()

    middle()


def recursion(depth=RECURSION_DEPTH):
    if depth == 1:
        park()
    else:
        recursion(depth - 1)


def generators():
    def inner():
        yield 1
        park()
        yield 2

    def outer():
        yield from inner()

    for _ in outer():
        pass


def decorated():
    def decorator(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    @decorator
    @decorator
    def target(value, keyword=None):
        park()

    target(1, keyword=2)


def sort_key():
    def key(value):
        if value == 2:
            park()
        return value

    sorted([3, 2, 1], key=key)


def mapped():
    list(map(lambda value: park() if value else value, [0, 1]))


def partials_and_reduce():
    def add(left, right):
        park()
        return left + right

    functools.partial(functools.reduce, add)([1, 2, 3])


def comprehension():
    def keep(value):
        if value == 3:
            park()
        return value

    return [keep(value) for row in [[1, 2], [3]] for value in row]


class Classes:
    class Nested:
        def __call__(self):
            return self.property_that_parks

        @property
        def property_that_parks(self):
            return self.static(self)

        @staticmethod
        def static(instance):
            return type(instance).klass()

        @classmethod
        def klass(cls):
            with cls.context():
                return None

        @classmethod
        @contextlib.contextmanager
        def context(cls):
            park()
            yield


def classes():
    Classes.Nested()()


def coroutine():
    async def leaf():
        park()

    async def root():
        await leaf()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(root())


def sleeping():
    parked.release()
    while True:
        time.sleep(3600)


def waiting_on_event():
    parked.release()
    threading.Event().wait()


def raising():
    try:
        raise ValueError("handled below")
    except ValueError:
        park()


def long_line_table():
    """Far line numbers and multi-line calls, to exercise the line tables."""
    park_far(
        1,
        2,
        (
            3
        ),
    )


def park_far(*values):


    # Blank lines on purpose.


    return (
        values,
        park(),
    )


def foreign_code():
    """A file and functions named outside ASCII: Latin-1, two-byte and four-byte strings."""
    source = (
        "def größe():\n"
        "    変数()\n"
        "def 変数():\n"
        "    𝒻()\n"  # normalised to plain "f" by the parser, as Python does with identifiers
        "def 𝒻():\n"
        "    𐎀()\n"
        "def 𐎀():\n"
        "    park()\n"
    )
    for filename in ("/tmp/größe/ñandú.py", "/tmp/文件/модуль.py", "/tmp/🚀/𐎀.py"):
        namespace = {"park": park}
        exec(compile(source, filename, "exec"), namespace)
        start(namespace["größe"], "thread of " + os.path.basename(filename))


def start(function, name=None):
    thread = threading.Thread(target=function, name=name or function.__name__.replace("_", "-"), daemon=True)
    thread.start()
    parked.acquire()


def hold():
    for _ in iter(sys.stdin.readline, ""):
        pass


def walk(frame):
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append([code.co_filename, code.co_name, getattr(code, "co_qualname", None), frame.f_lineno])
        frame = frame.f_back
    return frames


def stacks():
    threads = {thread.ident: thread for thread in threading.enumerate()}
    own = threading.get_ident()
    return [
        {"ident": ident, "native_id": threads[ident].native_id, "name": threads[ident].name, "frames": walk(frame)}
        for ident, frame in sorted(sys._current_frames().items())
        if ident != own and ident in threads
    ]


def report():
    """Prints the stacks once they have stopped changing: the main thread is on its way into hold()."""
    before, now = None, stacks()
    main = threading.main_thread().ident
    while before != now or next(t for t in now if t["ident"] == main)["frames"][0][1] != "hold":
        time.sleep(0.05)
        before, now = now, stacks()
    truth = {"pid": os.getpid(), "version": list(sys.version_info[:3]), "reporter": threading.get_native_id(),
             "threads": now}
    sys.stdout.write(json.dumps(truth) + "\nREADY\n")
    sys.stdout.flush()


def main():
    for function in (nested, recursion, generators, decorated, sort_key, mapped, partials_and_reduce, comprehension,
                     classes, coroutine, sleeping, waiting_on_event, raising, long_line_table):
        start(function)
    foreign_code()
    threading.Thread(target=report, name="reporter", daemon=True).start()
    hold()
    # Daemon threads hold no locks worth waiting for, and some Pythons are slow to end with them.
    os._exit(0)


if __name__ == "__main__":
    main()
