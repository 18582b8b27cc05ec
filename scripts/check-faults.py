#!/usr/bin/env python3
"""Injects faults beside memspy and checks what is left. Prints a table.

    scripts/check-faults.py MEMSPY [--count 20] [--run-with scripts/with-sim] [--python python3]
                            [--only NAME ...] [--seed 0]

The job trains a small model on the GPU, or on the simulated one with --run-with, and counts its
steps in shared memory. At a random moment of each command the job meets: SIGKILL, SIGSTOP and
SIGCONT, exec of another program, forks, more memory than its cgroup has (as root: the kernel's OOM
killer). memspy meets: SIGKILL, also just after Ctrl-C, and a clock that jumps (needs cc).

Afterwards the job must run (no thread stopped or traced, its counter moves), its libraries must
have no breakpoints, and the recording must be readable. Further faults: a full disk, a mount that
vanishes (as root), 4,096 threads, a recursion of 100,000 calls, 5,000,000 objects, a memspy that is
stopped while the job allocates, and an NVML that is missing, hangs or fails (the last two need
--run-with and cc). The exit code is 0 when all checks pass.
"""
import argparse
import contextlib
import fcntl
import json
import os
import pty
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

JOB = r'''
import json, mmap, os, sys, threading, time
import torch
OTHER = """
import mmap, os, struct, sys, time
with open(sys.argv[1], 'r+b') as file:
    counter = mmap.mmap(file.fileno(), 8)
while True:
    counter[:8] = struct.pack('<q', struct.unpack('<q', counter[:8])[0] + 1)
    time.sleep(0.005)
"""
def deep(n, then):
    if n:
        deep(n - 1, then)
    else:
        then()
def work(path, words):
    with open(path, "r+b") as file:
        counter = mmap.mmap(file.fileno(), 8)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    kept, state = [], {"fork": False, "exec": False}
    def step():
        batch = torch.empty(32, 64, device="cuda")
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.empty(1000, device="cuda"))
        if len(kept) > 200:
            del kept[:100]
        value = int.from_bytes(counter[:8], "little") + 1
        counter[:8] = value.to_bytes(8, "little")
        flag = os.path.exists(path + ".fork")
        if flag:
            os.unlink(path + ".fork")
            if os.fork() == 0:
                time.sleep(0.3)
                os._exit(0)
        if os.path.exists(path + ".hog"):
            hog = []
            while True:
                hog.append(bytearray(b"x" * (1 << 22)))
        if os.path.exists(path + ".exec"):
            os.execv(sys.executable, [sys.executable, "-c", OTHER, path])
        if os.path.exists(path + ".pause"):
            # Prints its allocator's counts, then waits.
            stats = torch.cuda.memory_stats()
            keys = [f"{what}.all.{which}" for what in ("allocation", "segment") for which in ("allocated", "freed")]
            with open(path + ".new", "w") as file:
                json.dump({key: stats[key] for key in keys}, file)
            os.rename(path + ".new", path + ".paused")
            while os.path.exists(path + ".pause"):
                time.sleep(0.005)
            os.unlink(path + ".paused")
        if not flooding:
            time.sleep(0.002)
    flooding = "flood" in words
    step()
    if "threads" in words:
        threading.stack_size(1 << 18)
        wait = threading.Event()
        for _ in range(4096):
            threading.Thread(target=wait.wait, daemon=True).start()
    if "objects" in words:
        global HELD
        HELD = [[n] for n in range(5_000_000)]
    def loop():
        open(path + ".ready", "w").close()
        while True:
            step()
    if "deep" in words:
        sys.setrecursionlimit(200_000)
        deep(100_000, loop)
    loop()
for line in sys.stdin:
    path, *words = line.split()
    child = os.fork()
    if child == 0:
        try:
            work(path, words)
        finally:
            os._exit(1)
    print(child, flush=True)
    # Ended children must not stay zombies.
    def reap(child=child):
        os.waitpid(child, 0)
    threading.Thread(target=reap, daemon=True).start()
'''

# The simulator's NVML calls ask whether they are absent: here they hang or fail from the n-th call
# on.
SHIM = r'''
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int sim_is_listed(const char *list, const char *call) {
  static int calls;
  (void)list, (void)call;
  const char *hang = getenv("FAULTS_HANG_AFTER"), *fail = getenv("FAULTS_FAIL_AFTER");
  int n = __sync_add_and_fetch(&calls, 1);
  if (hang && n > atoi(hang)) for (;;) pause();
  return fail && n > atoi(fail);
}
'''

