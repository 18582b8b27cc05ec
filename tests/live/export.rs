//! Exported moments, opened by their real readers and compared with the process's own figures.

use std::path::{Path, PathBuf};

use crate::support::memspy::{Recording, collapsed, memspy, run, stacks_of, total, warnings};
use crate::support::sim;
use crate::support::target::Target;
use memspy::render::json::ExportJson;
use serde_json::{Value, json};

/// Lets the target do something and returns its truth.
fn ask(target: &mut Target, request: &str) -> Value {
    target.say(request);
    serde_json::from_str(&target.line()).unwrap()
}

/// Exports a moment into a file beside the trace.
fn export(trace: &Path, format: &str, words: &[&str]) -> PathBuf {
    let out = trace.with_file_name(format!("{format}{}", words.concat()));
    let files =
        ["export", trace.to_str().unwrap(), "-o", out.to_str().unwrap(), "-f", format, "--force"];
    let done = memspy(&[&files[..], words].concat()).ok();
    assert!(warnings(&done.err).is_empty(), "{}", done.err);
    out
}

/// What Python's own unpickler reads.
fn unpickled(file: &Path) -> Value {
    let code = "import json, pickle, sys; print(json.dumps(pickle.load(open(sys.argv[1], 'rb'))))";
    serde_json::from_str(&run(sim::python().args(["-c", code]).arg(file)).ok().out).unwrap()
}

/// A function of torch's own script, applied to the snapshot file.
fn torch_says(function: &str, file: &Path) -> String {
    // The script alone, without importing torch. It would download a Perl script to draw its
    // pictures, so its input is taken.
    let code = "import importlib.util, os, pickle, runpy, sys
root = importlib.util.find_spec('torch').submodule_search_locations[0]
viz = runpy.run_path(os.path.join(root, 'cuda', '_memory_viz.py'))
snapshot = pickle.load(open(sys.argv[2], 'rb'))
drawn = {'format_flamegraph': lambda text: text} if sys.argv[1] in ('segments', 'memory') else {}
print(viz[sys.argv[1]](snapshot, **drawn))";
    run(sim::python().args(["-c", code, function]).arg(file)).ok().out
}

/// A segment without what only a recorded history has.
fn segments(of: &Value) -> Vec<Value> {
    let block = |block: &Value| {
        let active = block["state"] != "inactive";
        // The allocator keeps a stale value for free blocks.
        let requested = if active { block["requested_size"].clone() } else { json!(0) };
        json!([block["address"], block["size"], block["state"], requested])
    };
    let segment = |segment: &Value| {
        let blocks: Vec<Value> = segment["blocks"].as_array().unwrap().iter().map(block).collect();
        let mut kept = json!({ "blocks": blocks });
        for key in [
            "device",
            "address",
            "total_size",
            "stream",
            "segment_type",
            "allocated_size",
            "active_size",
            "requested_size",
            "segment_pool_id",
            "is_expandable",
        ] {
            kept[key] = segment[key].clone();
        }
        kept
    };
    let mut segments: Vec<Value> = of.as_array().unwrap().iter().map(segment).collect();
    segments.sort_by_key(|segment| segment["address"].as_u64());
    segments
}

