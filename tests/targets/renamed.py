"""Workers of a server such as Ray: each allocates on the GPU, and gives itself another name while it runs.

    python tests/targets/renamed.py       then lines on standard input: `start NAME WAY` starts a worker, end of input ends all

WAY is `argv` (as setproctitle does: the memory that /proc/PID/cmdline shows), `comm` (prctl PR_SET_NAME) or `later` (argv, but only
when a line `rename` comes). Each line is answered by {"pid", "allocated"} and READY.
"""
import ctypes
import json
import subprocess
import sys

import handshake


def rename_argv(name):
    """What /proc/self/cmdline shows lies in this process's own memory: from arg_start to arg_end of /proc/self/stat."""
    with open("/proc/self/stat", encoding="utf-8") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    start, end = int(fields[45]), int(fields[46])
    text = name.encode()[: end - start - 1].ljust(end - start, b"\0")
    ctypes.memmove(start, text, len(text))


def rename_comm(name):
    ctypes.CDLL(None).prctl(15, ctypes.c_char_p(name.encode()), 0, 0, 0)


def worker(name, way):
    import torch

    held = torch.zeros(3 << 20, device="cuda")
    if way == "later":
        print("WAITS", flush=True)
        sys.stdin.readline()
    if way == "comm":
        rename_comm(name)
    else:
        rename_argv(name)
    print(json.dumps({"pid": __import__("os").getpid(), "allocated": torch.cuda.memory_allocated()}), flush=True)
    for line in sys.stdin:
        if line.strip() == "more":
            held = [held, torch.zeros(1 << 20, device="cuda")]
            print("MORE", flush=True)


def serve():
    workers = {}
    handshake.ready()
    for words in handshake.requests():
        answer = None
        if words[0] == "start":
            child = subprocess.Popen([sys.executable, __file__, "worker-with-a-name-that-is-long-enough", *words[1:]],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            workers[words[1]] = child
            said = child.stdout.readline()
            answer = None if said == "WAITS\n" else json.loads(said)
        else:  # rename NAME, more NAME, end NAME
            child = workers[words[1]]
            if words[0] == "end":
                child.stdin.close()
                child.wait()
            else:
                child.stdin.write(words[0] + "\n")
                child.stdin.flush()
                said = child.stdout.readline()
                answer = json.loads(said) if words[0] == "rename" else None
        handshake.ready(answer)
    for child in workers.values():
        child.kill()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(sys.argv[2], sys.argv[3])
    else:
        serve()
