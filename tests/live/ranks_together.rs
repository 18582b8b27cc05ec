//! Traces of several ranks read as one: `lines --merge`, `flame --merge`.

use std::path::Path;

use crate::support::memspy::{
    Recording, collapsed, document, lines, memspy, row, stacks_of, total,
};
use crate::support::oom::ask;
use crate::support::sim;
use crate::support::target::Target;
use memspy::analysis::{LineTable, Profile, RankTable, lines, peak};
use memspy::render::json::RankLinesJson;
use memspy::render::{self, LinesOptions, RankLines};
use memspy::trace::TraceReader;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A recorded rank that follows requests; and its job's own figures.
fn rank(number: u32, requests: &[&str]) -> (Recording, Value) {
    let mut command = sim::command("oom.py", &[]);
    command.env("RANK", number.to_string());
    let mut target = Target::start(command);
    let known = serde_json::from_str(&target.said[0]).unwrap();
    let mut recording = Recording::start_exact(target.pid(), &[]);
    recording.wait_for_block();
    for request in requests {
        ask(&mut target, request);
    }
    // A snapshot is read within a second of the last change.
    ask(&mut target, "settle 1.5");
    target.finish();
    recording.wait().ok();
    (recording, known)
}

fn words<'a>(before: &[&'a str], traces: &[&'a Path]) -> Vec<&'a str> {
    before.iter().copied().chain(traces.iter().map(|t| t.to_str().unwrap())).collect()
}

#[test]
fn one_table_says_which_rank_has_most_of_each_line() {
    let (zero, known) = rank(0, &["grow 10 3"]);
    let (one, _) = rank(1, &["late", "grow 20 4"]);
    let traces = [one.trace(), zero.trace()];
    let all = document::<RankLinesJson>(
        &memspy(&words(&["lines", "--merge", "--json"], &traces)).ok().out,
    );
    let labels: Vec<&Value> =
        all["ranks"].as_array().unwrap().iter().map(|r| &r["label"]).collect();
    assert_eq!(labels, ["rank 0", "rank 1"], "in the order of ranks, not of words");
    let peaks: Vec<&Value> =
        all["ranks"].as_array().unwrap().iter().map(|r| &r["peak_allocated"]["bytes"]).collect();
    assert_eq!(peaks, [(384 + 30) * MIB, (384 + 256 + 80) * MIB]);
    let found = |name: &str| {
        let line = &known["lines"][name];
        let (function, line) = (line["function"].as_str().unwrap(), line["line"].as_u64().unwrap());
        (function.to_owned(), line, row(&all, function, line).unwrap())
    };
    // Both allocated here, the other one more.
    let (function, line, grown) = found("grown");
    assert_eq!(grown["ranks"], 2);
    let live = &grown["live_at_peak"];
    for (which, bytes, rank) in [("greatest", 80, "rank 1"), ("least", 30, "rank 0")] {
        assert_eq!(
            (&live[which]["value"], &live[which]["rank"]),
            (&(bytes * MIB).into(), &rank.into())
        );
    }
    assert_eq!(live["sum"]["value"], 110 * MIB);
    // The single reports add up to the merged one.
    let own = |trace: &Path| {
        let report = lines(trace, &[]);
        row(&report, &function, line).unwrap()["columns"]["allocated_bytes.all.peak"]["value"]
            .as_i64()
            .unwrap()
    };
    let (first, second) = (own(zero.trace()), own(one.trace()));
    let peak = &grown["columns"]["allocated_bytes.all.peak"];
    assert!(first < second);
    assert_eq!(
        (&peak["greatest"]["value"], &peak["greatest"]["rank"]),
        (&second.into(), &"rank 1".into())
    );
    assert_eq!(
        (&peak["least"]["value"], &peak["least"]["rank"]),
        (&first.into(), &"rank 0".into())
    );
    assert_eq!(peak["sum"]["value"], first + second);
    // Only one of them was ever here.
    let (_, _, late) = found("weights");
    assert_eq!(late["ranks"], 1);
    for which in ["greatest", "least"] {
        assert_eq!(
            late["live_at_peak"][which]["rank"], "rank 1",
            "a rank without the line is no least"
        );
    }
    assert_eq!(late["live_at_peak"]["sum"]["value"], 256 * MIB);
    check_text(&traces, &known);
    check_csv(&traces, line);
    check_flame(&traces);
    let refused = memspy(&words(&["lines", "--merge", "--max-peak"], &traces));
    assert_eq!(refused.status.code(), Some(2), "{}", refused.err);
    memspy(&words(&["lines", "--json"], &traces)).refused(&["--merge"]);
}

fn check_text(traces: &[&Path], known: &Value) {
    let text = memspy(&words(&["lines", "--merge", "--source"], traces)).ok().out;
    for part in [
        "2 ranks, peak allocated: greatest 720.00 MiB (rank 1), least 414.00 MiB (rank 0), sum 1.11 GiB",
        "rank 0: process ",
        "peak allocated",
    ] {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
    let line = known["lines"]["grown"]["line"].to_string();
    let row = text.lines().find(|row| row.trim_start().starts_with(&line)).unwrap();
    let live = "80.00 MiB (1)  30.00 MiB (0)  110.00 MiB";
    for part in ["720.00 MiB (1)  414.00 MiB (0)  1.11 GiB", live, "dtype=torch.uint8, device"] {
        assert!(row.contains(part), "no '{part}' in: {row}");
    }
    let text = text_in(traces, 120);
    assert!(text.lines().all(|line| line.chars().count() <= 160), "{text}");
}

/// The same table on a terminal of this width.
fn text_in(traces: &[&Path], width: usize) -> String {
    let profile = |trace: &&Path| {
        let mut profile = Profile::new();
        TraceReader::open(trace).unwrap().replay(&mut profile).unwrap();
        profile
    };
    let profiles: Vec<Profile> = traces.iter().map(profile).collect();
    let columns = &lines::default_columns()[..1];
    let table = |profile: &Profile| {
        lines::table(profile, peak::main_gpu(profile).unwrap(), columns).unwrap()
    };
    let tables: Vec<_> = profiles.iter().map(table).collect();
    let both: Vec<(&Profile, &LineTable)> = profiles.iter().zip(&tables).collect();
    let rank = |&(profile, table)| RankLines { label: "rank", profile, table };
    let ranks: Vec<RankLines<'_>> = both.iter().map(rank).collect();
    let options = LinesOptions { width: Some(width), ..LinesOptions::default() };
    let mut out = Vec::new();
    render::rank_lines_text(&mut out, &ranks, &RankTable::new(&both), &options).unwrap();
    String::from_utf8(out).unwrap()
}

fn check_csv(traces: &[&Path], line: u64) {
    let text =
        memspy(&words(&["lines", "--merge", "--format", "csv", "--only", "grow"], traces)).ok().out;
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let head = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let column = |name: &str| head.iter().position(|h| h == name).unwrap();
    let row = rows.iter().find(|row| row[column("line")] == line.to_string()).unwrap();
    for (name, value) in [
        ("ranks", "2".to_owned()),
        ("live_at_peak.greatest", (80 * MIB).to_string()),
        ("live_at_peak.greatest.rank", "rank 1".to_owned()),
        ("live_at_peak.least.rank", "rank 0".to_owned()),
        ("live_at_peak.sum", (110 * MIB).to_string()),
        ("allocated_bytes.all.peak.least.rank", "rank 0".to_owned()),
    ] {
        assert_eq!(row[column(name)], value, "{name}");
    }
}

fn check_flame(traces: &[&Path]) {
    let sum: u64 = traces.iter().map(|trace| total(&collapsed(trace, &[]))).sum();
    let out = memspy(&words(&["flame", "--merge", "-f", "collapsed", "-o", "-"], traces)).ok().out;
    let together = stacks_of(&out);
    assert_eq!(total(&together), sum);
    assert!(!out.contains("rank "), "{out}");
    let grown: Vec<&(String, u64)> =
        together.iter().filter(|(s, _)| s.contains(";grow (")).collect();
    let [(_, bytes)] = grown[..] else { panic!("one stack for both: {grown:?}") };
    assert_eq!(*bytes, 110 * MIB);
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("both.svg");
    memspy(&words(&["flame", "--merge", "-o", svg.to_str().unwrap()], traces)).ok();
    assert!(std::fs::read_to_string(svg).unwrap().contains("GPU memory of 2 ranks added up"));
}
