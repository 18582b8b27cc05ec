//! `memspy diff --by` and `--from --to`: rows, sums, refusals.

use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;

use crate::analysis_script::{MIB, Script, owners};
use crate::exact_script::Probed;
use crate::flame_moments;
use crate::trace_support;
use memspy::model::{Record, TensorCategory};

fn memspy(folder: &Path, words: &[&str]) -> (i32, String, String) {
    let done = Command::new(cargo_bin("memspy")).args(words).current_dir(folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

fn diff(folder: &Path, words: &[&str]) -> String {
    let (code, out, err) = memspy(folder, &[&["diff"], words].concat());
    assert_eq!(code, 0, "{words:?}: {err}");
    out
}

#[track_caller]
fn refused(folder: &Path, words: &[&str], parts: &[&str]) {
    let (code, out, err) = memspy(folder, &[&["diff"], words].concat());
    assert!(code > 0 && err.lines().count() == 1, "{words:?}: {code} {out}{err}");
    for part in parts {
        assert!(err.contains(part), "{words:?}: no '{part}' in: {err}");
    }
}

fn write(folder: &Path, name: &str, records: &[Record]) {
    std::fs::write(folder.join(name), trace_support::write(records)).unwrap();
}

/// The bytes of `40.0 MiB`, exact for whole MiB below 1000.
fn size(number: &str, unit: &str) -> u64 {
    let unit = ["B", "KiB", "MiB"].iter().position(|name| *name == unit).unwrap();
    (number.parse::<f64>().unwrap() * 1024f64.powi(unit as i32)) as u64
}

/// A and B in bytes, and the place.
fn rows(text: &str) -> Vec<(u64, u64, String)> {
    let lines = text.lines().skip_while(|line| !line.contains("difference")).skip(1);
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_row = words.len() > 6 && line.starts_with(' ');
        is_row.then(|| (size(words[0], words[1]), size(words[2], words[3]), words[6..].join(" ")))
    };
    lines.filter_map(row).collect()
}

fn totals(text: &str) -> (u64, u64) {
    let head = text.lines().next().unwrap();
    let total = |mark: &str| {
        let words: Vec<&str> = head.split(mark).next().unwrap().split_whitespace().collect();
        size(words[words.len() - 2], words[words.len() - 1])
    };
    (total(" in A"), total(" in B"))
}

/// All rows, and those equal in both, add up to the totals.
#[track_caller]
fn adds_up(text: &str) -> (u64, u64) {
    let same = text.lines().find(|line| line.contains("that are equal in both"));
    let same = same.map_or(0, |line| {
        let inside = line.rsplit_once('(').unwrap().1.trim_end_matches(')');
        let (number, unit) = inside.split_once(' ').unwrap();
        size(number, unit)
    });
    let sums = rows(text).iter().fold((same, same), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    assert_eq!(sums, totals(text), "{text}");
    sums
}

fn pairs(rows: &[(u64, u64, &str)]) -> Vec<(u64, u64, String)> {
    rows.iter().map(|(a, b, place)| (a * MIB, b * MIB, (*place).to_owned())).collect()
}

fn seconds(time: u64) -> String {
    format!("{}s", time as f64 / 1e9)
}

/// The recording of `flame_moments`, and the time after each step.
fn exact(folder: &Path) -> Vec<String> {
    flame_moments::exact(folder).into_iter().map(flame_moments::at).collect()
}

/// Random allocations of whole MiB in three functions on several lines; `shift` moves all lines.
/// Returns a time in the middle.
fn random(folder: &Path, name: &str, seed: u64, shift: u32) -> String {
    let mut dice = trace_support::Dice(seed);
    let mut s = Probed::new();
    s.enter(0, "main", 5 + shift);
    s.malloc(0, 0, 31 * MIB);
    s.begin();
    let (mut held, mut middle) = (Vec::new(), String::new());
    for step in 0..200u32 {
        s.line(0, 5 + shift + dice.roll(2) as u32);
        let inner = ["forward", "backward", "step"][dice.roll(3) as usize];
        s.enter(0, inner, 20 + shift + dice.roll(3) as u32);
        if dice.roll(5) < 3 || held.is_empty() {
            held.push(s.malloc(0, 0, (1 + dice.roll(9)) * MIB));
        } else {
            let gone = held.swap_remove(dice.roll(held.len() as u64) as usize);
            s.release(0, gone);
        }
        s.leave(0);
        s.now += 1_000_000;
        if step == 100 {
            middle = seconds(s.now);
        }
        s.now += 1_000_000;
    }
    s.poll();
    s.finish();
    write(folder, name, &s.records);
    middle
}

const BY_CODE: [&str; 3] = ["line", "function", "stack"];

#[test]
fn the_rows_add_up_to_both_totals_in_every_by() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for seed in [3, 17] {
        let middle = random(folder, "a.bin", seed, 0);
        random(folder, "b.bin", seed + 1, 7);
        let flame = |at: &str| -> u64 {
            let words = ["flame", "a.bin", "--at", at, "-f", "collapsed", "-o", "-"];
            let (_, out, _) = memspy(folder, &words);
            out.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
        };
        let then = flame(&middle);
        let peak = flame("peak");
        for by in BY_CODE {
            for at in ["peak", "end"] {
                adds_up(&diff(folder, &["a.bin", "b.bin", "--by", by, "--at", at, "--limit", "0"]));
            }
            let words = ["a.bin", "--from", &middle, "--to", "peak", "--by", by, "--limit", "0"];
            let (code, out, err) = memspy(folder, &[&["diff"], &words[..]].concat());
            // The peak may have been before.
            match code {
                0 => assert_eq!(adds_up(&out), (then, peak)),
                _ => assert!(err.contains("is after --to"), "{err}"),
            }
            let to_end = diff(folder, &["a.bin", "--from", &middle, "--by", by, "--limit", "0"]);
            assert_eq!(adds_up(&to_end).0, then);
            let same = diff(folder, &["a.bin", "a.bin", "--by", by]);
            assert!(same.contains(&format!("no {by} differs")), "{same}");
        }
    }
}

#[test]
fn two_moments_of_one_trace_show_what_grew_and_shrank() {
    let folder = tempfile::tempdir().unwrap();
    let times = exact(folder.path());
    let between = |by: &str| {
        diff(folder.path(), &["run.bin", "--from", &times[0], "--to", &times[2], "--by", by])
    };
    let text = between("line");
    let at = |time: &str| format!("{:.3} s", time.trim_end_matches('s').parse::<f64>().unwrap());
    let head = format!(
        "GPU memory at {} (A) and at {} (B): 364.00 MiB in A, 340.00 MiB in B, -24.00 MiB (-6.6 %)",
        at(&times[0]),
        at(&times[2])
    );
    assert_eq!(text.lines().next().unwrap(), head);
    assert!(
        text.contains("\nA: run.bin, GPU 0, at ")
            && text.contains(" s, exact; lines: proven 100 %, "),
        "{text}"
    );
    assert_eq!(
        rows(&text),
        pairs(&[(64, 0, "train.py:20 (only A) pass"), (0, 40, "train.py:10 (only B) pass")])
    );
    assert_eq!(
        rows(&between("function")),
        pairs(&[(64, 0, "forward (train.py)"), (0, 40, "train (train.py)")])
    );
    assert_eq!(
        rows(&between("stack")),
        pairs(&[
            (64, 0, "forward (train.py:20) < train (train.py:10)"),
            (0, 40, "train (train.py:10)")
        ])
    );
    for by in BY_CODE {
        assert_eq!(adds_up(&between(by)), (364 * MIB, 340 * MIB));
    }
    let to_end = diff(folder.path(), &["run.bin", "--from", &times[1]]);
    assert!(to_end.contains(" (A) and at the end (B): 396.00 MiB in A, 340.00 MiB"), "{to_end}");
    let from_peak = diff(folder.path(), &["run.bin", "--from", "peak", "--to", &times[2]]);
    assert!(from_peak.starts_with("GPU memory at the peak (A) and at "), "{from_peak}");
    assert_eq!(adds_up(&from_peak), (396 * MIB, 340 * MIB));
}

#[test]
fn a_sampled_recording_has_two_moments_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut s = Script::with_first_allocation();
    let between = seconds(s.now + 1_000_000);
    s.tick();
    s.alloc(0, 0, 20 * MIB);
    s.tick();
    s.map(0);
    s.tick();
    s.end();
    write(folder.path(), "run.bin", &s.records);
    for by in BY_CODE {
        let text = diff(folder.path(), &["run.bin", "--from", &between, "--to", "end", "--by", by]);
        assert_eq!(adds_up(&text), (40 * MIB, 60 * MIB));
        assert!(text.contains(" s, sampled; lines: proven 0 %, probable 0 %, "), "{text}");
    }
}

