//! `memspy flame --by stream` and `--by category`: sums, and refusals.

use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;

use crate::analysis_script::{MIB, Script, owners};
use crate::exact_script::Probed;
use crate::trace_support;
use memspy::model::{Record, TensorCategory};

const SIDE: u64 = 0x55d0_1234;

fn flame(trace: &Path, words: &[&str]) -> (i32, String, String) {
    let mut all = vec!["flame", trace.to_str().unwrap(), "-o", "-"];
    all.extend(words);
    let done = Command::new(cargo_bin("memspy")).args(all).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

/// Folded stacks by first frame: bytes, the greatest first.
fn roots(trace: &Path, words: &[&str]) -> Vec<(String, u64)> {
    let (code, out, err) = flame(trace, &[words, &["-f", "collapsed"]].concat());
    assert_eq!(code, 0, "{err}");
    let mut sums = std::collections::BTreeMap::<String, u64>::new();
    for line in out.lines() {
        let (stack, bytes) = line.rsplit_once(' ').unwrap();
        let root = stack.split(';').next().unwrap();
        *sums.entry(root.to_owned()).or_default() += bytes.parse::<u64>().unwrap();
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    sums
}

fn refused(trace: &Path, words: &[&str], parts: &[&str]) {
    let (code, _, err) = flame(trace, words);
    assert_eq!((code, err.lines().count()), (1, 1), "{words:?}: {err}");
    for part in parts {
        assert!(err.contains(part), "no '{part}' in: {err}");
    }
}

/// Puts blocks of an odd number of MiB on a second stream, in all snapshots.
fn with_streams(records: &[Record]) -> Vec<Record> {
    let mut records = records.to_vec();
    for record in &mut records {
        if let Record::Snapshot(snapshot) = record {
            for segment in &mut snapshot.segments {
                segment.stream = if segment.size / MIB % 2 == 1 { SIDE } else { 0 };
            }
        }
    }
    records
}

fn write(folder: &tempfile::TempDir, name: &str, records: &[Record]) -> std::path::PathBuf {
    let trace = folder.path().join(name);
    std::fs::write(&trace, trace_support::write(records)).unwrap();
    trace
}

/// Random allocations of whole MiB under three lines, freed at random, with some snapshots and one
/// at the end.
fn random_exact(seed: u64) -> Vec<Record> {
    let mut roll = trace_support::Dice(seed);
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.malloc(0, 0, 31 * MIB);
    s.begin();
    let mut held = Vec::new();
    for step in 0..200u32 {
        s.line(0, 10 + (roll.roll(3) as u32));
        if roll.roll(5) < 3 || held.is_empty() {
            held.push(s.malloc(0, 0, (1 + roll.roll(9)) * MIB));
        } else {
            let gone = held.swap_remove(roll.roll(held.len() as u64) as usize);
            s.release(0, gone);
        }
        if step % 50 == 20 {
            s.poll();
        }
    }
    s.poll();
    s.finish();
    with_streams(&s.records)
}

/// A sampled job with 40 MiB on the default stream and 21 MiB on another one.
fn sampled() -> Vec<Record> {
    let mut s = Script::new(100);
    s.thread("MainThread", true);
    s.gpus.entry(0).or_default();
    s.enter(0, "train", 10);
    s.start();
    s.tick();
    s.map(0);
    s.alloc(0, 0, 40 * MIB);
    s.tick();
    s.alloc(0, 0, 21 * MIB);
    s.tick();
    s.map(0);
    s.tick();
    s.end();
    with_streams(&s.records)
}

#[test]
fn streams_of_a_moment_add_up_to_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let sum = |roots: &[(String, u64)]| -> u64 { roots.iter().map(|(_, bytes)| bytes).sum() };
    let mut apart = 0;
    for seed in 0..3 {
        let trace = write(&folder, "exact.bin", &random_exact(seed));
        for at in ["peak", "end", "1ms"] {
            let all = roots(&trace, &["--at", at]);
            let by_stream = roots(&trace, &["--at", at, "--by", "stream"]);
            assert_eq!(sum(&by_stream), sum(&all), "seed {seed}, {at}: {by_stream:?}");
            apart += usize::from(by_stream.iter().any(|(name, _)| name == "stream 0x55d01234"));
        }
    }
    assert!(apart >= 3, "{apart} moments have the other stream");
    for seed in 0..2 {
        let story = with_streams(&trace_support::Loop::story(seed, 200));
        let trace = write(&folder, "sampled.bin", &story);
        for at in ["peak", "end"] {
            let all = roots(&trace, &["--at", at]);
            let by_stream = roots(&trace, &["--at", at, "--by", "stream"]);
            assert_eq!(sum(&by_stream), sum(&all), "sampled, {at}: {by_stream:?}");
        }
    }
}

#[test]
fn memory_is_divided_by_stream_and_then_by_stack() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write(&folder, "sampled.bin", &sampled());
    let expected = [("default stream", 40 * MIB), ("stream 0x55d01234", 21 * MIB)];
    let expected = expected.map(|(name, bytes)| (name.to_owned(), bytes));
    for at in ["peak", "end"] {
        assert_eq!(roots(&trace, &["--by", "stream", "--at", at]), expected);
    }
    let (_, picture, _) = flame(&trace, &["--by", "stream"]);
    assert!(picture.contains("GPU memory by stream (2), at the peak: 61.00 MiB in all"));
    let (_, text, _) = flame(&trace, &["--by", "stream", "-f", "collapsed"]);
    assert!(text.starts_with("default stream;train ("), "{text}");
}

