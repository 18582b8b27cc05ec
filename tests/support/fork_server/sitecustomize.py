"""A Python that has imported PyTorch and forks a target for each request: an import takes 1.6 s of a processor, a fork 10 ms.

Python imports this module while it starts, before its main script. It returns from here in the forked processes only. These go on as
Python does: they run the script that was asked for as `__main__`, with no frame below it. `tests/support/fork_server.rs` starts this
and writes the requests, one line of JSON each:

    {"start": [SCRIPT, ARGUMENT ...], "input": PIPE, "output": PIPE}     answered by the pid
    {"wait": PID}                                                                       answered by its wait status
"""
import ctypes
import json
import os
import signal
import sys
import warnings

PR_SET_MM, PR_SET_MM_ARG_END = 35, 9


def memory_of_self(address, length):
    """Memory that may not be there: read through the kernel, which refuses where a pointer would crash."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        try:
            return os.pread(memory.fileno(), length, address)
        except (OSError, OverflowError):  # no address at all
            return b""


def word(address):
    return int.from_bytes(memory_of_self(address, 8), "little")


def wide_string(text):
    """A string as the configuration of the interpreter holds it, and frees it."""
    encoded = text.encode("utf-32-le") + bytes(4)
    address = raw_memory(len(encoded))
    ctypes.memmove(address, encoded, len(encoded))
    return address


def raw_memory(length):
    allocate = ctypes.pythonapi.PyMem_RawMalloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    return allocate(length)


def set_main_script(placeholder, arguments):
    """Replaces the script that the interpreter was started with, where it stands in its PyConfig (cpython/Include/cpython/initconfig.h):
    `run_filename`, and `argv`, a number and an array."""
    config_here = ctypes.pythonapi._Py_GetConfig
    config_here.restype = ctypes.c_void_p
    config = config_here()
    wanted = placeholder.encode("utf-32-le") + bytes(4)
    places = range(config, config + 1024, 8)
    script = [at for at in places if memory_of_self(word(at), len(wanted)) == wanted]
    argv = [at for at in places if word(at) == 1 and memory_of_self(word(word(at + 8)), len(wanted)) == wanted]
    # `orig_argv`, which nobody asks for, has the interpreter's name before it, and so is not among them.
    (script,), (argv,) = script, argv
    items = raw_memory(8 * len(arguments))
    for number, text in enumerate(arguments):
        ctypes.c_uint64.from_address(items + 8 * number).value = wide_string(text)
    ctypes.c_uint64.from_address(argv).value = len(arguments)
    ctypes.c_uint64.from_address(argv + 8).value = items
    ctypes.c_uint64.from_address(script).value = wide_string(arguments[0])
    sys.argv[:] = arguments


def set_what_the_kernel_shows(arguments, state):
    """Writes /proc/self/cmdline, and the simulated card's file into /proc/self/environ: both show memory of the process."""
    with open("/proc/self/stat", encoding="utf-8") as stat:
        fields = stat.read().rpartition(")")[2].split()
    arg_start, arg_end, env_start, env_end = map(int, fields[45:49])
    command = b"".join(text.encode() + b"\0" for text in ["python", *arguments])
    if len(command) > arg_end - arg_start:
        raise ValueError(f"{len(command)} bytes of command line do not fit into {arg_end - arg_start}")
    ctypes.memmove(arg_start, command.ljust(arg_end - arg_start, b"\0"), arg_end - arg_start)
    # Needs CAP_SYS_RESOURCE; without it empty arguments follow.
    end, none = ctypes.c_ulong(arg_start + len(command)), ctypes.c_ulong(0)
    ctypes.CDLL(None).prctl(PR_SET_MM, PR_SET_MM_ARG_END, end, none, none)
    old = b"SIM_CUDA_STATE=" + os.environ["SIM_CUDA_STATE"].encode()
    new = b"SIM_CUDA_STATE=" + state.encode()
    environment = memory_of_self(env_start, env_end - env_start)
    if len(new) != len(old):
        raise ValueError(f"{state} is not as long as {os.environ['SIM_CUDA_STATE']}")
    ctypes.memmove(env_start + environment.index(old), new, len(new))


def become_target(request):
    """In the forked process: everything that differs from a Python that was started with this script."""
    for number, file, flags in ((0, request["input"], os.O_RDONLY), (1, request["output"], os.O_WRONLY)):
        opened = os.open(file, flags)
        os.dup2(opened, number)
        os.close(opened)
    # Many targets work until they are told to end: memspy and the tests go first.
    os.nice(10)
    placeholder, arguments = sys.argv[0], request["start"]
    # The name is the pid, as scripts/with-sim has it, and as long as the server's own.
    folder, _, own = os.environ["SIM_CUDA_STATE"].rpartition("/")
    state = f"{folder}/" + str(os.getpid()).rjust(len(own), "/")
    if os.path.exists(state):
        os.remove(state)  # of an earlier process with this pid
    set_what_the_kernel_shows(arguments, state)
    set_main_script(placeholder, arguments)
    os.environ["SIM_CUDA_STATE"] = state
    here = os.environ.pop("PYTHONPATH")
    sys.path.remove(here)


def serve():
    """Answers requests; returns in the forked processes."""
    answers = sys.stdout
    for line in iter(sys.stdin.buffer.raw.readline, b""):
        request = json.loads(line)
        if "wait" in request:
            print(os.waitpid(request["wait"], 0)[1], file=answers, flush=True)
            continue
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ready)
            become_target(request)
            os.write(told, b".")
            os.close(told)
            return
        os.close(told)
        os.read(ready, 1)  # empty when it ended: its traceback is in the test's output
        os.close(ready)
        print(pid, file=answers, flush=True)
    os._exit(0)


signal.signal(signal.SIGINT, signal.SIG_IGN)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of forking beside the threads of OpenBLAS, which are at rest
    import torch  # noqa: F401

    serve()
signal.signal(signal.SIGINT, signal.default_int_handler)
