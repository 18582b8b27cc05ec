//! Stopping a process for a moment: it loses nothing and always continues.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::everything_is_there;
use crate::support::memspy::{memspy_at, wait_until};
use crate::support::target::Target;
use crate::support::{pythons, sim};
use memspy::target::{Process, PtraceStop, StopError};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde_json::Value;

fn counts(target: &mut Target) -> Value {
    target.say("counts");
    serde_json::from_str(&target.line()).unwrap()
}

fn number(counts: &Value, what: &str) -> u64 {
    counts[what].as_u64().unwrap()
}

/// All threads' states, from the kernel.
fn states(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let state = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    };
    tasks.flatten().filter_map(state).collect()
}

#[test]
#[ignore = "takes long, and other tests pause jobs: scripts/test.sh --all runs it"]
fn threads_signals_and_waits_outlive_a_thousand_pauses() {
    let mut target = Target::start(pythons::newest_here().target("paused.py"));
    let process = Process::open(target.pid()).unwrap();
    let pid = Pid::from_raw(target.pid() as i32);
    let mut sent = 0;
    let (mut rounds, mut missed) = (0, 0);
    while rounds < 1000 {
        // One at a time: two pending signals of a kind are one.
        if rounds % 20 == 0 {
            wait_until("the signal to arrive", || number(&counts(&mut target), "signals") == sent);
            kill(pid, Signal::SIGUSR1).unwrap();
            sent += 1;
        }
        match PtraceStop::attach(&process) {
            Ok(pause) => {
                // Except threads that were ending.
                let stands = |state: char| "tZX".contains(state);
                let states = states(target.pid());
                assert!(states.chars().all(stands), "all stand still: {states}");
                drop(pause);
                rounds += 1;
            }
            // Threads were created faster than they could be stopped.
            Err(StopError::Os { .. }) => missed += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(missed < 1000, "{missed} of {rounds} could not be stopped");
    }
    assert!(!states(target.pid()).contains(['t', 'T']));
    let before = counts(&mut target);
    std::thread::sleep(Duration::from_millis(300));
    let after = counts(&mut target);
    assert_eq!(number(&after, "signals"), sent);
    for what in ["work", "threads", "sleeps", "selects"] {
        assert!(number(&after, what) > number(&before, what), "{what} went on: {before} {after}");
    }
    assert_eq!(after["errors"], serde_json::json!([]));
}

#[test]
#[ignore = "takes long, and a_stopped_process_that_is_killed_does_not_await_memspy sees stops: scripts/test.sh --all runs it"]
fn a_process_that_a_debugger_holds_is_left_to_it() {
    let target = sim::start("holders_truth.py", &[]);
    let held = Pid::from_raw(target.pid() as i32);
    ptrace::attach(held).unwrap();
    waitpid(held, None).unwrap();
    memspy_at(target.pid(), &["tensors"]).refused(&["is being traced", "--no-stop"]);
    memspy_at(target.pid(), &["tensors", "--no-stop"]).ok();
    ptrace::detach(held, None).unwrap();
    memspy_at(target.pid(), &["tensors"]).ok();
}

#[test]
fn a_memspy_that_is_killed_leaves_no_thread_standing() {
    let mut target = sim::start("holders_truth.py", &[]);
    target.say("train");
    let look = || {
        let mut command = crate::support::memspy::command(Some(target.pid()));
        command.args(["tensors", "-p", &target.pid().to_string()]);
        spawn(command)
    };
    let begun = Instant::now();
    look().wait().unwrap();
    let mut whole = begun.elapsed();
    let (mut killed, mut rounds) = (0u32, 0);
    // At any moment of a snapshot, however long it takes here.
    let times = if everything_is_there() { 40 } else { 8 };
    while killed < times {
        let mut memspy = look();
        std::thread::sleep(whole * killed / times);
        match memspy.try_wait().unwrap() {
            None => killed += 1,
            // It was faster than the measured one.
            Some(_) => whole = whole * 9 / 10,
        }
        rounds += 1;
        assert!(rounds < 400, "{killed} of {rounds} were killed in the midst of a look");
        let _ = memspy.kill();
        memspy.wait().unwrap();
        wait_until("all threads to go on", || !states(target.pid()).contains(['t', 'T']));
    }
}

fn spawn(mut command: Command) -> std::process::Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_stopped_process_that_is_killed_does_not_await_memspy() {
    for _ in 0..if everything_is_there() { 20 } else { 8 } {
        let mut target = Target::start(pythons::newest_here().target("paused.py"));
        let process = Process::open(target.pid()).unwrap();
        let pause = loop {
            match PtraceStop::attach(&process) {
                Ok(pause) => break pause,
                Err(StopError::Os { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        };
        kill(Pid::from_raw(target.pid() as i32), Signal::SIGKILL).unwrap();
        drop(pause);
        // This thread lives on, and was its tracer.
        assert!(!target.wait().success());
    }
}
