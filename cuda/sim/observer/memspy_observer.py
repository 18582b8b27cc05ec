"""Watches a training script on the simulated device, and waits at its end while memspy reads it.

PyTorch's own history records every allocation. This module adds what it lacks: where backward passes,
optimizer steps and evaluations begin and end, counted in allocations; who called backward(); which lines
read values that no kernel computed. It reports to memspy's socket (MEMSPY_DRY_RUN) after the last step that
was asked for, at each out-of-memory error and at the end of the process.
"""
import atexit
import ctypes
import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import socket
import sys
import time

MOST_EVENTS = 4_000_000
MOST_MARKS = 200_000
MOST_FRAMES = 64
MOST_OUT_OF_MEMORY = 3
MOST_READS = 1000
WATCHDOG_SECONDS = 0.15
LIBRARY = os.sep + "site-packages" + os.sep


class _Finder(importlib.abc.MetaPathFinder):
    """Calls `action` with a module, once it is imported."""

    def __init__(self, name, action):
        self.name, self.action = name, action

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec:
                break
        else:
            return None
        if spec.loader:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                self.action(module)

            spec.loader.exec_module = exec_module
        return spec


def when_imported(name, action):
    sys.meta_path.insert(0, _Finder(name, action))


class _Observer:
    def __init__(self, torch):
        self.torch = torch
        self.socket_path = os.environ["MEMSPY_DRY_RUN"]
        self.last_step = int(os.environ.get("MEMSPY_DRY_RUN_STEPS", "0"))
        self.pid = os.getpid()
        self.marks = []  # [kind, allocations so far by device, stack]
        self.depth = {"backward": 0, "train": 0}
        self.is_training = True
        self.steps = {}  # by optimizer
        self.out_of_memory = 0
        self.error = None
        self.highest = {}  # device -> peaks before the script reset them
        self.reads_left = MOST_READS
        self.reads = {}  # (operation, file, line, in a module) -> times
        self.has_begun = self.has_ended = False

    # ---- beginning ----

    def begin(self):
        """As soon as CUDA is initialised, so before the first allocation."""
        if self.has_begun:
            return
        self.has_begun = True
        torch = self.torch
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=MOST_EVENTS)
        torch._C._cuda_attach_out_of_memory_observer(self.on_out_of_memory)
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.driver.sim_process_peak.restype = ctypes.c_uint64
        self.on_read_callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(self.on_read)
        self.driver.sim_on_host_read(self.on_read_callback)
        if "multiprocessing.process" in sys.modules:  # its processes end without atexit
            import multiprocessing
            from multiprocessing import util

            if multiprocessing.parent_process() is not None:
                util.Finalize(None, self.end, exitpriority=-1000)

    def wrap(self):
        torch = self.torch
        torch.autograd.backward = self.between_marks(torch.autograd.backward, "backward")
        torch.autograd.grad = self.between_marks(torch.autograd.grad, "backward")
        torch.nn.Module.train = self.watching_mode(torch.nn.Module.train)
        reset = torch.cuda.memory.reset_peak_memory_stats

        @functools.wraps(reset)
        def reset_peak_memory_stats(*args, **words):
            self.keep_peaks()
            return reset(*args, **words)

        torch.cuda.memory.reset_peak_memory_stats = torch.cuda.reset_peak_memory_stats = reset_peak_memory_stats
        optimizer = importlib.import_module("torch.optim.optimizer")  # no attribute of torch.optim
        optimizer.register_optimizer_step_pre_hook(lambda *_: self.mark("optimizer"))
        optimizer.register_optimizer_step_post_hook(self.on_step)

    # ---- while it runs ----

    def between_marks(self, function, kind):
        @functools.wraps(function)
        def marked(*args, **words):
            self.depth[kind] += 1
            if self.depth[kind] == 1:
                self.mark(kind, _stack(sys._getframe(1)))
            try:
                return function(*args, **words)
            finally:
                self.depth[kind] -= 1
                if self.depth[kind] == 0:
                    self.mark(kind + " end")

        return marked

    def watching_mode(self, train):
        @functools.wraps(train)
        def watched(module, mode=True):
            self.depth["train"] += 1
            try:
                return train(module, mode)
            finally:
                self.depth["train"] -= 1
                if self.depth["train"] == 0 and bool(mode) != self.is_training:
                    self.is_training = bool(mode)
                    self.mark("training" if mode else "evaluation")

        return watched

    def mark(self, kind, stack=None):
        if self.is_alive() and len(self.marks) < MOST_MARKS:
            counts = {device: stats["allocation"]["all"]["allocated"] for device, stats in self.stats()}
            self.marks.append([kind, counts, stack])

    def on_step(self, optimizer, *_):
        if not self.is_alive():
            return
        self.mark("optimizer end")
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        self.wait_for_watchdog()
        if self.last_step and self.steps[id(optimizer)] >= self.last_step:
            self.has_ended = True
            self.report("step")
            _leave()

    def wait_for_watchdog(self):
        """PyTorch's thread for NCCL looks every 100 ms for collectives that are done, and frees what they held
        (kWatchdogThreadSleepMillis, ProcessGroupNCCL.cpp). A step takes longer on a GPU, and less here."""
        distributed = self.torch.distributed
        if distributed.is_available() and distributed.is_initialized() and "nccl" in distributed.get_backend():
            time.sleep(WATCHDOG_SECONDS)

    def on_out_of_memory(self, device, asked, _allocated, free):
        self.out_of_memory += 1
        if self.is_alive() and self.out_of_memory <= MOST_OUT_OF_MEMORY:
            stack = _stack(sys._getframe(1)) if sys._getframe(0).f_back else None
            self.report("oom", device=device, asked=asked, free=free, stack=stack or self.backward_stack())

    def backward_stack(self):
        """For a thread of autograd: the call that waits for it."""
        if self.depth["backward"]:
            return next((stack for kind, _, stack in reversed(self.marks) if kind == "backward"), None)
        return None

    def on_read(self, operation):
        self.reads_left -= 1
        if self.reads_left == 0:  # finding the operation takes half a millisecond
            self.driver.sim_on_host_read(None)
        if not self.is_alive():
            return
        stack = _stack(sys._getframe(1)) if sys._getframe(0).f_back else []
        own = next((frame for frame in stack if LIBRARY not in frame[1]), None)
        if own:
            in_module = any(frame[1].endswith("torch/nn/modules/module.py") for frame in stack)
            key = (operation.decode(), own[1], own[2], in_module)
            self.reads[key] = self.reads.get(key, 0) + 1

    # ---- reporting ----

    def is_alive(self):
        return self.has_begun and not self.has_ended and os.getpid() == self.pid

    def stats(self):
        torch = self.torch
        for device in range(torch.cuda.device_count()):
            try:
                stats = torch.cuda.memory_stats_as_nested_dict(device)
            except Exception:  # another allocator than PyTorch's own
                return
            # Not even the first allocation may fit.
            if stats and (stats["allocation"]["all"]["allocated"] or self.out_of_memory):
                yield device, stats

    def keep_peaks(self):
        for device, stats in self.stats():
            before = self.highest.get(device, (0, 0))
            now = (stats["allocated_bytes"]["all"]["peak"], stats["reserved_bytes"]["all"]["peak"])
            self.highest[device] = [max(pair) for pair in zip(before, now)]

    def devices(self):
        self.keep_peaks()
        return [
            {
                "device": device,
                "allocated_peak": self.highest[device][0],
                "reserved_peak": self.highest[device][1],
                "allocated": stats["allocated_bytes"]["all"]["current"],
                "reserved": stats["reserved_bytes"]["all"]["current"],
                "retries": stats["num_alloc_retries"],
                "process_peak": self.driver.sim_process_peak(device),
            }
            for device, stats in self.stats()
        ]

    def report(self, event, **more):
        message = {
            "event": event,
            "pid": os.getpid(),
            "rank": os.environ.get("RANK"),
            "torch": self.torch.__version__,
            "steps": max(self.steps.values(), default=0),
            "out_of_memory": self.out_of_memory,
            "error": self.error,
            "devices": self.devices(),
            "marks": self.marks,
            "reads": [[*key, times] for key, times in self.reads.items()],
            **more,
        }
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(self.socket_path)
                connection.sendall(json.dumps(message).encode() + b"\n")
                connection.recv(1)  # memspy has read what it needs
        except OSError:
            pass  # memspy has ended

    def end(self):
        if self.is_alive():
            self.has_ended = True
            self.report("end")


def _stack(frame):
    """[function, file, line] of each frame, innermost first, without this file's."""
    frames = []
    while frame is not None and len(frames) < MOST_FRAMES:
        if frame.f_code.co_filename != __file__:
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            frames.append([name, frame.f_code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return frames


def _leave():
    """Ends the process: the steps that were asked for are done."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    if "multiprocessing" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.terminate()
    os._exit(0)


def watch(torch):
    observer = _Observer(torch)
    observer.wrap()
    torch.cuda._lazy_call(observer.begin)
    hook = sys.excepthook

    def excepthook(kind, error, trace):
        observer.error = f"{kind.__name__}: {error}"[:2000]
        hook(kind, error, trace)

    sys.excepthook = excepthook
    atexit.register(observer.end)

    def after_fork():
        observer.pid = -1 if observer.has_begun else os.getpid()

    os.register_at_fork(after_in_child=after_fork)
