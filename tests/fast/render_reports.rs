//! Reports over a simulated training job: text, and formats for other programs.

use std::sync::Arc;

use crate::analysis_script::{MIB, Script};
use crate::support::memspy::document;
use memspy::analysis::{
    FindingFacts, FoldOptions, GrowthWatch, LineOrder, Moment, OutsideTorch, ProcessSnapshot,
    Profile, findings, flame, lines, recorded_owner_groups,
};
use memspy::model::*;
use memspy::render::json::LinesJson;
use memspy::render::{self, DumpOptions, LinesOptions, NameStyle};

const GRAPH: &str = "/v/lib/python3.12/site-packages/torch/autograd/graph.py";
const LINEAR: &str = "/v/lib/python3.12/site-packages/torch/nn/modules/linear.py";

/// Two steps of a small training job: parameters from before, activations, gradients.
fn training() -> Script {
    let mut s = Script::new(200);
    s.records.push(Record::Device(GpuDevice {
        cuda_index: Some(CudaIndex(0)),
        nvml_index: Some(2),
        uuid: None,
        pci_bus_id: None,
        name: Some("NVIDIA H200".into()),
        total: Some(150_000 * MIB),
    }));
    s.thread("MainThread", true);
    s.enter(0, "<module>", 40);
    s.enter(0, "train<T>", 10);
    s.alloc(0, 0, 300 * MIB);
    s.tick();
    s.map(0);
    for _ in 0..2 {
        let mut freed = Vec::new();
        for layer in 0..4 {
            s.line(0, 11);
            s.enter(0, "Net.forward", 20 + layer);
            s.enter_in(0, "Linear.forward", LINEAR, 125);
            s.tick();
            freed.push(s.alloc(0, 0, (64 + 16 * u64::from(layer)) * MIB));
            s.tick();
            s.leave(0);
            s.leave(0);
        }
        s.line(0, 12);
        s.enter_in(0, "_engine_run_backward", GRAPH, 824);
        s.tick();
        freed.push(s.alloc(0, 0, 300 * MIB));
        s.tick();
        s.map(0);
        s.leave(0);
        for block in freed {
            s.free(0, block);
        }
        s.line(0, 13);
        s.tick();
    }
    let train = s.function("train<T>", "/home/me/job/train.py");
    s.records.push(Record::Source(SourceText {
        function: train,
        first_line: 8,
        text: Arc::from("def train(model):\n    # one epoch\n\tfor batch in data:\n        loss = model(batch)\n        loss.backward()\n        optimizer.step()"),
    }));
    s.tick();
    s.map(0);
    s.end();
    s
}

fn svg(profile: &Profile, moment: Moment, by_thread: bool, style: NameStyle) -> String {
    let folded = flame::fold(
        profile,
        CudaIndex(0),
        moment,
        FoldOptions { by_thread, ..FoldOptions::default() },
    )
    .unwrap();
    let mut out = Vec::new();
    render::flame(&mut out, profile, &folded, style, &Default::default()).unwrap();
    String::from_utf8(out).unwrap()
}

fn parses_as_xml(text: &str) {
    let mut reader = quick_xml::Reader::from_str(text);
    reader.config_mut().check_end_names = true;
    let mut elements = 0;
    loop {
        match reader.read_event().unwrap() {
            quick_xml::events::Event::Eof => break,
            quick_xml::events::Event::Start(_) => elements += 1,
            _ => {}
        }
    }
    assert!(elements > 10);
}

#[test]
fn the_flamegraph_is_an_svg_that_says_what_it_shows() {
    let profile = training().profile();
    let text = svg(&profile, Moment::Peak, false, NameStyle::default());
    parses_as_xml(&text);
    for expected in [
        "GPU memory at its peak: 952.00 MiB on GPU 0",
        "the allocator&apos;s own peak",
        "lines: proven 0 %, probable 0 %, unattributed 100 %",
        "all (998,244,352 bytes, 100%)",
        "[before recording] · 300 MiB · 31.5 % (314,572,800 bytes, 31.51%)",
        "[autograd thread] · 300 MiB · 31.5 %",
        "Linear.forward · 64.0 MiB · 6.7 % (torch/nn/modules/linear.py:125)",
        "train&lt;T&gt; · ",
        "(train.py:11)",
    ] {
        assert!(text.contains(expected), "{expected} is not in the picture");
    }
    // In a picture of 1,200 pixels a longer line is cut off at both ends.
    let subtitle = text.split("id=\"subtitle\"").nth(1).unwrap();
    let subtitle = &subtitle[subtitle.find('>').unwrap() + 1..subtitle.find('<').unwrap()];
    let subtitle = subtitle.replace("&apos;", "'");
    assert!(subtitle.chars().count() <= 165, "{subtitle}");
    if let Some(path) = std::env::var_os("MEMSPY_KEEP_SVG") {
        std::fs::write(path, &text).unwrap();
    }
    let end = svg(&profile, Moment::End, false, NameStyle::default());
    assert!(
        end.contains("at the end of the recording")
            && end.contains("below the allocator&apos;s own peak of 952.00 MiB")
    );
}

