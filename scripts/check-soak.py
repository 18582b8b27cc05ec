#!/usr/bin/env python3
"""Records a training loop for a long time in three ways at once.

    scripts/check-soak.py MEMSPY [--minutes 60] [--run-with scripts/with-sim] [--python python3]

Checks that memspy's memory does not grow and that every loss is reported. The job is
tests/targets/transformer12.py, with 'record --follow' (the default), 'record -r 1000' and
'record --exact --keep 20s'. Reads the resident memory of each memspy every 10 s. It must be flat:
the median of the last quarter is at most 10 % or 16 MiB above that of the second quarter. At the
end each recording must be complete and readable without damage; prints its summary with its losses.
Exact recordings compare their counts with the allocator's counters and report differences.
Ends with a table; exit code 0 if all checks pass.
"""
import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODES = {
    "--follow": ["record", "--follow"],
    "-r 1000": ["record", "-r", "1000"],
    "--exact --keep 20s": ["record", "--exact", "--keep", "20s"],
}


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) * 1024


def sizes(path):
    ring = os.path.splitext(path)[0] + ".ring"
    if os.path.isdir(ring):
        return sum(entry.stat().st_size for entry in os.scandir(ring))
    return os.path.getsize(path) if os.path.exists(path) else 0


class Recording:
    def __init__(self, args, mode, folder, pid):
        run_with = [*args.run_with, "--share", pid] if args.run_with else []
        self.out = os.path.join(folder, "".join(c for c in mode if c.isalnum()) + ".memspy")
        self.said = tempfile.TemporaryFile()
        self.memspy = subprocess.Popen([*run_with, args.memspy, *MODES[mode], "-p", pid, "-o", self.out], stderr=self.said, stdout=subprocess.DEVNULL)
        self.mode, self.resident, self.bytes = mode, [], 0

    def look(self):
        if self.memspy.poll() is None:
            self.resident.append(resident(self.memspy.pid))
            self.bytes = max(self.bytes, sizes(self.out))

    def end(self, args):
        failures = []
        if self.memspy.poll() is not None:
            failures.append(f"memspy ended by itself with {self.memspy.returncode}")
        else:
            self.memspy.send_signal(signal.SIGINT)
            if self.memspy.wait(timeout=300) != 0:
                failures.append(f"exit code {self.memspy.returncode}")
        self.said.seek(0)
        said = self.said.read().decode(errors="replace")
        quarter = max(1, len(self.resident) // 4)
        early = statistics.median(self.resident[quarter : 2 * quarter] or self.resident)
        late = statistics.median(self.resident[-quarter:])
        if late > early + max(0.1 * early, 16 << 20):
            failures.append(f"memory grew from {early / 2**20:.0f} to {late / 2**20:.0f} MiB")
        if not os.path.exists(self.out):
            failures.append("nothing was written")
        else:
            read = subprocess.run([args.memspy, "lines", self.out], capture_output=True, text=True)
            if read.returncode != 0 or "damaged" in read.stderr or "abruptly" in read.stderr:
                failures.append(f"not read whole: {read.stderr}")
        if "panicked" in said:
            failures.append("it panicked")
        print(f"\n== {self.mode} ==\n{said}", end="")
        print("MiB:", *(f"{bytes / 2**20:.0f}" for bytes in self.resident))
        written = f"{os.path.getsize(self.out) / 2**20:.1f} MiB written" if os.path.exists(self.out) else "nothing written"
        self.row = (self.mode, f"{min(self.resident) / 2**20:.0f} to {max(self.resident) / 2**20:.0f} MiB", f"{early / 2**20:.0f} → {late / 2**20:.0f} MiB",
                    f"{written}, at most {self.bytes / 2**20:.1f} MiB on the disk", "; ".join(failures) or "as it should be")
        return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--run-with", type=str.split, default=[], help="runs the job and memspy, such as scripts/with-sim")
    parser.add_argument("--python", default="python3")
    args = parser.parse_args()
    # A shell's background job ignores SIGINT, and memspy would inherit that and keep running.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = tempfile.mkdtemp(prefix="memspy-soak-")
    command = [*args.run_with, args.python, os.path.join(HERE, "tests/targets/transformer12.py")]
    job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while (line := job.stdout.readline()).strip() != "READY":
        if not line:
            sys.exit("the job ended before it was ready")
    # One window longer than the whole run; the test ends it.
    job.stdin.write(f"window {args.minutes * 60 + 600}\n")
    job.stdin.flush()
    recordings = [Recording(args, mode, folder, str(job.pid)) for mode in MODES]
    end = time.monotonic() + args.minutes * 60
    while time.monotonic() < end:
        time.sleep(min(10, max(0, end - time.monotonic())))
        for recording in recordings:
            recording.look()
    failures = [failure for recording in recordings for failure in recording.end(args)]
    job.kill()
    job.wait()
    print("\n| way | memspy's memory | second quarter → last quarter | disk | |\n|---|---|---|---|---|")
    for recording in recordings:
        print("| " + " | ".join(recording.row) + " |")
    shutil.rmtree(folder)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
