//! Targets that never rest: no sample shows what never was, and few are torn.

use std::time::{Duration, Instant};

use crate::support::pythons;
use crate::support::stack_oracle::{KnownStacks, named};
use crate::support::target::Target;
use memspy::model::StackTable;
use memspy::python::{InterpreterReader, SampleStats};
use memspy::target::Process;

#[derive(Debug, Default)]
struct Tally {
    samples: u32,
    stacks: u32,
    torn: u32,
    reads: u32,
    wrong: u32,
    took: Duration,
}

impl Tally {
    fn add(&mut self, stats: SampleStats) {
        self.samples += 1;
        self.stacks += stats.stacks;
        self.torn += stats.torn;
        self.reads += stats.reads;
    }

    /// Whether the shares of all stacks wanted are within the bounds.
    fn is_good(&self, label: &str) -> bool {
        let all = f64::from((self.stacks + self.torn).max(1));
        let (torn, wrong) = (f64::from(self.torn) / all, f64::from(self.wrong) / all);
        eprintln!(
            "{label}: {} samples, {:.2} reads and {:.1} us each, {:.3} % torn, {:.3} % wrong",
            self.samples,
            f64::from(self.reads) / f64::from(self.samples),
            self.took.as_secs_f64() * 1e6 / f64::from(self.samples),
            torn * 1e2,
            wrong * 1e2,
        );
        assert!(self.stacks > 0, "{label}: no stack was read");
        torn < 0.05 && wrong < 0.005
    }
}

fn samples() -> u32 {
    std::env::var("MEMSPY_BUSY_SAMPLES").ok().and_then(|n| n.parse().ok()).unwrap_or(2000)
}

fn watch(target: &Target, known: &KnownStacks) -> Tally {
    let mut reader = InterpreterReader::attach_own(&Process::open(target.pid()).unwrap()).unwrap();
    let (mut table, mut out, mut tally) = (StackTable::new(), Vec::new(), Tally::default());
    for _ in 0..samples() {
        let before = Instant::now();
        let stats = reader.sample(&mut table, &mut out).unwrap();
        tally.took += before.elapsed();
        tally.add(stats);
        for sample in &out {
            let stack = named(&table, sample.stack);
            if !known.can_be(&stack) {
                tally.wrong += 1;
                if tally.wrong <= 3 {
                    eprintln!("never was: {stack:?}");
                }
            }
        }
        // Out of step with any rhythm of the target.
        std::thread::sleep(Duration::from_micros(200 + u64::from(tally.samples) * 7919 % 500));
    }
    tally
}

/// Watches until the shares are within the bounds. A busy machine tears stacks at some moments; a
/// wrong reader does at all of them.
fn check(label: &str, (target, known): (Target, KnownStacks)) {
    let is_good = (0..6).any(|_| watch(&target, &known).is_good(label));
    assert!(is_good, "{label}: too many stacks are torn or never were, six times");
}

#[test]
#[ignore = "takes long, and levels_follow_each_other_without_a_gap sees calls: scripts/test.sh --all runs it"]
fn a_callee_is_seen_only_under_its_calling_line() {
    for python in pythons::some_versions() {
        check(&format!("pairs, {}", python.label), KnownStacks::pairs(&python, None));
    }
}

/// Without a GIL each thread executes its own copy of the bytecode.
#[test]
fn lines_are_right_in_every_thread_that_executes_a_function() {
    for python in pythons::some_versions() {
        check(&format!("pairs, {}", python.label), KnownStacks::pairs(&python, Some("3")));
    }
}

#[test]
fn levels_follow_each_other_without_a_gap() {
    for python in pythons::some_versions() {
        check(&format!("levels, {}", python.label), KnownStacks::levels(&python));
    }
}
