//! `record -s`: a trace for each rank of a distributed job, read together.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::everything_is_there;
use crate::support::memspy::{Done, command, memspy, memspy_at, run, stacks_of, total, wait_until};
use crate::support::sim;
use crate::support::target::Target;
use memspy::model::{EndReason, Metric, Pool, Record};
use memspy::trace::TraceReader;
use serde_json::Value;

const TORCHRUN: [&str; 6] =
    ["python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"];

/// A command with two simulated cards, which `with-sim` shares with all that it starts.
fn on_two_cards() -> Command {
    let mut command = Command::new("scripts/with-sim");
    command.env("SIM_CUDA_DEVICES", "2").env("SIM_CUDA_VALUES", "copy").stdin(Stdio::null());
    command
}

/// Runs a job under torchrun under memspy.
fn record(folder: &Path, words: &[&str], job: &[&str]) -> Done {
    let mut command = on_two_cards();
    command.arg(env!("CARGO_BIN_EXE_memspy")).args(["record", "-s", "--cpu", "10", "-o"]);
    command.arg(folder.join("rank-%r.bin")).args(words).arg("--");
    command.args(TORCHRUN).arg("tests/targets/ranks.py").args(job);
    run(&mut command)
}

fn truth(folder: &Path, rank: u32) -> Value {
    let text = std::fs::read_to_string(folder.join(format!("rank-{rank}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn traces(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut traces: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "bin")).collect();
    traces.sort();
    traces
}

fn records(trace: &Path) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    TraceReader::open(trace).unwrap().replay(&mut records).unwrap();
    records
}

fn words(traces: &[PathBuf]) -> Vec<&str> {
    traces.iter().map(|trace| trace.to_str().unwrap()).collect()
}

/// A trace's peak by the allocator's counter, and its rank.
fn peak(trace: &Path, gpu: u32) -> (i64, Option<u32>) {
    let (mut rank, mut peak) = (None, 0);
    for record in records(trace) {
        match record {
            Record::Start(start) => rank = start.rank,
            Record::Counters { device, counters, .. } if device.0 == gpu => {
                peak = peak.max(counters.stat(Metric::AllocatedBytes, Pool::All).peak);
            }
            _ => {}
        }
    }
    (peak, rank)
}

/// What scripts/gpu-checks/fsdp.py checks on GPUs, on eight simulated ones.
fn fsdp_on_eight_cards(parts: &str) {
    let mut command = on_two_cards();
    command.env("SIM_CUDA_DEVICES", "8").args(["scripts/gpu-checks/run.py", "fsdp"]);
    command.args([env!("CARGO_BIN_EXE_memspy"), "--ranks", "8", "--seconds", "2"]);
    command.args(["--job=--layers 2 --width 128 --words 500 --length 32 --keeps 16"]);
    let done = run(command.args(["--parts", parts]));
    assert!(done.status.success(), "{}\n{}", done.out, done.err);
}

#[test]
fn eight_sharded_ranks_are_recorded_together() {
    fsdp_on_eight_cards("record");
}

#[test]
#[ignore = "takes two minutes, and eight_sharded_ranks_are_recorded_together sees eight ranks: scripts/test.sh --all runs it"]
fn eight_sharded_ranks_are_looked_into_one_is_killed_and_one_is_full() {
    fsdp_on_eight_cards("live,killed,full");
}

#[test]
#[ignore = "takes long, and ranks_together reads the traces of ranks: scripts/test.sh --all runs it"]
fn every_data_parallel_rank_has_a_trace_and_workers_none() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let job = ["ddp", folder.to_str().unwrap(), "--seconds", "2"];
    let said = record(folder, &[], &job).ok().err;
    assert!(said.contains("of a processor in all, shared evenly (--cpu)"), "{said}");
    let traces = traces(folder);
    let names: Vec<&str> =
        traces.iter().map(|trace| trace.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["rank-0.bin", "rank-1.bin"]);
    let mut sum = 0;
    for (rank, trace) in (0..).zip(&traces) {
        let truth = truth(folder, rank);
        assert_eq!(peak(trace, rank), (truth["peak"].as_i64().unwrap(), Some(rank)), "{truth}");
        let all = memspy(&["flame", trace.to_str().unwrap(), "-f", "collapsed", "-o", "-"]).ok();
        sum += total(&stacks_of(&all.out));
    }
    // Together they are the sum of each alone.
    let all = [&["flame", "-f", "collapsed", "-o", "-"], &words(&traces)[..]].concat();
    let together = stacks_of(&memspy(&all).ok().out);
    assert_eq!(total(&together), sum);
    for rank in ["rank 0;", "rank 1;"] {
        assert!(together.iter().any(|(stack, _)| stack.starts_with(rank)), "{together:?}");
    }
    let svg = folder.join("both.svg");
    memspy(&[&["flame", "-o", svg.to_str().unwrap()], &words(&traces)[..]].concat()).ok();
    assert!(std::fs::read_to_string(svg).unwrap().contains("GPU memory of 2 ranks"));
    let lines = memspy(&[&["lines"], &words(&traces)[..]].concat()).ok().out;
    assert!(lines.contains("== rank 0 ==") && lines.contains("== rank 1 =="), "{lines}");
    let highest = memspy(&[&["lines", "--max-peak"], &words(&traces)[..]].concat()).ok().out;
    assert!(!highest.contains("== rank"), "{highest}");
    // A busy machine may print a warning before.
    memspy(&[&["lines", "--json"], &words(&traces)[..]].concat()).refused_last(&["--max-peak"]);
}

#[test]
fn a_launchers_pid_names_the_ranks_below_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut launcher = on_two_cards();
    launcher.args(["python", "tests/targets/ranks.py", "--launch", "ddp"]).arg(folder);
    let mut target = Target::start(launcher);
    target.say("go");
    wait_until("a snapshot of both ranks", || {
        let done = memspy_at(target.pid(), &["tensors", "-s"]);
        ["== rank 0 (process ", "== rank 1 (process ", "optimizer state"]
            .iter()
            .all(|head| done.out.contains(head))
    });
    let limits = ["--for", "300ms", "--max-time", "120s", "--max-stop", "60s"];
    let [growth, summary] = ["growth", "summary"].map(|name| [&[name][..], &limits].concat());
    for words in [&["tensors"][..], &["graph"], &["dump"], &["devices"], &growth, &summary] {
        memspy_at(target.pid(), words).refused(&[
            &target.pid().to_string(),
            "rank 0 (process ",
            "rank 1 (process ",
            "add -s",
        ]);
        // All commands read ranks alike.
        if everything_is_there() || words == ["graph"] || words == ["devices"] {
            let of_all = memspy_at(target.pid(), &[words, &["-s"]].concat()).ok().out;
            assert!(words == ["devices"] || of_all.contains("== rank 1 "), "{of_all}");
        }
    }
    memspy_at(target.pid(), &["referrers", "nothing"]).refused(&["rank 0 (process ", "add -s"]);
    let of_none = memspy_at(target.pid(), &["referrers", "-s", "nothing"]);
    of_none.refused_last(&["rank 0", "rank 1"]);
    std::fs::write(folder.join("seen"), "").unwrap();
    assert!(target.wait().success());
}

