//! Exact recordings of PyTorch: every allocation and free, to the event and to the byte.

use std::collections::BTreeMap;

use crate::support::exact::Exact;
use crate::support::memspy::{Recording, collapsed, lines, total, wait_until, warnings};
use crate::support::sim;
use crate::support::target::Target;
use memspy::model::{AddressSpace, EventKind, MemoryKind, Record, StackSource};
use memspy::trace::TraceReader;
use serde_json::Value;

fn names(read: &Exact, stack: memspy::model::StackId) -> Vec<String> {
    read.frames(stack).into_iter().map(|frame| frame.0).collect()
}

fn start() -> Target {
    sim::start("exact_torch.py", &[])
}

/// Starts an exact recording; it is attached on return.
fn record(target: &Target, words: &[&str]) -> Recording {
    Recording::start_exact(target.pid(), words)
}

/// Waits for this many records of a kind.
fn wait_for_records(recording: &Recording, count: usize, wanted: fn(&Record) -> bool) {
    wait_until("records of the trace", || {
        let mut records: Vec<Record> = Vec::new();
        let read = TraceReader::open(recording.trace()).map(|mut r| r.replay(&mut records));
        read.is_ok() && records.iter().filter(|r| wanted(r)).count() >= count
    });
}

/// A command whose output goes to a file.
fn command_to(mut command: std::process::Command, file: &std::path::Path) -> std::process::Command {
    command.stdout(std::fs::File::create(file).unwrap());
    command
}

/// Lets the target do something and returns its truth.
fn ask(target: &mut Target, request: &str) -> Value {
    target.say(request);
    serde_json::from_str(&target.line()).unwrap()
}

fn grown(truth: &Value, key: &str) -> u64 {
    truth["after"][key].as_u64().unwrap() - truth["before"][key].as_u64().unwrap()
}

#[test]
fn events_are_what_the_allocator_counted() {
    let mut target = start();
    let mut recording = record(&target, &[]);
    let truth = ask(&mut target, "train 40");
    wait_for_records(&recording, 2, |r| matches!(r, Record::CounterCheck(_)));
    let done = recording.interrupt();
    let read = Exact::read(recording.trace());

    assert_eq!(read.allocated().count() as u64, grown(&truth, "allocation.all.allocated"));
    assert_eq!(read.freed() as u64, grown(&truth, "allocation.all.freed"));
    let requested: u64 = read.allocated().map(|a| a.1).sum();
    assert_eq!(requested, grown(&truth, "requested_bytes.all.allocated"));
    assert!(done.err.contains("0 lost"), "{}", done.err);
    assert!(warnings(&done.err).is_empty(), "{}", done.err);
    for r in &read.counter_check {
        assert_eq!((r.allocations, r.frees, r.requested), (0, Some(0), 0), "{r:?}");
    }
    assert!(!read.counter_check.is_empty());
    // 12 bytes an event; a short recording's definitions and snapshots come on top.
    assert!(read.bytes < 12 * read.events.len() as u64, "{} bytes", read.bytes);

    // Every stack is known; the backward pass has that of its call of backward().
    for (_, _, event) in read.allocated() {
        let site = read.site(event.site);
        assert!(matches!(site.source, StackSource::Own | StackSource::Backward), "{site:?}");
        let functions = names(&read, site.stack.unwrap());
        // Nodes written in Python allocate in the engine's thread.
        let main = functions.last().unwrap() == "<module>";
        assert!(main || site.node.is_some(), "{functions:?}");
    }
    let nodes: Vec<&str> =
        read.allocated().filter_map(|a| read.site(a.2.site).node.as_deref()).collect();
    for node in ["AddmmBackward0", "NativeLayerNormBackward0", "ScaleBackward"] {
        assert!(nodes.contains(&node), "{node}");
    }

    // The peak, to the byte.
    let peak = truth["peak"].as_u64().unwrap();
    assert_eq!(total(&collapsed(recording.trace(), &[])), peak);
    let report = lines(recording.trace(), &[]);
    assert_eq!(report["peak_allocated"]["bytes"], peak);
}

#[test]
fn tables_come_after_so_many_calls_of_a_function() {
    let mut target = start();
    let out = tempfile::NamedTempFile::new().unwrap();
    let pid = target.pid().to_string();
    let mut command = crate::support::memspy::command(Some(target.pid()));
    command.args(["record", "--exact", "-p", &pid, "--print-every", "step:2"]);
    let mut recording = Recording::run(command_to(command, out.path()));
    recording.wait_for("probes are in place");
    for _ in 0..4 {
        ask(&mut target, "train 1");
        ask(&mut target, "keep 512");
    }
    let printed = || std::fs::read_to_string(out.path()).unwrap();
    wait_until("two tables", || printed().matches("=== memspy").count() == 2);
    let _ = recording.interrupt();
    let printed = printed();
    let heads: Vec<&str> = printed.lines().filter(|line| line.contains("=== memspy")).collect();
    let [first, second, last] = heads[..] else { panic!("{printed}") };
    for (head, calls) in [(first, "2 calls of step"), (second, "4 calls"), (last, "4 calls")] {
        assert!(head.contains(calls), "{head}");
    }
    assert!(printed.contains("exact_torch.py:"), "{printed}");
}