# CLOCK_REALTIME jumps by up to a day forward or back at every 50th reading.
CLOCK = r'''
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
  static int calls;
  int done = syscall(SYS_clock_gettime, clock, time), n = __sync_add_and_fetch(&calls, clock == CLOCK_REALTIME);
  if (clock == CLOCK_REALTIME) time->tv_sec += (long)(n / 50 * 2654435761u % 172800) - 86400;
  return done;
}
'''

# Follows, or samples a job that cannot be followed.
FOLLOWS = ["--cpu", "10" if (os.cpu_count() or 1) < 4 else "100"]
MODES = {
    "sampled": ["record", "-r", "200", "-o", "OUT", "--force"],
    "followed": ["record", *FOLLOWS, "-o", "OUT", "--force"],
    "exact": ["record", "--exact", "-o", "OUT", "--force"],
    "--owners": ["record", *FOLLOWS, "--owners", "-o", "OUT", "--force"],
    "--keep": ["record", *FOLLOWS, "--keep", "200K", "-o", "OUT", "--force"],
    "--exact --keep": ["record", "--exact", "--keep", "200K", "-o", "OUT", "--force"],
    "tensors": ["tensors", "--every", "100ms"],
    "summary": ["summary"],
    "dump": ["dump"],
    "top": ["top"],
}
# How long a command may run after its target is gone or after it was asked to end.
PATIENCE = 60
PROBED = ("libc10_cuda", "libcuda.so", "libcudart", "libpython")


class Failure(Exception):
    """A failed check."""


