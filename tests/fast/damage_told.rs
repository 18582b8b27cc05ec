//! Every command that reads a recording reports what is missing, in words and in JSON.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::analysis_script::folded;
use crate::flight_support::{SLOW, probed};
use crate::hostile_support::{sampled, save};
use crate::support::memspy::{Done, command, run};
use crate::trace_support::{Loop, borders};
use memspy::analysis::{Moment, Profile, ThreadChoice, peak};
use memspy::files::FileCreation;
use memspy::flight::RingRecorder;
use memspy::model::*;
use memspy::trace::{Retention, TraceReader, TraceWriter, join, segments};
use serde_json::Value;

/// Commands that read a trace, in all their formats.
const COMMANDS: [&[&str]; 14] = [
    &["lines"],
    &["lines", "--format", "csv"],
    &["lines", "--json"],
    &["lines", "--merge"],
    &["lines", "--merge", "--format", "csv"],
    &["lines", "--merge", "--json"],
    &["iterations"],
    &["iterations", "--format", "csv"],
    &["iterations", "--json"],
    &["flame", "-o", "-"],
    &["report", "-o", "-"],
    &["flame", "-f", "collapsed", "-o", "-"],
    &["flame", "-f", "collapsed", "--by", "owner", "-o", "-"],
    &["oom-report"],
];

fn memspy(words: &[&str], path: &Path) -> Done {
    run(command(None).args(words).arg(path)).ok()
}

/// A trace with a block for every few records.
fn in_blocks(records: &[Record]) -> Vec<u8> {
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    for (n, record) in records.iter().enumerate() {
        writer.record(record).unwrap();
        if n % 25 == 24 {
            writer.flush().unwrap();
        }
    }
    writer.finish().unwrap().0
}

/// All warnings in a JSON report.
fn warnings_of(report: &Value) -> Vec<String> {
    let of = |value: &Value| -> Vec<String> {
        let all = value["warnings"].as_array().cloned().unwrap_or_default();
        all.iter().map(|warning| warning.as_str().unwrap().to_owned()).collect()
    };
    let ranks = report["ranks"].as_array().cloned().unwrap_or_default();
    of(report).into_iter().chain(ranks.iter().flat_map(of)).collect()
}

#[test]
fn every_command_and_format_warns_of_a_damaged_trace() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = in_blocks(&sampled(Some(0)));
    let all = borders(&bytes);
    let mut altered = bytes.clone();
    altered[all[all.len() - 4] + 30] ^= 4;
    let cases = [
        ("cut.bin", bytes[..all[all.len() - 3]].to_vec(), "the recording ended abruptly"),
        ("altered.bin", altered, "the trace is damaged in 1 places"),
        ("longer.bin", [&bytes[..], b"more"].concat(), "4 bytes follow the end"),
    ];
    for (name, bytes, what) in cases {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        for words in COMMANDS {
            let done = memspy(words, &path);
            let said: Vec<&str> = done.err.lines().filter(|line| line.contains(what)).collect();
            assert_eq!(said.len(), 1, "{words:?} of {name} says once '{what}': {}", done.err);
            assert!(said[0].contains("warning: ") && said[0].contains(name), "{said:?}");
            if words.contains(&"--json") {
                let report: Value = serde_json::from_str(&done.out).unwrap();
                let warnings = warnings_of(&report);
                assert!(warnings.iter().any(|w| w.contains(what)), "{words:?}: {warnings:?}");
            }
        }
    }
    // A whole trace gives no warning.
    let path = folder.path().join("whole.bin");
    save(&path, &sampled(Some(0)));
    for words in COMMANDS {
        let done = memspy(words, &path);
        assert_eq!(done.err, "", "{words:?}");
    }
}

/// A ring's segments after its recorder was killed at the end.
fn ring(folder: &Path, name: &str, records: &[Record]) -> PathBuf {
    let path = folder.join(name);
    let keep = Retention::Time(Duration::from_secs(4));
    let mut flight =
        RingRecorder::new(&path, keep, FileCreation::default(), ThreadChoice::default()).unwrap();
    records.iter().for_each(|record| flight.record(record).unwrap());
    // Also writes what is buffered.
    flight.write(None, &mut |_| {}).unwrap();
    flight.folder().to_owned()
}

fn copy(ring: &Path, to: &Path) -> Vec<PathBuf> {
    fs::create_dir(to).unwrap();
    for segment in segments(ring).unwrap() {
        fs::copy(&segment, to.join(segment.file_name().unwrap())).unwrap();
    }
    segments(to).unwrap()
}

fn joined(paths: &[PathBuf]) -> (Vec<Record>, Vec<String>) {
    let mut records = Vec::new();
    let warnings = join(paths, &mut records).unwrap().warnings;
    (records, warnings)
}

/// What happened to a ring.
struct Harm {
    name: &'static str,
    /// The warning.
    said: &'static str,
    /// Records are missing.
    has_gap: bool,
    /// Changes the segments; `others` are another recording's.
    harm: fn(segments: &[PathBuf], others: &[PathBuf]),
}

