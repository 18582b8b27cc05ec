//! `record --match`: processes by their names, also those that start or rename themselves later.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;

use memspy::model::Record;
use memspy::trace::TraceReader;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::memspy::{Done, command, run, wait_until};
use crate::support::sim;
use crate::support::target::Target;

fn ask(target: &mut Target, line: &str) -> Option<Value> {
    target.say(line);
    let said = target.read_until_ready();
    said.last().map(|line| serde_json::from_str(line).unwrap())
}

fn pid_of(answer: &Value) -> u32 {
    u32::try_from(answer["pid"].as_u64().unwrap()).unwrap()
}

/// The peak of allocated bytes in a trace.
fn allocated(trace: &Path) -> Option<i64> {
    let mut records: Vec<Record> = Vec::new();
    let _ = TraceReader::open(trace).ok()?.replay(&mut records);
    let of = |record: &Record| match record {
        Record::Counters { counters, .. } => Some(counters.allocated()),
        _ => None,
    };
    records.iter().filter_map(of).max()
}

#[test]
#[ignore = "takes long, and record_ranks sees several processes: scripts/test.sh --all runs it"]
fn matching_processes_are_recorded_even_if_later_started_or_renamed() {
    let folder = tempfile::tempdir().unwrap();
    let mut target = sim::start("renamed.py", &[]);
    let name = format!("ray::Test{}", target.pid());
    let other = ask(&mut target, "start other::worker argv").unwrap();
    let by_argv = ask(&mut target, &format!("start {name}.argv argv")).unwrap();
    assert!(ask(&mut target, &format!("start {name}.later later")).is_none());
    // 15 characters at most.
    let comm = format!("r{}", target.pid());
    let by_comm = ask(&mut target, &format!("start {comm} comm")).unwrap();

    let pattern = format!("^({name}\\..*|{comm})$");
    let mut recorder = command(Some(target.pid()));
    recorder
        .args(["record", "--cpu", "10", "--match", &pattern, "-o"])
        .arg(folder.path().join("called-%p.bin"));
    let mut recorder = recorder.stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(recorder.stderr.take().unwrap());
    let mut said = String::new();
    let mut wait_for = |pid: u32| {
        let attached = format!("attached to process {pid}");
        while !said.contains(&attached) {
            assert!(errors.read_line(&mut said).unwrap() > 0, "no '{attached}' in: {said}");
        }
    };
    wait_for(pid_of(&by_argv));
    wait_for(pid_of(&by_comm));
    let renamed = ask(&mut target, &format!("rename {name}.later")).unwrap();
    wait_for(pid_of(&renamed));
    let started = ask(&mut target, &format!("start {name}.new argv")).unwrap();
    wait_for(pid_of(&started));
    // A name that changes, as Ray's do, ends nothing; a process that ends, only its own recording.
    ask(&mut target, &format!("more {name}.argv"));
    ask(&mut target, &format!("end {comm}"));
    let trace = |answer: &Value| folder.path().join(format!("called-{}.bin", answer["pid"]));
    let more = by_argv["allocated"].as_i64().unwrap() + (4 << 20);
    wait_until("the allocation after the attach in the trace", || {
        allocated(&trace(&by_argv)) == Some(more)
    });
    kill(Pid::from_raw(recorder.id() as i32), Signal::SIGINT).unwrap();
    let mut err = String::new();
    errors.read_to_string(&mut err).unwrap();
    assert!(recorder.wait().unwrap().success(), "{err}");
    for answer in [&by_comm, &renamed, &started] {
        assert_eq!(allocated(&trace(answer)), answer["allocated"].as_i64(), "{answer}");
    }
    assert!(!trace(&other).exists(), "the worker of another name is not recorded");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
}

#[test]
fn words_of_match_that_cannot_work_are_refused() {
    let refused = |words: &[&str]| -> Done { run(command(None).arg("record").args(words)) };
    refused(&["--match", "x", "-o", "one.bin"]).refused(&["--match", "%p"]);
    for words in [
        &["--match", "("][..],
        &["--match", ""],
        &["--match", "x", "-p", "1"],
        &["--match", "x", "-s"],
    ] {
        assert_eq!(refused(words).status.code(), Some(2), "{words:?}");
    }
    let none = refused(&["--match", "no-such-process-anywhere", "-d", "1"]);
    none.refused_last(&[
        "none of processes called no-such-process-anywhere",
        "nothing was recorded",
    ]);
}