#[test]
fn stacks_of_two_traces_are_matched_where_their_lines_moved() {
    let folder = tempfile::tempdir().unwrap();
    for (name, shift, of_forward) in [("a.bin", 0, 60), ("b.bin", 9, 90)] {
        let mut s = Probed::new();
        s.enter(0, "train", 10 + shift);
        s.begin();
        s.malloc(0, 0, 8 * MIB);
        s.enter(0, "forward", 20 + shift);
        s.malloc(0, 0, of_forward * MIB);
        s.leave(0);
        s.line(0, 12 + shift);
        s.enter(0, "forward", 21 + shift);
        s.malloc(0, 0, 5 * MIB);
        s.finish();
        write(folder.path(), name, &s.records);
    }
    let text = diff(folder.path(), &["a.bin", "b.bin", "--by", "stack"]);
    assert_eq!(rows(&text), pairs(&[(65, 95, "forward (train.py) < train (train.py)")]));
    assert!(text.ends_with("\nstacks that are equal in both: 1 (8.00 MiB)\n"), "{text}");
    let text = diff(folder.path(), &["a.bin", "b.bin", "--by", "function"]);
    assert_eq!(rows(&text), pairs(&[(65, 95, "forward (train.py)")]));
    assert_eq!(adds_up(&text), (73 * MIB, 103 * MIB));
}

