"""Checks `memspy devices`, `pause` and `resume` on a machine with a real GPU. Needs no Rust.

    python scripts/check-devices-on-gpu.py MEMSPY [--steps N] [--cycles N] [--gib N]
        [--only devices|pause] [-o FILE]

A training job (small transformer, fixed seed, logs each loss bit by bit) runs in its own process.
Devices: compares every column of `devices --format csv` with `nvidia-smi --query-gpu`, and the
parts of `devices --json -p` with NVML's used memory and the job's torch.cuda figures.
Pause: pauses and resumes the job again and again. Prints seconds and MiB before and after, and
whether losses and final weights equal those of an undisturbed run, bit by bit.
Faults: --for with SIGTERM, a killed memspy, too little host memory.
Prints JSON; exit code 1 if a check failed.
"""
import argparse
import csv
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

JOB = r'''
import os, sys, time
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
import torch
from torch import nn
steps, gib, log = int(sys.argv[1]), float(sys.argv[2]), open(sys.argv[3], "w", buffering=1)
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
width, heads, length, vocabulary = 512, 8, 128, 4096
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)
    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, heads, c // heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, 2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm2(x)))))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block() for _ in range(6)))
        self.head = nn.Linear(width, vocabulary)
    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids)))
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
# Contents that must survive; the log ends with their checksum.
ballast = torch.randint(0, 2**31, (max(1, int(gib * 2**30 / 8)),), device="cuda")
data = torch.randint(0, vocabulary, (64, 16, length + 1))
def step(number):
    ids = data[number % 64].cuda()
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()
log.write(f"{step(0).hex()}\n")
torch.cuda.synchronize()
print("READY", flush=True)
for line in sys.stdin:
    if line.strip() == "truth":
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        properties = torch.cuda.get_device_properties(0)
        print(f"{torch.cuda.memory_reserved()} {torch.cuda.memory_allocated()} {free} {total} {properties.total_memory}", flush=True)
    elif line.strip() == "run":
        for number in range(1, steps):
            log.write(f"{step(number).hex()} {time.monotonic()}\n")
        total = sum(p.double().sum().item() for p in model.parameters())
        log.write(f"weights {float(total).hex()} ballast {ballast.sum().item()}\n")
        print("DONE", flush=True)
'''

QUERY = ["timestamp", "name", "pci.bus_id", "driver_version", "pstate", "pcie.link.gen.max", "pcie.link.gen.current", "temperature.gpu",
         "utilization.gpu", "utilization.memory", "memory.total", "memory.free", "memory.used"]
MIB = 1 << 20


