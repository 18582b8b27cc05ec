"""Records this process from outside, with the program memspy, while a block of code runs."""
import ctypes
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading

# linux/prctl.h: lets one process trace this one where kernel.yama.ptrace_scope is 1.
PR_SET_PTRACER = 0x59616D61
# How long memspy may take to attach, and to finish a trace.
ATTACH_TIMEOUT = 60
FINISH_TIMEOUT = 120


# The options of `memspy record` that choose a mode.
MODES = {"--mode", "--exact", "-e", "--follow", "--cpu", "-r", "--rate", "--gil"}


def _share_of_a_processor():
    """What memspy takes for following where nobody says, in per cent."""
    processors = len(os.sched_getaffinity(0))
    return 10 if processors < 4 else 50 if processors < 8 else min(200, 100 * (processors // 8))


class MemspyError(RuntimeError):
    """memspy could not do what was asked for; the text says why."""


def find_program():
    """Path of the program memspy: $MEMSPY, the one installed with this package, or the first on the PATH."""
    machine = platform.machine()
    if machine not in ("x86_64", "AMD64", "amd64"):
        raise MemspyError(
            f"memspy runs on x86-64 Linux only, and this Python on {machine}: for that processor it lacks the unwinding of native stacks, "
            "the clock that orders events, and the program in the kernel for exact stacks"
        )
    named = os.environ.get("MEMSPY")
    if named:
        return named
    folders = [sysconfig.get_path("scripts"), os.path.dirname(sys.executable)]
    if hasattr(sysconfig, "get_preferred_scheme"):
        folders.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    for folder in folders:
        program = os.path.join(folder or "", "memspy")
        if os.access(program, os.X_OK):
            return program
    program = shutil.which("memspy")
    if not program:
        raise MemspyError("the program memspy is not installed: pip install the wheel of memspy, or set MEMSPY to its path")
    return program


def _let_trace(pid):
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def _run(words, on_self=False):
    command = [find_program(), *words]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    if on_self:
        _let_trace(child.pid)
    try:
        out, said = child.communicate()
    finally:
        if on_self:
            _let_trace(0)
    if child.returncode != 0:
        raise MemspyError(said.strip() or f"memspy {words[0]} ended with {child.returncode}")
    return out


def own_tensors():
    """The tensors of this process with their owners: the JSON of `memspy tensors`, as a dict."""
    return json.loads(_run(["tensors", "--json", "--pid", str(os.getpid())], on_self=True))


class Recording:
    """What happens in this process between `with Recording() as recording:` and the end of the block.

    After the block, `trace` is the path of the trace; it is deleted with `close()`, or when this object is, unless it was named.
    """

    def __init__(self, trace=None, exact=False, options=()):
        self._folder = None if trace else tempfile.TemporaryDirectory(prefix="memspy-")
        self.trace = os.path.abspath(trace) if trace else os.path.join(self._folder.name, "trace.bin")
        self.exact = exact
        self.notes = ""
        self._options = list(options) + (["--exact"] if exact else [])
        if not MODES & set(self._options):
            # memspy's own choice begins with a trial, which may be dropped: then the first moments of a short block are missing.
            self._options += ["--cpu", str(_share_of_a_processor())]
        self._child = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        """Attaches memspy to this process; returns when it records."""
        command = [find_program(), "record", "--pid", str(os.getpid()), "--force", "--output", self.trace]
        # Of its own group, so that Ctrl-C for the code that is recorded does not end the recording.
        self._child = subprocess.Popen(
            command + self._options,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        _let_trace(self._child.pid)
        self._said, attached = [], threading.Event()
        wanted = "probes are in place" if self.exact else "attached to process"

        def listen():
            for line in self._child.stderr:
                self._said.append(line)
                if wanted in line:
                    attached.set()
            attached.set()

        self._listener = threading.Thread(target=listen, daemon=True, name="memspy-stderr")
        self._listener.start()
        is_told = attached.wait(ATTACH_TIMEOUT)
        if not is_told or not any(wanted in line for line in self._said):
            self._child.kill()
            self._end(10)
            raise MemspyError(f"memspy could not record this process: {self.notes or 'it did not attach in time'}")

    def stop(self):
        """Ends the recording; the trace is whole when this returns."""
        if self._child is None:
            return
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGINT)
        code = self._end(FINISH_TIMEOUT)
        if code != 0:
            raise MemspyError(f"memspy could not finish the recording: {self.notes or code}")

    def _end(self, timeout):
        child, self._child = self._child, None
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        _let_trace(0)
        self._listener.join(timeout)
        child.stderr.close()
        self.notes = "".join(self._said).strip()
        return child.returncode

    def run(self, *words):
        """What `memspy WORDS` prints, for example `recording.run("lines", recording.trace)`."""
        return _run(words)

    def lines(self, *words):
        """The JSON of `memspy lines`, as a dict."""
        return json.loads(self.run("lines", "--json", *words, "--", self.trace))

    def table(self, *words):
        """The text of `memspy lines`."""
        return self.run("lines", *words, "--", self.trace)

    def flamegraph(self, *words):
        """The flamegraph of the peak as SVG."""
        return self.run("flame", "--output", "-", *words, "--", self.trace)

    def page(self):
        """The page of `memspy report`: every moment by stack, line and owner."""
        return self.run("report", "--output", "-", "--", self.trace)

    def close(self):
        """Deletes the trace, unless it was named."""
        if self._folder is not None:
            self._folder.cleanup()
