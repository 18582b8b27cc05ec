//! The heap, read from outside and compared with Python's view, on every CPython found.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::pythons::{self, Python};
use crate::support::target::Target;
use memspy::python::{HeapError, HeapObject, InterpreterReader, ObjectHeap, ReferenceKind};
use memspy::target::{Addr, PageCache, Process, StopError, StoppedProcess};
use serde_json::Value;

fn id(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// Reads the heap of the stopped target.
fn with_heap<T>(target: &Target, at: impl FnOnce(&ObjectHeap<'_>) -> T) -> T {
    let process = Process::open(target.pid()).unwrap();
    let reader = InterpreterReader::attach_own(&process).unwrap();
    let pause = StoppedProcess::stop(&process).unwrap();
    let memory = PageCache::new(Box::new(process.memory()));
    let heap = reader.heap(&memory).unwrap();
    let found = at(&heap);
    drop(pause);
    found
}

fn named(heap: &ObjectHeap<'_>, entries: Vec<(Addr, Addr)>) -> BTreeSet<(String, u64)> {
    let key = |key: Addr| heap.text(key).unwrap_or_else(|| key.0.to_string());
    entries.into_iter().map(|(k, v)| (key(k), v.0)).collect()
}

fn said(pairs: &Value) -> BTreeSet<(String, u64)> {
    let key = |key: &Value| key.as_str().map_or_else(|| key.to_string(), str::to_owned);
    pairs.as_array().unwrap().iter().map(|p| (key(&p[0]), id(&p[1]))).collect()
}

fn check_contents(heap: &ObjectHeap<'_>, truth: &Value, label: &str) {
    for (name, at) in truth["containers"].as_object().unwrap() {
        let at = Addr(id(at));
        let expected = said(&truth["items"][name]);
        let found = match heap.entries_if_dict(at) {
            Some(entries) => named(heap, entries),
            None if name == "set" => heap.items(at).iter().map(|v| (String::new(), v.0)).collect(),
            None => {
                (0..).zip(heap.items(at)).map(|(i, v): (u32, _)| (i.to_string(), v.0)).collect()
            }
        };
        assert_eq!(found, expected, "{label}: {name}");
    }
    for (name, at) in truth["instances"].as_object().unwrap() {
        let found: BTreeSet<_> =
            heap.attributes(Addr(id(at))).into_iter().map(|(k, v)| (k, v.0)).collect();
        assert_eq!(found, said(&truth["attributes"][name]), "{label}: {name}");
    }
}

fn check_references(heap: &ObjectHeap<'_>, truth: &Value, label: &str) {
    for (name, what) in truth["references"].as_object().unwrap() {
        let at = Addr(id(&what[0]));
        let object = HeapObject { at, class: heap.class_of(at).unwrap(), references: 1 };
        let mut found = BTreeSet::new();
        heap.references(&object, &mut |edge, to| {
            found.insert((format!("{edge:?}"), to.0));
        });
        for to in what[1].as_array().unwrap() {
            assert!(found.iter().any(|f| f.1 == id(to)), "{label}: {name}: {found:?}");
        }
    }
    let kept = truth["references"]["generator"][1][0].as_u64().unwrap();
    let at = Addr(id(&truth["references"]["generator"][0]));
    let object = HeapObject { at, class: heap.class_of(at).unwrap(), references: 1 };
    let mut local = None;
    heap.references(&object, &mut |edge, to| {
        if to.0 == kept {
            local = Some(edge);
        }
    });
    assert_eq!(local, Some(ReferenceKind::Local("kept".into())), "{label}");

    let locals: BTreeMap<String, u64> = heap
        .locals()
        .into_iter()
        .map(|l| (format!("{}.{}", l.function.rsplit('.').next().unwrap(), l.name), l.value.0))
        .collect();
    for (name, at) in truth["locals"].as_object().unwrap() {
        assert_eq!(locals.get(name), Some(&id(at)), "{label}: {name}");
    }
    let modules = heap.modules();
    let main = modules.iter().find(|(name, _)| name == "__main__").unwrap().1;
    let globals: BTreeMap<_, _> = heap.named_entries(main).into_iter().collect();
    for (name, at) in truth["globals"].as_object().unwrap() {
        assert_eq!(globals.get(name).map(|a| a.0), Some(id(at)), "{label}: {name}");
    }
    let plain = heap.class_at(Addr(id(&truth["globals"]["Plain"]))).unwrap();
    assert_eq!((&*plain.name, heap.module_of(&plain).as_deref()), ("Plain", Some("__main__")));
}

/// Objects of known types hold what their own `tp_traverse` visits, apart from what cannot be in a
/// cycle.
fn check_known(heap: &ObjectHeap<'_>, truth: &Value, label: &str) {
    let tracked: HashSet<u64> = heap.objects().iter().map(|object| object.at.0).collect();
    let held = |at: Addr| {
        let class = heap.class_of(at).unwrap();
        let mut found = BTreeSet::new();
        heap.references(&HeapObject { at, class, references: 1 }, &mut |_, to| {
            found.insert(to.0);
        });
        found
    };
    let mut wrong = Vec::new();
    for thing in truth["known"].as_array().unwrap() {
        let at = Addr(id(&thing[0]));
        let said: BTreeSet<u64> = thing[2].as_array().unwrap().iter().map(id).collect();
        let mut found = held(at);
        found.retain(|to| tracked.contains(to));
        if found != said {
            wrong.push(format!("{}: {found:x?}, not {said:x?}", thing[1]));
        }
    }
    assert!(wrong.is_empty(), "{label}: {}", wrong.join("\n"));
    // A cache leads to what it keeps.
    for pair in truth["cached"].as_array().unwrap() {
        let mut near = BTreeSet::from([id(&pair[0])]);
        for _ in 0..3 {
            near = near.into_iter().flat_map(|at| held(Addr(at))).collect();
            if near.contains(&id(&pair[1])) {
                break;
            }
        }
        assert!(near.contains(&id(&pair[1])), "{label}: a cache");
    }
}

#[test]
fn objects_are_what_python_says_they_are() {
    for python in pythons::all() {
        check_objects(python.target("heap_truth.py"), &python.label);
    }
}

/// Without a GIL objects are found in the memory allocator's own structures, which debugging
/// changes.
#[test]
fn objects_are_found_where_memory_is_debugged() {
    for python in
        pythons::one_per_version().into_iter().rev().take(1).chain(pythons::free_threaded())
    {
        let mut command = python.target("heap_truth.py");
        command.env("PYTHONMALLOC", "debug");
        check_objects(command, &format!("{}, debugging", python.label));
    }
}

fn check_objects(command: Command, label: &str) {
    let mut target = Target::start(command);
    let truth: Value = serde_json::from_str(target.said.first().unwrap()).unwrap();
    let found: HashSet<u64> = with_heap(&target, |heap| {
        check_contents(heap, &truth, label);
        check_references(heap, &truth, label);
        check_known(heap, &truth, label);
        assert_eq!(heap.unreadable(), 0, "{label}");
        heap.objects().iter().map(|object| object.at.0).collect()
    });
    target.say("list");
    let tracked: HashSet<u64> =
        target.read_until_ready().iter().map(|line| line.parse().unwrap()).collect();
    // Changed while the target read a line and listed its objects.
    let missing: Vec<_> = tracked.difference(&found).collect();
    let gone: Vec<_> = found.difference(&tracked).collect();
    assert!(found.len() > 10_000, "{label}: {}", found.len());
    assert!(missing.len() <= 2 && gone.len() <= 4, "{label}: {missing:x?} {gone:x?}");
    eprintln!("{label}: {} objects", found.len());
}

#[test]
fn a_large_heap_is_read_in_a_blink() {
    for python in std::iter::once(pythons::newest_here()).chain(pythons::free_threaded()) {
        read_large(&python);
    }
}

fn read_large(python: &Python) {
    let mut command = python.target("heap_truth.py");
    command.arg("250000");
    let target = Target::start(command);
    let process = Process::open(target.pid()).unwrap();
    let reader = InterpreterReader::attach_own(&process).unwrap();
    let memory = PageCache::new(Box::new(process.memory()));
    let start = Instant::now();
    let pause = StoppedProcess::stop(&process).unwrap();
    let count = reader.heap(&memory).unwrap().objects().len();
    let took = pause.elapsed();
    drop(pause);
    assert!(count > 250_000);
    eprintln!(
        "{}: {count} objects in {took:?} (pause and all {:?}), {} KiB copied",
        python.label,
        start.elapsed(),
        memory.copied() / 1024
    );
}

#[test]
fn a_running_target_is_told_from_a_resting_one() {
    for python in std::iter::once(pythons::newest_here()).chain(pythons::free_threaded()) {
        read_running(&python);
    }
}

fn read_running(python: &Python) {
    let mut command = python.command();
    command.args([
        "-c",
        "print('READY', flush=True)\nkept = []\nwhile True:\n    kept = [[i] for i in range(3000)]",
    ]);
    let target = Target::start(command);
    let process = Process::open(target.pid()).unwrap();
    let reader = InterpreterReader::attach_own(&process).unwrap();
    let mut changing = 0;
    for _ in 0..50 {
        let memory = PageCache::new(Box::new(process.memory()));
        match reader.heap(&memory).map(|heap| heap.objects().len()) {
            Ok(count) => assert!(count > 1000),
            // Even the heads of the lists may be torn.
            Err(HeapError::Changing | HeapError::Collecting | HeapError::NoLists { .. }) => {
                changing += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(changing > 0);
    // Stopped, it is readable at once, unless it was in a collection or between two words of a
    // change.
    let mut read = 0;
    for _ in 0..50 {
        let memory = PageCache::new(Box::new(process.memory()));
        let pause = StoppedProcess::stop(&process).unwrap();
        match reader.heap(&memory).map(|heap| heap.objects().len()) {
            Ok(_) => read += 1,
            Err(HeapError::Collecting | HeapError::Changing | HeapError::NoLists { .. }) => {}
            Err(error) => panic!("{}: {error}", python.label),
        }
        drop(pause);
    }
    eprintln!("{}: {changing} of 50 changing while it runs, {read} read stopped", python.label);
    assert!(read >= 10, "{}: {read} of 50", python.label);
}

#[test]
fn objects_of_interpreters_without_a_thread_are_found() {
    for python in pythons::one_per_version().into_iter().filter(|python| python.minor >= 13) {
        let mut command = python.command();
        command.args([
            "-c",
            "import _interpreters\nids = [_interpreters.create() for _ in range(2)]\n\
             for n in ids:\n    _interpreters.exec(n, 'kept = [[i] for i in range(30000)]')\n\
             print('READY', flush=True)\ninput()",
        ]);
        let target = Target::start(command);
        let count = with_heap(&target, |heap| heap.objects().len());
        assert!((60_000..110_000).contains(&count), "{}: {count}", python.label);
    }
}

/// A target that may be stopped anywhere: it prints the addresses of ended threads' objects, and
/// its threads create and drop objects; some end and leave objects behind.
const CHURN: &str = "
import gc, threading
gc.disable()
kept, left = [], []
def make(where, count):
    where.extend([i] for i in range(count))
def churn():
    while True:
        [[i] for i in range(300)]
def come_and_go():
    while True:
        thread = threading.Thread(target=make, args=(left, 200))
        thread.start()
        thread.join()
        del left[:100]
        if len(left) > 5000:
            left.clear()
for _ in range(8):
    thread = threading.Thread(target=make, args=(kept, 2500))
    thread.start()
    thread.join()
print(*map(id, kept))
for target in (churn, churn, come_and_go):
    threading.Thread(target=target, daemon=True).start()
print('READY', flush=True)
threading.Event().wait()
";

/// Without a GIL any thread may be between two words of a change.
#[test]
#[ignore = "needs a CPython without a GIL: scripts/test.sh --all builds one"]
fn objects_are_found_while_threads_are_stopped_anywhere() {
    assert!(!pythons::free_threaded().is_empty(), "no CPython without a GIL is there");
    for python in pythons::free_threaded() {
        let mut command = python.command();
        command.args(["-c", CHURN]);
        let target = Target::start(command);
        let kept: HashSet<u64> =
            target.said[0].split_whitespace().map(|id| id.parse().unwrap()).collect();
        let process = Process::open(target.pid()).unwrap();
        let reader = InterpreterReader::attach_own(&process).unwrap();
        let looks = std::env::var("MEMSPY_LOOKS").ok().and_then(|n| n.parse().ok()).unwrap_or(50);
        let mut read = 0;
        for look in 0..looks {
            let memory = PageCache::new(Box::new(process.memory()));
            let pause = match StoppedProcess::stop(&process) {
                // On a busy machine a thread may end slowly.
                Err(StopError::Stubborn { .. }) => continue,
                pause => pause.unwrap(),
            };
            match reader.heap(&memory) {
                Ok(heap) => {
                    let found: HashSet<u64> = heap.objects().iter().map(|o| o.at.0).collect();
                    let missing = kept.difference(&found).count();
                    assert_eq!(missing, 0, "{}: of {}", python.label, kept.len());
                    assert!(heap.objects().len() == found.len(), "{}: twice", python.label);
                    assert!(found.len() < kept.len() + 40_000, "{}: {}", python.label, found.len());
                    assert_eq!(heap.unreadable(), 0, "{}", python.label);
                    read += 1;
                }
                Err(HeapError::Changing) => {}
                Err(error) => panic!("{}: {error}", python.label),
            }
            drop(pause);
            // Out of step with any rhythm of the target.
            std::thread::sleep(Duration::from_micros(300 + look * 7919 % 700));
        }
        eprintln!("{}: {read} of {looks} looks whole", python.label);
        assert!(read >= looks / 4, "{}: {read} of {looks}", python.label);
    }
}

#[test]
fn garbage_is_what_the_collector_finds() {
    for python in pythons::all() {
        let label = &python.label;
        let mut target = Target::start(python.target("heap_garbage.py"));
        let truth: Value = serde_json::from_str(target.said.first().unwrap()).unwrap();
        let ids = |what: &str| -> BTreeSet<u64> {
            truth[what].as_array().unwrap().iter().map(id).collect()
        };
        let found: BTreeMap<u64, String> = with_heap(&target, |heap| {
            let garbage = heap
                .reference_graph()
                .garbage(&[])
                .unwrap_or_else(|| panic!("{label}: counts do not fit"));
            let class =
                |at: Addr| heap.class_of(at).map_or_else(String::new, |c| c.name.to_string());
            garbage.into_iter().map(|at| (at.0, class(at))).collect()
        });
        target.say("collect");
        let survivors: BTreeSet<u64> =
            target.read_until_ready().iter().map(|line| line.parse().unwrap()).collect();
        let wrong: Vec<_> = found
            .iter()
            .filter(|(at, _)| survivors.contains(at))
            .map(|(at, class)| (at, class, truth["names"][at.to_string()].to_string()))
            .collect();
        assert!(wrong.is_empty(), "{label}: {} called garbage are none: {wrong:x?}", wrong.len());
        let missed: Vec<_> = ids("garbage")
            .into_iter()
            .filter(|at| !found.contains_key(at))
            .map(|at| (at, truth["names"][at.to_string()].to_string()))
            .collect();
        assert!(missed.is_empty(), "{label}: not found: {missed:x?} of {}", ids("garbage").len());
        assert!(ids("alive").iter().all(|at| !found.contains_key(at)), "{label}");
        eprintln!("{label}: {} garbage, {} survivors", found.len(), survivors.len());
    }
}

#[test]
fn several_threads_find_the_same_references_as_one() {
    for python in pythons::all() {
        let label = &python.label;
        let target = Target::start(python.target("heap_garbage.py"));
        with_heap(&target, |heap| {
            let all: Vec<Addr> = heap.objects().iter().map(|object| object.at).collect();
            let graph = |threads| {
                heap.set_threads(threads);
                let graph = heap.reference_graph();
                let garbage = graph.garbage(&[]).unwrap_or_else(|| panic!("{label}: counts"));
                let leading = graph.leading_to(&all[..all.len() / 100], &Default::default());
                let set = all.iter().copied().collect();
                let (divided, held) =
                    (graph.divide(&all, &garbage), graph.held_in_unknown_objects(&set));
                (garbage, leading.all, leading.kept_from_outside, divided, held)
            };
            let one = graph(1);
            assert!(!one.0.is_empty() && !one.1.is_empty(), "{label}");
            assert!(one == graph(4), "{label}");
            let onward = heap.onward_references(&all, &|_| true, &|_, _, _| true);
            let mut told = 0;
            for (object, onward) in heap.objects().iter().zip(onward) {
                let Some(onward) = onward else { continue };
                let mut own = Vec::new();
                heap.hidden_references(object, &mut |edge, to| own.push((edge, to)));
                heap.references(object, &mut |edge, to| own.push((edge, to)));
                assert!(onward == own, "{label}: {} at {}", object.class.name, object.at);
                told += 1;
            }
            // Only context variables are left out.
            assert!(told + 100 > all.len(), "{label}: {told} of {}", all.len());
            assert_eq!(heap.unreadable(), 0, "{label}");
        });
    }
}

#[test]
fn integer_variables_are_read_wherever_they_are() {
    for python in pythons::all() {
        let mut target = Target::start(python.target("counters.py"));
        let process = Process::open(target.pid()).unwrap();
        let reader = InterpreterReader::attach_own(&process).unwrap();
        let variable = |name: &str| reader.integer_variable(&process, name).unwrap();
        let label = &python.label;
        let (mut epoch, mut step) = (variable("epoch"), variable("train:step"));
        let mut absent = variable("in_closure:step");
        let next = |target: &mut Target| {
            target.say("");
            target.read_until_ready()
        };
        let mut said = target.said.clone();
        for _ in 0..12 {
            let truth: [u64; 2] = serde_json::from_str(said.last().unwrap()).unwrap();
            assert_eq!([epoch.read(), step.read()], truth.map(Some), "{label}");
            assert_eq!(absent.read(), None, "{label}");
            // `deep` stops at READY once more.
            next(&mut target);
            assert_eq!([epoch.read(), step.read()], truth.map(Some), "{label}: deep");
            said = next(&mut target);
        }
        // A function that returned has no variables.
        assert_eq!([epoch.read(), step.read()], [None, None], "{label}");
        let (mut batch, mut text) = (variable("fit:batch"), variable("text"));
        let mut negative = variable("negative");
        for n in 0..3 {
            assert_eq!(batch.read(), Some(n), "{label}");
            assert_eq!([text.read(), negative.read()], [None, None], "{label}");
            said = next(&mut target);
        }
        let mut captured = variable("captured");
        for value in [1, 1 << 29, 1 << 31, 1 << 45] {
            assert_eq!(captured.read(), Some(value), "{label}: {said:?}");
            said = next(&mut target);
        }
        let mut in_module = variable("in_module");
        for n in 0..3 {
            assert_eq!(in_module.read(), Some(n), "{label}");
            if n < 2 {
                next(&mut target);
            }
        }
    }
}
