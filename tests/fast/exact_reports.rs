//! Reports of exact recordings, and how bytes are shared among sampled stacks.

use std::collections::BTreeMap;

use crate::analysis_script::MIB;
use crate::exact_script::Probed;
use crate::support::memspy::document;
use memspy::analysis::{FoldOptions, MemoryGroup, Moment, OomBuilder, Profile, flame, lines};
use memspy::model::*;
use memspy::render::json::LinesJson;
use memspy::render::{self, LinesOptions, NameStyle};

const GRAPH: &str = "/v/lib/python3.12/site-packages/torch/autograd/graph.py";

/// A step of a training job: forward, backward by an engine thread, and driver memory.
fn training() -> Probed {
    let mut s = Probed::new();
    s.exact.backward_lines = true;
    s.exact.uncovered = vec!["memory that CUDA graphs take with raw_alloc is not seen".into()];
    s.thread("pt_autograd_0", false);
    s.enter(0, "train", 10);
    s.malloc(0, 0, 300 * MIB);
    s.begin();
    s.enter(0, "forward", 20);
    let activation = s.malloc(0, 0, 64 * MIB);
    let forward = s.site(0).stack;
    s.leave(0);
    s.line(0, 11);
    s.enter_in(0, "_engine_run_backward", GRAPH, 824);
    let engine =
        AllocationSite { thread: s.thread_id(1), source: StackSource::Backward, ..s.site(0) };
    let addmm = Some("AddmmBackward0".into());
    s.malloc_at(0, 0, 32 * MIB, AllocationSite { node: addmm, forward, ..engine.clone() });
    s.malloc_at(0, 0, 4 * MIB, AllocationSite { node: Some("Odd;Node".into()), ..engine });
    s.release(0, activation);
    s.leave(0);
    s.line(0, 12);
    let pinned = |address| EventKind::Allocated {
        memory_kind: MemoryKind::PinnedHost,
        address,
        size: 2 * MIB,
        levels: None,
        block: None,
    };
    s.tell(0, pinned(0x1000));
    s.tell(0, pinned(0x2000));
    s.tell(
        0,
        EventKind::Freed {
            memory_kind: AddressSpace::PinnedHost,
            address: 0x1000,
            in_backward: false,
        },
    );
    s.tell(0, EventKind::Failed { memory_kind: MemoryKind::Driver(None), size: 8 * MIB, code: 2 });
    s.tell(0, EventKind::Marked(memspy::model::DriverEvent::LibraryLoaded));
    s
}

fn end(mut s: Probed, missing: i64) -> Profile {
    let counter_check = |time, allocations| {
        let (device, frees) = (CudaIndex(0), Some(0));
        Record::CounterCheck(CounterCheck { time, device, allocations, frees, requested: 0 })
    };
    s.flush();
    let now = Nanos(s.now);
    s.records.push(counter_check(now, 0));
    s.records.push(counter_check(now, missing));
    s.poll();
    s.totals.exact = Some(EventTotals {
        allocations: 6,
        frees: 3,
        truncated: 2,
        no_python: 1234,
        ..Default::default()
    });
    s.end();
    s.profile()
}

fn svg(profile: &Profile, moment: Moment, options: FoldOptions) -> String {
    let folded = flame::fold(profile, CudaIndex(0), moment, options).unwrap();
    let mut out = Vec::new();
    render::flame(&mut out, profile, &folded, NameStyle::default(), &Default::default()).unwrap();
    String::from_utf8(out).unwrap()
}

