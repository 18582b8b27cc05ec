//! `record`'s default mode: exact stacks if the job can bear them, else the best alternative.

use std::process::Command;

use crate::exact_keeper::breakpoints;
use crate::support::exact::Exact;
use crate::support::memspy::{Recording, command, lines, wait_until};
use crate::support::sim;
use crate::support::target::Target;
use serde_json::Value;

const AUTO: &[&str] = &["--mode", "auto"];

fn is_exact(recording: &Recording) -> bool {
    !lines(recording.trace(), &[])["exact"].is_null()
}

/// A job that replaces one block after the other until killed, on a reserved processor: the cost of
/// exact stacks depends on how much it runs.
fn busy() -> Target {
    let mut target = sim::start("allocator_load.py", &[]);
    let pid = rustix::process::Pid::from_raw(target.pid() as i32);
    rustix::process::setpriority_process(pid, -10).unwrap();
    for request in ["hold 10", "churn 600 200"] {
        target.say(request);
        target.read_until_ready();
    }
    target
}

/// The main thread's run time in nanoseconds.
fn worked(target: &Target) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", target.pid())).unwrap();
    stat.split(' ').next().unwrap().parse().unwrap()
}

fn asked(target: &mut Target, request: &str) -> Value {
    target.say(request);
    serde_json::from_str(&target.line()).unwrap()
}

/// The trial of exact stacks is part of the recording.
#[test]
fn a_slow_job_gets_exact_stacks_by_default() {
    let mut target = sim::start("exact_torch.py", &[]);
    let mut recording = Recording::start(target.pid(), AUTO);
    recording.wait_for("probes are in place");
    let truth = asked(&mut target, "train 5");
    recording.wait_for("exact stacks: ");
    let done = recording.interrupt();
    let read = Exact::read(recording.trace());
    let grown =
        |key: &str| truth["after"][key].as_u64().unwrap() - truth["before"][key].as_u64().unwrap();
    assert!(is_exact(&recording), "{}", done.err);
    assert!(done.err.contains(" events/s cost the job "), "{}", done.err);
    assert_eq!(read.allocated().count() as u64, grown("allocation.all.allocated"));
    assert_eq!(read.freed() as u64, grown("allocation.all.freed"));
    let requested: u64 = read.allocated().map(|allocated| allocated.1).sum();
    assert_eq!(requested, grown("requested_bytes.all.allocated"));
    target.finish();
}

#[test]
fn a_constantly_allocating_job_is_not_recorded_exactly() {
    let mut target = busy();
    let mut recording = Recording::start(target.pid(), &[AUTO, &["-d", "6"]].concat());
    recording.wait_for("exact stacks would cost ");
    wait_until("the probes have gone", || breakpoints(&target).is_empty());
    let done = recording.wait().ok();
    assert!(!is_exact(&recording), "{}", done.err);
    let line = done.err.lines().find(|line| line.contains("would cost")).unwrap();
    let modes = ["memspy: following the allocator: ", "memspy: sampling 200 times a second: "];
    assert!(modes.iter().any(|mode| line.starts_with(mode)), "{line}");
    assert!(line.contains(" % (--max-slowdown "), "{line}");
    // Its allocations were counted, or -d counts the trial.
    let elapsed = lines(recording.trace(), &[])["seconds"].as_f64().unwrap();
    assert!(elapsed < 6.5, "{elapsed}");
    let before = worked(&target);
    wait_until("the job goes on", || worked(&target) > before);
    target.kill();
}

#[test]
fn without_the_rights_for_probes_the_mode_says_so() {
    let mut target = sim::start("allocator_load.py", &[]);
    target.say("hold 100");
    target.read_until_ready();
    let memspy = command(Some(target.pid()));
    let mut without = Command::new("setpriv");
    without.arg("--bounding-set=-bpf,-perfmon,-sys_admin").arg(memspy.get_program());
    without.args(memspy.get_args()).args(["record", "-d", "1", "-p", &target.pid().to_string()]);
    let mut recording = Recording::run(without);
    let done = recording.wait().ok();
    let why = ": no exact stacks, which take root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE";
    assert!(done.err.contains(why), "{}", done.err);
    assert!(!is_exact(&recording), "{}", done.err);
    target.finish();
}

/// Requested exact stacks continue at any cost, with a warning and its remedy.
#[test]
fn requested_exact_stacks_stay_and_report_their_cost() {
    let mut target = busy();
    let mut recording = Recording::start_exact(target.pid(), &["-d", "2"]);
    let done = recording.wait().ok();
    assert!(is_exact(&recording), "{}", done.err);
    let line = done.err.lines().find(|line| line.contains(" events/s cost the job ")).unwrap();
    let remedy = line.contains(", more than the budget of ") && line.contains("--follow");
    assert!(remedy, "{line}");
    let warning = "warning: exact recording cost the job about ";
    assert!(done.err.contains(warning) && done.err.contains("cost to the job: "), "{}", done.err);
    target.kill();
}