#[test]
#[ignore = "takes long, and every_format_has_the_same_sum sees formats: scripts/test.sh --all runs it"]
fn a_snapshot_for_memory_viz_is_that_of_the_process() {
    let mut target = sim::start("exact_torch.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &[]);
    ask(&mut target, "train 3");
    ask(&mut target, "keep 5000000");
    ask(&mut target, "keep 33000000");
    let truth = ask(&mut target, "snapshot");
    let _ = recording.interrupt();
    let file = export(recording.trace(), "memory-viz", &["--at", "end"]);
    let snapshot = unpickled(&file);
    assert_eq!(segments(&snapshot["segments"]), segments(&truth["segments"]));

    // Allocated less freed is the growth.
    let events = snapshot["device_traces"][0].as_array().unwrap();
    let sum = |action: &str| -> i64 {
        let of = events.iter().filter(|event| event["action"] == action);
        of.map(|event| event["size"].as_i64().unwrap()).sum()
    };
    assert!(sum("free_completed") > 0 && sum("alloc") > 38_000_000);
    assert_eq!(sum("free_requested"), sum("free_completed"));
    let kept = events.iter().find(|event| event["size"] == 33_000_000).unwrap();
    let names: Vec<&str> =
        kept["frames"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!((names[0], *names.last().unwrap()), ("main", "<module>"));
    let live = |segment: &Value| segment["blocks"].as_array().unwrap().clone();
    let blocks: Vec<Value> =
        snapshot["segments"].as_array().unwrap().iter().flat_map(live).collect();
    let block = blocks.iter().find(|block| block["requested_size"] == 33_000_000).unwrap();
    assert_eq!(block["frames"], kept["frames"]);

    // torch's own script reads all of it.
    let live = truth["after"]["allocated_bytes.all.current"].as_u64().unwrap();
    let reserved = truth["after"]["reserved_bytes.all.current"].as_u64().unwrap();
    let folded = |function: &str, part: &str| -> u64 {
        let stacks = stacks_of(torch_says(function, &file).trim());
        stacks.iter().filter(|stack| stack.0.contains(part)).map(|stack| stack.1).sum()
    };
    assert_eq!(folded("segments", ""), reserved);
    assert_eq!(folded("memory", ""), reserved);
    assert_eq!(folded("memory", "active_allocated"), live);
    assert!(folded("memory", "main") >= 38_000_000);
    assert!(torch_says("segsum", &file).contains("total_allocated:"));
    let trace = torch_says("trace", &file);
    assert!(trace.lines().any(|l| l.contains("= seg_") && l.contains("31.5MiB")), "{trace}");
    assert!(torch_says("trace_plot", &file).contains("<script"));
}

/// A moment's live bytes, by format.
fn sums(trace: &Path, moment: &str) -> Vec<(&'static str, u64)> {
    let at = ["--at", moment];
    let json: Value = {
        let text = std::fs::read_to_string(export(trace, "json", &at)).unwrap();
        crate::support::memspy::document::<ExportJson>(&text)
    };
    let numbers = |list: &Value| -> u64 {
        list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).sum()
    };
    let stacks = json["moments"][0]["stacks"].as_array().unwrap();
    let speedscope = std::fs::read_to_string(export(trace, "speedscope", &at)).unwrap();
    let speedscope: Value = serde_json::from_str(&speedscope).unwrap();
    let profile = &speedscope["profiles"][0];
    assert_eq!(profile["endValue"].as_u64().unwrap(), numbers(&profile["weights"]));
    let csv = std::fs::read_to_string(export(trace, "csv", &at)).unwrap();
    let mut lines = csv.lines();
    let column = lines.next().unwrap().split(',').position(|name| name == "live_bytes").unwrap();
    let csv = lines.map(|line| line.split(',').nth(column).unwrap().parse::<u64>().unwrap()).sum();
    let viz = unpickled(&export(trace, "memory-viz", &at));
    let allocated = |segment: &Value| segment["allocated_size"].as_u64().unwrap();
    let viz = viz["segments"].as_array().unwrap().iter().map(allocated).sum();
    vec![
        ("json", json["moments"][0]["live_bytes"].as_u64().unwrap()),
        ("stacks of json", stacks.iter().map(|s| s["live_bytes"].as_u64().unwrap()).sum()),
        ("speedscope", numbers(&profile["weights"])),
        ("csv", csv),
        ("memory-viz", viz),
        ("pprof", pprof_sum(&export(trace, "pprof", &at))),
    ]
}

/// The sum of inuse_space, read by another protocol buffer decoder than memspy's.
fn pprof_sum(file: &Path) -> u64 {
    read_pprof(file)["sums"]["inuse_space"].as_u64().unwrap()
}

fn read_pprof(file: &Path) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets/read_pprof.py");
    serde_json::from_str(&run(sim::python().arg(script).arg(file)).ok().out).unwrap()
}

#[test]
fn every_format_has_the_same_sum() {
    let mut target = sim::start("exact_torch.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &[]);
    ask(&mut target, "keep 5000000");
    let truth = ask(&mut target, "train 5");
    let _ = recording.interrupt();
    let peak = truth["peak"].as_u64().unwrap();
    assert_eq!(total(&collapsed(recording.trace(), &[])), peak);
    for (format, sum) in sums(recording.trace(), "peak") {
        assert_eq!(sum, peak, "{format} at the peak");
    }
    let live = truth["after"]["allocated_bytes.all.current"].as_u64().unwrap();
    for (format, sum) in sums(recording.trace(), "end") {
        assert_eq!(sum, live, "{format} at the end");
    }
    // pprof also has all that was allocated, and how often.
    let pprof = read_pprof(&export(recording.trace(), "pprof", &[]));
    let churn = total(&collapsed(recording.trace(), &["--total-allocated"]));
    assert_eq!(pprof["sums"]["alloc_space"], churn);
    assert_eq!(pprof["default"], "inuse_space");
    assert_eq!(pprof["units"], json!(["count", "bytes", "bytes"]));
    let kept = |sample: &&Value| sample["values"]["inuse_space"] == 5_000_192;
    let sample = pprof["samples"].as_array().unwrap().iter().find(kept).unwrap();
    let stack = sample["leaf_first"].as_array().unwrap();
    assert_eq!((&stack[0][0], &stack.last().unwrap()[0]), (&json!("main"), &json!("<module>")));
    assert_eq!(sample["labels"]["device"], "0");
    assert_eq!(sample["values"]["alloc_objects"], 1);
}

#[test]
fn a_sampled_recording_has_blocks_and_no_events() {
    let mut target = sim::start("exact_torch.py", &[]);
    let mut recording = Recording::start(target.pid(), &["-r", "200"]);
    ask(&mut target, "keep 40000000");
    let truth = ask(&mut target, "snapshot");
    recording.wait_for_block();
    let _ = recording.interrupt();
    let file = export(recording.trace(), "memory-viz", &["--at", "end"]);
    let snapshot = unpickled(&file);
    assert_eq!(segments(&snapshot["segments"]), segments(&truth["segments"]));
    assert_eq!(snapshot["device_traces"], json!([[]]));
    let sums = sums(recording.trace(), "end");
    assert!(sums.iter().all(|(_, sum)| *sum == sums[0].1), "{sums:?}");
}
