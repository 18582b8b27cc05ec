//! Targets that never hold still: no sample may show what never was, and few may be torn.

use std::time::{Duration, Instant};

use crate::support::pythons;
use crate::support::target::Target;
use memspy::model::{StackTable, ThreadSample};
use memspy::python::{PythonReader, SampleStats};
use memspy::target::Process;
use serde_json::Value;

/// The innermost frames first: name without its qualification, and line.
fn frames(table: &StackTable, sample: &ThreadSample) -> Vec<(String, u32)> {
    table
        .frames(sample.stack)
        .map(|frame| {
            let name = &table.get_function(frame.function).unwrap().name;
            (name.rsplit('.').next().unwrap().to_owned(), frame.line)
        })
        .collect()
}

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

    /// Shares of all stacks wanted: whether they are within the bounds.
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

fn watch(target: &Target, mut is_wrong: impl FnMut(&[(String, u32)]) -> bool) -> Tally {
    let mut reader = PythonReader::attach_own(&Process::open(target.pid()).unwrap()).unwrap();
    let (mut table, mut out, mut tally) = (StackTable::new(), Vec::new(), Tally::default());
    for _ in 0..samples() {
        let before = Instant::now();
        let stats = reader.sample(&mut table, &mut out).unwrap();
        tally.took += before.elapsed();
        tally.add(stats);
        for sample in &out {
            let stack = frames(&table, sample);
            if is_wrong(&stack) {
                tally.wrong += 1;
                if tally.wrong <= 3 {
                    eprintln!("never was: {stack:?}");
                }
            }
        }
        // Away from any rhythm of the target.
        std::thread::sleep(Duration::from_micros(200 + u64::from(tally.samples) * 7919 % 500));
    }
    tally
}

/// Watches until the shares are within the bounds. A busy machine tears stacks and has quiet moments; a reader that is wrong is
/// so in each of them.
fn check(target: &Target, label: &str, mut is_wrong: impl FnMut(&[(String, u32)]) -> bool) {
    let is_good = (0..6).any(|_| watch(target, &mut is_wrong).is_good(label));
    assert!(is_good, "{label}: too many stacks are torn or never were, six times");
}

/// Watches functions that are called from a line of their own, in `threads` threads or the main one.
fn watch_pairs(threads: Option<&str>) {
    for python in pythons::some_versions() {
        let target = Target::start({
            let mut command = python.target("busy_pairs.py");
            command.args(threads.map(|_| "--threads")).args(threads);
            command
        });
        let truth: Value = serde_json::from_str(&target.said[0]).unwrap();
        let pairs: Vec<(u32, String)> = truth["pairs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| (p[0].as_u64().unwrap() as u32, p[1].as_str().unwrap().to_owned()))
            .collect();
        check(&target, &format!("pairs, {}", python.label), |stack| {
            let Some(at) = stack.iter().position(|(name, _)| name == "spin") else {
                return stack.iter().any(|(name, _)| pairs.iter().any(|p| p.1 == *name));
            };
            let under_deep = at < 2 || (stack[0].0 == "two_deep" && stack[1].0 == "three");
            let paired = at == 0
                || pairs
                    .iter()
                    .any(|(line, name)| (*line, name) == (stack[at].1, &stack[at - 1].0));
            let outer = stack.iter().map(|f| f.0.as_str()).skip(at + 1);
            let whole = match threads {
                Some(_) => outer.eq(["run", "_bootstrap_inner", "_bootstrap"]),
                None => outer.eq(["main", "<module>"]),
            };
            !(under_deep && paired && whole)
        });
    }
}

#[test]
fn a_callee_is_seen_only_under_the_line_that_calls_it() {
    watch_pairs(None);
}

/// Without a GIL each thread executes a copy of the bytecode of its own.
#[test]
fn lines_are_right_in_every_thread_that_executes_a_function() {
    watch_pairs(Some("3"));
}

#[test]
fn levels_follow_each_other_without_a_gap() {
    for python in pythons::some_versions() {
        let target = Target::start({
            let mut command = python.target("busy_stacks.py");
            command.args(["--threads", "2", "--depth", "20"]);
            command
        });
        check(&target, &format!("levels, {}", python.label), |stack| {
            let Some(worker) = stack.iter().position(|(name, _)| name == "worker") else {
                return stack.iter().any(|(name, _)| name.starts_with("level_"));
            };
            let levels = stack[..worker].iter().rev().map(|f| f.0.as_str());
            !levels.enumerate().all(|(n, name)| name == format!("level_{n}"))
        });
    }
}