#[test]
fn moments_that_make_no_sense_get_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let times = exact(folder);
    let (first, last) = (&*times[0], &*times[2]);
    refused(folder, &["run.bin"], &["--from TIME --to TIME", "or name a second trace"]);
    refused(folder, &["run.bin", "run.bin", "--from", first], &["two moments of one trace"]);
    refused(folder, &["run.bin", "--to", first], &["--from", "memspy diff --help"]);
    refused(folder, &["run.bin", "--from", last, "--to", first], &["is after --to"]);
    let outside = ["500.000 s is outside of the recording, which is from 0.0", "run.bin"];
    refused(folder, &["run.bin", "--from", "500s"], &[&outside[..], &["--from"]].concat());
    refused(
        folder,
        &["run.bin", "--from", first, "--to", "500s"],
        &[&outside[..], &["--to"]].concat(),
    );
    refused(folder, &["run.bin", "--from", "noon"], &["peak, end, oom", "12.5s"]);
    refused(folder, &["run.bin", "--from", "oom"], &["no out-of-memory error: --from oom"]);
    refused(folder, &["run.bin", "--from", first, "--at", "end"], &["--at", "memspy diff --help"]);
    refused(
        folder,
        &["run.bin", "--from", first, "--by", "colour"],
        &["line, function, stack, owner"],
    );
    refused(
        folder,
        &["run.bin", "--from", first, "--gpu", "5"],
        &["GPU 5 is not in the recording"],
    );
    refused(folder, &["no.bin", "--from", first], &["cannot open", "no.bin"]);
    let owners = ["no snapshots of the owners on GPU 0: record with --owners"];
    refused(folder, &["run.bin", "--from", first, "--by", "owner"], &owners);
    refused(folder, &["run.bin", "run.bin", "--by", "owner"], &owners);
}

#[test]
fn a_moment_before_the_first_reading_is_not_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut s = Script::new(100);
    s.thread("MainThread", true);
    s.enter(0, "train", 10);
    s.start();
    s.tick();
    let time = seconds(s.now + 1_000_000);
    s.gpus.entry(0).or_default();
    for _ in 0..3 {
        s.tick();
        s.alloc(0, 0, 40 * MIB);
        s.map(0);
    }
    s.end();
    write(folder.path(), "run.bin", &s.records);
    let parts = ["nothing had been read of the allocator of GPU 0 yet", "--from"];
    refused(folder.path(), &["run.bin", "--from", &time], &parts);
}

/// A sampled job with two snapshots of its owners: layers 30 and 50 MiB, the optimizer 0 and 20,
/// saved 9 and 4. Returns the times before, between, and after them.
fn owned(folder: &Path, name: &str, more: u64) -> [String; 3] {
    let mut s = Script::with_first_allocation();
    let mut times = Vec::new();
    for (layers, optimizer, saved) in [(15, 0, 9), (25 + more, 20, 4)] {
        s.tick();
        times.push(seconds(s.now + 1_000_000));
        s.tick();
        s.records.push(owners(
            s.now,
            &[
                (TensorCategory::Parameter, "layers.0.weight", layers),
                (TensorCategory::Parameter, "layers.1.weight", layers),
                (TensorCategory::OptimizerState, "AdamW.exp_avg[layers.0.weight]", optimizer),
                (TensorCategory::Saved, "[saved by MulBackward0]", saved),
            ],
        ));
    }
    s.tick();
    times.push(seconds(s.now + 1_000_000));
    s.tick();
    s.end();
    write(folder, name, &s.records);
    times.try_into().unwrap()
}

#[test]
fn owners_are_compared_by_category_and_name_and_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let [before, between, after] = owned(folder, "a.bin", 0);
    owned(folder, "b.bin", 5);
    let by = ["--by", "owner"];
    let text = diff(folder, &[&["a.bin", "--from", &between, "--to", &after], &by[..]].concat());
    let expected = pairs(&[
        (30, 50, "parameters > layers > * > weight"),
        (0, 20, "optimizer state > AdamW.exp_avg > layers > * > weight"),
        (9, 4, "saved for backward > [saved by MulBackward0]"),
    ]);
    assert_eq!(rows(&text), expected, "{text}");
    assert!(text.starts_with("GPU memory by owner: 45.00 MiB in A, 80.00 MiB in B, "), "{text}");
    assert!(text.contains("(the last up to "), "{text}");
    assert!(text.ends_with("\nowners that are equal in both: 2 (6.00 MiB)\n"), "{text}");
    assert_eq!(adds_up(&text), (45 * MIB, 80 * MIB));
    let text = diff(folder, &[&["a.bin", "b.bin"], &by[..]].concat());
    assert_eq!(rows(&text), pairs(&[(50, 60, "parameters > layers > * > weight")]), "{text}");
    assert!(text.contains("(the one with most)"), "{text}");
    assert_eq!(adds_up(&text), (80 * MIB, 90 * MIB));
    let words = |from, to| [&["a.bin", "--from", from, "--to", to], &by[..]].concat();
    refused(folder, &words(&before, &after), &["no snapshot of the owners", "by --from"]);
    refused(folder, &words(&after, "end"), &["both moments have the same snapshot of the owners"]);
}
