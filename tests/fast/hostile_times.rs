//! Impossible times cause no extra work, and no panic.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::hostile_support::{exact, sampled, save};
use crate::support::memspy::command;
use memspy::model::*;

/// The records at other times: `at` gives the nth.
fn at_times(mut records: Vec<Record>, at: &dyn Fn(u64) -> u64) -> Vec<Record> {
    let mut n = 0;
    let mut next = || {
        n += 1;
        Nanos(at(n))
    };
    for record in &mut records {
        match record {
            Record::Start(_) | Record::Definition(_) | Record::Source(_) | Record::Device(_) => {}
            Record::Runtime(r) => r.time = next(),
            Record::Ownership(h) => (h.time, h.age) = (next(), next()),
            Record::Step(s) => s.time = next(),
            Record::Keyframe(i) => i.time = next(),
            Record::TriggerFired(t) => t.time = next(),
            Record::OomException(t) => t.time = next(),
            Record::Gap(g) => (g.from, g.to) = (next(), next()),
            Record::Sample(s) => s.time = next(),
            Record::Counters { time, .. } => *time = next(),
            Record::Snapshot(b) => b.time = next(),
            Record::Usage(u) => u.time = next(),
            Record::Missed(m) => m.time = next(),
            Record::ExactSettings(e) => e.time = next(),
            Record::Events(e) => e.events.iter_mut().for_each(|event| event.time = next()),
            Record::Followed(batch) => batch
                .changes
                .iter_mut()
                .for_each(|change| (change.before, change.after) = (next(), next())),
            Record::CounterCheck(r) => r.time = next(),
            Record::End(e) => e.time = next(),
        }
    }
    records
}

/// Waits for a command, with a generous limit.
#[track_caller]
fn ends(mut child: Child, what: &str) {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let mut said = String::new();
            std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
            assert!(matches!(status.code(), Some(0 | 1)), "{what}: {status}: {said}");
            assert!(!said.contains("panicked"), "{what}: {said}");
            return;
        }
        if begun.elapsed() > Duration::from_secs(100) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{what} goes on and on");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn run(words: &[&str], trace: &Path) {
    let mut command = command(None);
    let child = command.args(words).arg(trace).stdout(Stdio::null()).stderr(Stdio::piped());
    ends(child.spawn().unwrap(), &format!("{words:?} of {}", trace.display()));
}

const COMMANDS: [&[&str]; 14] = [
    &["lines"],
    &["lines", "--json"],
    &["lines", "--merge"],
    &["iterations"],
    &["iterations", "--period"],
    &["iterations", "--format", "csv"],
    &["flame", "-o", "-"],
    &["report", "-o", "-"],
    &["flame", "-f", "collapsed", "--by", "owner", "-o", "-"],
    &["oom-report"],
    &["oom-report", "--until", "growth>1M/s"],
    &["oom-report", "--until", "growth>1M/min"],
    &["oom-report", "--until", "growth>1M/h"],
    &["oom-report", "--until", "allocated>1M"],
];

#[test]
fn times_of_any_size_cause_no_panic_or_hang() {
    let folder = tempfile::tempdir().unwrap();
    let patterns: [(&str, &dyn Fn(u64) -> u64); 7] = [
        ("all-at-the-end", &|_| u64::MAX),
        ("to-and-fro", &|n| if n % 2 == 0 { 0 } else { u64::MAX - n }),
        ("up-to-the-end", &|n| u64::MAX - 100_000 + n),
        ("leaps", &|n| n << 55),
        ("backwards", &|n| u64::MAX / 2 - (n << 40)),
        ("years", &|n| n * 86_400_000_000_000_000),
        ("then-the-end", &|n| if n < 60 { n * 5_000_000 } else { u64::MAX - 1000 + n % 1000 }),
    ];
    for (name, at) in patterns {
        for (kind, records) in [("sampled", sampled(None)), ("exact", exact())] {
            let path = folder.path().join(format!("{name}-{kind}"));
            save(&path, &at_times(records, at));
            COMMANDS.iter().for_each(|words| run(words, &path));
        }
    }
}
