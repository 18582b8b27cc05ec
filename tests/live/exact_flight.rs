//! The flight recorder with exact events: what failed, to the byte, and what was live then.

use crate::support::memspy::{Recording, collapsed, total};
use crate::support::oom::{self, ask, place, says, verdict_of};
use crate::support::target::Target;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// The line of the report that begins with `start` and the one below it.
#[track_caller]
fn below<'a>(text: &'a str, start: &str) -> &'a str {
    let mut lines = text.lines().skip_while(|line| !line.trim_start().starts_with(start));
    lines.next().unwrap_or_else(|| panic!("no '{start}' in:\n{text}"));
    lines.next().unwrap()
}

/// Allocates before the recording, then memory that becomes older than the kept part, then new
/// memory; then runs out of memory.
fn run_out(request: &str) -> (Target, Value, Recording) {
    let (mut target, known) = oom::start(&[]);
    let mut recording = Recording::start_exact(
        target.pid(),
        &["--keep", "1s", "--until", "oom", "--until", "exit"],
    );
    ask(&mut target, "late");
    let ring = recording.trace().with_extension("ring");
    crate::support::memspy::wait_until("what is kept beginning later", || {
        !ring.join("00000001.memspy").exists() && ring.join("00000004.memspy").exists()
    });
    ask(&mut target, "grow 100 8");
    target.say(request);
    let done = recording.wait().ok();
    says(&done.err, &["'oom' was met", " 0 lost"]);
    (target, known, recording)
}

fn checked(known: &Value, recording: &Recording) {
    let verdict = verdict_of(recording.trace());
    let asked = below(&verdict, "2.93 GiB (cuMemAlloc)");
    says(asked.split_once(" ← ").unwrap().0, &["ask (", &place(known, "asked")]);
    says(
        &verdict,
        &["live: 1.41 GiB by allocation site", "the 2.93 GiB asked for: the memory is in use"],
    );
    let row = |size: &str, text: &str| {
        let mut rows = verdict.lines().filter(|row| row.trim_start().starts_with(size));
        assert!(rows.any(|row| row.contains(text)), "no {size} of {text} in:\n{verdict}");
    };
    row("800.00 MiB", &place(known, "grown"));
    row("384.00 MiB", "[before recording]");
    row("256.00 MiB", &place(known, "weights"));
}

#[test]
fn an_error_that_the_job_survives_is_exact() {
    let (mut target, known, recording) = run_out("caught 3000");
    target.read_until_ready();
    checked(&known, &recording);
    let stacks = collapsed(recording.trace(), &["--at", "end"]);
    // The leak view excludes what is older than the recording.
    assert_eq!(total(&stacks), (800 + 256) * MIB, "{stacks:?}");
    target.finish();
}

#[test]
fn what_the_error_says_stands_beside_what_the_driver_refused() {
    let (mut target, known, recording) = run_out("handled 3000");
    target.read_until_ready();
    checked(&known, &recording);
    let verdict = verdict_of(recording.trace());
    let stack = below(&verdict, "asked for 2.93 GiB (as PyTorch says");
    says(stack.split_once(" ← ").unwrap().0, &["ask (", &place(&known, "asked")]);
    target.finish();
}

#[test]
fn an_error_that_ends_the_job_is_exact() {
    let (mut target, known, recording) = run_out("fatal 3000");
    assert_eq!(target.wait().code(), Some(1));
    checked(&known, &recording);
}

#[test]
fn a_job_that_dies_at_once_leaves_its_last_look() {
    let (mut target, known, recording) = run_out("abrupt 3000");
    assert_eq!(target.wait().code(), Some(9));
    checked(&known, &recording);
}

#[test]
fn the_jobs_own_limit_is_told_from_a_refusal() {
    let (mut target, _) = oom::start(&["--fraction", "0.2"]);
    let mut recording = Recording::start_exact(target.pid(), &["--until", "oom"]);
    recording.wait_for_block();
    ask(&mut target, "caught 500");
    recording.wait().ok();
    let verdict = verdict_of(recording.trace());
    says(&verdict, &["and the driver refused nothing: a limit of the job's own"]);
    assert!(!verdict.contains("The driver refused\n"), "{verdict}");
    target.finish();
}

#[test]
fn without_driver_probes_the_driver_is_not_mentioned() {
    let (mut target, _) = oom::start(&["--observer"]);
    let words = ["--probes", "perf-only", "--keep", "5s", "--until", "oom"];
    let mut recording = Recording::start_exact(target.pid(), &words);
    recording.wait_for_segment();
    ask(&mut target, "grow 100 8");
    ask(&mut target, "caught 6000");
    recording.wait().ok();
    let verdict = verdict_of(recording.trace());
    says(&verdict, &["live: 1.16 GiB", "free, as last seen"]);
    // A handler that does nothing usually ends before its error can be read.
    let found = verdict.contains("asked for 5.86 GiB");
    assert!(found != verdict.contains("These are samples"), "{verdict}");
    assert!(!verdict.contains("refused"), "{verdict}");
    target.finish();
}

/// memspy's resident bytes.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) << 10
}

#[test]
#[ignore = "takes half a minute: scripts/test.sh --all runs it"]
fn stacks_that_never_return_do_not_take_ever_more_memory() {
    // 120 frames each, hardly two alike: some 5 million numbers in all.
    const PORTIONS: u32 = 20;
    const PORTION: u32 = 2000;
    let mut target = crate::support::sim::start("new_stacks.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &["--keep", "64K"]);
    let mut levels = Vec::new();
    for _ in 0..PORTIONS {
        target.say(&format!("run {PORTION}"));
        target.read_until_ready();
        levels.push(resident(recording.pid()) >> 20);
    }
    let done = recording.interrupt().ok();
    says(&done.err, &["segments were begun"]);
    eprintln!("{levels:?} MiB; {}", done.err);
    let (early, late) = levels.split_at(levels.len() / 2);
    let (early, late) = (early.iter().max().unwrap(), late.iter().max().unwrap());
    // Unwritten records may take 192 MiB; without a bound it is more than a gigabyte.
    assert!(*late < 512, "{early} MiB, then {late}: {levels:?} MiB");
    // Events have stacks, or say that they have none: the machine's speed decides how many events
    // arrive.
    let stacks = collapsed(recording.trace(), &["--total-allocated"]);
    let (named, unnamed): (Vec<_>, Vec<_>) =
        stacks.iter().partition(|(stack, _)| stack.contains("cell_"));
    assert!(unnamed.iter().all(|(stack, _)| stack == "[unknown stack]"), "{unnamed:?}");
    let named: u64 = named.iter().map(|(_, bytes)| *bytes).sum();
    assert!(named * 2 > total(&stacks), "{named} of {}", total(&stacks));
    target.finish();
}
