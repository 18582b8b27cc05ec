//! Recordings with numbers beyond all memory: read or refused, never a panic.

use std::path::Path;

use assert_cmd::cargo::cargo_bin;
use memspy::model::*;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::hostile_support::{exact, sampled, save};
use crate::trace_support::any_record::recording;
use crate::trace_support::numbers::{Number, numbers};
use crate::trace_support::{read, write};

/// Every size becomes `large`.
fn with_numbers(mut records: Vec<Record>, large: u64) -> Vec<Record> {
    for record in &mut records {
        match record {
            Record::Ownership(owners) => {
                let held = owners.devices.iter_mut().flat_map(|device| &mut device.held);
                held.for_each(|held| held.bytes = large);
            }
            Record::Snapshot(snapshot) => {
                for segment in &mut snapshot.segments {
                    segment.size = large;
                    let blocks = segment.blocks.iter_mut();
                    blocks.for_each(|block| (block.size, block.requested) = (large, large));
                }
            }
            _ => {}
        }
    }
    records
}

/// More than any colour scale or table of shares could multiply.
const LARGE: u64 = 1 << 59;

/// `flame --diff` failed in inferno's colour scale, `oom-report` in its table of owners.
#[test]
fn huge_sizes_cause_no_panic_in_differences_and_owner_tables() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, sound) = (folder.path().join("trace"), folder.path().join("sound"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    save(&sound, &sampled(None));
    save(&trace, &with_numbers(sampled(None), LARGE));
    let (trace, sound) = (text(&trace), text(&sound));
    let commands: [&[&str]; 6] = [
        &["diff", &sound, &trace, "--by", "owner"],
        &["diff", &trace, &sound, "--by", "stack"],
        &["diff", &trace, "--from", "end", "--by", "function"],
        &["flame", &trace, "--diff", &sound, "-o", "-"],
        &["flame", &sound, "--diff", &trace, "-o", "-"],
        &["oom-report", &trace],
    ];
    let mut failed = Vec::new();
    for words in commands {
        let done = std::process::Command::new(cargo_bin("memspy")).args(words).output().unwrap();
        let err = String::from_utf8_lossy(&done.stderr);
        if err.contains("panicked") || !matches!(done.status.code(), Some(0 | 1)) {
            failed.push(format!("{words:?}: {err}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Records with every kind of number, from made-up recordings and single records.
fn records_of_every_kind() -> Vec<Record> {
    let mut records = [sampled(Some(1)), exact()].concat();
    for seed in 0..4 {
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
        let mut runner = TestRunner::new_with_rng(Config::default(), random);
        records.extend(recording().new_tree(&mut runner).unwrap().current());
    }
    let mut seen = Vec::new();
    records.retain(|record| {
        // Records that need definitions are left out; line numbers are tested below.
        if matches!(record, Record::Definition(_) | Record::Source(_) | Record::Sample(_)) {
            return false;
        }
        let mut count = 0;
        numbers(&mut record.clone(), &mut |_| count += 1);
        let kind = (std::mem::discriminant(record), count);
        !seen.contains(&kind) && {
            seen.push(kind);
            true
        }
    });
    assert!(seen.len() > 20, "{}", seen.len());
    records
}

/// A sum wrapped, or panicked in a build with checks; the answer was nonsense.
#[test]
fn an_impossible_size_count_or_time_is_refused_when_read() {
    let mut tried = 0;
    let mut taken = Vec::new();
    for record in records_of_every_kind() {
        let mut record = match record {
            // Their sites, threads and stacks would need definitions.
            Record::Events(mut batch) => {
                batch.events.iter_mut().for_each(|event| event.site = None);
                Record::Events(batch)
            }
            Record::Followed(mut batch) => {
                batch.changes.iter_mut().for_each(|change| change.threads.clear());
                Record::Followed(batch)
            }
            Record::OomException(oom) => Record::OomException(OomException { error: None, ..oom }),
            Record::Keyframe(mut keyframe) => {
                let sources = keyframe.allocation_sources.iter_mut();
                sources.for_each(|source| *source = AllocationSource::Lost);
                Record::Keyframe(keyframe)
            }
            record => record,
        };
        let mut count = 0;
        numbers(&mut record, &mut |_| count += 1);
        for chosen in 0..count {
            let mut forged = record.clone();
            let (mut n, mut may_be, mut what) = (0, false, "");
            numbers(&mut forged, &mut |number| {
                if n == chosen {
                    match number {
                        Number::Time(n) => (*n, what) = (u64::MAX, "time"),
                        Number::Size(n) => (*n, what) = (u64::MAX / 2, "size"),
                        Number::SignedSize(n) => (*n, what) = (i64::MIN, "signed size"),
                        Number::Total(n) => (*n, what) = (u64::MAX / 2, "total"),
                        Number::SignedTotal(n) => (*n, what) = (i64::MIN, "signed total"),
                        Number::Line(n) => (*n, what) = (u32::MAX, "line"),
                        Number::Address(_) | Number::Any(_) | Number::AnySigned(_) => may_be = true,
                    }
                }
                n += 1;
            });
            if may_be {
                continue;
            }
            tried += 1;
            let (records, summary) = read(&write(std::slice::from_ref(&forged)));
            if !records.is_empty() || summary.damaged_places != 1 {
                taken.push(format!("the {what} numbered {chosen}: {forged:?}"));
            }
        }
        let (records, _) = read(&write(std::slice::from_ref(&record)));
        assert_eq!(records, [record], "what can be is read");
    }
    assert!(tried > 200, "{tried}");
    assert!(taken.is_empty(), "{} of {tried} were taken:\n{:.2000}", taken.len(), taken.join("\n"));
}

/// Each is possible; together they are more than any job allocates.
#[test]
fn sizes_whose_sum_over_a_trace_cannot_be_are_refused() {
    let event = |n: u64| Event {
        time: Nanos(n),
        change: EventKind::Allocated {
            memory_kind: MemoryKind::Driver(None),
            address: n << 50,
            size: 1 << 50,
            levels: None,
            block: None,
        },
        site: None,
    };
    let batch = |n: u64| Record::Events(EventBatch { events: vec![event(n % 1000)] });
    let records: Vec<Record> = (0..5000).map(batch).collect();
    let (read, summary) = read(&write(&records));
    assert_eq!(read.len(), 1 << 11);
    let why = summary.first_damage.unwrap().why;
    assert_eq!(why, "its records state more memory than any job allocates");
}

#[test]
fn a_line_that_no_file_has_is_refused() {
    for line in [u32::MAX, 1 << 31] {
        let mut records = sampled(None);
        for record in &mut records {
            numbers(record, &mut |number| {
                if let Number::Line(n) = number {
                    *n = line;
                }
            });
        }
        let (_, summary) = read(&write(&records));
        assert_eq!(summary.first_damage.unwrap().why, "a record states a line that no file has");
    }
}
