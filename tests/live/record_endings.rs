//! Recordings end by the target's end, by signals, by a full disk; what was written stays readable.

use std::process::{Command, Stdio};

use crate::support::memspy::{self, Recording, lines, row, wait_until};
use crate::support::pythons;
use crate::support::sim;
use crate::support::target::Target;
use ::memspy::model::Record;
use ::memspy::trace::TraceReader;
use nix::sys::signal::Signal;
use serde_json::Value;

fn start() -> Target {
    Target::start(pythons::newest_here().target("life.py"))
}

fn count(target: &mut Target) -> i64 {
    target.say("count");
    let said: Value = serde_json::from_str(&target.read_until_ready()[0]).unwrap();
    said["count"].as_i64().unwrap()
}

/// Whether the trace lacks its end, and says so once.
fn ended_abruptly(recording: &Recording) -> bool {
    let mut reader = ::memspy::trace::TraceReader::open(recording.trace()).unwrap();
    let mut profile = ::memspy::analysis::Profile::new();
    let summary = reader.replay(&mut profile).unwrap();
    assert!(summary.records > 0, "no whole block");
    assert!(summary.first_damage.is_none(), "{:?}", summary.first_damage);
    assert_eq!(summary.complete, profile.end().is_some());
    let warned = profile.warnings().iter().filter(|w| w.to_string().contains("abruptly")).count();
    assert_eq!(warned, usize::from(!summary.complete));
    !summary.complete
}

#[test]
fn the_target_exits() {
    let mut target = start();
    let mut recording = Recording::start(target.pid(), &[]);
    target.say("exit 3");
    assert_eq!(target.wait().code(), Some(3));
    let done = recording.wait().ok();
    assert!(done.err.contains("the process exited"), "{}", done.err);
    assert!(!ended_abruptly(&recording));
}

#[test]
fn the_target_is_killed() {
    let mut target = start();
    let mut recording = Recording::start(target.pid(), &[]);
    target.kill();
    let done = recording.wait().ok();
    assert!(done.err.contains("the process exited"), "{}", done.err);
    assert!(!ended_abruptly(&recording));
}

#[test]
fn the_target_becomes_another_program() {
    let mut target = start();
    let mut recording = Recording::start(target.pid(), &[]);
    target.say("exec");
    let done = recording.wait().ok();
    assert!(done.err.contains("the process became another program"), "{}", done.err);
    assert!(!ended_abruptly(&recording));
    target.finish();
}

#[test]
fn a_target_that_executes_python_again_is_another_program() {
    let mut target = start();
    let mut recording = Recording::start(target.pid(), &[]);
    target.say("exec itself");
    target.read_until_ready();
    let done = recording.wait().ok();
    assert!(done.err.contains("the process became another program"), "{}", done.err);
    assert!(!ended_abruptly(&recording));
    target.finish();
}

#[test]
fn the_targets_children_and_the_recording_live_on() {
    let mut target = start();
    let mut recording = Recording::start(target.pid(), &[]);
    target.say("fork 3");
    target.read_until_ready();
    recording.wait_for_block();
    target.say("reap");
    let said: Value = serde_json::from_str(&target.read_until_ready()[0]).unwrap();
    assert_eq!(said["children"], serde_json::json!([7, 7, 7]));
    let done = recording.interrupt();
    assert!(done.err.contains("interrupted"), "{}", done.err);
    assert!(!done.err.contains("failed reads"), "{}", done.err);
    target.finish();
}

#[test]
fn signals_that_ask_for_an_end_get_a_whole_trace() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut target = start();
        let mut recording = Recording::start(target.pid(), &[]);
        recording.signal(signal);
        let done = recording.wait().ok();
        assert!(done.err.contains("interrupted"), "{signal}: {}", done.err);
        assert!(!ended_abruptly(&recording));
        assert!(count(&mut target) > 0);
        target.finish();
    }
}

#[test]
#[ignore = "takes long, and record_flight sees killed recorders: scripts/test.sh --all runs it"]
fn a_recording_killed_at_once_holds_its_first_moments() {
    let target = crate::support::sim::start("iterations_truth.py", &[]);
    let exact = ["--exact", "--iter-var", "counted"];
    for words in [&[][..], &["--keep", "5s"], &exact, &["--exact", "--keep", "5s"]] {
        let mut recording = Recording::start(target.pid(), words);
        recording.signal(Signal::SIGKILL);
        recording.wait();
        let ring = recording.trace().with_extension("ring");
        let trace = match words.contains(&"--keep") {
            true => {
                let ring = ring.to_str().unwrap();
                memspy::memspy(&["join", ring]).ok();
                recording.trace().with_extension("bin")
            }
            false => recording.trace().to_owned(),
        };
        let mut records: Vec<Record> = Vec::new();
        let summary = TraceReader::open(&trace).unwrap().replay(&mut records).unwrap();
        assert!(!summary.complete && summary.first_damage.is_none(), "{words:?}: {summary:?}");
        assert!(matches!(records[0], Record::Start(_)), "{words:?}: {records:?}");
        let counters = |record: &Record| matches!(record, Record::Counters { .. });
        assert!(records.iter().any(counters), "{words:?}: {records:?}");
        let first = |record: &Record| match words.contains(&"--exact") {
            true => matches!(record, Record::ExactSettings(_)),
            false => matches!(record, Record::Sample(sample) if !sample.threads.is_empty()),
        };
        assert!(records.iter().any(first), "{words:?}: {records:?}");
    }
    target.finish();
}

