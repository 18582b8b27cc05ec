//! Moments exported for other tools: small golden outputs of every format.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::analysis_script::{MIB, Script};
use crate::exact_script;
use crate::trace_support;
use memspy::model::{Nanos, Record, TrainingStep};

struct Exported {
    folder: tempfile::TempDir,
    trace: PathBuf,
}

impl Exported {
    fn of(records: &[Record]) -> Exported {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace.bin");
        std::fs::write(&trace, trace_support::write(records)).unwrap();
        Exported { folder, trace }
    }

    fn memspy(&self, words: &[&str]) -> (i32, Vec<u8>, String) {
        let mut command = Command::new(cargo_bin("memspy"));
        let done = command.args(words).current_dir(self.folder.path()).output().unwrap();
        (done.status.code().unwrap(), done.stdout, String::from_utf8(done.stderr).unwrap())
    }

    /// The export with these words.
    fn export(&self, words: &[&str]) -> Vec<u8> {
        let trace = self.trace.to_str().unwrap();
        let (code, out, err) = self.memspy(&[&["export", trace, "-o", "-", "-f"], words].concat());
        assert_eq!(code, 0, "{err}");
        out
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_slice(&self.export(words)).unwrap()
    }
}

fn exact() -> Exported {
    Exported::of(&exact_script::two_lines())
}

fn sampled() -> Exported {
    let mut s = Script::with_first_allocation();
    s.tick();
    s.end();
    Exported::of(&s.records)
}

#[test]
fn speedscope_has_a_profile_in_bytes_for_each_device() {
    let file = exact().json(&["speedscope"]);
    assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let profile = &file["profiles"][0];
    assert_eq!((&profile["type"], &profile["unit"]), (&json!("sampled"), &json!("bytes")));
    assert_eq!(profile["weights"], json!([300 * MIB, 64 * MIB, 32 * MIB]));
    assert_eq!((&profile["startValue"], &profile["endValue"]), (&json!(0), &json!(396 * MIB)));
    let frames = file["shared"]["frames"].as_array().unwrap();
    let named = |stack: &Value| -> Vec<(String, Option<u64>)> {
        let frame = |number: &Value| &frames[number.as_u64().unwrap() as usize];
        let name = |f: &Value| (f["name"].as_str().unwrap().to_owned(), f["line"].as_u64());
        stack.as_array().unwrap().iter().map(|number| name(frame(number))).collect()
    };
    let stacks: Vec<_> = profile["samples"].as_array().unwrap().iter().map(named).collect();
    assert_eq!(stacks[0], [("[before recording]".to_owned(), None)]);
    assert_eq!(stacks[1], [("train".to_owned(), Some(10)), ("forward".to_owned(), Some(20))]);
    assert_eq!(stacks[2], [("train".to_owned(), Some(11))]);
    // Every frame number exists, and each line's file is named.
    assert!(frames.iter().all(|frame| frame["line"].is_null() || frame["file"].is_string()));
}

#[test]
fn csv_and_json_have_a_row_for_every_stack() {
    let exact = exact();
    let csv = String::from_utf8(exact.export(&["csv", "--at", "end"])).unwrap();
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| rows[0].iter().position(|column| *column == name).unwrap();
    let cell = |row: usize, name: &str| rows[row][column(name)];
    assert_eq!(rows.len(), 4);
    assert_eq!((cell(1, "live_bytes"), cell(1, "stack")), ("314572800", "[before recording]"));
    assert_eq!((cell(2, "live_bytes"), cell(2, "line")), ("33554432", "11"));
    assert_eq!((cell(3, "live_bytes"), cell(3, "allocated_bytes")), ("0", "67108864"));
    assert_eq!((cell(3, "function"), cell(3, "allocations")), ("forward", "1"));

    let json = exact.json(&["json"]);
    assert_eq!((&json["format"], &json["version"]), (&json!("memspy-export"), &json!(1)));
    let moment = &json["moments"][0];
    assert_eq!(moment["live_bytes"], 396 * MIB);
    assert_eq!(moment["stacks"][1]["frames"][1]["name"], "forward");
    // Unknown figures of a sampled recording are null, not 0.
    let json = sampled().json(&["json"]);
    let stack = &json["moments"][0]["stacks"][0];
    assert_eq!(stack["live_bytes"], 40 * MIB);
    assert_eq!((&stack["allocated_bytes"], &stack["allocations"]), (&Value::Null, &Value::Null));
}