#[test]
fn names_can_be_full_without_lines_or_by_thread() {
    let profile = training().profile();
    let style = NameStyle { full_filenames: true, functions_only: true, all_frames: false };
    let text = svg(&profile, Moment::Peak, true, style);
    parses_as_xml(&text);
    assert!(text.contains(&format!("Linear.forward · 352 MiB · 37.0 % ({LINEAR})")));
    assert!(text.contains("thread MainThread (100) · 652 MiB · 68.5 %"));
}

#[test]
fn the_collapsed_format_has_one_stack_per_line() {
    let profile = training().profile();
    let folded = flame::fold(&profile, CudaIndex(0), Moment::Peak, FoldOptions::default()).unwrap();
    let mut out = Vec::new();
    render::collapsed(&mut out, &profile, &folded, NameStyle::default()).unwrap();
    let text = String::from_utf8(out).unwrap();
    let sum: u64 =
        text.lines().map(|l| l.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 952 * MIB);
    assert!(text.contains(
        "<module> (train.py:40);train<T> (train.py:12);_engine_run_backward (torch/autograd/graph.py:824);[autograd thread] 314572800\n"
    ), "{text}");
}

fn lines(profile: &Profile, options: &LinesOptions) -> String {
    let table = lines::table(profile, CudaIndex(0), &lines::default_columns()).unwrap();
    let mut out = Vec::new();
    render::lines_text(&mut out, profile, &table, options).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn the_table_of_lines_shows_source_and_peaks() {
    let profile = training().profile();
    let text = lines(&profile, &LinesOptions { width: Some(140), ..Default::default() });
    println!("{text}");
    for expected in [
        "## train.py:train<T>",
        "loss.backward()",
        "GPU 0 (NVIDIA H200): peak allocated 952.00 MiB (reached at 0.055 s)",
        "missed 0.00 % late",
        "def train(model):",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    let row = text.lines().find(|l| l.ends_with("loss.backward()")).unwrap();
    assert!(row.contains("952.00 MiB  952.00 MiB  ~300.00 MiB   ~0 B  ~600.00 MiB"), "{row}");
    assert!(text.lines().all(|l| !l.ends_with(' ')));

    let only = lines(
        &profile,
        &LinesOptions { functions: vec!["linear.py".into()], ..Default::default() },
    );
    assert_eq!(only.matches("## ").count(), 1);
    let first = lines(&profile, &LinesOptions { limit: Some(1), ..Default::default() });
    assert!(first.contains("4 more functions are not shown"), "{first}");
    let none =
        lines(&profile, &LinesOptions { functions: vec!["nope".into()], ..Default::default() });
    assert!(none.contains("no function was seen whose name or file contains nope"));
    // On a terminal lines keep its width, as far as figures and the source's beginning fit;
    // elsewhere nothing is cut.
    let at_width = |width| lines(&profile, &LinesOptions { width, ..Default::default() });
    for width in [0, 40, 80, 100] {
        let text = at_width(Some(width));
        // Without room the least important columns go, then the source's end.
        assert!(!text.contains("~600.00 MiB"), "{text}");
        assert_eq!(text.contains("loss = model(batch)"), width >= 80, "{text}");
    }
    let whole = at_width(None);
    assert!(whole.contains("~600.00 MiB") && whole.contains("loss = model(batch)"), "{whole}");
}

fn ranked(profile: &Profile, all: bool, options: &LinesOptions) -> String {
    let table = lines::table(profile, CudaIndex(0), &lines::default_columns()).unwrap();
    let ranking = lines::ranking(profile, &table, all).unwrap();
    let mut out = Vec::new();
    let order = LineOrder::Live;
    render::ranked_lines_text(&mut out, profile, &table, &ranking, order, options).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn lines_ranks_the_programs_own_lines_not_those_of_libraries() {
    let profile = training().profile();
    let text = ranked(&profile, false, &LinesOptions { width: Some(100), ..Default::default() });
    println!("{text}");
    // One sentence: the peak, when, how much of it is known, and how.
    let head = text.lines().take(2).map(str::trim).collect::<Vec<_>>().join(" ");
    for expected in
        ["peak allocated 952.00 MiB (reached at 0.055 s)", "% of it on lines", "sampled"]
    {
        assert!(head.contains(expected), "{expected}: {head}");
    }
    assert!(!text.contains("torch/"), "{text}");
    let rows: Vec<&str> = text.lines().filter(|line| line.contains("train.py:")).collect();
    let backward = rows.iter().find(|row| row.ends_with("loss.backward()")).unwrap();
    let words: Vec<&str> = backward.split_whitespace().take(8).collect();
    assert_eq!(words.join(" "), "~300 MiB 31.5 % ~600 MiB 952 MiB", "{backward}");
    // The linear layers' bytes are on the calling lines of Net.forward.
    let forward: Vec<&&str> = rows.iter().filter(|row| row.contains("(in Net.forward)")).collect();
    assert_eq!(forward.len(), 4, "{text}");
    assert!(forward[0].contains("~112 MiB") && forward[3].contains("~64.0 MiB"), "{text}");

    let all = ranked(&profile, true, &LinesOptions::default());
    assert!(all.contains("L torch/nn/modules/linear.py:125"), "{all}");
    let two = ranked(&profile, false, &LinesOptions { limit: Some(2), ..Default::default() });
    assert!(two.contains(&format!("{} more lines", rows.len() - 2)), "{two}");
    for width in [60, 80, 100, 120] {
        let options = LinesOptions { width: Some(width), ..Default::default() };
        for line in ranked(&profile, true, &options).lines() {
            assert!(line.chars().count() <= width && !line.ends_with(' '), "{width}: {line}");
        }
    }
}

#[test]
fn csv_and_json_have_exact_bytes_and_limits() {
    let profile = training().profile();
    let table = lines::table(&profile, CudaIndex(0), &lines::default_columns()).unwrap();
    let mut out = Vec::new();
    render::lines_csv(&mut out, &profile, &table, &[]).unwrap();
    let mut csv = csv::Reader::from_reader(&out[..]);
    let heads = csv.headers().unwrap().clone();
    let column = |name: &str| heads.iter().position(|h| h == name).unwrap();
    let row = csv
        .records()
        .map(Result::unwrap)
        .find(|r| &r[column("function")] == "train<T>" && &r[column("line")] == "12")
        .unwrap();
    assert_eq!(&row[column("allocated_bytes.all.peak")], "998244352");
    assert_eq!(&row[column("allocated_bytes.all.peak.exact")], "true");
    assert_eq!(&row[column("estimated")], "true");
    assert_eq!(&row[column("source")], "        loss.backward()");

    let mut out = Vec::new();
    render::lines_json(&mut out, &profile, &table, &["train<T>".into()]).unwrap();
    let json = document::<LinesJson>(std::str::from_utf8(&out).unwrap());
    assert_eq!(json["peak_allocated"]["bytes"], 998_244_352);
    let function = &json["functions"][0];
    let row = function["lines"].as_array().unwrap();
    let row = row.iter().find(|r| r["line"] == 12).unwrap();
    assert_eq!(row["columns"]["reserved_bytes.all.peak"]["value"], 998_244_352);
    assert_eq!(row["live_at_peak"], 314_572_800);
    assert_eq!(function["library"], false);
    let backward = &json["ranked"][0];
    assert_eq!((backward["line"].as_u64(), backward["library"].as_bool()), (Some(12), Some(false)));
    assert_eq!(backward["live_at_peak"], 314_572_800);
    let moment = &json["live_moment"];
    let ranked: u64 = moment["on_known_lines"].as_u64().unwrap();
    let without: u64 =
        moment["without_line"].as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum();
    assert_eq!(ranked + without, moment["allocated"].as_u64().unwrap());
}

fn process(usage: ProcessUsage) -> ProcessSnapshot {
    let mut process = process_until_the_driver_answered(usage);
    let counters = process.devices()[0].counters.clone().unwrap();
    process.record(&counted(&counters)).unwrap();
    process
}

/// Counters read after the driver was queried.
fn counted(counters: &AllocatorCounters) -> Record {
    Record::Counters { time: Nanos(9), device: CudaIndex(0), counters: Box::new(*counters) }
}

fn process_until_the_driver_answered(usage: ProcessUsage) -> ProcessSnapshot {
    let mut process = ProcessSnapshot::new();
    let mut s = training();
    s.records.retain(|r| !matches!(r, Record::End(_)));
    // The script keeps no free blocks; its counters' reserved bytes are in a real job's snapshots.
    for record in &mut s.records {
        if let Record::Snapshot(map) = record {
            let size = 998_244_352 - map.reserved();
            let free = Block { address: 1, size, requested: 0, state: BlockState::Inactive };
            let blocks = vec![free];
            map.segments.push(Segment { address: 1, size, blocks, ..map.segments[0].clone() });
        }
    }
    s.records.push(Record::Usage(DeviceUsage {
        time: Nanos(s.now),
        nvml_index: 2,
        total: 140_000 * MIB,
        used: 5_000 * MIB,
        free: 135_000 * MIB,
        reserved: None,
        process: usage,
    }));
    s.records.push(Record::Runtime(TargetRuntime {
        time: Nanos(0),
        python: Some("3.12.1".into()),
        torch: Some("2.11.0+cu130".into()),
        allocator: AllocatorBackend::Native,
    }));
    for record in &s.records {
        process.record(record).unwrap();
    }
    process
}

#[test]
fn dump_folds_idle_threads_to_a_line_each() {
    let mut script = Script::new(200);
    script.thread("MainThread", true);
    script.enter(0, "<module>", 40);
    script.tick();
    for n in 1..=20 {
        assert_eq!(script.thread(&format!("worker-{n}"), false), n);
        script.enter(n, "run", 3);
        script.enter(n, "wait", 5);
        script.threads[n].activity = ThreadActivity::Idle;
    }
    let mut process = ProcessSnapshot::new();
    script.tick();
    for record in &script.records {
        process.record(record).unwrap();
    }
    let text = |idle: bool| {
        let mut out = Vec::new();
        let options = DumpOptions { idle, ..Default::default() };
        render::dump_text(&mut out, &process, &Err("unknown".to_owned()), &options).unwrap();
        String::from_utf8(out).unwrap()
    };
    let folded = text(false);
    let idle: Vec<&str> = folded.lines().filter(|line| line.contains("(idle)")).collect();
    assert_eq!(idle.len(), 8, "{folded}");
    assert!(idle[0].ends_with("\"worker-1\", in wait (train.py:5)"), "{folded}");
    assert!(folded.contains("12 more idle threads; --idle"), "{folded}");
    assert_eq!(text(true).matches("    run (train.py:3)").count(), 20);
}

/// A common end of an evaluation: the finding named a library's variable, without advice.
#[test]
fn predictions_kept_on_the_gpu_come_with_the_transformers_option() {
    let told = |owner: &str| {
        let mut watch = GrowthWatch::default();
        for step in 1..=4 {
            let held = OwnedStorages {
                category: TensorCategory::Other,
                owner: owner.into(),
                bytes: step * 900 * MIB,
                count: 1,
            };
            let device = DeviceOwners {
                device: CudaIndex(0),
                allocated: 0,
                rounding: 0,
                without_tensor: 0,
                results: None,
                held: vec![held],
            };
            watch.add_owners(step as f64, recorded_owner_groups(&device));
        }
        let growth = watch.owners();
        let facts = FindingFacts { growth: &growth, ..FindingFacts::default() };
        render::finding_text(&findings(&facts)[0], 7).text
    };
    assert!(told("evaluation_loop: all_preds.tensors").contains("eval_accumulation_steps=N"));
    assert!(!told("main: all_preds.tensors").contains("eval_accumulation_steps"));
}

/// An evaluation's cache went from 74 to 32 GiB between the two reads: "42.23 GiB unmapped
/// (asleep)", and in another "the process holds 3.14 GiB outside PyTorch".
#[test]
fn memory_returned_during_the_driver_query_is_not_called_asleep() {
    // A thread may have been in cudaMalloc: the driver's figure may be of another moment.
    let mut moved = process_until_the_driver_answered(ProcessUsage::Bytes(900 * MIB));
    let before = &moved.devices()[0];
    assert_eq!(before.unmapped, None);
    assert!(matches!(before.outside, OutsideTorch::Unknown(_)), "{before:?}");
    let mut counters = before.counters.clone().unwrap();
    // The same before and after: it holds.
    moved.record(&counted(&counters)).unwrap();
    assert!(moved.devices()[0].unmapped.is_some_and(|bytes| bytes > 0));
    counters.stats[Metric::ReservedBytes as usize][Pool::All as usize].current -= 100 << 20;
    moved.record(&counted(&counters)).unwrap();
    let device = &moved.devices()[0];
    assert_eq!(device.unmapped, None);
    let OutsideTorch::Unknown(why) = &device.outside else { panic!("{device:?}") };
    let expected = "the job took or returned driver memory during each query";
    assert_eq!(why, expected);
}

#[test]
fn a_dump_shows_where_memory_is_and_what_is_unknown() {
    let text = |process: &ProcessSnapshot| {
        let mut out = Vec::new();
        let unknown = Err("PyTorch is not loaded".to_owned());
        render::dump_text(&mut out, process, &unknown, &DumpOptions::default()).unwrap();
        String::from_utf8(out).unwrap()
    };
    let known = text(&process(ProcessUsage::Bytes(2_000 * MIB)));
    println!("{known}");
    for expected in [
        "Process 42: python train.py",
        "Python 3.12.1, PyTorch 2.11.0+cu130, caching allocator",
        "Thread 100 (active): \"MainThread\"",
        "    train<T> (train.py:13)\n    <module> (train.py:40)",
        "GPU 0 (nvidia-smi: 2), NVIDIA H200, 136.72 GiB",
        "allocated through PyTorch           300.00 MiB",
        "its owners are unknown: PyTorch is not loaded",
        "cached free (reserved - allocated)  652.00 MiB",
        "outside PyTorch (context, NCCL, ..) 1.02 GiB",
        "other processes                     2.93 GiB",
    ] {
        assert!(known.contains(expected), "{expected}\n{known}");
    }
    // The answer first: where the memory is comes before the stacks; the histogram is optional.
    let at = |part: &str| known.find(part).unwrap();
    assert!(
        at("GPU 0") < at("its owners are") && at("its owners are") < at("Thread 100"),
        "{known}"
    );
    assert!(!known.contains("by size"), "{known}");
    let unknown = process(ProcessUsage::Unknown("a pid namespace hides it".into()));
    assert!(text(&unknown).contains("unknown: a pid namespace hides it"));
    assert!(text(&unknown).contains("other processes                     unknown"));
    let mut out = Vec::new();
    let options = DumpOptions::default();
    render::dump_json(&mut out, &unknown, &Ok(OwnershipSnapshot::default()), &options).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(json["devices"][0]["outside_pytorch"], serde_json::Value::Null);
    assert_eq!(json["devices"][0]["cached_free"], 652 * MIB);
    assert_eq!(json["owners"]["pause_seconds"], serde_json::Value::Null);
    assert_eq!(json["threads"][0]["frames"][0]["line"], 13);
    assert!(text(&ProcessSnapshot::new()).contains("No GPU memory is known."));
}

#[test]
fn the_summary_suggests_commands_and_calls_sampled_lines_a_guess() {
    let profile = training().profile();
    let mut out = Vec::new();
    render::summary(&mut out, &profile, "job.memspy", 12 * MIB).unwrap();
    render::next_steps(&mut out, &profile, "job.memspy").unwrap();
    let text = String::from_utf8(out).unwrap();
    println!("{text}");
    for expected in [
        "Recorded to job.memspy (12.00 MiB): the requested time was over",
        "peak allocated 952.00 MiB (reached at",
        "memspy flame job.memspy",
        "memspy lines job.memspy",
        // Only the pictures said so.
        "(lines are a guess from samples ",
        "    # as root: the line of each allocation, proven",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

#[test]
fn nothing_allocated_is_an_error_not_an_empty_picture() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.gpus.entry(0).or_default();
    s.tick();
    s.map(0);
    s.end();
    let profile = s.profile();
    let folded = flame::fold(&profile, CudaIndex(0), Moment::Peak, FoldOptions::default()).unwrap();
    let error = render::flame(
        &mut Vec::new(),
        &profile,
        &folded,
        NameStyle::default(),
        &Default::default(),
    )
    .unwrap_err();
    assert!(matches!(error, render::OutputError::Empty));
}

#[test]
fn a_flame_title_calls_only_the_peak_the_peak() {
    let mut script = training();
    let mut maps = 0;
    script.records.retain(|record| {
        maps += u32::from(matches!(record, Record::Snapshot(_)));
        !matches!(record, Record::Snapshot(_)) || maps == 1
    });
    let text = svg(&script.profile(), Moment::Peak, false, NameStyle::default());
    let title = "GPU memory near its peak of 952.00 MiB: 300.00 MiB on GPU 0";
    assert!(text.contains(title), "{}", &text[..3000]);
}