#[test]
fn memspy_is_killed_at_any_moment_and_the_job_continues() {
    let mut target = start();
    let random = || std::time::UNIX_EPOCH.elapsed().unwrap().subsec_nanos() as u64 / 7 % 1500;
    for moment in [0, 7, random(), 150, random(), 1210, random()] {
        eprintln!("killed {moment} ms after it was attached");
        let mut recording = Recording::start(target.pid(), &["-r", "1000"]);
        std::thread::sleep(std::time::Duration::from_millis(moment));
        let before = count(&mut target);
        recording.signal(Signal::SIGKILL);
        recording.wait();
        wait_until("the job's next rounds", || count(&mut target) > before + 20);
        assert!(ended_abruptly(&recording));
    }
    target.finish();
}

#[test]
fn a_full_disk_gives_one_line_and_stays_readable() {
    let mut command = pythons::newest_here().target("busy_stacks.py");
    command.args(["--threads", "8"]);
    let target = Target::start(command);
    // A file size limit acts as a full disk and needs no rights.
    let script = "ulimit -f 20; exec \"$0\" record -r 1000 -p $1 \"${@:2}\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, env!("CARGO_BIN_EXE_memspy"), &target.pid().to_string()]);
    let mut recording = Recording::run(command);
    let done = recording.wait();
    assert_eq!(done.status.code(), Some(1), "{}: {}", done.status, done.err);
    let error: Vec<&str> = done.err.lines().filter(|l| l.contains("error:")).collect();
    assert_eq!(error.len(), 1, "{}", done.err);
    assert!(error[0].contains("ended early: File too large"), "{}", error[0]);
    assert!(ended_abruptly(&recording));
    target.finish();
}

#[test]
fn a_full_file_system_is_one_line_and_readable() {
    assert!(nix::unistd::geteuid().is_root(), "only root can mount a file system: run it as root");
    let target = start();
    // A file system of two pages in memspy's own mount space.
    let script = "mount -t tmpfs -o size=8k tmpfs /mnt && \"$0\" record -r 1000 -p $1 -o /mnt/t.bin; \
                  code=$?; cp /mnt/t.bin $2; exit $code";
    let copy = tempfile::tempdir().unwrap();
    let copied = copy.path().join("t.bin");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_memspy")]);
    let done = memspy::run(command.arg(target.pid().to_string()).arg(&copied));
    assert_eq!(done.status.code(), Some(1), "{}: {}", done.status, done.err);
    assert!(done.err.contains("No space left on device"), "{}", done.err);
    let report = memspy::memspy(&["lines", copied.to_str().unwrap()]);
    assert!(report.err.contains("no GPU memory"), "it was read: {}", report.err);
    target.finish();
}

#[test]
fn a_device_that_takes_nothing_is_one_clear_line() {
    let target = start();
    let done = memspy::memspy_at(target.pid(), &["record", "-d", "2", "-o", "/dev/full"]);
    assert_eq!(done.status.code(), Some(1), "{}", done.err);
    let last = done.err.lines().last().unwrap();
    assert_eq!(last.matches("No space left on device").count(), 1, "{}", done.err);
    assert!(last.contains("cannot create /dev/full"), "{}", done.err);
    target.finish();
}

#[test]
fn the_job_ends_while_it_trains() {
    let mut target = Target::start({
        let mut command = crate::support::sim::command("known_lines.py", &["--pause", "10"]);
        command.stderr(Stdio::null());
        command
    });
    let known: Value = serde_json::from_str(&target.said[0]).unwrap();
    let mut recording = Recording::start(target.pid(), &[]);
    recording.wait_for_block();
    let scratch = known["lines"]["scratch"]["line"].as_u64().unwrap();
    wait_until("the highest line in the trace", || {
        let done = memspy::memspy(&["lines", "--json", recording.trace().to_str().unwrap()]);
        serde_json::from_str(&done.out).is_ok_and(|r: Value| row(&r, "backward", scratch).is_some())
    });
    target.kill();
    let done = recording.wait().ok();
    assert!(done.err.contains("the process exited"), "{}", done.err);
    let report = lines(recording.trace(), &[]);
    assert_eq!(report["peak_allocated"]["bytes"], known["peak_bytes"]);
    assert!(!ended_abruptly(&recording));
}

/// NVML's simulated calls read this; a list of processes never comes.
const HANGING_NVML: &str = r#"
#include <string.h>
#include <unistd.h>
int sim_is_listed(const char *list, const char *call) {
  (void)list;
  if (strstr(call, "RunningProcesses")) for (;;) pause();
  return 0;
}
"#;

/// `record` waited forever for a driver that hangs, and Ctrl-C did not end it.
#[test]
fn an_nvml_that_hangs_does_not_hang_memspy() {
    let target = sim::start("recorded_history.py", &["ring"]);
    let folder = tempfile::tempdir().unwrap();
    let (source, shim) = (folder.path().join("shim.c"), folder.path().join("shim.so"));
    std::fs::write(&source, HANGING_NVML).unwrap();
    let cc = ["-shared", "-fPIC", "-o"];
    assert!(Command::new("cc").args(cc).args([&shim, &source]).status().unwrap().success());
    let trace = folder.path().join("trace");
    let run = |words: &[&str]| {
        let memspy = memspy::command(Some(target.pid()));
        let mut command = Command::new("timeout");
        command.args(["-k", "1", "60"]).arg(memspy.get_program()).args(memspy.get_args());
        memspy::run(command.args(words).env("LD_PRELOAD", &shim))
    };
    let (pid, trace) = (target.pid().to_string(), trace.to_str().unwrap());
    run(&["record", "--cpu", "10", "-p", &pid, "-d", "1", "-o", trace]).ok();
    memspy::memspy(&["lines", trace]).ok();
    target.finish();
}