#[test]
#[ignore = "takes half a minute, and record_match sees processes that start later: scripts/test.sh --all runs it"]
fn a_rank_that_starts_later_is_found_and_recorded_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut launcher = on_two_cards();
    launcher.args(["python", "tests/targets/ranks.py", "--launch", "fsdp"]);
    launcher.arg(folder);
    let mut target = Target::start(launcher);
    let mut memspy = command(Some(target.pid()));
    memspy.args(["record", "-s", "--exact", "-p", &target.pid().to_string(), "-o"]);
    memspy.arg(folder.join("rank-%r.bin")).stderr(Stdio::piped());
    let memspy = memspy.spawn().unwrap();
    target.say("go");
    wait_until("a snapshot of both ranks", || {
        let done = memspy_at(target.pid(), &["dump", "-s"]);
        // Shards have the memory of their distributed tensors, which have none of their own.
        let heads = ["== rank 0 (process ", "== rank 1 (process ", "parameters", "optimizer state"];
        heads.iter().all(|head| done.out.contains(head)) && !done.out.contains("elsewhere")
    });
    std::fs::write(folder.join("seen"), "").unwrap();
    assert!(target.wait().success());
    let done = memspy.wait_with_output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{said}");
    let traces = traces(folder);
    assert_eq!(traces.len(), 2, "{said}");
    for (rank, trace) in (0..).zip(&traces) {
        let truth = truth(folder, rank);
        let Some(Record::End(end)) = records(trace).pop() else { panic!("no end") };
        let totals = end.totals.exact.unwrap();
        // Attached before the first; some come after the truth was written.
        let made = truth["allocations"].as_u64().unwrap();
        assert!((made..made + 100).contains(&totals.allocations), "{totals:?} of {made}");
        assert_eq!(totals.lost, 0);
        let peak = memspy_peak(trace, rank);
        assert_eq!(peak, truth["peak"].as_u64().unwrap(), "{said}");
    }
}

/// The exact peak in the flamegraph.
fn memspy_peak(trace: &Path, gpu: u32) -> u64 {
    let gpu = gpu.to_string();
    let words = ["flame", trace.to_str().unwrap(), "--gpu", &gpu, "-f", "collapsed", "-o", "-"];
    total(&stacks_of(&memspy(&words).ok().out))
}

