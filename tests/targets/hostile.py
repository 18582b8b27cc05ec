"""A job of another user that tries everything at once against whoever reads it.

    python tests/targets/hostile.py FOLDER SECRET [ARGUMENT ...]

FOLDER is one that user 65534 may write to, SECRET a file that only root may read. The job becomes user 65534, allocates
GPU memory, and meanwhile
* runs code whose file names lead to SECRET, to a link to it, to pipes that nobody writes to, and to devices;
* has names full of terminal escapes, markup and right-to-left marks: threads, functions, variables, parameters;
* keeps a list of 200,000 objects that lie pages apart in 64 GiB of address space, and a list that claims to be endless;
* runs ever-new code, 50 frames deep.

Prints READY when all of that goes on. After a line on standard input it prints {"stood_still": the longest time in seconds
that its threads did not run} and READY; it ends when standard input closes.
"""
import ctypes
import gc
import mmap
import os
import sys
import threading
import time

import handshake
import torch

ESCAPES = "\x1b]0;PWNED\x07\x1b[2J\u202e;<script>alert(1)</script>\"'&\n=1+1"
PAGE = 4096
APART = 200_000
SPACE = 64 << 30


class Model(torch.nn.Module):
    """Its parameter's name is what a terminal would obey."""

    def __init__(self):
        super().__init__()
        self._parameters["weight" + ESCAPES.replace(".", "")] = torch.nn.Parameter(megabytes(1))


def megabytes(count):
    return torch.empty(count << 18, device="cuda")


def become_nobody():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: an ordinary job is


def file_names(folder, secret):
    """What code claims to come from."""
    link, pipe = os.path.join(folder, "link.py"), os.path.join(folder, "pipe.py")
    os.symlink(secret, link)
    os.mkfifo(pipe)
    return [secret, link, pipe, "/proc/self/root" + secret, "/dev/ptmx", "/dev/zero", "/proc/kmsg", "/etc/shadow"]


def compiled(name, file_name, body="time.sleep(0.001); x = megabytes(1); time.sleep(0.001)"):
    space = {"time": time, "megabytes": megabytes}
    code = compile(f"def f(inner=None):\n  {body}\n  if inner: inner()\n", file_name, "exec")
    exec(code, space)
    function = space["f"]
    if sys.version_info >= (3, 11):
        function.__code__ = function.__code__.replace(co_name=name, co_qualname=name)
    return function


def run_strange_files(names):
    functions = [compiled("f" + ESCAPES, name) for name in names]
    while True:
        for function in functions:
            function()


def run_ever_new_code():
    count = 0
    while True:
        inner = None
        for _ in range(50):
            count += 1
            made = compiled(f"new_{count}", f"/tmp/new_{count}.py", "pass")
            inner = (lambda made, inner: lambda: made(inner))(made, inner)
        inner()
        time.sleep(0.01)


def far_apart():
    """A list of fake lists, each in a page of its own: one file of 2 MiB, mapped again and again."""
    file = os.memfd_create("pages")
    os.ftruncate(file, 2 << 20)
    pages = mmap.mmap(file, 2 << 20)
    header = ctypes.string_at(id([]), 16)  # a count of references and the type
    endless = mmap.mmap(-1, SPACE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
    endless_at = ctypes.addressof(ctypes.c_char.from_buffer(endless))
    fake = header + (SPACE // 8).to_bytes(8, "little") + endless_at.to_bytes(8, "little") + (SPACE // 8).to_bytes(8, "little")
    for at in range(0, 2 << 20, PAGE):
        pages[at + 64 : at + 64 + len(fake)] = fake
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    held = [None] * APART
    slots = ctypes.c_void_p.from_address(id(held) + 24).value
    per_map = (2 << 20) // PAGE
    for first in range(0, APART, per_map):
        at = libc.mmap(None, 2 << 20, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
        for n in range(first, min(first + per_map, APART)):
            ctypes.c_void_p.from_address(slots + 8 * n).value = at + (n - first) * PAGE + 64
    return held, endless


def beat(longest):
    before = time.monotonic()
    while True:
        time.sleep(0.001)
        now = time.monotonic()
        longest[0] = max(longest[0], now - before)
        before = now


def main():
    gc.disable()  # it would follow the fake objects
    folder, secret = sys.argv[1:3]
    model = Model()
    become_nobody()
    os.makedirs(os.path.join(folder, "of-nobody"), exist_ok=True)
    names = file_names(os.path.join(folder, "of-nobody"), secret)
    globals()["variable" + ESCAPES] = [megabytes(2)]
    globals()["fakes"] = far_apart()
    longest = [0.0]
    for n, work in enumerate([lambda: run_strange_files(names), run_ever_new_code, lambda: beat(longest)]):
        threading.Thread(target=work, name=f"{n}{ESCAPES}", daemon=True).start()
    longest[0] = 0.0
    handshake.ready()
    for _ in handshake.requests():
        print(f'{{"stood_still": {longest[0]}}}', flush=True)
        longest[0] = 0.0
        handshake.ready()
    sys.stdout.flush()
    os._exit(0)  # without a look at the fake objects


if __name__ == "__main__":
    main()
