"""Points its own command line at memory: gigabytes that nobody has written to, or text of many megabytes.

long_command_line.py zeros BYTES | words BYTES | word BYTES
"""

import ctypes
import os
import struct
import sys

PR_SET_MM, PR_SET_MM_MAP = 35, 14
PROT_READ, PROT_WRITE = 1, 2
PRIVATE_ANONYMOUS_NORESERVE = 0x4022

what, size = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
at = libc.mmap(None, size, PROT_READ | PROT_WRITE, PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
if what == "words":
    ctypes.memmove(at, b"A\0" * (size // 2), size // 2 * 2)
if what == "word":
    ctypes.memset(at, ord("A"), size - 1)

fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
code = [int(fields[n - 3]) for n in (26, 27)]
stack = int(fields[28 - 3])
data = [int(fields[n - 3]) for n in (45, 46)]
heap = int(fields[47 - 3])
environment = [int(fields[n - 3]) for n in (50, 51)]
libc.sbrk.restype = ctypes.c_void_p
end = libc.sbrk(0)
vector = open("/proc/self/auxv", "rb").read()
buffer = ctypes.create_string_buffer(vector)
places = [*code, *data, heap, end, stack, at, at + size, *environment, ctypes.addressof(buffer)]
words = struct.pack("<12QIi", *places, len(vector), -1)
given = ctypes.create_string_buffer(words, len(words))
done = libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.c_ulong(ctypes.addressof(given)), ctypes.c_ulong(len(words)), 0)
assert done == 0, os.strerror(ctypes.get_errno())
print("READY", flush=True)
sys.stdin.read()
