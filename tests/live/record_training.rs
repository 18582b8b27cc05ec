//! A training job that never rests: snapshots, doctor, and a recording's memory.

use crate::support::memspy::{Recording, collapsed, document, lines, memspy_at, total};
use crate::support::target::Target;
use crate::support::{pythons, sim};
use memspy::render::json::{DoctorJson, DumpJson};
use serde_json::Value;

/// Starts training that lasts until it is killed, and waits for its first step.
fn train() -> Target {
    let mut command = sim::command("train.py", &["--seconds", "600", "--layers", "2"]);
    command.env("PYTHONUNBUFFERED", "1");
    Target::start_when(command, |line| line.starts_with("step"))
}

fn segments_hold(device: &Value) -> u64 {
    let segments = device["segments"].as_array().unwrap();
    let blocks = segments.iter().flat_map(|s| s["blocks"].as_array().unwrap());
    blocks.filter(|b| b["state"] == "active_allocated").map(|b| b["size"].as_u64().unwrap()).sum()
}

#[test]
#[ignore = "takes half a minute, and owners of a job that trains are seen in record_holders: scripts/test.sh --all runs it"]
fn looks_at_a_job_that_trains() {
    let mut target = train();
    for _ in 0..3 {
        let dump = memspy_at(target.pid(), &["dump", "--json"]).ok();
        let snapshot = document::<DumpJson>(&dump.out);
        let device = &snapshot["devices"][0];
        assert_eq!(device["block_map"]["consistent"], true, "{}", snapshot["not_read"]);
        let allocated = device["allocated"].as_u64().unwrap();
        assert_eq!(segments_hold(device), allocated);
        // Blocks and owners are of one moment, whatever the job does between two snapshots.
        assert_eq!(snapshot["owners"]["devices"]["cuda:0"]["allocated"], device["allocated"]);
        let stats = &device["memory_stats"];
        assert!(stats["allocated_bytes.all.peak"].as_u64().unwrap() >= allocated);
        let frames = |thread: &Value| thread["frames"].as_array().unwrap().clone();
        let threads = snapshot["threads"].as_array().unwrap();
        assert!(threads.iter().flat_map(frames).any(|f| f["function"] == "main"), "{}", dump.out);
        let sum = ["allocated", "cached_free"].map(|key| device[key].as_u64().unwrap());
        assert!(sum[0] + sum[1] <= device["reserved"].as_u64().unwrap());
        assert!(device["outside_pytorch"].as_u64().unwrap() > 0);
    }
    let text = memspy_at(target.pid(), &["dump"]).ok().out;
    for part in
        ["\"MainThread\"", "train.py", "GPU 0", "allocated through PyTorch", "outside PyTorch"]
    {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    let values: Vec<usize> = text
        .lines()
        .filter(|line| line.starts_with("    ") && (line.ends_with('B')))
        .map(|line| line.len() - line.split_whitespace().rev().take(2).map(str::len).sum::<usize>())
        .collect();
    assert!(values.len() >= 5 && values.iter().all(|at| *at == values[0]), "crooked: {text}");

    let doctor = memspy_at(target.pid(), &["doctor"]).ok().out;
    for part in ["yes  memory", "yes  stacks", "yes  allocator", "yes  counters", "yes  driver"] {
        assert!(doctor.contains(part), "no '{part}' in {doctor}");
    }
    target.kill();
}

#[test]
fn doctor_of_a_python_without_pytorch_says_no() {
    let target = Target::start(pythons::newest_here().target("life.py"));
    let doctor = memspy_at(target.pid(), &["doctor"]).ok().out;
    assert!(doctor.contains("NO   allocator"), "{doctor}");
    assert!(doctor.contains("yes  recording"), "{doctor}");
    let json = document::<DoctorJson>(&memspy_at(target.pid(), &["doctor", "--json"]).ok().out);
    assert_eq!((&json["pid"], &json["recordable"]), (&target.pid().into(), &true.into()));
    let findings = json["findings"].as_array().unwrap();
    for (about, status) in [("allocator", "fails"), ("recording", "works"), ("process", "fact")] {
        let is_there = |f: &serde_json::Value| f["about"] == about && f["status"] == status;
        assert!(findings.iter().any(is_there), "{json}");
    }
    assert_eq!(findings.len(), doctor.lines().count(), "{json}");
    target.finish();
}

/// VmHWM of a process in bytes.
fn most_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
#[ignore = "takes long, and trace_memory and trace_size see the same of traces: scripts/test.sh --all runs it"]
fn recording_training_takes_little_memory_and_adds_up() {
    let mut target = train();
    let mut recording = Recording::start(target.pid(), &[]);
    let seconds = || {
        let done = crate::support::memspy::memspy(&[
            "lines",
            "--json",
            recording.trace().to_str().unwrap(),
        ]);
        let report: Option<Value> = serde_json::from_str(&done.out).ok();
        report.and_then(|r| r["seconds"].as_f64()).unwrap_or(0.0)
    };
    crate::support::memspy::wait_until("five seconds of recording", || seconds() > 5.0);
    let most = most_memory(recording.pid());
    let done = recording.interrupt();
    println!("memspy held at most {:.1} MiB\n{}", most as f64 / (1 << 20) as f64, done.err);
    assert!(most < 64 << 20, "{most} bytes");
    target.kill();

    let report = lines(recording.trace(), &[]);
    let peak = report["peak_allocated"]["bytes"].as_u64().unwrap();
    let stacks = collapsed(recording.trace(), &[]);
    assert!(total(&stacks) <= peak, "{} > {peak}", total(&stacks));
    assert!(total(&stacks) > peak / 2, "{} is far below {peak}", total(&stacks));
    // Which phase of an iteration has the peak is chance; what belongs to which is not.
    let functions = report["functions"].as_array().unwrap();
    let of_step = functions.iter().find(|f| f["function"] == "train_step").unwrap();
    let calls_backward = |r: &&Value| r["source"].as_str().unwrap().contains("loss.backward()");
    let backward = of_step["lines"].as_array().unwrap().iter().find(calls_backward).unwrap();
    assert!(backward["allocated"].as_u64().unwrap() > 0, "{backward}");
    let by_engine: u64 =
        stacks.iter().filter(|s| s.0.contains("[autograd thread]")).map(|s| s.1).sum();
    let live = backward["live_at_peak"].as_u64().unwrap();
    assert!(by_engine <= live, "the engine's {by_engine} bytes belong to {backward}");
    let main = report["functions"].as_array().unwrap().iter().find(|f| f["function"] == "main");
    let rows = main.unwrap()["lines"].as_array().unwrap();
    let step = rows.iter().find(|r| r["source"].as_str().unwrap().contains("train_step(")).unwrap();
    let upper = step["columns"]["allocated_bytes.all.peak"]["upper"].as_u64().unwrap();
    assert!(upper >= peak, "a line that runs nearly all the time reaches the peak: {step}");
}

/// Bytes and samples of a recording that lasts `seconds`.
fn steady(target: &Target, seconds: &str) -> (u64, u64) {
    let mut recording = Recording::start(target.pid(), &["-d", seconds]);
    recording.wait().ok();
    let mut profile = memspy::analysis::Profile::new();
    memspy::trace::TraceReader::open(recording.trace()).unwrap().replay(&mut profile).unwrap();
    (std::fs::metadata(recording.trace()).unwrap().len(), profile.samples())
}

#[test]
#[ignore = "takes long, and trace_size sees the same of traces: scripts/test.sh --all runs it"]
fn a_stack_that_stays_takes_few_bytes_per_sample() {
    let mut command = pythons::newest_here().target("busy_stacks.py");
    command.args(["--steady", "--threads", "1", "--depth", "20"]);
    let target = Target::start(command);
    let (short, long) = (steady(&target, "2"), steady(&target, "10"));
    let each = (long.0 - short.0) as f64 / (long.1 - short.1) as f64;
    println!("{each:.1} bytes per sample: {short:?}, {long:?}");
    assert!(each < 40.0, "{each} bytes per sample");
    target.finish();
}