fn holds(text: &str, expected: &[&str]) {
    for expected in expected {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

#[test]
fn the_flamegraph_names_nodes_and_forward_lines() {
    let profile = end(training(), 0);
    let text = svg(&profile, Moment::Peak, FoldOptions::default());
    holds(
        &text,
        &[
            "GPU memory at its peak: 400.00 MiB on GPU 0",
            "exact, at 0.",
            "the allocator&apos;s own peak",
            "[before recording] · 300 MiB · 75.0 %",
            "[autograd thread] · 36.0 MiB · ",
            "[backward of] · 32.0 MiB · ",
            "AddmmBackward0 · 32.0 MiB · ",
            "Odd:Node (forward line unknown) · 4.00 MiB · ",
        ],
    );
    let folded = flame::fold(&profile, CudaIndex(0), Moment::Peak, FoldOptions::default()).unwrap();
    let mut out = Vec::new();
    render::collapsed(&mut out, &profile, &folded, NameStyle::default()).unwrap();
    holds(
        &String::from_utf8(out).unwrap(),
        &[
            "train (train.py:11);_engine_run_backward (torch/autograd/graph.py:824);[autograd thread];[backward of];train (train.py:10);forward (train.py:20);AddmmBackward0 33554432\n",
        ],
    );
}

#[test]
fn titles_tell_leaks_churn_and_kinds_apart() {
    let profile = end(training(), 0);
    let leaks = svg(&profile, Moment::End, FoldOptions::default());
    holds(
        &leaks,
        &[
            "GPU memory allocated while recording and live at its end: 36.00 MiB on GPU 0",
            "300.00 MiB older than the recording left out",
        ],
    );
    assert!(!leaks.contains("[before recording]"));
    let churn = FoldOptions { churn: true, ..FoldOptions::default() };
    holds(
        &svg(&profile, Moment::Peak, churn),
        &["GPU memory allocated in all: 100.00 MiB in 3 allocations on GPU 0"],
    );
    let pinned = FoldOptions { memory: Some(MemoryGroup::Pinned), ..FoldOptions::default() };
    holds(&svg(&profile, Moment::Peak, pinned), &["page-locked host memory at its peak: 4.00 MiB"]);
}

fn head(profile: &Profile) -> String {
    render::header(profile, CudaIndex(0)).join("\n")
}

#[test]
fn the_head_says_what_was_seen_and_what_was_not() {
    let text = head(&end(training(), 0));
    holds(
        &text,
        &[
            "peak allocated 400.00 MiB (reached at 0.001 s)",
            "exact (uprobe_multi): 3 allocations and 1 free by PyTorch, 2 and 1 by the driver, 0 lost, 2 stacks truncated, 1,234 without Python; all 2 comparisons with the allocator's counters equal",
            "raw_alloc is not seen",
            "page-locked host memory allocated during the recording: 4.00 MiB at most, 2.00 MiB at the end",
            "the driver refused 1 allocations, the largest of 8.00 MiB",
            "0 contexts created or retained, 0 modules and 1 libraries loaded",
        ],
    );
    assert!(!text.contains("warning"), "{text}");
    holds(
        &head(&end(training(), 3)),
        &[
            "1 of 2 comparisons with the allocator's counters equal",
            "warning: GPU 0: in 1 of 2 comparisons",
        ],
    );
    let mut s = training();
    s.records.push(Record::Missed(MissedObservation {
        time: Nanos(1),
        reader: ReaderKind::Events,
        why: MissReason::Late,
        count: 77,
    }));
    holds(&head(&end(s, 0)), &["77 lost", "warning: 77 events were lost"]);
}

#[test]
fn the_head_says_which_options_lower_the_detail() {
    let mut s = training();
    for record in &mut s.records {
        if let Record::ExactSettings(exact) = record {
            exact.backend = ProbeBackend::PerfSamples;
            exact.stacks_from = 4096;
            exact.frees = FreeTracking::Snapshots;
        }
    }
    holds(
        &head(&end(s, 0)),
        &[
            "exact (perf samples, stacks from sampling)",
            "allocations under 4.00 KiB have no stack",
            "frees are known only from snapshots",
        ],
    );
}

/// Without BPF an event has the last sampled stack: the flamegraph of such a trace was called
/// "exact".
#[test]
fn a_flamegraph_from_samples_calls_its_stacks_a_guess() {
    let mut s = training();
    for record in &mut s.records {
        if let Record::ExactSettings(exact) = record {
            exact.backend = ProbeBackend::PerfSamples;
        }
    }
    let profile = end(s, 0);
    let churn = FoldOptions { churn: true, ..FoldOptions::default() };
    for (moment, options) in [
        (Moment::Peak, FoldOptions::default()),
        (Moment::End, FoldOptions::default()),
        (Moment::End, churn),
    ] {
        let text = svg(&profile, moment, options);
        let line = "sizes exact, stacks a guess from samples";
        assert!(text.contains(line) && !text.contains(">exact, "), "{text}");
    }
}

#[test]
fn tables_and_the_summary_say_that_they_are_exact() {
    let profile = end(training(), 0);
    let table = lines::table(&profile, CudaIndex(0), &lines::default_columns()).unwrap();
    let mut out = Vec::new();
    let options = LinesOptions { width: Some(140), ..LinesOptions::default() };
    render::lines_text(&mut out, &profile, &table, &options).unwrap();
    let text = String::from_utf8(out).unwrap();
    holds(&text, &["exact (uprobe_multi)", "allocs", "Only lines that allocated are listed"]);
    let row = text.lines().find(|l| l.trim_start().starts_with("824")).unwrap();
    assert!(
        row.contains("400.00 MiB  400.00 MiB  36.00 MiB  36.00 MiB  36.00 MiB       2"),
        "{row}"
    );

    let mut out = Vec::new();
    render::lines_csv(&mut out, &profile, &table, &[]).unwrap();
    let mut csv = csv::Reader::from_reader(&out[..]);
    let heads = csv.headers().unwrap().clone();
    let column = |name: &str| heads.iter().position(|h| h == name).unwrap();
    for row in csv.records().map(Result::unwrap) {
        assert!(row[column("freed")].is_empty(), "unknown is not 0");
        assert_eq!(&row[column("estimated")], "false");
    }

    let mut out = Vec::new();
    render::lines_json(&mut out, &profile, &table, &[]).unwrap();
    let json = document::<LinesJson>(std::str::from_utf8(&out).unwrap());
    assert_eq!(json["exact"]["probes"], "uprobe_multi");
    assert_eq!(json["estimated"], false);
    assert_eq!(json["exact"]["no_python"], 1234);
    assert_eq!(json["exact"]["comparisons_equal"], 2);
    assert_eq!(json["exact"]["other_memory"]["pinned"]["peak"], 4 * MIB);
    assert_eq!(json["functions"][0]["lines"][0]["freed"], serde_json::Value::Null);

    let mut out = Vec::new();
    render::summary(&mut out, &profile, "job.memspy", MIB).unwrap();
    render::next_steps(&mut out, &profile, "job.memspy").unwrap();
    let summary = String::from_utf8(out).unwrap();
    assert!(!summary.contains("is a guess"), "{summary}");
    holds(
        &summary,
        &[
            "3 allocations and 1 free by PyTorch, 2 and 1 by the driver, 0 lost",
            "1 libraries loaded",
            "memspy lines job.memspy",
        ],
    );
}

/// Uniform numbers in [0, 1), always the same.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Many blocks of each of five sizes, with stacks drawn by bytes; some are too small to be drawn.
#[test]
fn bytes_of_sampled_stacks_add_up_to_the_exact_total() {
    const EVERY: u64 = 256 << 10;
    let mut s = Probed::new();
    (s.exact.stacks_every, s.exact.stacks_from) = (EVERY, 1000);
    s.enter(0, "main", 1);
    s.begin();
    let mut dice = Dice(11);
    let sizes = [(1, 512), (2, 4 << 10), (3, 64 << 10), (4, 256 << 10), (5, 4 * MIB)];
    let mut drawn = 0;
    for (line, size) in sizes {
        s.line(0, line);
        for _ in 0..(256 * MIB / size).min(40_000) {
            let own = s.site(0);
            let chance = 1.0 - (-(size as f64) / EVERY as f64).exp();
            let taken = size >= 1000 && dice.roll() < chance;
            drawn += u64::from(taken);
            let site = match taken {
                true => own,
                false => AllocationSite { stack: None, source: StackSource::NotTaken, ..own },
            };
            s.malloc_at(0, 0, size, site);
        }
    }
    s.finish();
    let profile = s.profile();
    let fold = flame::fold(&profile, CudaIndex(0), Moment::Peak, FoldOptions::default()).unwrap();
    assert_eq!((fold.total, fold.estimated_from), (s.peak_bytes, Some(drawn)));
    let folded = crate::analysis_script::folded(&profile, 0, Moment::Peak);
    assert_eq!(folded["[stack not taken]"], 512 * 40_000, "only what is too small");
    let truth: BTreeMap<String, u64> = s.by_text(&profile, &s.peak_truth);
    for line in 2..=5 {
        let (estimate, truth) =
            (folded[&format!("main:{line}")] as f64, truth[&format!("main:{line}")] as f64);
        // Some 600 to 1,000 samples a line: 15 % are more than four standard deviations.
        assert!((estimate - truth).abs() < 0.15 * truth, "line {line}: {estimate} {truth}");
    }
    let picture = svg(&profile, Moment::Peak, FoldOptions::default());
    holds(&picture, &["total exact, stacks estimated from"]);
    holds(
        &head(&profile),
        &["bytes of stacks are estimated from", "256.00 KiB allocated on average"],
    );
    let table = lines::table(&profile, CudaIndex(0), &lines::default_columns()).unwrap();
    let live: u64 = table.functions[0].rows.iter().map(|row| row.live).sum();
    assert_eq!(live, fold.total - 512 * 40_000);
}

#[test]
fn an_oom_report_describes_the_last_unsatisfied_refusal() {
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.begin();
    s.malloc(0, 0, 300 * MIB);
    let refused = |size| EventKind::Failed { memory_kind: MemoryKind::Driver(None), size, code: 2 };
    // PyTorch returns its cache and asks again: that succeeds.
    s.tell(0, refused(52 * MIB));
    s.malloc(0, 0, 52 * MIB);
    s.line(0, 11);
    for depth in 1..=8 {
        s.enter_in(0, "_call_impl", GRAPH, depth);
    }
    s.malloc(0, 0, 60 * MIB);
    s.line(0, 9);
    s.malloc(0, 0, 40 * MIB);
    for _ in 0..3 {
        s.tell(0, refused(40 * MIB));
    }
    s.flush();
    s.poll();
    let mut reports = OomBuilder::new(Profile::new());
    for record in &s.records {
        reports.record(record).unwrap();
    }
    let (condition, seen) = ("oom".into(), "ran out".into());
    let trigger = TriggerFired { time: Nanos(s.now), condition, seen };
    reports.record(&Record::TriggerFired(trigger)).unwrap();
    let report = reports.report();
    assert_eq!(report.refused[0].size, 40 * MIB);
    let live = report.devices[0].live.as_ref().unwrap();
    assert_eq!(live.total + live.left_out, 452 * MIB, "what was allocated at the last refusal");
    let mut out = Vec::new();
    render::oom_report_text(&mut out, reports.profile(), &report).unwrap();
    let text = String::from_utf8(out).unwrap();
    println!("{text}");
    // However deep in libraries: the program's line, once, with all its bytes.
    let row = text.lines().find(|row| row.contains("100.00 MiB")).unwrap();
    assert!(row.contains("… 7 library frames ← train (train.py:11)"), "{row}");
    assert!(row.ends_with("(2 stacks of this line)"), "{row}");
    assert!(text.contains("the counters say the same"), "{text}");
    assert!(text.contains("In short\n  GPU 0: most of what grew"), "{text}");
}
