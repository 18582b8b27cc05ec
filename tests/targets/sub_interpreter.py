"""A thread runs another interpreter, which the main thread made, while the main thread goes its own way.

Prints false instead of true before READY where this Python has no other interpreters.
"""
import threading

import handshake

# It sleeps: before CPython 3.12 an interpreter does not ask another one for the lock.
SCRIPT = """
import time
def inside_other_interpreter():
    while True:
        time.sleep(0.01)
inside_other_interpreter()
"""


def make():
    try:
        import _interpreters as interpreters
    except ImportError:
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            return None
    try:
        other = interpreters.create("legacy")
    except TypeError:
        other = interpreters.create()
    return lambda: interpreters.run_string(other, SCRIPT)


def main_goes_its_own_way():
    handshake.hold()


def main():
    run = make()
    if run:
        threading.Thread(target=run, daemon=True, name="runner").start()
    handshake.ready(run is not None)
    main_goes_its_own_way()


if __name__ == "__main__":
    main()
