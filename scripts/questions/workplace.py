"""Where a question's jobs run, on a GPU or on the simulated device, and memspy in a terminal."""
import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time

from terminal_svg import Screen

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SIMULATED = os.path.join(ROOT, "scripts/with-sim")
PACKAGES = os.path.join(ROOT, "target/questions/packages")  # IPython, where pip brought it
WIDTH = 110
ASK = ("import torch; there = torch.cuda.is_available(); "
       "print(torch.cuda.get_device_name() if there else '', torch.cuda.device_count() if there else 0, torch.__version__, sep='|')")


class Failed(Exception):
    """A question without an answer."""


class Machine:
    """The GPU, else the simulated device; and until when there is time."""

    def __init__(self, memspy, minutes):
        self.memspy, self.begin = memspy, time.monotonic()
        found = self.ask([])
        self.is_simulated = found is None
        found = found or self.ask([SIMULATED])
        if found is None:
            raise SystemExit("make.py: PyTorch finds no GPU, and there is no simulated device: run scripts/setup.sh env")
        self.gpu, count, self.pytorch = found
        self.gpus = int(count)
        self.end = self.begin + 60 * (minutes or (30 if self.is_simulated else 5))

    def ask(self, prefix):
        try:
            done = subprocess.run([*prefix, "python3", "-c", ASK], capture_output=True, text=True)
        except FileNotFoundError:
            return None
        words = done.stdout.strip().split("|")
        return words if done.returncode == 0 and len(words) == 3 and words[0] else None

    def limit(self, seconds):
        left = self.end - time.monotonic()
        if left < 1:
            raise Failed("no time is left")
        return min(seconds, left)


class Job:
    """A running program, whose output goes to a file."""

    def __init__(self, words, process, log, machine):
        self.name, self.process, self.log, self.machine = shlex.join(words), process, log, machine
        self.pid = process.pid

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait_for(self, pattern, seconds=60):
        """The match of what it prints."""
        end = time.monotonic() + self.machine.limit(seconds)
        while time.monotonic() < end:
            ended = self.process.poll() is not None
            found = re.search(pattern, self.said())
            if found:
                return found
            if ended:
                raise Failed(f"{self.name} ended without '{pattern}': {self.said()[-600:]}")
            time.sleep(0.05)
        raise Failed(f"{self.name} did not print '{pattern}' in {seconds} s: {self.said()[-300:]}")

    def wait(self, seconds=60):
        try:
            return self.process.wait(self.machine.limit(seconds))
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end in {seconds} s: {self.said()[-300:]}") from None

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Workplace:
    """A folder with the jobs, for one question. Ends its jobs when it is left."""

    def __init__(self, name, machine):
        self.name, self.machine, self.jobs = name, machine, []

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="memspy-question-")
        shutil.copytree(os.path.join(HERE, "jobs"), self.folder, dirs_exist_ok=True)
        return self

    def __exit__(self, *_):
        for job in self.jobs:
            job.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def say(self, text):
        print(f"{time.monotonic() - self.machine.begin:6.1f} s  {self.name:14} {text}", flush=True)

    def environment(self, more):
        found = dict(os.environ, TERM="xterm-256color", LANG="C.UTF-8", LC_ALL="C.UTF-8", PYTHONDONTWRITEBYTECODE="1", **more)
        found.pop("NO_COLOR", None)
        found["PATH"] = os.pathsep.join([os.path.dirname(self.machine.memspy), found["PATH"]])
        return found

    def prefix(self, beside):
        if not self.machine.is_simulated:
            return []
        return [SIMULATED, *(["--share", str(beside)] if beside else [])]

    def start(self, *words, beside=None, **environment):
        """Starts a job. On the simulated device, `beside` is a process on the card to use."""
        words = list(map(str, words))
        self.say(shlex.join(words))
        log = os.path.join(self.folder, f"log-{len(self.jobs)}")
        with open(log, "w", encoding="utf-8") as file:
            process = subprocess.Popen([*self.prefix(beside), *words], cwd=self.folder, env=self.environment(environment),
                                       stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        self.jobs.append(Job(words, process, log, self.machine))
        return self.jobs[-1]

    def memspy(self, *words, beside=None, seconds=60, codes=(0,), **environment):
        """Runs `memspy WORDS` in a terminal: the command line, and the screen at its end."""
        words = ["memspy", *map(str, words)]
        shown, started = shlex.join(words), time.monotonic()
        code, text = in_terminal([*self.prefix(beside), *words], self.folder, self.environment(environment), self.machine.limit(seconds))
        self.say(f"{shown}: {time.monotonic() - started:.1f} s, exit code {code}")
        screen = Screen(text, WIDTH)
        if code not in codes:
            raise Failed(f"{shown}: exit code {code}: " + "\n".join(screen.lines()[-8:]))
        return shown, screen

    def picture(self, *words):
        """Runs `memspy flame WORDS`: the SVG."""
        self.memspy("flame", *words, "--min-width", "0.4", "-o", "picture.svg")
        with open(os.path.join(self.folder, "picture.svg"), encoding="utf-8") as file:
            return file.read()


def in_terminal(command, folder, environment, seconds):
    """The exit code of a command, and what it wrote to a terminal of `WIDTH` columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, WIDTH, 0, 0))
    process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
                               start_new_session=True)
    os.close(slave)
    text, end = b"", time.monotonic() + seconds
    try:
        while True:
            readable, _, _ = select.select([master], [], [], 0.1)
            try:
                text += os.read(master, 65536) if readable else b""
            except OSError:  # nobody has the terminal open any more
                break
            if not readable and process.poll() is not None:
                break
            if time.monotonic() > end:
                os.killpg(process.pid, signal.SIGKILL)
                raise Failed(f"{shlex.join(command)} did not end in {seconds:.0f} s")
        return process.wait(10), text.decode(errors="replace")
    finally:
        os.close(master)
        process.wait()