const HARMS: [Harm; 7] = [
    Harm {
        name: "flipped",
        said: "is damaged in 1 places",
        has_gap: true,
        harm: |segments, _| {
            let mut bytes = fs::read(&segments[3]).unwrap();
            let all = borders(&bytes);
            bytes[all[all.len() / 2] + 20] ^= 1;
            fs::write(&segments[3], bytes).unwrap();
        },
    },
    Harm {
        name: "missing",
        said: "is missing",
        has_gap: true,
        harm: |segments, _| fs::remove_file(&segments[3]).unwrap(),
    },
    Harm {
        name: "foreign",
        said: "belongs to another recording",
        has_gap: true,
        harm: |segments, others| {
            fs::copy(&others[3], &segments[3]).unwrap();
        },
    },
    Harm {
        name: "one-more",
        said: "belongs to another recording",
        has_gap: false,
        harm: |segments, others| {
            let last = segments.last().unwrap().with_file_name("99999998.memspy");
            fs::copy(&others[3], last).unwrap();
        },
    },
    Harm {
        name: "twice",
        said: "begins before the preceding one",
        has_gap: false,
        harm: |segments, _| {
            let last = segments.last().unwrap();
            let number: u64 = last.file_stem().unwrap().to_str().unwrap().parse().unwrap();
            let again = last.with_file_name(format!("{:08}.memspy", number + 1));
            fs::copy(&segments[2], again).unwrap();
        },
    },
    Harm {
        name: "cut",
        said: "is missing: the segment before is cut off",
        has_gap: true,
        harm: |segments, _| {
            // At a block's end: alone it looks whole.
            let bytes = fs::read(&segments[3]).unwrap();
            let all = borders(&bytes);
            fs::write(&segments[3], &bytes[..all[2]]).unwrap();
        },
    },
    Harm {
        name: "no-head",
        said: "cannot be read",
        has_gap: true,
        harm: |segments, _| {
            let mut bytes = fs::read(&segments[3]).unwrap();
            bytes[2] ^= 0x20;
            fs::write(&segments[3], bytes).unwrap();
        },
    },
];

fn recordings() -> [(&'static str, Vec<Record>, Vec<Record>); 2] {
    let renamed = |records: Vec<Record>| -> Vec<Record> {
        let mut records = records;
        for record in &mut records {
            if let Record::Start(start) = record {
                start.pid += 1;
                start.unix_nanos += 1;
            }
        }
        records
    };
    let exact = |seed| std::mem::take(&mut probed(seed, 500, SLOW).records);
    [
        ("sampled", Loop::story(3, 1600), renamed(Loop::story(4, 1600))),
        ("exact", exact(3), renamed(exact(4))),
    ]
}

#[test]
fn a_damaged_ring_never_joins_to_a_whole_trace() {
    for (kind, records, others) in recordings() {
        let folder = tempfile::tempdir().unwrap();
        let whole = ring(folder.path(), "whole.bin", &records);
        let others = segments(&ring(folder.path(), "others.bin", &others)).unwrap();
        let (_, warnings) = joined(&segments(&whole).unwrap());
        assert_eq!(warnings, Vec::<String>::new(), "{kind}");
        for Harm { name, said, has_gap, harm } in HARMS {
            let ring = folder.path().join(name);
            let paths = copy(&whole, &ring);
            assert!(paths.len() > 4, "{} segments", paths.len());
            harm(&paths, &others);
            let trace = folder.path().join(format!("{name}.bin"));
            let done = run(command(None).arg("join").arg(&ring).arg("-o").arg(&trace)).ok();
            let warned =
                done.err.lines().any(|line| line.contains("warning") && line.contains(said));
            assert!(warned, "{kind} {name}: {}", done.err);
            let done = memspy(&["oom-report"], &ring);
            assert!(done.err.contains(said), "{kind} {name}: {}", done.err);
            // A joined trace says so, too, wherever it is read.
            for words in [
                &["lines"][..],
                &["lines", "--json"],
                &["oom-report"],
                &["flame", "-o", "-"],
                &["report", "-o", "-"],
            ] {
                let done = memspy(words, &trace);
                let gap = "the recording has a gap: records are missing between";
                assert_eq!(
                    done.err.contains(gap),
                    has_gap,
                    "{kind} {name} {words:?}: {}",
                    done.err
                );
                if words.contains(&"--json") {
                    let report: Value = serde_json::from_str(&done.out).unwrap();
                    let told = warnings_of(&report).iter().any(|w| w.contains(gap));
                    assert_eq!(told, has_gap, "{kind} {name}");
                }
            }
        }
    }
}

fn profile(records: &[Record]) -> Profile {
    let mut profile = Profile::new();
    records.iter().for_each(|record| profile.record(record).unwrap());
    profile.finish();
    profile
}

#[test]
fn after_a_gap_a_joined_recording_equals_the_whole_one() {
    for (kind, records, _) in recordings() {
        let folder = tempfile::tempdir().unwrap();
        let whole = ring(folder.path(), "whole.bin", &records);
        let whole = segments(&whole).unwrap();
        let at_end = |profile: &Profile| folded(profile, 0, Moment::End);
        let (all, _) = joined(&whole);
        let expected = profile(&all);
        let peak = |profile: &Profile| peak::allocated(profile, CudaIndex(0)).unwrap().bytes;
        for left_out in 1..whole.len() - 1 {
            let mut paths = whole.clone();
            paths.remove(left_out);
            let (records, warnings) = joined(&paths);
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            let gaps = records.iter().filter(|record| matches!(record, Record::Gap(_))).count();
            assert_eq!(gaps, 1, "{kind} without {left_out}");
            let known = profile(&records);
            assert_eq!(known.begins(), expected.begins(), "{kind} without {left_out}");
            assert_eq!(at_end(&known), at_end(&expected), "{kind} without {left_out}");
            assert!(peak(&known) <= peak(&expected), "{kind} without {left_out}");
            // Written and read again it says the same.
            let path = folder.path().join("again.bin");
            save(&path, &records);
            let mut again = Vec::new();
            TraceReader::open(&path).unwrap().replay(&mut again).unwrap();
            assert_eq!(again, records);
        }
    }
}
