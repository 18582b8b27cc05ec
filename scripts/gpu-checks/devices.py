"""`memspy devices`, `pause` and `resume`, with nvidia-smi.

A training job (small transformer, fixed seed, logs each loss bit by bit) runs in its own process.
Devices: compares every column of `devices --format csv` with `nvidia-smi --query-gpu`, and the
parts of `devices --json -p` with NVML's used memory and the job's torch.cuda figures.
Pause: pauses and resumes the job again and again. Prints seconds and MiB before and after, and
whether losses and final weights equal those of an undisturbed run, bit by bit.
Faults: --for with SIGTERM, a killed memspy, too little host memory.
"""
import csv
import io
import json
import os
import signal
import statistics
import subprocess
import time

from harness import JOBS, Job, new_file, python, run

QUERY = ["timestamp", "name", "pci.bus_id", "driver_version", "pstate", "pcie.link.gen.max", "pcie.link.gen.current", "temperature.gpu",
         "utilization.gpu", "utilization.memory", "memory.total", "memory.free", "memory.used"]
MIB = 1 << 20


def add_options(parser):
    parser.add_argument("--steps", type=int, default=2000, help="training steps of the job")
    parser.add_argument("--cycles", type=int, default=5, help="how often it is paused")
    parser.add_argument("--gib", type=float, default=4, help="memory it holds beside the model")
    parser.add_argument("--only", choices=["devices", "pause"])


class Training(Job):
    def __init__(self, args):
        self.log = new_file(".log")
        super().__init__(python(os.path.join(JOBS, "devices.py"), args.steps, args.gib, self.log))

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


def nvidia_smi(query):
    done = subprocess.run(["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits"], capture_output=True, text=True)
    return done.stdout


def check_columns(args, verdicts):
    # Read both at almost the same time, at rest; nvidia-smi in plain units, its memory in MiB.
    for _ in range(3):
        done = run(args.memspy, "devices", "--format", "csv")
        smi = nvidia_smi("gpu=" + ",".join(QUERY))
        if done.returncode == 0 and smi:
            break
    head = done.stdout.splitlines()[0].split(",")
    verdicts.that("csv: header", head == QUERY, head)
    ours = list(csv.DictReader(io.StringIO(done.stdout)))
    theirs = [dict(zip(QUERY, (cell.strip() for cell in row))) for row in csv.reader(io.StringIO(smi))]
    verdicts.that("csv: number of GPUs", len(ours) == len(theirs), (len(ours), len(theirs)))
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
            verdicts.that(f"csv: {key}", same, f"{mine} | {smis}")
    verdicts.figures["csv"] = rows
    verdicts.figures["devices_seconds"] = done.seconds


def check_process(args, verdicts, job):
    job.say("truth")
    reserved, allocated, free, total, properties = map(int, job.answer().split())
    done = run(args.memspy, "devices", "--json", "-p", job.pid)
    look = json.loads(done.stdout)
    all_devices = look["processes"][0]["devices"]
    device = next((d for d in all_devices if d["cuda_index"] == 0), all_devices[0])
    parts = {key: device[key] for key in ("reserved_on_device", "outside_pytorch", "other_processes", "no_process")}
    verdicts.that("reserved", device["reserved"] == reserved, (device["reserved"], reserved))
    verdicts.that("allocated", device["allocated"] == allocated, (device["allocated"], allocated))
    smi_used = dict(tuple(int(cell) for cell in line.split(",")) for line in nvidia_smi("gpu=index,memory.used").splitlines())
    verdicts.figures["nvidia_smi_compute_apps"] = nvidia_smi("compute-apps=pid,used_memory").splitlines()
    verdicts.figures["listed_processes"] = look["devices"][device["index"] or 0]["processes"]
    verdicts.figures["job_pid"] = job.pid
    if all(value is not None for value in parts.values()):
        total_of_parts = sum(parts.values())
        off = total_of_parts - device["used"]
        verdicts.that("parts add up to NVML's used within 1 %", abs(off) <= device["used"] / 100, f"{parts}, used {device['used']}, off {off}")
        smis = smi_used[device["index"]] * MIB
        verdicts.that("parts add up to nvidia-smi's used within 1 %", abs(total_of_parts - smis) <= smis / 100, (total_of_parts, smis))
        # The driver's own use is small; if it is not, a process is missing.
        verdicts.that("of no process: below 1 % of used", parts["no_process"] <= device["used"] / 100, parts["no_process"])
    else:
        # If a pid namespace hides the job from the driver's list, memspy must say so.
        why = device["outside_pytorch_unknown_because"]
        verdicts.figures["parts_unknown_because"] = why
        verdicts.that("parts are unknown, and memspy says why", bool(why), why)
        verdicts.that("reserved is at most what is in use", device["reserved"] <= device["used"], (device["reserved"], device["used"]))
    verdicts.figures["process"] = {**{k: v for k, v in device.items() if k != "fragmentation"}, "seconds": done.seconds}
    verdicts.figures["total_memory"] = {
        "nvml_total": device["total"], "nvml_reserved": device["driver_reserved"], "cudaMemGetInfo_total": total, "cudaMemGetInfo_free": free,
        "nvml_free": device["free"], "torch_total_memory": properties}
    verdicts.figures["fragmentation"] = {k: v for k, v in device["fragmentation"].items() if k not in ("private_pools",)}
    print(run(args.memspy, "devices", "-p", job.pid).stdout, flush=True)


def wait_for_steps(job, number):
    while len(job.lines()) < number:
        if job.process.poll() is not None:
            raise SystemExit(f"the job ended with {job.process.returncode}")
        time.sleep(0.005)


