//! Two recordings compared line by line.

use std::process::Command;

use assert_cmd::cargo::cargo_bin;

use crate::analysis_script::MIB;
use crate::exact_script::Probed;
use crate::trace_support;
use memspy::model::{ProbeBackend, Record, SourceText};

const FILE: &str = "/home/me/job/train.py";

/// A job whose function `train` has this text, and allocates MiB on the lines with these texts.
fn job(text: &str, allocations: &[(&str, u64)]) -> Vec<Record> {
    let mut s = Probed::new();
    let line_of =
        |wanted: &str| text.lines().position(|line| line.trim() == wanted).unwrap() as u32 + 1;
    s.enter(0, "train", 1);
    s.begin();
    for (line, size) in allocations {
        s.line(0, line_of(line));
        s.malloc(0, 0, size * MIB);
    }
    let function = s.function("train", FILE);
    s.define();
    let source = SourceText { function, first_line: 1, text: text.into() };
    s.flush();
    s.records.push(Record::Source(source));
    s.finish();
    s.records.clone()
}

fn diff(before: &[Record], after: &[Record], words: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, records: &[Record]| {
        std::fs::write(folder.path().join(name), trace_support::write(records)).unwrap();
    };
    write("a.bin", before);
    write("b.bin", after);
    let mut command = Command::new(cargo_bin("memspy"));
    let done = command.args(words).current_dir(folder.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

const OLD: &str =
    "def train():\n    x = load()\n    y = model(x)\n    z = same()\n    w = gone()\n";
const NEW: &str = "def train():\n    # More.\n    prepare()\n    x = load()\n    y = model(x)\n    z = same()\n    v = new()\n";

fn jobs() -> (Vec<Record>, Vec<Record>) {
    let before = [("x = load()", 10), ("y = model(x)", 100), ("z = same()", 7), ("w = gone()", 3)];
    let after = [("x = load()", 8), ("y = model(x)", 150), ("z = same()", 7), ("v = new()", 4)];
    (job(OLD, &before), job(NEW, &after))
}

#[test]
fn lines_that_moved_are_compared_with_themselves() {
    let (before, after) = jobs();
    let text = diff(&before, &after, &["diff", "a.bin", "b.bin"]);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip_while(|line| !line.contains("difference"))
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert!(
        text.starts_with(
            "GPU memory at the peak: 120.00 MiB in A, 169.00 MiB in B, +49.00 MiB (+40.8 %)\n"
        ),
        "{text}"
    );
    let joined: Vec<String> = rows.iter().map(|row| row.join(" ")).collect();
    assert_eq!(joined[0], "100 MiB 150 MiB +50.0 MiB train.py:5 (A: 3) y = model(x)", "{text}");
    assert_eq!(joined[1], "0 B 4.00 MiB +4.00 MiB train.py:7 (only B) v = new()", "{text}");
    assert_eq!(joined[2], "3.00 MiB 0 B -3.00 MiB train.py:5 (only A) w = gone()", "{text}");
    assert_eq!(joined[3], "10.0 MiB 8.00 MiB -2.00 MiB train.py:4 (A: 2) x = load()", "{text}");
    assert_eq!(joined[4], "lines that are equal in both: 1 (7.00 MiB)", "{text}");
}

#[test]
fn a_diff_does_not_call_sampled_stacks_exact() {
    let (before, mut after) = jobs();
    for record in &mut after {
        if let Record::ExactSettings(exact) = record {
            exact.backend = ProbeBackend::PerfSamples;
        }
    }
    let text = diff(&before, &after, &["diff", "a.bin", "b.bin"]);
    let how = |letter: &str| text.lines().find(|line| line.starts_with(letter)).unwrap().to_owned();
    assert!(
        how("A: ").ends_with(" s, exact; lines: proven 100 %, probable 0 %, unattributed 0 %"),
        "{text}"
    );
    assert!(
        how("B: ").contains(
            "total exact, lines a guess from sampled stacks; lines: proven 0 %, probable 0 %, "
        ),
        "{text}"
    );
}

#[test]
fn the_differences_of_all_lines_are_that_of_the_whole() {
    let (before, after) = jobs();
    let all = diff(&before, &after, &["diff", "a.bin", "b.bin", "--limit", "0"]);
    let one = diff(&before, &after, &["diff", "a.bin", "b.bin", "--limit", "1"]);
    assert_eq!(all.lines().filter(|line| line.contains("train.py:")).count(), 4);
    assert_eq!(one.lines().filter(|line| line.contains("train.py:")).count(), 1);
    // 49 in all, of which 50 are shown.
    assert!(one.contains("3 more lines differ, by -1.00 MiB together"), "{one}");
    let same = diff(&before, &before, &["diff", "a.bin", "b.bin"]);
    assert!(same.contains("no line differs"), "{same}");
}

#[test]
fn equal_text_is_matched_by_place_and_other_text_differs() {
    let twice = "def train():\n    x = f()\n    x = f()\n    a = g()\n";
    let other = "def train():\n    x = f()\n    x = f()\n    b = h()\n";
    let job = |text: &str, last: &str| {
        // By text alone, the first of both would be found twice.
        let mut s = Probed::new();
        s.enter(0, "train", 2);
        s.begin();
        s.malloc(0, 0, 5 * MIB);
        s.line(0, 3);
        s.malloc(0, 0, if last.starts_with('a') { 20 * MIB } else { 21 * MIB });
        s.line(0, 4);
        s.malloc(0, 0, 30 * MIB);
        let function = s.function("train", FILE);
        s.define();
        s.flush();
        s.records.push(Record::Source(SourceText { function, first_line: 1, text: text.into() }));
        s.finish();
        s.records.clone()
    };
    let text = diff(&job(twice, "a"), &job(other, "b"), &["diff", "a.bin", "b.bin"]);
    assert!(text.contains("train.py:3"), "{text}");
    assert!(!text.contains("train.py:2"), "{text}");
    assert!(text.contains("train.py:4 (only A)") && text.contains("train.py:4 (only B)"), "{text}");
}
