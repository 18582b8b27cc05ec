//! Exact recordings of jobs whose threads allocate and free without pause.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::exact::Exact;
use crate::support::memspy::{Recording, collapsed, lines, total, warnings};
use crate::support::sim;
use crate::support::target::Target;
use memspy::model::{AddressSpace, EventKind, MemoryKind};
use serde_json::Value;

fn ask(target: &mut Target, request: &str) -> Value {
    target.say(request);
    serde_json::from_str(&target.line()).unwrap()
}

/// Panics unless events and counters were compared, and always equal.
fn compared_equal(recording: &Recording) {
    let read = Exact::read(recording.trace());
    assert!(!read.counter_check.is_empty());
    for check in &read.counter_check {
        assert_eq!((check.allocations, check.requested), (0, 0), "{check:?}");
        assert_eq!(check.frees, Some(0), "{check:?}");
    }
    let report = lines(recording.trace(), &[]);
    let off = &report["exact"]["bytes_off"];
    assert_eq!((&off["allocated"], &off["freed"]), (&0.into(), &0.into()), "{}", report["exact"]);
}

fn to_the_byte(arguments: &[&str]) {
    let mut target = sim::start("busy_server.py", arguments);
    let mut recording = Recording::start_exact(target.pid(), &[]);
    ask(&mut target, "start");
    std::thread::sleep(Duration::from_secs(3));
    let truth = ask(&mut target, "stop");
    let done = recording.interrupt();
    // These threads do nothing but allocate: the recording says what it costs them.
    let warned = warnings(&done.err);
    assert!(warned.iter().all(|line| line.contains("cost the job")), "{}", done.err);
    assert!(done.err.contains(" 0 lost"), "{}", done.err);
    let read = Exact::read(recording.trace());
    let grown = |key: &str| truth["grown"][key].as_u64().unwrap();
    assert_eq!(read.allocated().count() as u64, grown("allocation.all.allocated"));
    let all = collapsed(recording.trace(), &["--total-allocated"]);
    assert_eq!(total(&all), grown("allocated_bytes.all.allocated"));
    // Each block's size is read, even while other threads allocate.
    let unread = |change| matches!(change, EventKind::Allocated { block: None, .. });
    let unread = read.allocated().filter(|(_, _, event)| unread(event.change)).count();
    assert!(unread * 1000 <= read.allocated().count(), "{unread} blocks were not read");
    let left = collapsed(recording.trace(), &["--at", "end"]);
    let live = truth["live"].as_object().unwrap().values();
    assert_eq!(live.clone().map(|size| size.as_u64().unwrap()).sum::<u64>(), truth["current"]);
    assert_eq!(total(&left), truth["current"]);
    let peak = truth["peak"].as_u64().unwrap();
    assert_eq!(lines(recording.trace(), &[])["peak_allocated"]["bytes"], peak);
    let at_peak = collapsed(recording.trace(), &[]);
    assert_eq!(total(&at_peak), peak);
    let no_event = at_peak.iter().filter(|stack| stack.0.starts_with("[no event]"));
    let no_event: u64 = no_event.map(|stack| stack.1).sum();
    // Each of the four threads can have one allocation whose event is still to come.
    assert!(no_event <= 4 * (9 << 20), "{no_event} of {peak} bytes at the peak have no stack");
    compared_equal(&recording);
}

#[test]
fn four_threads_without_pause_are_recorded_to_the_byte() {
    to_the_byte(&[]);
}

#[test]
#[ignore = "takes long, and four_threads_without_pause_are_recorded_to_the_byte is the harder case: scripts/test.sh --all runs it"]
fn four_threads_in_bursts_are_recorded_to_the_byte() {
    to_the_byte(&["--bursts"]);
}

#[test]
fn busy_threads_are_compared_despite_resets_of_the_counters() {
    let mut target = sim::start("busy_server.py", &["--resets"]);
    ask(&mut target, "start");
    let mut recording = Recording::start_exact(target.pid(), &[]);
    std::thread::sleep(Duration::from_secs(3));
    let done = recording.interrupt();
    let warned = warnings(&done.err);
    assert!(warned.iter().all(|line| line.contains("cost the job")), "{}", done.err);
    compared_equal(&recording);
    // Live bytes at the end of a recording that began during work equal the allocator's.
    let mut recording = Recording::start_exact(target.pid(), &[]);
    std::thread::sleep(Duration::from_secs(2));
    let truth = ask(&mut target, "stop");
    let done = recording.interrupt();
    let warned = warnings(&done.err);
    assert!(warned.iter().all(|line| line.contains("cost the job")), "{}", done.err);
    let read = Exact::read(recording.trace());
    // The size of a block is unknown if the allocator's table changed while it was read.
    let mut live: BTreeMap<u64, Option<u64>> = BTreeMap::new();
    for event in &read.events {
        match event.change {
            // The driver's segments are events too.
            EventKind::Allocated { memory_kind: MemoryKind::Torch(_), address, block, .. } => {
                live.insert(address, block);
            }
            EventKind::Freed { memory_kind: AddressSpace::Torch, address, .. } => {
                live.remove(&address);
            }
            _ => {}
        }
    }
    let mut bytes = 0;
    for (address, block) in &live {
        let size = truth["live"][address.to_string()].as_u64();
        let size = size.unwrap_or_else(|| panic!("{address:#x} is not alive"));
        assert!(block.is_none_or(|block| block == size), "{address:#x}: {block:?}, not {size}");
        bytes += size;
    }
    let left = collapsed(recording.trace(), &["--at", "end"]);
    assert_eq!(total(&left), bytes);
}
