//! Exact events without BPF: samples of perf events, with stacks from sampling.

use std::path::Path;
use std::process::Command;

use crate::support::exact::Exact;
use crate::support::memspy::{Recording, collapsed, memspy_at, total, wait_until, warnings};
use crate::support::sim;
use crate::support::target::Target;
use memspy::model::{EventKind, Record, StackSource};
use memspy::trace::TraceReader;
use serde_json::Value;

/// Lets the target do something and returns its truth.
fn ask(target: &mut Target, request: &str) -> Value {
    target.say(request);
    serde_json::from_str(&target.line()).unwrap()
}

fn grown(truth: &Value, key: &str) -> u64 {
    truth["after"][key].as_u64().unwrap() - truth["before"][key].as_u64().unwrap()
}

/// How often the events were compared with the counters.
fn comparisons(recording: &Recording) -> usize {
    let mut records: Vec<Record> = Vec::new();
    let _ = TraceReader::open(recording.trace()).map(|mut reader| reader.replay(&mut records));
    records.iter().filter(|record| matches!(record, Record::CounterCheck(_))).count()
}

/// Waits until they have been compared over a time that begins now.
fn wait_for_comparison(recording: &Recording) {
    let before = comparisons(recording);
    wait_until("comparisons with the counters", || comparisons(recording) >= before + 3);
}

/// memspy where bpf(2) is refused.
fn without_bpf() -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/without_bpf.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(env!("CARGO_BIN_EXE_memspy"));
    command
}

#[test]
fn sizes_and_addresses_are_exact_and_stacks_sampled() {
    let mut target = sim::start("exact_torch.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &["--probes", "perf-only"]);
    let truth = ask(&mut target, "train 40");
    wait_for_comparison(&recording);
    let done = recording.interrupt();
    assert!(done.err.contains(" 0 lost"), "{}", done.err);
    assert!(warnings(&done.err).is_empty(), "{}", done.err);
    let read = Exact::read(recording.trace());
    assert_eq!(read.allocated().count() as u64, grown(&truth, "allocation.all.allocated"));
    assert_eq!(read.freed() as u64, grown(&truth, "allocation.all.freed"));
    let requested: u64 = read.allocated().map(|a| a.1).sum();
    assert_eq!(requested, grown(&truth, "requested_bytes.all.allocated"));
    for r in &read.counter_check {
        assert_eq!((r.allocations, r.frees, r.requested), (0, Some(0), 0), "{r:?}");
    }
    // In order: no block is born twice, or dies before it is born.
    let mut live = std::collections::BTreeSet::new();
    for event in &read.events {
        match event.change {
            EventKind::Allocated { address, .. } => assert!(live.insert(address), "{event:?}"),
            EventKind::Freed { address, .. } => drop(live.remove(&address)),
            _ => {}
        }
    }
    // Sampled stacks are marked so, and come from running threads.
    let mut sampled = 0;
    for (_, _, event) in read.allocated() {
        let site = read.site(event.site);
        match site.source {
            StackSource::Sampled | StackSource::Borrowed => {
                sampled += 1;
                // The main thread's, or the engine's while it runs a Python function.
                let frames = read.frames(site.stack.unwrap());
                let outermost = &frames.last().unwrap().0;
                assert!(
                    ["<module>", "_apply", "apply"].iter().any(|n| outermost.ends_with(n)),
                    "{frames:?}"
                );
            }
            StackSource::Unknown => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(sampled * 10 > read.allocated().count() * 9, "{sampled}");
    let stacks = collapsed(recording.trace(), &["--total-allocated"]);
    // Blocks, rounded up as the allocator does.
    assert_eq!(total(&stacks), grown(&truth, "allocated_bytes.all.allocated"));
    assert!(stacks.iter().any(|s| s.0.contains(";step (")), "{stacks:?}");
}

#[test]
#[ignore = "takes long: scripts/test.sh --all runs it"]
fn what_new_threads_allocate_unseen_is_told_by_the_counters() {
    let mut target = sim::start("exact_torch.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &["--probes", "perf-only"]);
    wait_for_comparison(&recording);
    let truth = ask(&mut target, "threads 4");
    wait_for_comparison(&recording);
    let _ = recording.interrupt();
    let read = Exact::read(recording.trace());
    let made = grown(&truth, "allocation.all.allocated");
    let missing = read.counter_check.last().unwrap().allocations;
    assert_eq!(read.allocated().count() as i64 + missing, made as i64);
}

#[test]
fn where_bpf_is_refused_samples_replace_it_and_say_so() {
    let mut target = sim::start("exact_torch.py", &[]);
    let mut command = without_bpf();
    command.args(["record", "--exact", "-p", &target.pid().to_string()]);
    let mut recording = Recording::run(command);
    recording.wait_for("probes are in place");
    let truth = ask(&mut target, "train 5");
    let done = recording.interrupt();
    assert!(done.err.contains("no program can stand at the probes"), "{}", done.err);
    assert!(done.err.contains("Operation not permitted"), "{}", done.err);
    let read = Exact::read(recording.trace());
    assert_eq!(read.allocated().count() as u64, grown(&truth, "allocation.all.allocated"));

    let mut doctor = without_bpf();
    doctor.args(["doctor", "-p", &target.pid().to_string()]);
    let said = crate::support::memspy::run(&mut doctor).out;
    assert!(said.contains("uprobe_multi: the kernel refused"), "{said}");
    assert!(said.contains("perf samples, stacks from sampling is open"), "{said}");
}

#[test]
fn what_needs_programs_is_refused_without_them() {
    let target = sim::start("exact_torch.py", &[]);
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.bin");
    for words in [["--frees", "stacks"], ["--stacks-every", "1M"]] {
        let sampled = ["record", "--exact", "--probes", "perf-only", "-o", trace.to_str().unwrap()];
        let all = [&sampled[..], &words[..]].concat();
        let done = memspy_at(target.pid(), &all);
        assert_eq!(done.status.code(), Some(1), "{}", done.err);
        assert!(done.err.contains("need programs in the kernel (BPF)"), "{}", done.err);
        assert!(done.err.contains(words[0]), "{}", done.err);
    }
}