#[test]
fn what_has_no_stream_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut records = random_exact(1);
    let trace = write(&folder, "exact.bin", &records);
    let by = ["--by", "stream"];
    refused(&trace, &[&by[..], &["--total-allocated"]].concat(), &["leave out --total-allocated"]);
    refused(&trace, &[&by[..], &["--from", "1ms"]].concat(), &["leave out --from"]);
    refused(&trace, &[&by[..], &["--threads"]].concat(), &["leave out --threads"]);
    let other = trace.to_str().unwrap();
    refused(&trace, &[&by[..], &["--diff", other]].concat(), &["leave out --by stream"]);
    records.retain(|record| !matches!(record, Record::Snapshot(_)));
    let bare = write(&folder, "bare.bin", &records);
    refused(&bare, &by, &["no snapshot of the segments of GPU 0"]);
}

#[test]
fn categories_add_up_and_are_refused_if_not_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let mut records = sampled();
    let trace = write(&folder, "without.bin", &records);
    refused(&trace, &["--by", "category"], &["record with --owners"]);
    let owners = owners(
        25_000_000,
        &[
            (TensorCategory::Parameter, "layers.0.weight", 20),
            (TensorCategory::Parameter, "layers.1.weight", 10),
            (TensorCategory::OptimizerState, "AdamW.exp_avg[layers.0.weight]", 20),
            (TensorCategory::Saved, "[saved by MulBackward0]", 5),
        ],
    );
    records.insert(records.len() - 1, owners);
    let trace = write(&folder, "owners.bin", &records);
    let expected = [
        ("parameters", 30),
        ("optimizer state", 20),
        ("saved for backward", 5),
        ("[in no tensor]", 4),
        ("[rounding]", 2),
    ];
    let expected = expected.map(|(name, mib)| (name.to_owned(), mib * MIB));
    assert_eq!(roots(&trace, &["--by", "category"]), expected);
    let (_, text, _) = flame(&trace, &["--by", "category", "-f", "collapsed"]);
    assert_eq!(text.lines().count(), expected.len(), "categories alone: {text}");
    // The same bytes by owner, further divided.
    assert_eq!(roots(&trace, &["--by", "owner"]), expected);
    refused(&trace, &["--by", "category", "--threads"], &["leave it out with --by category"]);
}
