//! `memspy pause` and `memspy resume`: whole cycles, and every way in which they fail.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::memspy::{Done, command, document, run, wait_until};
use crate::support::sim;
use crate::support::target::Target;
use memspy::render::json::CheckpointJson;

/// A job on its own card, and a folder for memspy's notes.
struct Job {
    target: Target,
    notes: tempfile::TempDir,
}

impl Job {
    fn start(variables: &[(&str, &str)]) -> Job {
        Job::start_in("plain", variables)
    }

    fn start_in(mode: &str, variables: &[(&str, &str)]) -> Job {
        let mut command = sim::command("allocator_truth.py", &[mode]);
        command.envs(variables.iter().copied());
        Job { target: Target::start(command), notes: tempfile::tempdir().unwrap() }
    }

    fn command(&self, words: &[&str], variables: &[(&str, &str)]) -> std::process::Command {
        let mut command = command(Some(self.target.pid()));
        command.args(words).args(["-p", &self.target.pid().to_string()]);
        command.env("XDG_RUNTIME_DIR", self.notes.path()).envs(variables.iter().copied());
        command
    }

    fn memspy(&self, words: &[&str]) -> Done {
        run(&mut self.command(words, &[]))
    }

    /// With steps of the driver that fail.
    fn failing(&self, words: &[&str], steps: &str) -> Done {
        run(&mut self.command(words, &[("SIM_CUDA_CHECKPOINT_FAIL", steps)]))
    }

    fn json(&self, words: &[&str]) -> Value {
        document::<CheckpointJson>(&self.memspy(&[words, &["--json"]].concat()).ok().out)
    }

    /// Bytes in use on the card.
    fn used(&self) -> u64 {
        let mut command = self.command(&["devices", "--json"], &[]);
        let snapshot: Value = serde_json::from_str(&run(&mut command).ok().out).unwrap();
        snapshot["devices"][0]["memory"]["used"].as_u64().unwrap()
    }

    fn is_paused(&self) -> bool {
        self.used() == 0
    }

    /// Panics unless it continues and sees the card as NVML does.
    #[track_caller]
    fn goes_on(&mut self) {
        self.target.say("again");
        let said = self.target.read_until_ready();
        let truth: Value = serde_json::from_str(said.last().unwrap()).unwrap();
        let bytes = |key: &str| truth["devices"][0][key].as_u64().unwrap();
        assert!(self.used() > 0);
        assert_eq!(bytes("total") - bytes("free"), self.used());
    }