/// The fields of a protocol buffer message: numbers, and bytes.
fn fields(mut data: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
    fn varint(data: &mut &[u8]) -> u64 {
        let length = data.iter().position(|byte| *byte < 0x80).unwrap() + 1;
        let (bytes, rest) = data.split_at(length);
        *data = rest;
        bytes.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
    }
    let mut found = Vec::new();
    while !data.is_empty() {
        let key = varint(&mut data);
        let number = varint(&mut data);
        let bytes = match key & 7 {
            0 => Vec::new(),
            2 => {
                let (bytes, rest) = data.split_at(number as usize);
                data = rest;
                bytes.to_vec()
            }
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, number, bytes));
    }
    found
}

fn sample_types(profile: &[u8]) -> Vec<String> {
    let mut text = Vec::new();
    GzDecoder::new(profile).read_to_end(&mut text).unwrap();
    let all = fields(&text);
    let strings: Vec<&Vec<u8>> = all.iter().filter(|f| f.0 == 6).map(|f| &f.2).collect();
    assert!(strings[0].is_empty());
    let kinds = all.iter().filter(|field| field.0 == 1);
    let name = |kind: &Vec<u8>| fields(kind).iter().find(|f| f.0 == 1).unwrap().1 as usize;
    kinds.map(|kind| String::from_utf8(strings[name(&kind.2)].clone()).unwrap()).collect()
}

#[test]
fn pprof_has_what_was_allocated_only_where_it_is_known() {
    let exact = exact().export(&["pprof"]);
    assert_eq!(sample_types(&exact), ["alloc_objects", "alloc_space", "inuse_space"]);
    assert_eq!(sample_types(&sampled().export(&["pprof"])), ["inuse_space"]);
}

#[test]
fn a_format_that_is_not_known_lists_those_that_are() {
    let exact = exact();
    let trace = exact.trace.to_str().unwrap();
    let (code, _, err) = exact.memspy(&["export", trace, "-f", "parket"]);
    assert_eq!(code, 2);
    for format in ["memory-viz", "speedscope", "pprof", "perfetto", "csv", "json"] {
        assert!(err.contains(format), "{err}");
    }
}

#[test]
fn a_sampled_recording_says_that_it_has_no_events() {
    let sampled = sampled();
    let trace = sampled.trace.to_str().unwrap();
    let (code, out, err) =
        sampled.memspy(&["export", trace, "-f", "memory-viz", "-o", "-", "--at", "end"]);
    assert_eq!(code, 0, "{err}");
    assert!(err.contains("no events") && err.contains("--exact"), "{err}");
    assert_eq!(out[..2], *b"\x80\x02");
    assert!(!Path::new(&sampled.trace).with_extension("pickle").exists());
}

#[test]
fn a_snapshot_needs_one_process_and_an_existing_device() {
    let exact = exact();
    let trace = exact.trace.to_str().unwrap();
    let (code, _, err) = exact.memspy(&["export", trace, trace, "-f", "memory-viz"]);
    assert_eq!((code, err.lines().count()), (1, 1), "{err}");
    assert!(err.contains("name one trace"), "{err}");
    let (code, _, err) = exact.memspy(&["export", trace, "-f", "csv", "--gpu", "7"]);
    assert_eq!(code, 1, "{err}");
}

