//! Heaps that are hard to read: several interpreters, a running collector, damaged memory.

use crate::support::damaged::Damaged;
use crate::support::pythons;
use crate::support::target::Target;
use memspy::python::{HeapError, InterpreterReader};
use memspy::target::{Addr, PageCache, Process, StoppedProcess};
use serde_json::Value;

#[test]
fn every_interpreter_and_a_running_collector_are_seen() {
    for python in pythons::one_per_version() {
        let label = &python.label;
        let mut target = Target::start(python.target("heap_trouble.py"));
        let made: Value =
            target.said.last().map_or(Value::Null, |said| serde_json::from_str(said).unwrap());
        let process = Process::open(target.pid()).unwrap();
        let reader = InterpreterReader::attach_own(&process).unwrap();
        let heap = |check: &dyn Fn(Result<memspy::python::ObjectHeap<'_>, HeapError>)| {
            let pause = StoppedProcess::stop(&process).unwrap();
            let memory = PageCache::new(Box::new(process.memory()));
            check(reader.heap(&memory));
            drop(pause);
        };
        heap(&|heap| {
            let heap = heap.unwrap();
            assert_eq!(made.is_null(), python.minor < 8, "{label}");
            let at = |n: usize| Addr(made[n].as_u64().unwrap());
            let seen = |at: Addr| heap.objects().iter().any(|object| object.at == at);
            assert!(seen(at(0)) && seen(at(1)), "{label}");
            assert_eq!(heap.items(at(0)), [at(1)], "{label}");
            assert_eq!(&*heap.class_of(at(1)).unwrap().name, "Made", "{label}");
        });
        target.say("collect");
        target.read_until_ready();
        heap(&|heap| {
            let error = heap.err().unwrap_or_else(|| panic!("{label}: not noticed"));
            assert!(matches!(error, HeapError::Collecting) && error.is_transient(), "{label}");
        });
        target.say("go on");
        target.read_until_ready();
        heap(&|heap| assert!(heap.unwrap().objects().len() > 1000, "{label}"));
    }
}

#[test]
fn damaged_memory_makes_errors_not_panics() {
    let mut all_missed = 0;
    for python in pythons::one_per_version() {
        let label = &python.label;
        let target = Target::start(python.target("heap_garbage.py"));
        let process = Process::open(target.pid()).unwrap();
        let reader = InterpreterReader::attach_own(&process).unwrap();
        let whole = PageCache::new(Box::new(process.memory()));
        // Undamaged: damage would soon end the lists. It may not have come to rest yet.
        let pause = StoppedProcess::stop(&process).unwrap();
        let objects = reader.heap(&whole).unwrap().objects().to_vec();
        drop(pause);
        let (mut missed, mut read) = (0, 0);
        for seed in 1..=16 {
            let memory =
                PageCache::new(Box::new(Damaged { inner: process.memory(), seed, one_in: 1_000 }));
            let heap = match reader.heap(&memory) {
                Ok(heap) => heap,
                Err(error) => {
                    eprintln!("{label}: {error}");
                    missed += 1;
                    continue;
                }
            };
            for object in objects.iter().step_by(5) {
                heap.references(object, &mut |_, _| read += 1);
                heap.attributes(object.at);
            }
            heap.locals();
            heap.modules();
            heap.reference_graph().garbage(&[]);
            missed += heap.unreadable();
        }
        eprintln!("{label}: {missed} missed, {read} references");
        assert!(read > 0, "{label}");
        all_missed += missed;
    }
    assert!(all_missed > 0, "nothing was damaged");
}