    /// A memspy that has printed `text`.
    fn start_memspy(&self, words: &[&str], text: &str) -> Running {
        let mut command = self.command(words, &[]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains(text) {
            assert!(errors.read_line(&mut said).unwrap() > 0, "no '{text}' in: {said}");
        }
        Running { child, errors, said }
    }
}

struct Running {
    child: Child,
    errors: BufReader<std::process::ChildStderr>,
    said: String,
}

impl Running {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn wait(mut self) -> Done {
        self.errors.read_to_string(&mut self.said).unwrap();
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        Done { status: self.child.wait().unwrap(), out, err: self.said }
    }
}

impl Done {
    /// Panics unless it failed half-way with exit code 1, and its last line contains every part.
    #[track_caller]
    fn failed(self, parts: &[&str]) {
        assert_eq!(self.status.code(), Some(1), "{}{}", self.out, self.err);
        assert_eq!(self.out, "");
        let last = self.err.lines().last().unwrap();
        for part in parts {
            assert!(last.contains(part), "no '{part}' in: {last}");
        }
        let errors = self.err.lines().filter(|line| line.contains("error:")).count();
        assert_eq!(errors, 1, "one line: {}", self.err);
    }
}

#[test]
fn a_paused_job_gives_up_its_memory_and_recovers_it() {
    let mut job = Job::start(&[]);
    let used = job.used();
    assert!(used > 1 << 29);
    let paused = job.json(&["pause"]);
    let device = &paused["devices"][0];
    assert_eq!((&paused["state"], &device["used_before"]), (&"paused".into(), &used.into()));
    assert_eq!((&device["used_after"], &device["process_before"]), (&0.into(), &used.into()));
    for step in ["lock", "transfer"] {
        assert!(paused["seconds"][step].as_f64().unwrap() >= 0.0);
    }
    assert!(paused["process_host_before"].as_u64().unwrap() > 50 << 20);
    assert!(paused["host_available_after"].as_u64().unwrap() > 0);

    // It waits in its next CUDA call; memspy can still read it.
    job.target.say("again");
    std::thread::sleep(Duration::from_millis(300));
    assert!(job.is_paused());
    let text = job.memspy(&["devices"]).ok().out;
    assert!(text.contains("its GPU memory is on the host"), "{text}");
    let dump = job.memspy(&["dump", "--no-stop"]).ok().out;
    assert!(dump.contains("allocator_truth.py"), "{dump}");
    assert!(job.is_paused());

    let resumed = job.json(&["resume"]);
    let device = &resumed["devices"][0];
    assert_eq!((&resumed["state"], &device["used_before"]), (&"running".into(), &0.into()));
    let said = job.target.read_until_ready();
    let truth: Value = serde_json::from_str(said.last().unwrap()).unwrap();
    let free = truth["devices"][0]["free"].as_u64().unwrap();
    let total = truth["devices"][0]["total"].as_u64().unwrap();
    assert_eq!(total - free, job.used(), "what the job itself sees");
    assert!(!job.memspy(&["devices"]).ok().out.contains("on the host"));
    assert_eq!(std::fs::read_dir(job.notes.path()).unwrap().count(), 0, "no note is left");

    let text = job.memspy(&["pause"]).ok();
    assert!(text.err.contains("this changes process"), "{}", text.err);
    assert!(text.out.contains("-> 0 B") && text.out.contains("transfer "), "{}", text.out);
    let text = job.memspy(&["resume"]).ok().out;
    assert!(text.starts_with("resumed process") && text.contains("unlock "), "{text}");
    job.goes_on();
}

#[test]
#[ignore = "takes half a minute, and a_paused_job_gives_up_its_memory_and_recovers_it sees one GPU: scripts/test.sh --all runs it"]
fn all_gpus_and_memory_of_every_kind_go_and_return() {
    for mode in ["two_devices", "expandable", "graph_pool", "async_backend"] {
        let mut job = Job::start_in(mode, &[]);
        let count = if mode == "two_devices" { 2 } else { 1 };
        let (paused, resumed) = (job.json(&["pause"]), job.json(&["resume"]));
        let devices = |moved: &Value, key: &str| -> Vec<u64> {
            let all = moved["devices"].as_array().unwrap();
            all.iter().map(|device| device[key].as_u64().unwrap()).collect()
        };
        assert_eq!(devices(&paused, "used_after"), vec![0; count], "{mode}");
        let before = devices(&paused, "used_before");
        assert!(before.iter().all(|used| *used > 1 << 29), "{mode}: {before:?}");
        assert_eq!(devices(&resumed, "used_after"), before, "{mode}");
        job.goes_on();
    }
}

#[test]
#[ignore = "takes long, and the others pause and resume: scripts/test.sh --all runs it"]
fn a_timed_pause_resumes_by_itself_or_on_request() {
    let mut job = Job::start(&[]);
    let begun = Instant::now();
    let done = job.memspy(&["pause", "--for", "1s"]).ok();
    assert!(begun.elapsed() > Duration::from_secs(1));
    assert!(done.out.contains("paused process") && done.out.contains("resumed process"));
    job.goes_on();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let running = job.start_memspy(&["pause", "--for", "10m"], "resuming it after 600 s");
        assert!(job.is_paused());
        running.signal(signal);
        let done = running.wait().ok();
        assert!(done.out.contains("resumed process"), "{}", done.out);
        assert!(!job.is_paused());
    }
    job.goes_on();
}

#[test]
fn a_killed_memspy_leaves_a_resumable_paused_job() {
    let mut job = Job::start(&[]);
    let running = job.start_memspy(&["pause", "--for", "10m"], "if memspy is killed");
    running.signal(Signal::SIGKILL);
    running.wait();
    assert!(job.is_paused());
    job.memspy(&["pause"]).refused(&["paused already, since 20", "memspy resume -p"]);
    let text = job.memspy(&["devices"]).ok().out;
    assert!(text.contains("paused for ") && text.contains("memspy resume -p"), "{text}");
    job.memspy(&["resume"]).ok();
    job.goes_on();
}

#[test]
fn a_pause_ends_with_the_job_or_by_another_program() {
    let mut job = Job::start(&[]);
    let running = job.start_memspy(&["pause", "--for", "10m"], "resuming it after");
    job.memspy(&["resume"]).ok();
    assert!(running.wait().ok().err.contains("resumed by another program"));
    job.goes_on();
    let running = job.start_memspy(&["pause", "--for", "10m"], "resuming it after");
    job.target.kill();
    let done = running.wait();
    assert_eq!(done.status.code(), Some(1));
    assert!(done.err.contains("ended while it was paused"), "{}", done.err);
}

#[test]
#[ignore = "takes long, and steps_that_fail_are_taken_back sees steps that fail: scripts/test.sh --all runs it"]
fn a_job_whose_kernels_do_not_end_in_time_continues() {
    let mut job = Job::start(&[("SIM_CUDA_DRAIN_MS", "5000")]);
    job.memspy(&["pause", "--lock-timeout", "0.2s"]).failed(&[
        "did not finish within 0.2 s",
        "the job goes on with its memory on the GPU",
        "--lock-timeout",
    ]);
    job.goes_on();
}

