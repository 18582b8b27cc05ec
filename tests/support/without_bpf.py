"""Runs a program without bpf(2), as in a container that forbids it: python3 without_bpf.py PROGRAM WORD...

The seccomp filter answers EPERM for that one call (linux/seccomp.h, linux/filter.h; x86-64).
"""
import ctypes
import os
import struct
import sys

BPF_CALL = 321
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7fff0000, 0x00050000 | 1

PROGRAM = b"".join(struct.pack("HBBI", *instruction) for instruction in [
    (LOAD_WORD, 0, 0, 0),  # seccomp_data.nr
    (JUMP_IF_EQUAL, 0, 1, BPF_CALL),
    (RETURN, 0, 0, REFUSE),
    (RETURN, 0, 0, ALLOW),
])

libc = ctypes.CDLL(None, use_errno=True)
instructions = ctypes.create_string_buffer(PROGRAM, len(PROGRAM))
program = struct.pack("HxxxxxxQ", len(PROGRAM) // 8, ctypes.addressof(instructions))
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program):
    raise OSError(ctypes.get_errno(), "seccomp")
os.execv(sys.argv[1], sys.argv[1:])
