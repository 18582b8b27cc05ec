//! All outputs of memspy agree on one peak of a trace: bytes, moment, and live blocks that add up.

use std::io::Read;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use serde_json::Value;

use super::memspy::memspy;

/// What all outputs say about the device with the highest peak.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnePeak {
    /// The allocator's peak during the recording.
    pub bytes: u64,
    /// Bytes at the highest moment with known blocks.
    pub shown: u64,
    /// The time of that moment.
    pub seconds: f64,
}

/// The figures in a page of `memspy report`.
pub fn page_figures(page: &str) -> Value {
    let packed = page.split("id=\"figures\">").nth(1).unwrap().split("</script>").next().unwrap();
    let packed: String = packed.split_whitespace().collect();
    let packed = STANDARD.decode(packed).unwrap();
    let mut json = String::new();
    GzDecoder::new(&packed[..]).read_to_string(&mut json).unwrap();
    serde_json::from_str(&json).unwrap()
}

/// For a trace that may have no PyTorch memory, or none with known blocks.
#[track_caller]
pub fn one_peak_if_any(trace: &Path) {
    let words = ["export", "-f", "json", "-o", "-", trace.to_str().unwrap()];
    let done = memspy(&words);
    let export: Option<Value> = serde_json::from_str(&done.out).ok();
    let moments = export.as_ref().and_then(|export| export["moments"].as_array());
    if moments.is_some_and(|moments| moments.iter().any(|it| it["peak_bytes"].is_u64())) {
        one_peak(trace);
    }
}

/// Panics unless all outputs that read a trace agree on its peak; returns the peak.
#[track_caller]
pub fn one_peak(trace: &Path) -> OnePeak {
    let trace = trace.to_str().unwrap();
    let out = |words: &[&str]| memspy(&[words, &[trace]].concat()).ok().out;
    let json = |words: &[&str]| -> Value { serde_json::from_str(&out(words)).unwrap() };

    let export = json(&["export", "-f", "json", "-o", "-"]);
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("no number: {value}"));
    let moments = export["moments"].as_array().unwrap();
    let moment = moments.iter().max_by_key(|moment| number(&moment["peak_bytes"])).unwrap();
    let device = number(&moment["device"]);
    let peak = OnePeak {
        bytes: number(&moment["peak_bytes"]),
        shown: number(&moment["live_bytes"]),
        seconds: moment["seconds"].as_f64().unwrap(),
    };
    assert!(peak.shown <= peak.bytes, "{peak:?}");
    let stacks = moment["stacks"].as_array().unwrap();
    let sum: u64 = stacks.iter().map(|stack| number(&stack["live_bytes"])).sum();
    assert_eq!(sum, peak.shown, "export -f json");

    let gpu = device.to_string();
    let collapsed = out(&["flame", "-f", "collapsed", "-o", "-", "--gpu", &gpu]);
    let sum: u64 = collapsed
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(sum, peak.shown, "flame");
    let end = out(&["export", "-f", "json", "-o", "-", "--at", "end"]);
    let end: Value = serde_json::from_str(&end).unwrap();
    for moment in end["moments"].as_array().unwrap() {
        assert!(moment["live_bytes"].as_u64() <= moment["peak_bytes"].as_u64(), "{moment}");
    }

    let lines = json(&["lines", "--json", "--gpu", &gpu]);
    assert_eq!(number(&lines["peak_allocated"]["bytes"]), peak.bytes, "lines");
    let moment = &lines["live_moment"];
    assert_eq!(number(&moment["allocated"]), peak.shown, "lines");
    assert_eq!(moment["seconds"].as_f64().unwrap(), peak.seconds, "lines");
    let without = moment["without_line"].as_object().unwrap().values().map(number).sum::<u64>();
    assert_eq!(number(&moment["on_known_lines"]) + without, peak.shown, "lines");

    check_page(&page_figures(&out(&["report", "-o", "-"])), peak);

    let perfetto = json(&["export", "-f", "perfetto", "-o", "-"]);
    let name = format!("GPU {gpu} allocated");
    let levels = perfetto["traceEvents"].as_array().unwrap().iter();
    let levels = levels.filter(|event| event["name"] == *name);
    let top = levels.map(|event| event["args"]["bytes"].as_i64().unwrap()).max();
    assert!(top.unwrap_or(0) <= peak.bytes as i64, "perfetto: {top:?}, {peak:?}");

    let iterations = memspy(&["iterations", "--json", "--gpu", &gpu, trace]);
    if iterations.status.success() {
        let table: Value = serde_json::from_str(&iterations.out).unwrap();
        for row in table["iterations"].as_array().unwrap() {
            assert!(row["peak_allocated"].as_i64().unwrap() <= peak.bytes as i64, "{row}");
        }
    }
    peak
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

/// The page shows the peak in its curve, dot, tile and text, and no higher moment.
#[track_caller]
fn check_page(figures: &Value, peak: OnePeak) {
    let tracks = figures["recordings"][0]["tracks"].as_array().unwrap().iter();
    let tracks = tracks.filter(|track| track["kind"] == "torch");
    let track = tracks.max_by_key(|track| track["counted_peak"][0].as_u64()).unwrap();
    assert_eq!(track["counted_peak"][0].as_u64(), Some(peak.bytes), "the page");
    let totals = numbers(&track["moments"]["total"]);
    let at = track["moments"]["peak"].as_u64().unwrap() as usize;
    assert_eq!(totals[at], peak.shown, "the dot of the page");
    assert!(totals.iter().all(|total| *total <= peak.bytes), "a moment above the peak: {peak:?}");
    let time = numbers(&track["moments"]["time"])[at];
    assert_eq!(time, (peak.seconds * 1e6) as u64, "when the page has its peak");
    let column = |name: &str| numbers(&track["spans"][name]);
    let (from, to, bytes) = (column("from"), column("to"), column("bytes"));
    if track["estimates"].as_array().unwrap().is_empty() {
        for (moment, total) in totals.iter().enumerate() {
            let lives = |i: &usize| from[*i] as usize <= moment && moment < to[*i] as usize;
            let sum: u64 = (0..from.len()).filter(lives).map(|i| bytes[i]).sum();
            // The page scales down any excess to the allocator's figure.
            assert!(sum >= *total, "moment {moment}: {sum} of {total}");
        }
    }
    let levels = &track["levels"];
    let highest = levels["highest"].as_array().unwrap();
    let top = highest.iter().filter_map(Value::as_u64).max();
    assert!(top <= Some(peak.bytes), "the curve of the page is at {top:?}, {peak:?}");
    let from = levels["from"].as_u64().unwrap();
    let width = levels["width"].as_f64().unwrap();
    let of_dot = ((time.saturating_sub(from)) as f64 / width) as usize;
    let near = of_dot.saturating_sub(1)..(of_dot + 2).min(highest.len());
    let near = highest[near].iter().filter_map(Value::as_u64).max();
    assert!(near >= Some(peak.shown), "the dot is above the curve: {near:?}, {peak:?}");
}
