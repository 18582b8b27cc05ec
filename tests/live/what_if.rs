//! `memspy what-if`: its replays reserve what PyTorch reserved in the job itself.

use std::path::Path;
use std::process::Command;

use crate::support::memspy::{Done, Recording, document, memspy_at, run};
use crate::support::sim;
use memspy::render::json::WhatIfJson;
use serde_json::Value;

const EXPANDABLE: &str = "expandable_segments:True";

fn what_if(trace: &Path, words: &[&str]) -> Done {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memspy"));
    command
        .arg("what-if")
        .arg(trace)
        .args(["--python", sim::python().get_program().to_str().unwrap()]);
    run(command.args(words).env("XDG_CACHE_HOME", sim::cache()))
}

/// PyTorch's own peak of reserved bytes, as the job printed it.
fn reserved(line: &str) -> f64 {
    let truth: Value = serde_json::from_str(line.trim()).unwrap();
    truth["reserved"].as_f64().unwrap()
}

#[track_caller]
fn is_near(what: &str, value: &Value, truth: f64, part: f64) {
    let error = value.as_f64().unwrap() / truth - 1.0;
    eprintln!("{what}: {:+.2} % of {truth}", 100.0 * error);
    assert!(error.abs() <= part, "{what}: {value} is not {truth}");
}

#[test]
fn a_recording_predicts_what_expandable_segments_reserve() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.bin");
    let mut job = sim::command("what_if.py", &[]);
    let program: Vec<_> = job.get_args().map(ToOwned::to_owned).collect();
    let mut recorded = Command::new(job.get_program());
    recorded.args([env!("CARGO_BIN_EXE_memspy"), "record", "--exact", "-o"]).arg(&trace).arg("--");
    let truth = reserved(&run(recorded.args(program)).ok().out);
    job.env("PYTORCH_CUDA_ALLOC_CONF", EXPANDABLE);
    let expandable = reserved(&run(&mut job).ok().out);

    let page = folder.path().join("page.html");
    let words = ["--json", "--alloc-conf", EXPANDABLE, "--html", page.to_str().unwrap()];
    let answer = document::<WhatIfJson>(&what_if(&trace, &words).ok().out);
    is_near("recorded", &answer["recorded_reserved_peak"], truth, 0.0);
    is_near("replayed", &answer["replayed_reserved_peak"], truth, 0.01);
    is_near("predicted", &answer["settings"][1]["reserved_peak"], expandable, 0.05);
    assert_eq!((&answer["agrees"], &answer["best"]), (&true.into(), &1.into()));
    assert_eq!(answer["older_live"], 0);
    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("<svg").count(), 2);

    let done = what_if(&trace, &["--limit", "2GiB", "--alloc-conf", "no_such_setting:1"]);
    done.refused_last(&["PyTorch did not replay no_such_setting:1", "no_such_setting"]);
}

#[test]
fn memory_older_than_the_recording_is_made_first() {
    let mut target = sim::start("what_if.py", &["--wait"]);
    let mut recording = Recording::start_exact(target.pid(), &[]);
    target.say("go");
    let truth = reserved(&target.line());
    recording.interrupt();
    let done = what_if(recording.trace(), &["--json", "--alloc-conf", EXPANDABLE]).ok();
    let answer = document::<WhatIfJson>(&done.out);
    is_near("recorded", &answer["recorded_reserved_peak"], truth, 0.0);
    is_near("replayed", &answer["replayed_reserved_peak"], truth, 0.01);
    assert!(answer["older_live"].as_u64().unwrap() > 0, "{answer}");
}

#[test]
fn a_history_that_the_job_recorded_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("history.bin");
    let mut target = sim::start("what_if.py", &["--wait", "--history"]);
    target.say("go");
    let truth = reserved(&target.line());
    memspy_at(target.pid(), &["history", "--trace", "-o", trace.to_str().unwrap()]).ok();
    let done = what_if(&trace, &["--json", "--alloc-conf", EXPANDABLE]).ok();
    let answer = document::<WhatIfJson>(&done.out);
    is_near("recorded", &answer["recorded_reserved_peak"], truth, 0.0);
    is_near("replayed", &answer["replayed_reserved_peak"], truth, 0.01);
}

#[test]
fn a_recording_without_every_allocation_is_refused() {
    let mut target = sim::start("what_if.py", &["--wait"]);
    let mut recording = Recording::start(target.pid(), &["-r", "100"]);
    target.say("go");
    target.line();
    recording.interrupt();
    what_if(recording.trace(), &[]).refused(&["--exact", "every allocation"]);
}