class Job:
    def __init__(self, args):
        self.folder = tempfile.TemporaryDirectory()
        self.log = os.path.join(self.folder.name, "log")
        command = [sys.executable, "-c", JOB, str(args.steps), str(args.gib), self.log]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid
        assert self.process.stdout.readline().strip() == "READY", "the job did not start"

    def say(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()

    def lines(self):
        return open(self.log).read().splitlines()

    def losses(self):
        return [line.split()[0] for line in self.lines() if not line.startswith("weights")]

    def step_seconds(self):
        """Median step time; pauses are too few to affect it."""
        times = [float(line.split()[1]) for line in self.lines() if not line.startswith("weights") and " " in line]
        return statistics.median(b - a for a, b in zip(times, times[1:]))

    def last(self):
        return [line for line in self.lines() if line.startswith("weights")]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Checks:
    def __init__(self):
        self.report = {"failed": []}

    def that(self, name, holds, detail=None):
        if not holds:
            self.report["failed"].append({"check": name, "detail": detail})
        print(f"{'ok    ' if holds else 'FAILED'} {name}{'' if detail is None else ': ' + str(detail)}", file=sys.stderr, flush=True)


def run(memspy, *words):
    started = time.perf_counter()
    done = subprocess.run([memspy, *map(str, words)], capture_output=True, text=True)
    return done, time.perf_counter() - started


def check_devices(args, checks):
    job = Job(args)
    # Read both at almost the same time, at rest; nvidia-smi in plain units, its memory in MiB.
    for _ in range(3):
        done, took = run(args.memspy, "devices", "--format", "csv")
        smi = subprocess.run(["nvidia-smi", "--query-gpu=" + ",".join(QUERY), "--format=csv,noheader,nounits"], capture_output=True, text=True)
        if done.returncode == smi.returncode == 0:
            break
    head = done.stdout.splitlines()[0].split(",")
    checks.that("csv: header", head == QUERY, head)
    ours = list(csv.DictReader(io.StringIO(done.stdout)))
    theirs = [dict(zip(QUERY, (cell.strip() for cell in row))) for row in csv.reader(io.StringIO(smi.stdout))]
    checks.that("csv: number of GPUs", len(ours) == len(theirs), (len(ours), len(theirs)))
    rows = []
    for our, their in zip(ours, theirs):
        for key in QUERY:
            mine, smis = our[key], their[key]
            if key.startswith("memory."):
                same = abs(int(mine) / MIB - int(smis)) <= (1 if key == "memory.total" else 8)
                mine = f"{int(mine) / MIB:.2f} MiB"
            elif key == "timestamp":
                same = len(mine) == len(smis) and mine[:16] <= smis[:16]
            elif key == "temperature.gpu":
                same = mine.isdigit() and abs(int(mine) - int(smis)) <= 3
            elif key in ("utilization.gpu", "utilization.memory", "pstate", "pcie.link.gen.current"):
                same = mine == smis or bool(mine)  # these vary from moment to moment
            else:
                same = mine == smis
            rows.append({"key": key, "memspy": mine, "nvidia-smi": smis, "equal": our[key] == smis})
            checks.that(f"csv: {key}", same, f"{mine} | {smis}")
    checks.report["csv"] = rows
    checks.report["devices_seconds"] = took

    job.say("truth")
    reserved, allocated, free, total, properties = map(int, job.answer().split())
    done, took = run(args.memspy, "devices", "--json", "-p", job.pid)
    look = json.loads(done.stdout)
    all_devices = look["processes"][0]["devices"]
    device = next((d for d in all_devices if d["cuda_index"] == 0), all_devices[0])
    parts = {key: device[key] for key in ("reserved_on_device", "outside_pytorch", "other_processes", "no_process")}
    checks.that("reserved", device["reserved"] == reserved, (device["reserved"], reserved))
    checks.that("allocated", device["allocated"] == allocated, (device["allocated"], allocated))
    smi = subprocess.run(["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout
    smi_used = dict(tuple(int(cell) for cell in line.split(",")) for line in smi.splitlines())
    apps = subprocess.run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"], capture_output=True, text=True).stdout
    checks.report["nvidia_smi_compute_apps"] = apps.splitlines()
    checks.report["listed_processes"] = look["devices"][device["index"] or 0]["processes"]
    checks.report["job_pid"] = job.pid
    if all(value is not None for value in parts.values()):
        total_of_parts = sum(parts.values())
        off = total_of_parts - device["used"]
        checks.that("parts add up to NVML's used within 1 %", abs(off) <= device["used"] / 100, f"{parts}, used {device['used']}, off {off}")
        smis = smi_used[device["index"]] * MIB
        checks.that("parts add up to nvidia-smi's used within 1 %", abs(total_of_parts - smis) <= smis / 100, (total_of_parts, smis))
        # The driver's own use is small; if it is not, a process is missing.
        checks.that("of no process: below 1 % of used", parts["no_process"] <= device["used"] / 100, parts["no_process"])
    else:
        # If a pid namespace hides the job from the driver's list, memspy must say so.
        why = device["outside_pytorch_unknown_because"]
        checks.report["parts_unknown_because"] = why
        checks.that("parts are unknown, and the reason is told", bool(why), why)
        checks.that("reserved is at most what is in use", device["reserved"] <= device["used"], (device["reserved"], device["used"]))
    checks.report["process"] = {**{k: v for k, v in device.items() if k != "fragmentation"}, "seconds": took}
    checks.report["total_memory"] = {
        "nvml_total": device["total"], "nvml_reserved": device["driver_reserved"], "cudaMemGetInfo_total": total, "cudaMemGetInfo_free": free,
        "nvml_free": device["free"], "torch_total_memory": properties}
    checks.report["fragmentation"] = {k: v for k, v in device["fragmentation"].items() if k not in ("private_pools",)}
    print(run(args.memspy, "devices", "-p", job.pid)[0].stdout, file=sys.stderr, flush=True)
    job.end()


def wait_for_steps(job, number):
    while len(job.lines()) < number:
        if job.process.poll() is not None:
            raise SystemExit(f"the job ended with {job.process.returncode}")
        time.sleep(0.005)


def check_pause(args, checks):
    undisturbed = Job(args)
    undisturbed.say("run")
    started = time.perf_counter()
    checks.that("undisturbed run", undisturbed.answer() == "DONE")
    checks.report["undisturbed_seconds"] = time.perf_counter() - started
    expected, expected_end = undisturbed.losses(), undisturbed.last()
    checks.report["median step seconds, undisturbed"] = undisturbed.step_seconds()
    undisturbed.end()

    job = Job(args)
    job.say("run")
    cycles = []
    for cycle in range(args.cycles):
        wait_for_steps(job, 2 + cycle * args.steps // (args.cycles + 1))
        paused, pause_took = run(args.memspy, "pause", "--json", "-p", job.pid)
        if paused.returncode:
            checks.that("pause", False, paused.stderr)
            break
        time.sleep(0.3)
        before = len(job.lines())
        time.sleep(0.5)
        checks.that(f"cycle {cycle}: the job waits", len(job.lines()) - before <= 1, len(job.lines()) - before)
        second = run(args.memspy, "pause", "-p", job.pid)[0]
        checks.that(f"cycle {cycle}: paused twice is refused", second.returncode == 1 and "already" in second.stderr, second.stderr.strip())
        resumed, resume_took = run(args.memspy, "resume", "--json", "-p", job.pid)
        if resumed.returncode:
            checks.that("resume", False, resumed.stderr)
            break
        away, back = json.loads(paused.stdout), json.loads(resumed.stdout)
        mib = lambda value: None if value is None else round(value / MIB, 2)
        gpu_away, gpu_back = away["devices"][0], back["devices"][0]
        cycles.append({
            "pause_seconds": away["seconds"], "pause_command_seconds": pause_took,
            "resume_seconds": back["seconds"], "resume_command_seconds": resume_took,
            "used_mib": [mib(gpu_away["used_before"]), mib(gpu_away["used_after"]), mib(gpu_back["used_before"]), mib(gpu_back["used_after"])],
            "process_mib": [mib(gpu_away["process_before"]), mib(gpu_away["process_after"]), mib(gpu_back["process_before"]), mib(gpu_back["process_after"])],
            "host_process_mib": [mib(away["process_host_before"]), mib(away["process_host_after"]), mib(back["process_host_after"])],
            "host_available_mib": [mib(away["host_available_before"]), mib(away["host_available_after"]), mib(back["host_available_after"])],
        })
        freed = gpu_away["used_before"] - gpu_away["used_after"]
        own = gpu_away["process_before"]
        if own:
            checks.that(f"cycle {cycle}: 99 % of the process's memory is given away", freed >= own * 0.99, (mib(freed), mib(own)))
        print(json.dumps(cycles[-1]), file=sys.stderr, flush=True)
    checks.report["cycles"] = cycles
    for what in ("pause_seconds.lock", "pause_seconds.transfer", "resume_seconds.transfer", "resume_seconds.unlock"):
        part, step = what.split(".")
        if cycles:
            checks.report[f"median {what}"] = statistics.median(c[part][step] for c in cycles)
    checks.that("disturbed run ends", job.answer() == "DONE")
    checks.that(f"{len(expected)} losses are bit-identical", job.losses() == expected,
                [i for i, pair in enumerate(zip(job.losses(), expected)) if pair[0] != pair[1]][:5])
    checks.that("weights and ballast are bit-identical", job.last() == expected_end, (job.last(), expected_end))
    checks.report["median step seconds, paused in between"] = job.step_seconds()
    checks.report["losses"] = {"first": float.fromhex(expected[0]), "last": float.fromhex(expected[-1]), "count": len(expected)}
    job.end()
    check_failures(args, checks)


def check_failures(args, checks):
    job = Job(args)
    job.say("run")
    refused = run(args.memspy, "pause", "--keep-free", "1000000G", "-p", job.pid)[0]
    checks.that("too little host memory is refused", refused.returncode == 1 and "too little memory" in refused.stderr, refused.stderr.strip())
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        memspy = subprocess.Popen([args.memspy, "pause", "--for", "10m", "-p", str(job.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said = ""
        while "if memspy is killed" not in said and memspy.poll() is None:
            said += memspy.stderr.readline()
        memspy.send_signal(how)
        memspy.communicate()
        if how == signal.SIGKILL:
            again = run(args.memspy, "resume", "-p", job.pid)[0]
            checks.that("after SIGKILL of memspy: resume", again.returncode == 0, again.stderr.strip())
        else:
            checks.that(f"--for ended by {how.name}", memspy.returncode == 0, memspy.returncode)
        at = len(job.lines())
        end = time.time() + 20
        while len(job.lines()) == at and time.time() < end and not job.last():
            time.sleep(0.05)
        checks.that(f"after {how.name} the job goes on", len(job.lines()) > at or bool(job.last()))
    not_paused = run(args.memspy, "resume", "-p", job.pid)[0]
    checks.that("resume of a running job is refused", not_paused.returncode == 1 and "not paused" in not_paused.stderr, not_paused.stderr.strip())
    own = run(args.memspy, "pause", "-p", os.getpid())[0]
    checks.that("a process without CUDA is refused", own.returncode == 1 and "CUDA" in own.stderr, own.stderr.strip())
    job.process.kill()
    job.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("memspy")
    parser.add_argument("--steps", type=int, default=2000, help="training steps of the job")
    parser.add_argument("--cycles", type=int, default=5, help="how often it is paused")
    parser.add_argument("--gib", type=float, default=4, help="memory it holds beside the model")
    parser.add_argument("--only", choices=["devices", "pause"])
    parser.add_argument("-o", "--output", help="also write the JSON here")
    args = parser.parse_args()
    checks = Checks()
    if args.only != "pause":
        check_devices(args, checks)
    if args.only != "devices":
        check_pause(args, checks)
    text = json.dumps(checks.report, indent=1)
    print(text)
    if args.output:
        open(args.output, "w").write(text + "\n")
    sys.exit(1 if checks.report["failed"] else 0)


if __name__ == "__main__":
    main()
