//! Exact stacks: each allocation's stack is the one that the program saw, on every CPython.

use std::collections::BTreeMap;

use crate::support::exact::Exact;
use crate::support::memspy::Recording;
use crate::support::pythons::{self, Python};
use crate::support::target::Target;
use memspy::model::{CudaIndex, EventKind, MemoryKind, StackSource};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Frames the probes follow (`MAX_FRAMES` in cuda/probe.h).
const MAX_FRAMES: usize = 160;
/// Of the C thread in the plain run.
const OF_C_THREAD: usize = 500;

type Frames = Vec<(String, String, u32)>;

/// An allocation as the target wrote it down.
struct Truth {
    address: u64,
    size: u64,
    thread: u64,
    frames: Frames,
}

/// Records a run of exact_stacks.py; returns memspy's view and the target's.
fn record(python: &Python, kind: &str) -> (Exact, Vec<Truth>) {
    let library = python.fake_allocator(kind);
    let (here, there) = python.folder();
    let log = format!("stacks-{}-{kind}.log", python.minor);
    let mut command = python.target("exact_stacks.py");
    command.arg(library).arg(there.join(&log)).arg(kind);
    let mut target = Target::start(command);
    let mut recording = Recording::start_exact(target.pid(), &[]);
    target.say("go");
    let made: usize = target.line().strip_prefix("DONE ").unwrap().parse().unwrap();
    let done = recording.interrupt();
    assert!(done.err.contains(" 0 lost"), "{}", done.err);
    target.say("end");
    let truth: Vec<Truth> =
        std::fs::read_to_string(here.join(log)).unwrap().lines().map(truth).collect();
    assert_eq!(truth.len(), made);
    (Exact::read(recording.trace()), truth)
}

fn truth(line: &str) -> Truth {
    let value: Value = serde_json::from_str(line).unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let frame = |f: &Value| (text(&f[0]), text(&f[1]), f[2].as_u64().unwrap() as u32);
    Truth {
        address: value[0].as_u64().unwrap(),
        size: value[1].as_u64().unwrap(),
        thread: value[2].as_u64().unwrap(),
        frames: value[3].as_array().unwrap().iter().map(frame).collect(),
    }
}

/// By thread, in order: address, size, source of the stack, whether it is cut, frames.
type Seen = (u64, u64, StackSource, bool, Frames);
fn by_thread(exact: &Exact) -> BTreeMap<u64, Vec<Seen>> {
    let mut all: BTreeMap<u64, Vec<Seen>> = BTreeMap::new();
    for (address, size, event) in exact.allocated() {
        let EventKind::Allocated { memory_kind, .. } = event.change else { unreachable!() };
        assert_eq!(memory_kind, MemoryKind::Torch(CudaIndex(3)));
        let site = exact.site(event.site);
        let thread = exact.table.get_thread(site.thread).unwrap().os_id.unwrap();
        let frames = site.stack.map(|stack| exact.frames(stack)).unwrap_or_default();
        all.entry(thread).or_default().push((address, size, site.source, site.truncated, frames));
    }
    all
}

#[test]
fn every_stack_is_the_programs_own() {
    for python in pythons::one_per_version() {
        let (exact, truth) = record(&python, "plain");
        let mut seen = by_thread(&exact);
        let mut expected: BTreeMap<u64, Vec<Truth>> = BTreeMap::new();
        for allocation in truth {
            expected.entry(allocation.thread).or_default().push(allocation);
        }
        assert_eq!(expected.len(), 5, "the main thread and four workers");
        let mut compared = 0;
        for (thread, allocations) in expected {
            let seen = seen.remove(&thread).unwrap();
            assert_eq!(seen.len(), allocations.len(), "{}", python.label);
            for (seen, truth) in seen.iter().zip(&allocations) {
                assert_eq!((seen.0, seen.1), (truth.address, truth.size), "{}", python.label);
                assert_eq!((seen.2, seen.3), (StackSource::Own, false), "{}", python.label);
                assert_eq!(seen.4, truth.frames, "{}", python.label);
                compared += 1;
            }
        }
        // The rest is the thread without Python.
        let (_, rest) = seen.pop_first().unwrap();
        assert!(seen.is_empty());
        assert_eq!(rest.len(), OF_C_THREAD);
        assert!(rest.iter().all(|s| s.2 == StackSource::NoPython && s.4.is_empty()));
        assert_eq!(exact.freed(), exact.allocated().count());
        eprintln!("{}: {compared} stacks equal", python.label);
    }
}

#[test]
#[ignore = "takes long: scripts/test.sh --all runs it"]
fn too_deep_stacks_are_cut_at_the_outer_end() {
    for python in pythons::one_per_version() {
        let (exact, truth) = record(&python, "deep");
        let seen: Vec<Seen> = by_thread(&exact).into_values().flatten().collect();
        assert_eq!(seen.len(), truth.len());
        for (seen, truth) in seen.iter().zip(&truth) {
            let deep = truth.frames.len() > MAX_FRAMES;
            assert_eq!(seen.3, deep, "{}: {} frames", python.label, truth.frames.len());
            // The interpreter's shims between Python and C take up places.
            assert!(seen.4.len() <= truth.frames.len());
            assert!(!deep || seen.4.len() + 4 >= MAX_FRAMES, "{}", seen.4.len());
            assert_eq!(seen.4[..], truth.frames[..seen.4.len()], "{}", python.label);
        }
    }
}

#[test]
#[ignore = "takes half a minute: scripts/test.sh --all runs it"]
fn code_objects_that_die_at_once_are_never_mistaken() {
    for python in pythons::one_per_version() {
        let (exact, truth) = record(&python, "reuse");
        let seen: Vec<Seen> = by_thread(&exact).into_values().flatten().collect();
        assert_eq!(seen.len(), truth.len());
        let mut unknown = 0;
        for (seen, truth) in seen.iter().zip(&truth) {
            assert_eq!((seen.0, seen.1), (truth.address, truth.size));
            if seen.2 == StackSource::Unknown {
                unknown += 1;
            } else {
                assert_eq!(seen.4, truth.frames, "{}", python.label);
            }
        }
        assert!(unknown * 100 <= truth.len(), "{unknown} of {} unknown", truth.len());
        eprintln!("{}: {} stacks, {unknown} unknown, 0 wrong", python.label, truth.len());
    }
}

/// A C thread's allocations, each with its free, without pause.
const FLOOD: u64 = 1_000_000;

#[test]
fn a_flood_is_recorded_and_lost_events_are_counted_exactly() {
    let python = pythons::newest_here();
    let library = python.fake_allocator("flood");
    let (_, there) = python.folder();
    for stopped in [false, true] {
        let mut command = python.target("exact_stacks.py");
        command.arg(&library).arg(there.join("flood.log")).arg("flood");
        let mut target = Target::start(command);
        let mut recording = Recording::start_exact(target.pid(), &[]);
        if stopped {
            // Nothing empties the ring.
            recording.signal(Signal::SIGSTOP);
        }
        target.say("go");
        let rate = target.line();
        assert_eq!(target.line(), format!("DONE {FLOOD}"));
        recording.signal(Signal::SIGCONT);
        recording.interrupt();
        let exact = Exact::read(recording.trace());
        let totals = exact.totals.unwrap();
        let seen = exact.allocated().count() + exact.freed();
        assert_eq!(totals.lost > 0, stopped, "{rate}, {} lost", totals.lost);
        assert_eq!(seen as u64 + totals.lost, 2 * FLOOD);
        eprintln!("{rate}, {} lost", totals.lost);
    }
}