class Jobs:
    """One process that has imported PyTorch; each job is a fork of it."""

    def __init__(self, args):
        self.args = args
        self.folder = tempfile.mkdtemp(prefix="memspy-faults-")
        self.number = 0
        self.environment = None
        self.server = subprocess.Popen([*args.run_with, args.python, "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, *words):
        self.number += 1
        path = os.path.join(self.folder, f"job{self.number}")
        with open(path, "wb") as file:
            file.write(bytes(8))
        self.server.stdin.write(" ".join([path, *words]) + "\n")
        self.server.stdin.flush()
        pid = int(self.server.stdout.readline())
        if self.environment is None:
            self.environment = {}
            if self.args.run_with:
                # The same as in the job: memspy starts without a shell in between.
                said = subprocess.run([*self.args.run_with, "--share", str(pid), "env", "-0"], capture_output=True, text=True, check=True).stdout
                said = dict(entry.split("=", 1) for entry in said.split("\0") if entry)
                self.environment = {name: said[name] for name in ("LD_LIBRARY_PATH", "SIM_CUDA_STATE")}
        job = Job(pid, path, self.environment)
        wait_until(lambda: os.path.exists(path + ".ready"), 300, "the job is ready")
        return job

    def close(self):
        self.server.stdin.close()
        self.server.wait(timeout=60)
        shutil.rmtree(self.folder, ignore_errors=True)


class Job:
    def __init__(self, pid, path, environment):
        self.pid, self.path, self.environment = pid, path, environment

    def steps(self):
        with open(self.path, "rb") as file:
            return struct.unpack("<q", file.read(8))[0]

    def ask(self, word):
        open(f"{self.path}.{word}", "w").close()

    def pause(self):
        """The allocations and frees counted by the job's allocator; the job waits until it is
        resumed.
        """
        self.ask("pause")
        wait_until(lambda: os.path.exists(self.path + ".paused"), 60, "the job pauses")
        with open(self.path + ".paused") as file:
            return sum(json.load(file).values())

    def resume(self):
        os.unlink(self.path + ".pause")
        wait_until(lambda: not os.path.exists(self.path + ".paused"), 60, "the job goes on after its pause")

    def threads(self):
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{self.pid}/task/{thread}/status") as status:
                fields = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
                yield fields["State"][0], int(fields["TracerPid"])

    def check_runs(self):
        """No thread is stopped or traced, and the job's counter moves."""
        wait_until(lambda: all(state not in "Tt" and not tracer for state, tracer in self.threads()), 5,
                   "no thread of the job is stopped or traced", lambda: sorted(set(self.threads())))
        before = self.steps()
        wait_until(lambda: self.steps() > before + 2, 30, "the job goes on")

    def breakpoints(self):
        """Bytes of probed libraries that differ between memory and file."""
        found = []
        with open(f"/proc/{self.pid}/maps") as maps, open(f"/proc/{self.pid}/mem", "rb", 0) as memory:
            for line in maps:
                fields = line.split()
                if len(fields) < 6 or "x" not in fields[1] or not any(name in fields[5] for name in PROBED):
                    continue
                start, end = (int(part, 16) for part in fields[0].split("-"))
                memory.seek(start)
                now = memory.read(end - start)
                with open(fields[5], "rb") as file:
                    file.seek(int(fields[2], 16))
                    stored = file.read(end - start)
                if now[: len(stored)] != stored:
                    at = int(fields[2], 16) + len(os.path.commonprefix([now, stored]))
                    found.append(f"{os.path.basename(fields[5])}+{at:#x}")
        return found

    def check_no_probes(self):
        wait_until(lambda: not self.breakpoints(), 20, "no breakpoint is left", self.breakpoints)

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for name in ("", ".ready", ".fork", ".exec", ".hog", ".pause", ".paused"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path + name)


def wait_until(is_so, seconds, what, now=lambda: ""):
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise Failure(f"not within {seconds} s: {what} {now()}")
        time.sleep(0.01)


class Memspy:
    """A memspy beside a job; `top` runs in its own terminal."""

    def __init__(self, args, job, words, out, environment={}, share=True):
        words = [out if word == "OUT" else word for word in words]
        command = [args.memspy, words[0], "-p", str(job.pid), *words[1:]]
        environment = {**os.environ, **(job.environment if share else {}), **environment, "TERM": "xterm-256color"}
        self.words, self.said, self.terminal, self.resident = words, tempfile.TemporaryFile(), None, 0
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        if words[0] == "top":
            self.terminal, theirs = pty.openpty()
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
            streams = {"stdin": theirs, "stdout": theirs}
        self.process = subprocess.Popen(command, stderr=self.said, env=environment, **streams)
        if self.terminal is not None:
            os.close(theirs)
            threading.Thread(target=self.drain, daemon=True).start()

    def drain(self):
        terminal = self.terminal
        with contextlib.suppress(OSError):
            while os.read(terminal, 1 << 16):
                pass

    def signal(self, number):
        # Not send_signal, which would take the exit code.
        if self.process.returncode is None:
            os.kill(self.process.pid, number)

    def ended(self, patience=PATIENCE):
        """Its exit code and output; panics and signals are failures."""
        try:
            status = self.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Failure(f"'{self.words[0]}' did not end within {patience} s: {self.text()}") from None
        if self.terminal is not None:
            os.close(self.terminal)
            self.terminal = None
        said = self.text()
        if self.words[0] == "dump" and self.process.returncode == -signal.SIGINT:
            # It writes nothing at its end and leaves Ctrl-C to the system.
            return 0, said
        if "panicked" in said or os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) not in (0, 1):
            raise Failure(f"'{self.words[0]}' ended with {os.waitstatus_to_exitcode(status)}: {said}")
        code = os.waitstatus_to_exitcode(status)
        if code == 1 and "memspy: error: " not in said:
            raise Failure(f"'{self.words[0]}' failed without an error: {said!r}")
        return code, said

    def wait(self, patience):
        """Its exit status; records its largest memory meanwhile."""
        end = time.monotonic() + patience
        while True:
            with contextlib.suppress(OSError), open(f"/proc/{self.process.pid}/status") as status:
                peak = [line for line in status if line.startswith("VmHWM:")]
                self.resident = int(peak[0].split()[1]) * 1024 if peak else self.resident
            pid, status = os.waitpid(self.process.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                return status
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.words, patience)
            time.sleep(0.01)

    def is_over(self):
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def text(self):
        # Not seek, which would move memspy's write position.
        return os.pread(self.said.fileno(), 1 << 24, 0).decode(errors="replace")


def check_readable(args, out):
    """A partial recording must be readable, or be reported as empty in one line."""
    for what, words in ((out, ["lines"]), (os.path.splitext(out)[0] + ".ring", ["oom-report"])):
        if not os.path.exists(what):
            continue
        done = subprocess.run([args.memspy, *words, what], capture_output=True, text=True)
        # Otherwise the next command would be blamed.
        remove(what)
        errors = [line for line in done.stderr.splitlines() if line.startswith("memspy: error: ")]
        is_empty = any(part in done.stderr for part in ("no whole block", "has no segments", "no GPU at all", "no GPU memory", "no counters", "no snapshot",
                                                        "no trace", "is empty", "too short", "no memory of PyTorch was recorded"))
        if done.returncode not in (0, 1) or (done.returncode == 1 and not (len(errors) == 1 and is_empty)):
            raise Failure(f"'{words[0]}' of what was recorded: {done.returncode}: {done.stderr}")
        if "damaged" in done.stderr:
            raise Failure(f"what was recorded is damaged: {done.stderr}")


def remove(path):
    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


class Table:
    def __init__(self):
        self.rows, self.failures = [], []

    def many(self, fault, mode, count, once):
        """Calls `once` `count` times and records the returned times."""
        done, good, longest = 0, 0, 0.0
        for number in range(count):
            done += 1
            try:
                longest = max(longest, once(number) or 0.0)
                good += 1
            except Failure as failure:
                self.failures.append(f"{fault}, {mode}, try {number}: {failure}")
                print(self.failures[-1], file=sys.stderr, flush=True)
        self.add(fault, mode, f"{good} of {done}", f"ended within {longest:.1f} s" if longest else "")

    def add(self, fault, mode, result, note=""):
        self.rows.append((fault, mode, result, note))
        print("| " + " | ".join(self.rows[-1]) + " |", flush=True)


@contextlib.contextmanager
def little_memory(pid):
    """Puts the process into a cgroup with little memory; None without the right to make one."""
    first = "/sys/fs/cgroup/memory" if os.path.isdir("/sys/fs/cgroup/memory") else "/sys/fs/cgroup"
    group = os.path.join(first, f"memspy-faults-{pid}")
    try:
        os.mkdir(group)
    except OSError:
        yield None
        return
    try:
        limits = [name for name in ("memory.limit_in_bytes", "memory.max") if os.path.exists(os.path.join(group, name))]
        for name, text in (((limits or ["memory.max"])[0], str(64 << 20)), ("cgroup.procs", str(pid))):
            with open(os.path.join(group, name), "w") as file:
                file.write(text)
        yield group
    finally:
        with contextlib.suppress(Failure):
            wait_until(lambda: not os.path.exists(f"/proc/{pid}"), 20, "the job is gone")
        os.rmdir(group)


def faults_of_the_job(args, jobs, table, dice):
    # Reuse a job that still runs.
    kept = []

    def once(fault, mode):
        def one(number):
            job = kept.pop() if kept else jobs.start()
            out = os.path.join(jobs.folder, "trace.memspy")
            memspy = Memspy(args, job, MODES[mode], out)
            try:
                time.sleep(dice.uniform(0, args.moment))
                begun = time.monotonic()
                if fault == "killed":
                    os.kill(job.pid, signal.SIGKILL)
                elif fault == "exec":
                    job.ask("exec")
                elif fault == "killed by the OOM killer":
                    with little_memory(job.pid):
                        job.ask("hog")
                        wait_until(lambda: not os.path.exists(f"/proc/{job.pid}"), 60, "the kernel kills the job")
                    begun = time.monotonic()
                elif fault == "forks":
                    for _ in range(3):
                        job.ask("fork")
                        time.sleep(0.05)
                elif fault == "stopped":
                    os.kill(job.pid, signal.SIGSTOP)
                    time.sleep(dice.uniform(0.1, 1))
                    if any(state not in "Tt" for state, _ in job.threads()):
                        raise Failure("memspy let a stopped job go on")
                    os.kill(job.pid, signal.SIGCONT)
                    begun = time.monotonic()
                is_killed = fault.startswith("killed")
                ends = (is_killed or fault == "exec") and mode != "top"
                if fault == "exec":
                    # A memspy that comes after the exec sees the other program, which keeps
                    # running.
                    with contextlib.suppress(Failure):
                        wait_until(memspy.is_over, 5, "memspy ends")
                    ends = ends and "CUDA part is not loaded" not in memspy.text()
                if not ends:
                    time.sleep(0.2)
                    memspy.signal(signal.SIGINT)
                memspy.ended()
                took = time.monotonic() - begun
                if not is_killed:
                    job.check_runs()
                    if fault != "exec":
                        job.check_no_probes()
                check_readable(args, out)
                if fault in ("stopped", "forks"):
                    kept.append(job)
                return took
            finally:
                if memspy.process.returncode is None:
                    memspy.process.kill()
                    memspy.process.wait()
                if job not in kept:
                    job.end()
        return one

    faults = ["killed", "stopped", "exec", "forks"]
    spare = jobs.start()
    with little_memory(spare.pid) as group:
        faults += ["killed by the OOM killer"] if group else []
        spare.end()
    if len(faults) == 4:
        table.add("job killed by the OOM killer", "all", "not tried", "needs root and control groups for memory")
    for fault in faults:
        for mode in MODES:
            table.many(f"job {fault}", mode, args.count, once(fault, mode))
    for job in kept:
        job.end()


def kills_of_memspy(args, jobs, table, dice):
    kept = [jobs.start()]
    out = os.path.join(jobs.folder, "trace.memspy")

    def once(mode, at_end):
        def one(number):
            job = kept.pop() if kept else jobs.start()
            memspy = Memspy(args, job, MODES[mode], out)
            if at_end:
                # It removes its probes and writes the rest.
                with contextlib.suppress(Failure):
                    wait_until(lambda: "Ctrl-C ends" in memspy.text() or memspy.is_over(), 5, "memspy has attached")
                time.sleep(dice.uniform(0.2, 0.2 + args.moment / 2))
                memspy.signal(signal.SIGINT)
                time.sleep(dice.uniform(0, 0.25))
            else:
                time.sleep(dice.uniform(0, args.moment))
            memspy.signal(signal.SIGKILL)
            memspy.process.wait()
            try:
                job.check_runs()
                job.check_no_probes()
                check_readable(args, out)
            except Failure:
                # Do not blame leftovers in this job on the next try.
                job.end()
                raise
            kept.append(job)
        return one

    for mode in MODES:
        table.many("memspy killed", mode, args.count, once(mode, False))
    for mode in MODES:
        if MODES[mode][0] == "record":
            table.many("memspy killed while it ends", mode, args.count, once(mode, True))
    for job in kept:
        job.end()


def jumping_clocks(args, jobs, table, dice):
    if not shutil.which("cc"):
        table.add("the clock jumps", "all", "not tried", "needs cc")
        return
    shim = os.path.join(jobs.folder, "clock.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", shim], input=CLOCK, text=True, check=True)
    job = jobs.start()
    out = os.path.join(jobs.folder, "trace.memspy")

    def once(mode):
        def one(number):
            words = [*MODES[mode], *(["-d", "2"] if MODES[mode][0] == "record" else [])]
            memspy = Memspy(args, job, words, out, {"LD_PRELOAD": shim})
            begun = time.monotonic()
            if words[0] in ("tensors", "top"):
                time.sleep(2)
                memspy.signal(signal.SIGINT)
            code, said = memspy.ended()
            took = time.monotonic() - begun
            if code:
                raise Failure(said)
            if words[0] == "record":
                wanted = took if "--keep" in words else 2
                told = [float(number) for number in re.findall(r"^  ([\d.]+) s, ", said, re.MULTILINE)]
                if any(not 1 < seconds <= took + 0.1 or seconds > wanted + 3 for seconds in told):
                    raise Failure(f"took {took} s: {said}")
            job.check_runs()
            job.check_no_probes()
            check_readable(args, out)
            return took
        return one

    for mode in MODES:
        table.many("the clock jumps", mode, max(2, args.count // 4), once(mode))
    job.end()


@contextlib.contextmanager
def small_disk(folder, filled=0):
    mount = os.path.join(folder, "disk")
    os.makedirs(mount, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", mount], check=True)
    try:
        with open(os.path.join(mount, "filling"), "wb") as file:
            file.write(bytes(filled))
        yield mount
    finally:
        subprocess.run(["umount", "-l", mount], check=False, stderr=subprocess.DEVNULL)


def one_line(said, *parts):
    errors = [line for line in said.splitlines() if line.startswith("memspy: error: ")]
    if len(errors) != 1 or not all(part in errors[0] for part in parts):
        raise Failure(f"not one error with {parts}: {said}")


def full_disks(args, jobs, table, dice):
    if os.geteuid() != 0:
        table.add("disk full", "all", "not tried", "needs root")
        return
    job = jobs.start("flood")
    sound = os.path.join(jobs.folder, "sound.memspy")
    Memspy(args, job, ["record", "-r", "200", "-d", "3", "-o", "OUT", "--force"], sound).ended()

    def recorded(mode):
        def one(number):
            with small_disk(jobs.folder, (1 << 20) - (4096 if number == 0 else dice.randrange(4096, 60_000))) as mount:
                out = os.path.join(mount, "trace.memspy")
                memspy = Memspy(args, job, MODES[mode], out)
                begun = time.monotonic()
                code, said = memspy.ended(120)
                took = time.monotonic() - begun
                if code == 0:
                    raise Failure(f"exit code 0 on a full disk: {said}")
                one_line(said, "No space left on device")
                job.check_runs()
                job.check_no_probes()
                os.unlink(os.path.join(mount, "filling"))
                check_readable(args, out)
                return took
        return one

    def written(words):
        def one(number):
            with small_disk(jobs.folder, 1 << 20) as mount:
                out = os.path.join(mount, "out")
                done = subprocess.run([args.memspy, *words, sound, "-o", out], capture_output=True, text=True)
                if done.returncode != 1:
                    raise Failure(f"exit code {done.returncode} on a full disk: {done.stderr}")
                one_line(done.stderr, "No space left on device")
                left = [name for name in os.listdir(mount) if name != "filling"]
                if left:
                    raise Failure(f"half a file is left: {left}")
        return one

    def vanished(mode):
        def one(number):
            with small_disk(jobs.folder) as mount:
                memspy = Memspy(args, job, MODES[mode], os.path.join(mount, "trace.memspy"))
                time.sleep(dice.uniform(0.5, 0.5 + args.moment))
                subprocess.run(["umount", "-l", mount], check=True)
                time.sleep(0.2)
                memspy.signal(signal.SIGINT)
                memspy.ended()
                job.check_runs()
                job.check_no_probes()
        return one

    few = max(2, args.count // 10)
    for mode in ("sampled", "followed", "exact", "--owners", "--keep", "--exact --keep"):
        table.many("disk full", mode, few, recorded(mode))
    for words in (["report"], ["flame"], ["lines"], ["export", "-f", "speedscope"]):
        table.many("disk full", words[0], 2, written(words))
    for mode in ("sampled", "exact", "--keep", "--exact --keep"):
        table.many("mount vanished", mode, few, vanished(mode))
    job.end()


def extremes(args, jobs, table, dice):
    out = os.path.join(jobs.folder, "trace.memspy")
    for name, word, commands in (
        ("4,096 threads", "threads", (["dump"], MODES["sampled"], MODES["followed"], MODES["exact"])),
        ("100,000 calls deep", "deep", (["dump"], MODES["sampled"], MODES["followed"], MODES["exact"])),
        ("5,000,000 objects", "objects", (["tensors", "--max-stop", "200ms", "--max-time", "30s"], MODES["--owners"])),
    ):
        job = jobs.start(word)
        for words in commands:
            mode = " ".join(word for word in words if word not in ("-o", "OUT", "--force"))
            def one(number, words=words):
                record = ["-d", "3"] if words[0] == "record" else []
                memspy = Memspy(args, job, [*words, *record], out)
                begun = time.monotonic()
                code, said = memspy.ended(180)
                one.note = f"{time.monotonic() - begun:.1f} s, {memspy.resident >> 20} MiB" + (f": {said.strip().splitlines()[-1][:150]}" if code else "")
                job.check_runs()
                check_readable(args, out)
            try:
                one(0)
                table.add(name, mode, "1 of 1", one.note)
            except Failure as failure:
                table.failures.append(f"{name}, {mode}: {failure}")
                table.add(name, mode, "0 of 1", str(failure)[:200])
        job.end()


def overflows(args, jobs, table, dice):
    out = os.path.join(jobs.folder, "trace.memspy")
    job = jobs.start("flood")
    def overflow(number):
        before = job.pause()
        memspy = Memspy(args, job, MODES["exact"], out)
        wait_until(lambda: "probes are in place" in memspy.text(), 60, "memspy's probes are in place")
        job.resume()
        time.sleep(1)
        memspy.signal(signal.SIGSTOP)
        time.sleep(args.overflow)
        job.check_runs()
        happened = job.pause() - before
        memspy.signal(signal.SIGCONT)
        # It drains the ring.
        time.sleep(3)
        memspy.signal(signal.SIGINT)
        code, said = memspy.ended(120)
        job.resume()
        told = re.search(r"([\d,]+) allocations, ([\d,]+) frees, ([\d,]+) lost", said)
        if code or not told:
            raise Failure(f"{code}: {said}")
        allocations, frees, lost = (int(number.replace(",", "")) for number in told.groups())
        overflow.note = f"{happened:,} in the job: {allocations:,} allocations and {frees:,} frees recorded, {lost:,} lost"
        # Other kinds of events get lost, too. At most the reported losses may be missing, and
        # nothing may be invented.
        if not allocations + frees <= happened <= allocations + frees + lost:
            raise Failure(f"the figures do not agree: {overflow.note}")
        if lost == 0:
            raise Failure(f"nothing was lost, so nothing was checked (--overflow for longer): {overflow.note}")
        check_readable(args, out)
    table.many("memspy stands still", "exact", 1, overflow)
    table.add("what the job's allocator counted", "exact", getattr(overflow, "note", "unknown"))
    job.end()


def nvml(args, jobs, table, dice):
    job = jobs.start()
    out = os.path.join(jobs.folder, "trace.memspy")
    record = ["record", "-d", "2", "-r", "200", "-o", "OUT", "--force"]

    def once(words, environment, share=True, n_th=None):
        def one(number):
            begun = time.monotonic()
            memspy = Memspy(args, job, words, out, environment | ({n_th: str(dice.randrange(0, 60))} if n_th else {}), share)
            if words[0] == "top":
                time.sleep(2)
                memspy.signal(signal.SIGINT)
            code, said = memspy.ended()
            if code:
                raise Failure(said)
            took = time.monotonic() - begun
            check_readable(args, out)
            return took
        return one

    commands = (record, ["dump"], ["top"])
    for words in commands:
        table.many("NVML missing", words[0], 2, once(words, {}, share=False))
    if args.run_with and shutil.which("cc"):
        shim = os.path.join(jobs.folder, "shim.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", shim], input=SHIM, text=True, check=True)
        few = max(2, args.count // 4)
        for words in commands:
            table.many("NVML fails from its n-th call on", words[0], few, once(words, {"LD_PRELOAD": shim}, n_th="FAULTS_FAIL_AFTER"))
        for words in commands:
            table.many("NVML hangs from its n-th call on", words[0], few, once(words, {"LD_PRELOAD": shim}, n_th="FAULTS_HANG_AFTER"))
    job.end()


GROUPS = {"job": faults_of_the_job, "kills": kills_of_memspy, "clocks": jumping_clocks, "disks": full_disks, "extremes": extremes, "overflow": overflows, "nvml": nvml}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy")
    parser.add_argument("--count", type=int, default=20, help="times that each fault of the job or of memspy is made in each mode")
    parser.add_argument("--run-with", type=str.split, default=[], help="runs the job and memspy, such as scripts/with-sim")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--only", nargs="*", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--modes", nargs="*", choices=MODES, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--moment", type=float, default=1.5, help="seconds after its start within which a fault comes")
    parser.add_argument("--overflow", type=float, default=20, help="seconds for which memspy stands still")
    args = parser.parse_args()
    # A shell's background job ignores SIGINT, and memspy would inherit that and keep running.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    args.memspy = os.path.abspath(args.memspy)
    for mode in [mode for mode in MODES if args.modes and mode not in args.modes]:
        del MODES[mode]
    dice, table, jobs = random.Random(args.seed), Table(), Jobs(args)
    print("| what happened | to | as it should be | |\n|---|---|---|---|")
    try:
        for name in args.only:
            GROUPS[name](args, jobs, table, dice)
    finally:
        jobs.close()
    print(f"\n{len(table.failures)} failures", *table.failures, sep="\n")
    sys.exit(bool(table.failures))


if __name__ == "__main__":
    main()