def check_pause(args, verdicts):
    undisturbed = Training(args)
    undisturbed.say("run")
    started = time.perf_counter()
    verdicts.that("undisturbed run", undisturbed.answer() == "DONE")
    verdicts.figures["undisturbed_seconds"] = time.perf_counter() - started
    expected, expected_end = undisturbed.losses(), undisturbed.last()
    verdicts.figures["median step seconds, undisturbed"] = undisturbed.step_seconds()
    undisturbed.end()

    job = Training(args)
    job.say("run")
    cycles = []
    for cycle in range(args.cycles):
        wait_for_steps(job, 2 + cycle * args.steps // (args.cycles + 1))
        paused = run(args.memspy, "pause", "--json", "-p", job.pid)
        if paused.returncode:
            verdicts.that("pause", False, paused.stderr)
            break
        time.sleep(0.3)
        before = len(job.lines())
        time.sleep(0.5)
        verdicts.that(f"cycle {cycle}: the job waits", len(job.lines()) - before <= 1, len(job.lines()) - before)
        second = run(args.memspy, "pause", "-p", job.pid)
        verdicts.that(f"cycle {cycle}: paused twice is refused", second.returncode == 1 and "already" in second.stderr, second.stderr.strip())
        resumed = run(args.memspy, "resume", "--json", "-p", job.pid)
        if resumed.returncode:
            verdicts.that("resume", False, resumed.stderr)
            break
        away, back = json.loads(paused.stdout), json.loads(resumed.stdout)
        mib = lambda value: None if value is None else round(value / MIB, 2)
        gpu_away, gpu_back = away["devices"][0], back["devices"][0]
        cycles.append({
            "pause_seconds": away["seconds"], "pause_command_seconds": paused.seconds,
            "resume_seconds": back["seconds"], "resume_command_seconds": resumed.seconds,
            "used_mib": [mib(gpu_away["used_before"]), mib(gpu_away["used_after"]), mib(gpu_back["used_before"]), mib(gpu_back["used_after"])],
            "process_mib": [mib(gpu_away["process_before"]), mib(gpu_away["process_after"]), mib(gpu_back["process_before"]), mib(gpu_back["process_after"])],
            "host_process_mib": [mib(away["process_host_before"]), mib(away["process_host_after"]), mib(back["process_host_after"])],
            "host_available_mib": [mib(away["host_available_before"]), mib(away["host_available_after"]), mib(back["host_available_after"])],
        })
        freed = gpu_away["used_before"] - gpu_away["used_after"]
        own = gpu_away["process_before"]
        if own:
            verdicts.that(f"cycle {cycle}: 99 % of the process's memory is given away", freed >= own * 0.99, (mib(freed), mib(own)))
        print(json.dumps(cycles[-1]), flush=True)
    verdicts.figures["cycles"] = cycles
    for what in ("pause_seconds.lock", "pause_seconds.transfer", "resume_seconds.transfer", "resume_seconds.unlock"):
        part, step = what.split(".")
        if cycles:
            verdicts.figures[f"median {what}"] = statistics.median(c[part][step] for c in cycles)
    verdicts.that("disturbed run ends", job.answer() == "DONE")
    verdicts.that(f"{len(expected)} losses are bit-identical", job.losses() == expected,
                  [i for i, pair in enumerate(zip(job.losses(), expected)) if pair[0] != pair[1]][:5])
    verdicts.that("weights and ballast are bit-identical", job.last() == expected_end, (job.last(), expected_end))
    verdicts.figures["median step seconds, paused in between"] = job.step_seconds()
    verdicts.figures["losses"] = {"first": float.fromhex(expected[0]), "last": float.fromhex(expected[-1]), "count": len(expected)}
    job.end()
    check_failures(args, verdicts)


def check_failures(args, verdicts):
    job = Training(args)
    job.say("run")
    refused = run(args.memspy, "pause", "--keep-free", "1000000G", "-p", job.pid)
    verdicts.that("too little host memory is refused", refused.returncode == 1 and "too little memory" in refused.stderr, refused.stderr.strip())
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        memspy = subprocess.Popen([args.memspy, "pause", "--for", "10m", "-p", str(job.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said = ""
        while "if memspy is killed" not in said and memspy.poll() is None:
            said += memspy.stderr.readline()
        memspy.send_signal(how)
        memspy.communicate()
        if how == signal.SIGKILL:
            again = run(args.memspy, "resume", "-p", job.pid)
            verdicts.that("after SIGKILL of memspy: resume", again.returncode == 0, again.stderr.strip())
        else:
            verdicts.that(f"--for ended by {how.name}", memspy.returncode == 0, memspy.returncode)
        at = len(job.lines())
        end = time.time() + 20
        while len(job.lines()) == at and time.time() < end and not job.last():
            time.sleep(0.05)
        verdicts.that(f"after {how.name} the job goes on", len(job.lines()) > at or bool(job.last()))
    not_paused = run(args.memspy, "resume", "-p", job.pid)
    verdicts.that("resume of a running job is refused", not_paused.returncode == 1 and "not paused" in not_paused.stderr, not_paused.stderr.strip())
    own = run(args.memspy, "pause", "-p", os.getpid())
    verdicts.that("a process without CUDA is refused", own.returncode == 1 and "CUDA" in own.stderr, own.stderr.strip())
    job.process.kill()
    job.process.wait()


def check(args, verdicts):
    if args.only != "pause":
        job = Training(args)
        check_columns(args, verdicts)
        check_process(args, verdicts, job)
        job.end()
    if args.only != "devices":
        check_pause(args, verdicts)
