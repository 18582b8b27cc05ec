//! The own reader's stacks, compared with the target's `sys._current_frames()`, on every CPython
//! found.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::support::pythons::{self, Python};
use crate::support::target::Target;
use memspy::model::{StackTable, ThreadActivity, ThreadSample};
use memspy::python::{InterpreterReader, LayoutSource};
use memspy::target::Process;
use serde_json::Value;

/// Attaches as soon as the interpreter is ready.
fn attach(pid: u32) -> InterpreterReader {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match InterpreterReader::attach_own(&Process::open(pid).unwrap()) {
            Ok(reader) => return reader,
            Err(error) if error.is_transient() && Instant::now() < deadline => {
                std::thread::yield_now();
            }
            Err(error) => panic!("cannot attach: {error}"),
        }
    }
}

/// The frames of a stack as `(file, name, line)`, innermost first.
fn frames(table: &StackTable, sample: &ThreadSample) -> Vec<(String, String, u32)> {
    table
        .frames(sample.stack)
        .map(|frame| {
            let function = table.get_function(frame.function).unwrap();
            (function.file.to_string(), function.name.to_string(), frame.line)
        })
        .collect()
}

fn start(python: &Python, target: &str) -> (Target, Value) {
    let target = Target::start(python.target(target));
    let truth = serde_json::from_str(target.said.first().unwrap()).unwrap();
    (target, truth)
}

#[test]
fn stacks_are_what_the_interpreter_itself_says() {
    let pythons = pythons::all();
    assert!(!pythons.is_empty(), "no CPython to test against");
    for python in &pythons {
        let (target, truth) = start(python, "stacks_truth.py");
        let mut reader = attach(target.pid());
        let numbers: Vec<u64> =
            truth["version"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        let without_gil = if python.free_threaded { "t" } else { "" };
        let version = format!("{}.{}.{}{without_gil}", numbers[0], numbers[1], numbers[2]);
        assert_eq!(reader.version(), version, "{}", python.label);
        let source = reader.coverage().layout;
        let own_offsets = python.minor >= 13;
        assert_eq!(source == LayoutSource::DebugOffsets, own_offsets, "{}", python.label);

        let (mut table, mut out) = (StackTable::new(), Vec::new());
        // The target's reporting thread may still be ending.
        let expected = truth["threads"].as_array().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let stats = reader.sample(&mut table, &mut out).unwrap();
            if out.len() == expected.len() && stats.torn == 0 {
                break;
            }
            assert!(Instant::now() < deadline, "{}: {} threads", python.label, out.len());
            std::thread::yield_now();
        }
        // Names come a little later than stacks.
        std::thread::sleep(Duration::from_millis(50));
        reader.sample(&mut table, &mut out).unwrap();

        let by_ident: HashMap<u64, &ThreadSample> =
            out.iter().map(|s| (table.get_thread(s.thread).unwrap().python_id, s)).collect();
        for thread in expected {
            let name = thread["name"].as_str().unwrap();
            let context = format!("{}, thread {name}", python.label);
            let sample = by_ident[&thread["ident"].as_u64().unwrap()];
            let found = table.get_thread(sample.thread).unwrap();
            assert_eq!(found.os_id, thread["native_id"].as_u64(), "{context}");
            assert_eq!(found.main, name == "MainThread", "{context}");
            assert_eq!(found.name.as_deref(), Some(name), "{context}");
            assert!(!sample.gil, "{context}: nobody holds the GIL while all are parked");
            let stack: Vec<(String, String, u32)> = thread["frames"]
                .as_array()
                .unwrap()
                .iter()
                .map(|frame| {
                    let function = frame[2].as_str().or(frame[1].as_str()).unwrap();
                    let line = frame[3].as_u64().unwrap() as u32;
                    (frame[0].as_str().unwrap().to_owned(), function.to_owned(), line)
                })
                .collect();
            assert_eq!(frames(&table, sample), stack, "{context}");
            if name == "waiting-on-event" {
                assert_eq!(sample.activity, ThreadActivity::Idle, "{context}");
            }
        }
        eprintln!("{}: {} stacks agree ({source:?})", python.label, expected.len());
        target.finish();
    }
}

#[test]
fn py_spy_sees_the_same_stacks() {
    let mut agreed = 0;
    for python in pythons::one_per_version() {
        let (target, _) = start(&python, "stacks_truth.py");
        let config = py_spy::Config {
            blocking: py_spy::config::LockingStrategy::NonBlocking,
            ..py_spy::Config::default()
        };
        let spy = py_spy::PythonSpy::new(target.pid() as py_spy::Pid, &config);
        let Ok(mut spy) = spy.inspect_err(|e| eprintln!("{}: py-spy: {e}", python.label)) else {
            continue;
        };
        let mut reader = attach(target.pid());
        let (mut table, mut out) = (StackTable::new(), Vec::new());
        let own_name = |name: &str| name.rsplit('.').next().unwrap().to_owned();
        // The target's reporting thread may still be ending.
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            reader.sample(&mut table, &mut out).unwrap();
            let own: HashMap<u64, Vec<(String, String, u32)>> = out
                .iter()
                .map(|s| (table.get_thread(s.thread).unwrap().python_id, frames(&table, s)))
                .collect();
            let mut compared = 0;
            let agree = spy.get_stack_traces().is_ok_and(|traces| {
                traces.iter().all(|trace| {
                    compared += 1;
                    // py-spy gives unqualified names (qualified in some versions).
                    let theirs = trace.frames.iter().map(|f| {
                        (f.filename.clone(), own_name(&f.name), u32::try_from(f.line).unwrap())
                    });
                    own.get(&trace.thread_id).is_some_and(|stack| {
                        let ours = stack.iter().map(|f| (f.0.clone(), own_name(&f.1), f.2));
                        ours.eq(theirs)
                    })
                })
            });
            if agree && compared == own.len() {
                eprintln!("{}: {compared} stacks agree with py-spy", python.label);
                agreed += 1;
                break;
            }
            assert!(Instant::now() < deadline, "{}: py-spy sees other stacks", python.label);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    // It does not know the newest versions.
    assert!(agreed > 0, "py-spy could read none of these Pythons: nothing was compared");
}
