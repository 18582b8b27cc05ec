"""A thread that sleeps in the C library, below a Python function that C code calls, below Python.

    python tests/targets/native_stack.py

Prints READY; the main thread is then in usleep(3), called by ctypes, by key(), by sorted(), by outer(). A line on the input lets it go on.
"""
import ctypes
import os
import sys
import threading

LIBRARY = ctypes.CDLL(None)


def key(item):
    if item == 1:
        print("READY", flush=True)
    return helper(item)


def helper(item):  # On 3.11 and newer it runs in the same call of the interpreter as key().
    if item == 1:
        LIBRARY.usleep(600_000_000)
    return item


def outer():
    return middle()


def middle():
    return sorted([1, 2], key=key)


def until_told():
    sys.stdin.readline()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=until_told, name="until-told").start()
    outer()