#[test]
fn several_traces_keep_their_own_moments() {
    let exact = exact();
    let trace = exact.trace.to_str().unwrap();
    let (code, out, err) = exact.memspy(&["export", trace, trace, "-f", "speedscope", "-o", "-"]);
    assert_eq!(code, 0, "{err}");
    let file: Value = serde_json::from_slice(&out).unwrap();
    let profiles = file["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 2);
    assert_eq!(profiles[0]["weights"], profiles[1]["weights"]);
    assert_ne!(profiles[0]["samples"], json!([]));
}

#[test]
fn perfetto_has_the_counters_over_time() {
    let sampled = sampled();
    let file = sampled.json(&["perfetto"]);
    let events = file["traceEvents"].as_array().unwrap();
    assert!(events.iter().all(|event| event["name"].is_string() && event["pid"].is_u64()));
    let allocated: Vec<(f64, u64)> = events
        .iter()
        .filter(|event| event["ph"] == "C" && event["name"] == "GPU 0 allocated")
        .map(|event| (event["ts"].as_f64().unwrap(), event["args"]["bytes"].as_u64().unwrap()))
        .collect();
    assert!(allocated.is_sorted_by(|a, b| a.0 <= b.0));
    assert_eq!((allocated[0].1, allocated.last().unwrap().1), (0, 40 * MIB));
    assert_eq!(events.iter().filter(|event| event["ph"] == "M").count(), 1);
    let trace = sampled.trace.to_str().unwrap();
    let (code, _, err) = sampled.memspy(&["export", trace, "-f", "perfetto", "--at", "end"]);
    assert!(code == 1 && err.contains("whole recording"), "{err}");
    let (code, _, err) = sampled.memspy(&["export", trace, "-f", "perfetto", "--gpu", "7"]);
    assert!(code == 1 && err.contains("GPU 7"), "{err}");
}

#[test]
fn perfetto_shows_an_exact_peak_between_two_counter_reads() {
    let exact = exact();
    let file = exact.json(&["perfetto"]);
    let allocated: Vec<u64> = file["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["ph"] == "C" && event["name"] == "GPU 0 allocated")
        .map(|event| event["args"]["bytes"].as_u64().unwrap() / MIB)
        .collect();
    // Live bytes after each event; counters are read before the first and after the last.
    assert_eq!(allocated, [300, 364, 396, 332, 332]);
}

#[test]
fn a_recording_without_counters_gives_no_empty_picture() {
    let mut s = Script::new(100);
    s.thread("MainThread", true);
    s.start();
    s.tick();
    s.end();
    let empty = Exported::of(&s.records);
    let trace = empty.trace.to_str().unwrap();
    for format in ["perfetto", "csv", "memory-viz"] {
        let (code, out, err) = empty.memspy(&["export", trace, "-f", format, "-o", "-"]);
        assert_eq!((code, out.len(), err.lines().count()), (1, 0, 1), "{format}: {err}");
        assert!(err.contains("no GPU memory of PyTorch"), "{format}: {err}");
    }
}

#[test]
fn perfetto_has_a_slice_for_every_iteration() {
    let mut s = Script::new(100);
    s.thread("MainThread", true);
    s.gpus.entry(0).or_default();
    s.enter(0, "train", 10);
    s.start();
    for step in 0..4 {
        s.tick();
        let time = Nanos(s.now);
        s.records.push(Record::Step(TrainingStep { time, step, ..TrainingStep::default() }));
        let block = s.alloc(0, 0, (10 + step) * MIB);
        s.tick();
        s.free(0, block);
    }
    s.tick();
    s.end();
    let file = Exported::of(&s.records).json(&["perfetto"]);
    let events = file["traceEvents"].as_array().unwrap();
    let slices: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert!(slices.len() >= 2, "{file}");
    for slice in slices {
        assert!(slice["dur"].as_f64().unwrap() > 0.0, "{slice}");
        assert!(slice["args"]["GPU 0 peak_allocated"].as_u64().unwrap() >= 10 * MIB, "{slice}");
    }
}