#[test]
fn ctrl_c_before_the_move_lets_the_job_go_on() {
    let mut job = Job::start(&[("SIM_CUDA_DRAIN_MS", "1500")]);
    let running = job.start_memspy(&["pause"], "this changes process");
    running.signal(Signal::SIGINT);
    running.signal(Signal::SIGINT);
    running.wait().failed(&["interrupted", "the job goes on"]);
    job.goes_on();
}

#[test]
fn too_little_host_memory_is_found_before_anything_is_done() {
    let mut job = Job::start(&[]);
    job.memspy(&["pause", "--keep-free", "100000G"]).refused(&[
        "the host has too little memory",
        "would move",
        "have to be available",
        "--keep-free",
    ]);
    job.goes_on();
}

#[test]
fn steps_that_fail_are_taken_back() {
    let mut job = Job::start(&[]);
    for step in ["lock", "checkpoint"] {
        let parts = ["CUDA_ERROR_UNKNOWN (999)", "the job goes on with its memory on the GPU"];
        job.failing(&["pause"], step).failed(&parts);
        job.goes_on();
    }
    assert_eq!(std::fs::read_dir(job.notes.path()).unwrap().count(), 0, "no note is left");

    // The way back fails, too: the job waits, and memspy says how to continue.
    job.failing(&["pause"], "checkpoint,unlock").failed(&[
        "the job waits in its next CUDA call, with its memory on the GPU",
        "memspy resume -p",
    ]);
    job.memspy(&["pause"]).refused(&["locked already", "memspy resume -p"]);
    job.failing(&["resume"], "unlock").failed(&["cannot unlock", "memspy resume -p"]);
    job.memspy(&["resume"]).ok();
    job.goes_on();

    job.memspy(&["pause"]).ok();
    job.failing(&["resume"], "restore").failed(&[
        "cannot move back the device memory",
        "with its GPU memory on the host",
        "memspy resume -p",
    ]);
    assert!(job.is_paused());
    job.failing(&["resume"], "unlock").failed(&["with its memory on the GPU", "memspy resume -p"]);
    job.memspy(&["resume"]).ok();
    job.goes_on();

    job.failing(&["pause"], "checkpoint-broken")
        .failed(&["has ended the job's CUDA", "its own checkpoint"]);
    for command in ["pause", "resume"] {
        job.memspy(&[command]).refused(&["marked", "as failed", "its own checkpoint"]);
    }
}

#[test]
#[ignore = "takes long: scripts/test.sh --all runs it"]
fn a_full_gpu_keeps_the_job_paused_until_freed() {
    let mut job = Job::start(&[("SIM_CUDA_TOTAL_BYTES", "1500M")]);
    job.memspy(&["pause"]).ok();
    let environment = std::fs::read(format!("/proc/{}/environ", job.target.pid())).unwrap();
    let state = environment.split(|b| *b == 0).find_map(|e| e.strip_prefix(b"SIM_CUDA_STATE="));
    let mut second = sim::command("allocator_truth.py", &["plain"]);
    second.env("SIM_CUDA_STATE", String::from_utf8(state.unwrap().to_vec()).unwrap());
    let second = Target::start(second);
    let parts = ["GPU 0 has too little memory free", "stays paused", "memspy devices"];
    job.memspy(&["resume"]).refused(&parts);
    // Without memspy's note the driver itself knows.
    let elsewhere = tempfile::tempdir().unwrap();
    let elsewhere = elsewhere.path().to_str().unwrap();
    let mut resume = job.command(&["resume"], &[("XDG_RUNTIME_DIR", elsewhere)]);
    run(&mut resume).failed(&["CUDA_ERROR_OUT_OF_MEMORY", "free GPU memory", "memspy resume -p"]);
    let mut again = job.command(&["pause"], &[("XDG_RUNTIME_DIR", elsewhere)]);
    run(&mut again).refused(&["paused already, since when is unknown"]);
    drop(second);
    job.memspy(&["resume"]).ok();
    job.goes_on();
}

#[test]
#[ignore = "takes long: scripts/test.sh --all runs it"]
fn what_cannot_be_paused_is_said_in_one_line() {
    let mut job = Job::start(&[]);
    job.memspy(&["resume"]).refused(&["is not paused", "nothing to do"]);
    let old = [("SIM_CUDA_DRIVER", "550.54.14")];
    run(&mut job.command(&["pause"], &old)).refused(&["driver 550.54.14", "570 or newer"]);
    job.goes_on();

    let pid = job.target.pid();
    let missing = ["pause", "-p", "2147483000"];
    run(command(Some(pid)).args(missing)).refused(&["no process with pid 2147483000"]);
    let own = std::process::id().to_string();
    run(command(Some(pid)).args(["pause", "-p", &own])).refused(&["does not use CUDA"]);
    let without = sim::start("allocator_truth.py", &["none"]);
    let pid = without.pid().to_string();
    run(command(Some(without.pid())).args(["pause", "-p", &pid])).refused(&["does not use CUDA"]);
    wait_until("the job", || !job.is_paused());
}