#[test]
fn live_blocks_at_the_end_equal_the_allocators() {
    let mut target = start();
    let mut recording = record(&target, &[]);
    ask(&mut target, "train 3");
    ask(&mut target, "keep 5000000");
    let truth = ask(&mut target, "keep 7000");
    let _ = recording.interrupt();
    let read = Exact::read(recording.trace());
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for event in &read.events {
        match event.change {
            EventKind::Allocated { memory_kind: MemoryKind::Torch(_), address, size, .. } => {
                live.insert(address, size);
            }
            EventKind::Freed { memory_kind: AddressSpace::Torch, address, .. } => {
                _ = live.remove(&address)
            }
            _ => {}
        }
    }
    let held: BTreeMap<u64, u64> = truth["live"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| (b[0].as_u64().unwrap(), b[1].as_u64().unwrap()))
        .collect();
    for (address, size) in &live {
        assert_eq!(held.get(address), Some(size), "{address:#x}");
    }
    let kept: Vec<u64> = live.values().copied().filter(|s| [5_000_000, 7000].contains(s)).collect();
    assert_eq!(kept.len(), 2);

    // The leak view: allocated and not freed, without what was there before.
    let leaks = collapsed(recording.trace(), &["--at", "end"]);
    let of_main: u64 = leaks.iter().filter(|s| s.0.contains("main (")).map(|s| s.1).sum();
    assert!(of_main >= 5_000_000 + 7000, "{leaks:?}");
    assert!(leaks.iter().all(|s| s.0 != "[before recording]"), "{leaks:?}");
    let churn = collapsed(recording.trace(), &["--total-allocated"]);
    assert!(total(&churn) > total(&leaks));
    let lasting = collapsed(recording.trace(), &["--min-lifetime", "1000"]);
    assert!(lasting.iter().all(|s| s.0 == "[before recording]"), "{lasting:?}");
}

#[test]
fn backward_allocations_carry_their_forward_lines() {
    let mut target = start();
    let mut recording = record(&target, &["--backward-lines"]);
    ask(&mut target, "train 3");
    let _ = recording.interrupt();
    let read = Exact::read(recording.trace());
    let (mut of_nodes, mut with_forward) = (0, 0);
    for (_, _, event) in read.allocated() {
        let site = read.site(event.site);
        let Some(node) = &site.node else { continue };
        of_nodes += 1;
        let Some(forward) = site.forward else { continue };
        with_forward += 1;
        let functions = names(&read, forward);
        assert_eq!(functions.last().map(String::as_str), Some("<module>"));
        let expected = match &**node {
            "NativeLayerNormBackward0" => "layer_norm",
            "AddmmBackward0" => "forward",
            "ScaleBackward" => "Model.forward",
            "MeanBackward0" | "PowBackward0" => "step",
            _ => continue,
        };
        assert!(functions.iter().any(|f| f.contains(expected)), "{node}: {functions:?}");
    }
    assert!(of_nodes > 100, "{of_nodes}");
    // All nodes were created after memspy had attached.
    assert_eq!(with_forward, of_nodes);
    let stacks = collapsed(recording.trace(), &["--total-allocated"]);
    assert!(stacks.iter().any(|s| s.0.contains("[backward of]")), "{stacks:?}");
}

#[test]
#[ignore = "takes half a minute, and totals are seen in events_are_what_the_allocator_counted: scripts/test.sh --all runs it"]
fn threads_and_options_keep_the_totals_exact() {
    for words in [
        &["--frees", "stacks"][..],
        &["--stacks-from", "4K"],
        &["--stacks-every", "1M"],
        &["--probes", "perf-bpf"],
    ] {
        let mut target = start();
        let mut recording = record(&target, words);
        let truth = ask(&mut target, "threads 4");
        let _ = recording.interrupt();
        let read = Exact::read(recording.trace());
        assert_eq!(
            read.allocated().count() as u64,
            grown(&truth, "allocation.all.allocated"),
            "{words:?}"
        );
        assert_eq!(read.freed() as u64, grown(&truth, "allocation.all.freed"), "{words:?}");
        let mut threads: Vec<Option<u64>> = Vec::new();
        for (_, size, event) in read.allocated() {
            let site = read.site(event.site);
            let taken = site.source != StackSource::NotTaken;
            match words[0] {
                "--stacks-from" => assert_eq!(taken, size >= 4096),
                "--stacks-every" => {}
                _ => assert!(taken),
            }
            let thread = read.table.get_thread(site.thread).unwrap();
            // Threads that ended at once left no name behind.
            threads.push(thread.os_id);
        }
        threads.sort();
        threads.dedup();
        assert_eq!(threads.len(), 4, "{threads:?}");
    }
}

#[test]
fn frees_from_maps_still_find_what_is_held() {
    let mut target = start();
    let mut recording = record(&target, &["--frees", "snapshots"]);
    ask(&mut target, "keep 50000000");
    let map = |record: &Record| matches!(record, Record::Snapshot(_));
    wait_for_records(&recording, 3, map);
    ask(&mut target, "drop");
    wait_for_records(&recording, 5, map);
    let _ = recording.interrupt();
    let read = Exact::read(recording.trace());
    assert_eq!(read.freed(), 0);
    let stacks = collapsed(recording.trace(), &[]);
    assert!(stacks.iter().any(|s| s.0.contains("main (") && s.1 >= 50_000_000), "{stacks:?}");
    let end = collapsed(recording.trace(), &["--at", "end"]);
    assert!(end.iter().all(|s| s.1 < 50_000_000), "{end:?}");
}