#[test]
#[ignore = "takes long: scripts/test.sh --all runs it"]
fn a_rank_that_is_killed_ends_its_own_trace_only() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let job = ["ddp", folder.to_str().unwrap(), "--seconds", "60", "--dies", "1"];
    let done = record(folder, &[], &job);
    // torchrun's message, not memspy's.
    assert_eq!(done.status.code(), Some(1), "{}", done.err);
    let traces = traces(folder);
    assert_eq!(traces.len(), 2, "{}", done.err);
    for trace in &traces {
        let Some(Record::End(end)) = records(trace).pop() else { panic!("no end") };
        assert_eq!(end.reason, EndReason::TargetExited);
        memspy(&["lines", trace.to_str().unwrap()]).ok();
    }
}

#[test]
fn importing_processes_are_no_members_yet_driver_users_are() {
    let folder = tempfile::tempdir().unwrap();
    let record = |pid: u32, name: &str| {
        let mut command = command(Some(pid));
        command.args(["record", "-s", "--cpu", "10", "-d", "0.6", "-p", &pid.to_string(), "-o"]);
        command.arg(folder.path().join(name));
        run(&mut command)
    };
    let alone = sim::start("driver_only.py", &[]);
    record(alone.pid(), "alone-%p.bin").ok();
    // A launcher, which leaves the devices to its ranks.
    let mut importing = sim::start("driver_only.py", &["--importing"]);
    let done = record(importing.pid(), "importing-%p.bin");
    assert_eq!(done.status.code(), Some(1), "{}", done.err);
    assert!(done.err.contains("nothing was recorded"), "{}", done.err);
    importing.say("go");
    assert_eq!(importing.line(), "HELD");
    record(importing.pid(), "holds-%p.bin").ok();
    assert_eq!(traces(folder.path()).len(), 2);
}

#[test]
fn one_name_for_several_files_is_refused() {
    let idle = Target::start(crate::support::pythons::newest_here().target("counters.py"));
    let pid = idle.pid().to_string();
    memspy(&["record", "-s", "-p", &pid, "-o", "one.bin"]).refused(&["%r", "one.bin"]);
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("x-%p.bin");
    let words =
        ["record", "-s", "--cpu", "10", "-d", "0.5", "-p", &pid, "-o", name.to_str().unwrap()];
    let done = memspy(&words);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        done.err.contains("used CUDA") && done.err.contains("nothing was recorded"),
        "{}",
        done.err
    );
}

#[test]
#[ignore = "takes long, and a_launchers_pid_names_the_ranks_below_it sees ranks: scripts/test.sh --all runs it"]
fn one_ranks_condition_is_noted_in_all_traces() {
    let folder = tempfile::tempdir().unwrap();
    let mut launcher = sim::command("uneven.py", &[]);
    launcher.env("SIM_CUDA_DEVICES", "2");
    let mut job = Target::start_when(launcher, |line| line == "rank 0 READY");
    job.say("start 1");
    while job.line() != "rank 1 READY" {}
    let mut memspy = command(Some(job.pid()));
    memspy.args([
        "record",
        "-s",
        "--cpu",
        "10",
        "--until",
        "allocated>1G",
        "-p",
        &job.pid().to_string(),
        "-o",
    ]);
    memspy.arg(folder.path().join("rank-%r.bin")).stderr(Stdio::piped());
    let mut memspy = memspy.spawn().unwrap();
    let mut said = BufReader::new(memspy.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut lines = Vec::new();
    while lines.iter().filter(|line: &&String| line.contains("attached to")).count() < 2 {
        lines.push(said.next().unwrap_or_else(|| panic!("not attached: {lines:#?}")));
    }
    job.say("grow 1");
    lines.extend(said);
    assert!(memspy.wait().unwrap().success(), "{lines:#?}");
    let came_true: Vec<&String> =
        lines.iter().filter(|line| line.contains("' was met: ")).collect();
    let [came_true] = came_true[..] else { panic!("{lines:#?}") };
    assert!(came_true.starts_with("memspy: rank 1 (process "), "{came_true}");
    assert!(came_true.contains("'allocated>1G' was met: "), "{came_true}");
    let reasons: Vec<EndReason> = traces(folder.path())
        .iter()
        .map(|trace| match records(trace).pop() {
            Some(Record::End(end)) => end.reason,
            other => panic!("no end: {other:?}"),
        })
        .collect();
    let condition = "allocated>1G".to_owned();
    let [EndReason::OtherProcess { condition: other, process }, EndReason::Condition(own)] =
        &reasons[..]
    else {
        panic!("{reasons:?}")
    };
    assert_eq!((other, own), (&condition, &condition));
    assert!(process.starts_with("rank 1 (process "), "{process}");
    let summary = lines.iter().find(|line| line.contains("rank-0.bin (")).unwrap();
    assert!(summary.contains("'allocated>1G' was met in rank 1 (process "), "{summary}");
}
