//! The table of lines from exact events of simulated processes with known truth.

use crate::analysis_script::MIB;
use crate::exact_script::Probed;
use memspy::analysis::{BoundedValue, LineRow, LineTable, Profile, UnknownReason, lines};
use memspy::model::*;
use proptest::prelude::*;

fn table(profile: &Profile) -> LineTable {
    lines::table(profile, CudaIndex(0), &lines::default_columns()).unwrap()
}

fn row<'a>(profile: &Profile, table: &'a LineTable, name: &str, line: u32) -> &'a LineRow {
    let is_it = |f: FunctionId| &*profile.stacks().get_function(f).unwrap().name == name;
    let function = table.functions.iter().find(|f| is_it(f.function)).unwrap();
    function.rows.iter().find(|r| r.line == line).unwrap()
}

fn exactly(value: u64) -> BoundedValue {
    let value = value as i64;
    BoundedValue { value, exact: true, upper: Some(value) }
}

fn peak(profile: &Profile, name: &str, line: u32) -> BoundedValue {
    row(profile, &table(profile), name, line).cells[0].value
}

/// pytorch_memlab's example: `Linear(100, 100)` takes 40,960 bytes, and each line makes one.
#[test]
fn memlabs_example() {
    let mut s = Probed::new();
    s.enter(0, "<module>", 30);
    s.begin();
    let linear = |s: &mut Probed| {
        s.malloc(0, 0, 40_000);
        s.malloc(0, 0, 400);
    };
    s.enter(0, "outer", 10);
    linear(&mut s);
    s.enter(0, "inner", 20);
    linear(&mut s);
    s.line(0, 21);
    linear(&mut s);
    s.leave(0);
    s.finish();
    let profile = s.profile();
    assert_eq!(peak(&profile, "inner", 20), exactly(80 << 10));
    assert_eq!(peak(&profile, "inner", 21), exactly(120 << 10));
    assert_eq!(peak(&profile, "outer", 10), exactly(120 << 10));
    assert_eq!(peak(&profile, "<module>", 30), exactly(120 << 10));
    let table = table(&profile);
    let inner = row(&profile, &table, "inner", 21);
    assert_eq!((inner.allocated, inner.freed, inner.samples), (40 << 10, None, 2));
    assert_eq!((inner.live, inner.live_self), (40 << 10, 40 << 10));
    let outer = row(&profile, &table, "outer", 10);
    assert_eq!((outer.allocated, outer.live, outer.live_self), (120 << 10, 120 << 10, 40 << 10));
}

/// `lines` of a job that uses only the driver said "GPU 0 is not in the recording; it has no GPU at
/// all", though nobody asked for GPU 0.
#[test]
fn lines_without_pytorch_memory_do_not_claim_a_missing_gpu() {
    let mut s = Probed::new();
    s.gpus.clear();
    s.enter(0, "main", 1);
    s.begin();
    let refused = |s: &Probed| {
        let lines = lines::table(&s.profile(), CudaIndex(0), &lines::default_columns());
        lines.unwrap_err().to_string()
    };
    let unused = "no memory of PyTorch was recorded on a GPU: the job had not used CUDA yet";
    assert_eq!(refused(&s), unused);
    let memory_kind = MemoryKind::Driver(None);
    s.tell(
        0,
        EventKind::Allocated { memory_kind, address: 0x1000, size: 300, levels: None, block: None },
    );
    s.finish();
    assert_eq!(
        refused(&s),
        "no memory of PyTorch was recorded on a GPU: the job took what it has from the CUDA driver itself; a flamegraph draws that"
    );
}

/// A line that begins after a free may have begun before it, unless frees have stacks too.
#[test]
fn a_line_beginning_at_a_free_is_bounded_or_exact() {
    let program = |stacks: bool| {
        let mut s = Probed::new();
        s.exact.frees = if stacks { FreeTracking::Stacks } else { FreeTracking::Events };
        s.enter(0, "main", 1);
        s.begin();
        let a = s.malloc(0, 0, 10 * MIB);
        if stacks {
            s.release_by(0, 0, a);
        } else {
            s.release(0, a);
        }
        s.line(0, 2);
        s.malloc(0, 0, 3 * MIB);
        s.finish();
        s.profile()
    };
    let bounded = BoundedValue { value: 3 << 20, exact: false, upper: Some(10 << 20) };
    assert_eq!(peak(&program(false), "main", 2), bounded);
    let profile = program(true);
    assert_eq!(peak(&profile, "main", 2), exactly(3 * MIB));
    assert_eq!(peak(&profile, "main", 1), exactly(10 * MIB));
    let table = table(&profile);
    assert_eq!(row(&profile, &table, "main", 1).freed, Some(10 << 20));
    assert_eq!(row(&profile, &table, "main", 2).freed, Some(0));
}

#[test]
fn recursion_counts_bytes_once_and_keeps_each_depths_peak() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.begin();
    for depth in 0..3 {
        s.enter(0, "rec", 7);
        s.malloc(0, 0, (1 + depth) * MIB);
    }
    s.finish();
    let profile = s.profile();
    let table = table(&profile);
    let rec = row(&profile, &table, "rec", 7);
    assert_eq!((rec.allocated, rec.live, rec.live_self), (6 << 20, 6 << 20, 6 << 20));
    assert_eq!(rec.cells[0].value, exactly(6 * MIB));
}

/// A generator's frame comes and goes on its caller's stack.
#[test]
fn a_generator_keeps_its_lines_apart_from_its_callers() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.begin();
    for i in 0..3 {
        s.line(0, 1);
        s.enter(0, "batches", 50 + i);
        s.malloc(0, 0, MIB);
        s.leave(0);
        s.line(0, 2);
        s.malloc(0, 0, 4 * MIB);
    }
    s.finish();
    let profile = s.profile();
    for (i, level) in [(0, 1), (1, 6), (2, 11)] {
        assert_eq!(peak(&profile, "batches", 50 + i), exactly(level * MIB));
    }
    assert_eq!(peak(&profile, "main", 1), exactly(11 * MIB));
    assert_eq!(peak(&profile, "main", 2), exactly(15 * MIB));
}

#[test]
fn work_of_the_engine_counts_to_the_line_that_waits() {
    let mut s = Probed::new();
    s.enter(0, "train", 1);
    s.thread("pt_autograd_0", false);
    s.begin();
    s.malloc(0, 0, MIB);
    s.line(0, 2);
    let site =
        AllocationSite { thread: s.thread_id(1), source: StackSource::Backward, ..s.site(0) };
    s.malloc_at(0, 0, 8 * MIB, site);
    s.line(0, 3);
    s.malloc(0, 0, MIB);
    s.finish();
    let profile = s.profile();
    assert_eq!(peak(&profile, "train", 1), exactly(MIB));
    assert_eq!(peak(&profile, "train", 2), exactly(9 * MIB));
    assert_eq!(peak(&profile, "train", 3), exactly(10 * MIB));
}

#[test]
fn another_threads_allocation_bounds_the_lines_possibly_running() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.thread("worker", false);
    s.enter(1, "work", 1);
    s.begin();
    s.malloc(0, 0, MIB);
    s.malloc(1, 0, 8 * MIB);
    s.finish();
    let profile = s.profile();
    // Whether the main thread was still in its line when the worker allocated is unknown.
    let bounded = BoundedValue { value: 1 << 20, exact: false, upper: Some(9 << 20) };
    assert_eq!(peak(&profile, "main", 1), bounded);
    assert_eq!(peak(&profile, "work", 1), exactly(9 * MIB));
}

#[test]
fn a_peak_before_the_first_event_may_be_the_lines() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    let old = s.malloc(0, 0, 10 * MIB);
    s.begin();
    s.release(0, old);
    s.malloc(0, 0, MIB);
    s.finish();
    let bounded = BoundedValue { value: 1 << 20, exact: false, upper: Some(10 << 20) };
    assert_eq!(peak(&s.profile(), "main", 1), bounded);
}

#[test]
fn an_allocation_without_a_stack_may_be_any_lines() {
    let mut s = Probed::new();
    s.exact.stacks_from = MIB;
    s.enter(0, "main", 1);
    s.enter(0, "f", 1);
    s.begin();
    s.malloc(0, 0, MIB);
    let site = AllocationSite { stack: None, source: StackSource::NotTaken, ..s.site(0) };
    s.malloc_at(0, 0, 1000, site);
    s.line(0, 2);
    s.malloc(0, 0, MIB);
    s.finish();
    let profile = s.profile();
    let bounded = BoundedValue { value: 1 << 20, exact: false, upper: Some((1 << 20) + 1024) };
    assert_eq!(peak(&profile, "f", 1), bounded);
    assert_eq!(peak(&profile, "main", 1), exactly(2 * MIB + 1024));
}

#[test]
fn columns_are_those_that_events_tell_of() {
    let key = |text: &str| text.parse::<StatKey>().unwrap();
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.begin();
    for _ in 0..3 {
        let a = s.malloc(0, 0, MIB);
        s.release(0, a);
    }
    s.finish();
    let profile = s.profile();
    let keys = ["active_bytes.all.peak", "reserved_bytes.all.peak", "allocation.all.allocated"];
    let table = lines::table(&profile, CudaIndex(0), &keys.map(key)).unwrap();
    let values: Vec<BoundedValue> =
        row(&profile, &table, "main", 1).cells.iter().map(|c| c.value).collect();
    assert_eq!(values, [exactly(MIB), exactly(MIB), exactly(3)]);
    let unknown = |text: &str| {
        let table = lines::table(&profile, CudaIndex(0), &[key(text)]).unwrap();
        row(&profile, &table, "main", 1).cells[0].unknown
    };
    assert_eq!(unknown("segment.all.peak"), Some(UnknownReason::NotInEvents));
    assert_eq!(unknown("reserved_bytes.small_pool.peak"), Some(UnknownReason::NotInEvents));
    assert_eq!(unknown("allocated_bytes.all.freed"), Some(UnknownReason::FreesWithoutStacks));
    assert_eq!(unknown("allocated_bytes.small_pool.peak"), None);
}

/// Python returns to a statement's first line when its parts are done, without an event.
#[test]
fn a_statements_first_line_needs_an_event_at_its_end() {
    let program = |text: Option<&str>| {
        let mut s = Probed::new();
        s.exact.frees = FreeTracking::Stacks;
        s.enter(0, "main", 1);
        s.begin();
        for line in 1..=4 {
            s.line(0, line);
            s.malloc(0, 0, u64::from(line) * MIB);
        }
        s.finish();
        for record in &mut s.records {
            if let (Record::Source(source), Some(text)) = (record, text) {
                source.text = text.into();
            }
        }
        if text.is_none() {
            s.records.retain(|record| !matches!(record, Record::Source(_)));
        }
        s.profile()
    };
    let text = "f = (Blob(1),\n  Blob(2),\n  Blob(3))\ng = Blob(4)\n";
    let profile = program(Some(text));
    let between = |least: i64, most: i64| BoundedValue {
        value: least << 20,
        exact: false,
        upper: Some(most << 20),
    };
    assert_eq!(peak(&profile, "main", 1), between(1, 6));
    assert_eq!(peak(&profile, "main", 2), between(3, 6));
    assert_eq!(peak(&profile, "main", 3), exactly(6 * MIB));
    assert_eq!(peak(&profile, "main", 4), exactly(10 * MIB));
    // Each line by itself.
    assert_eq!(peak(&program(Some("a\nb\nc\nd\n")), "main", 1), exactly(MIB));
    // Without the source it is unknown.
    assert_eq!(peak(&program(None), "main", 3), between(6, 10));
}

/// The sums of a line that runs three times, and the greatest of one time.
#[test]
fn sums_of_a_loop_are_not_taken_for_one_run() {
    let mut s = Probed::new();
    s.exact.frees = FreeTracking::Stacks;
    s.enter(0, "main", 1);
    s.begin();
    for size in [1, 3, 2] {
        s.line(0, 1);
        let a = s.malloc(0, 0, size * MIB);
        let b = s.malloc(0, 0, 1000);
        s.line(0, 2);
        s.release_by(0, 0, a);
        s.release_by(0, 0, b);
    }
    s.finish();
    let profile = s.profile();
    let keys =
        ["allocated_bytes.all.allocated", "allocation.all.allocated", "allocated_bytes.all.freed"];
    let table =
        lines::table(&profile, CudaIndex(0), &keys.map(|key| key.parse().unwrap())).unwrap();
    let cells = |line| row(&profile, &table, "main", line).cells.clone();
    let between = |least: u64, most: u64| BoundedValue {
        value: least as i64,
        exact: false,
        upper: Some(most as i64),
    };
    assert_eq!(cells(1)[0].value, exactly(6 * MIB + 3 * 1024));
    // No event shows whether both came from one run or from two.
    assert_eq!(cells(1)[0].one_run, Some(between(3 * MIB, 3 * MIB + 1024)));
    assert_eq!(cells(1)[1].one_run, Some(between(1, 2)));
    assert_eq!(cells(2)[2].value, exactly(6 * MIB + 3 * 1024));
    assert_eq!(cells(2)[2].one_run, Some(between(3 * MIB, 3 * MIB + 1024)));
    assert_eq!(cells(1)[2].one_run, Some(exactly(0)));
}

/// 62 of the 108 keys follow from allocations and frees; the others say that they do not.
#[test]
fn all_columns_that_follow_from_events_are_exact() {
    let mut s = Probed::new();
    s.exact.frees = FreeTracking::Stacks;
    s.enter(0, "main", 1);
    let old = s.malloc(0, 0, 300);
    s.malloc(0, 0, 5 * MIB);
    s.begin();
    s.malloc(0, 0, 1000);
    s.line(0, 2);
    let a = s.malloc(0, 0, 3 * MIB + 1);
    let b = s.malloc(0, 0, 700);
    s.release_by(0, 0, old);
    s.release_by(0, 0, a);
    s.line(0, 3);
    s.release_by(0, 0, b);
    s.malloc(0, 0, 100);
    s.finish();
    let profile = s.profile();
    let columns: Vec<StatKey> = StatKey::all().collect();
    let table = lines::table(&profile, CudaIndex(0), &columns).unwrap();
    let value = |line, text: &str| {
        let cells = &row(&profile, &table, "main", line).cells;
        let told = cells.iter().filter(|cell| cell.unknown.is_none());
        assert_eq!(told.count(), 62);
        cells.iter().find(|cell| cell.key.to_string() == text).unwrap().value
    };
    let large = 3 * (1 << 20) + 512;
    for (key, expected) in [
        ("allocation.all.peak", 5),
        ("allocation.small_pool.peak", 3),
        ("allocation.large_pool.freed", 1),
        ("allocation.small_pool.allocated", 1),
        ("allocated_bytes.small_pool.peak", 512 + 1024 + 1024),
        ("allocated_bytes.large_pool.peak", (5 << 20) + large),
        ("allocated_bytes.large_pool.allocated", large),
        ("allocated_bytes.small_pool.freed", 512),
        ("requested_bytes.small_pool.peak", 300 + 1000 + 700),
        ("requested_bytes.large_pool.allocated", 3 * (1 << 20) + 1),
        ("requested_bytes.all.freed", 300 + 3 * (1 << 20) + 1),
        ("active_bytes.large_pool.peak", (5 << 20) + large),
    ] {
        assert_eq!(value(2, key), exactly(expected), "{key}");
    }
    // The level was higher when the line may have ended and begun again.
    let between = BoundedValue { value: 2, exact: false, upper: Some(3) };
    assert_eq!(value(2, "allocation.small_pool.current"), between);
    for (key, expected) in [
        ("allocation.small_pool.current", 2),
        ("allocated_bytes.small_pool.current", 1024 + 512),
        ("requested_bytes.all.current", 1000 + 100 + (5 << 20)),
        ("active.all.current", 3),
        ("active_bytes.all.current", (5 << 20) + 1536),
    ] {
        assert_eq!(value(3, key), exactly(expected), "{key}");
    }
}

/// pytorch_memlab prints every line of a function.
#[test]
fn lines_that_do_nothing_get_a_row_when_asked_for() {
    let mut s = Probed::new();
    s.exact.frees = FreeTracking::Stacks;
    s.enter(0, "main", 2);
    s.begin();
    s.malloc(0, 0, MIB);
    s.finish();
    for record in &mut s.records {
        if let Record::Source(source) = record {
            source.text = "def main():\n    a = make()\n\n    # nothing\n    pass\n".into();
        }
    }
    let profile = s.profile();
    let keys = ["allocated_bytes.all.peak", "allocated_bytes.all.allocated"];
    let table =
        lines::table(&profile, CudaIndex(0), &keys.map(|key| key.parse().unwrap())).unwrap();
    assert_eq!(table.functions[0].rows.len(), 1);
    let table = table.with_all_lines(&profile);
    let lines: Vec<u32> = table.functions[0].rows.iter().map(|row| row.line).collect();
    assert_eq!(lines, [1, 2, 5], "those with code");
    let nothing = row(&profile, &table, "main", 5);
    assert_eq!(nothing.cells[0].unknown, Some(UnknownReason::NotSeen));
    assert_eq!((nothing.cells[1].value, nothing.freed), (exactly(0), Some(0)));
}

/// Random programs with two threads and an engine that works for the first. With `shown`, the main
/// thread allocates first.
fn run(seed: &[(u8, u64)], frees: FreeTracking, shown: bool) -> Probed {
    let mut s = Probed::new();
    s.exact.frees = frees;
    s.thread("worker", false);
    s.thread("pt_autograd_0", false);
    s.enter(0, "main", 1);
    s.enter(1, "work", 1);
    s.malloc(0, 0, 5000);
    let mut depth = [1, 1];
    s.begin();
    if shown {
        s.malloc(0, 0, 512);
    }
    for &(what, n) in seed {
        let t = usize::from(what >> 6 == 3);
        match what % 16 {
            0..=4 => {
                s.malloc(t, 0, n);
            }
            5 => {
                let engine = s.thread_id(2);
                let site =
                    AllocationSite { thread: engine, source: StackSource::Backward, ..s.site(0) };
                s.malloc_at(0, 0, n, site);
            }
            6..=8 => {
                let blocks: Vec<u64> = s.gpus[&0].blocks.keys().copied().collect();
                if !blocks.is_empty() {
                    let block = blocks[n as usize % blocks.len()];
                    match frees {
                        FreeTracking::Stacks => s.release_by(t, 0, block),
                        _ => s.release(0, block),
                    }
                }
            }
            9..=11 => s.line(t, 1 + n as u32 % 6),
            12 | 13 if depth[t] < 5 => {
                depth[t] += 1;
                s.enter(t, ["f", "g"][n as usize % 2], 1 + n as u32 % 3);
            }
            14 if depth[t] > 1 => {
                depth[t] -= 1;
                s.leave(t);
            }
            _ => {
                s.now += 1_000_000_000;
                s.poll();
            }
        }
    }
    s.finish();
    s
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn limits_contain_the_truth_and_exact_values_are_true(
        seed in proptest::collection::vec((any::<u8>(), 1u64..5_000_000), 1..250),
        stacks in any::<bool>(),
        shown in any::<bool>(),
    ) {
        let s = run(&seed, if stacks { FreeTracking::Stacks } else { FreeTracking::Events }, shown);
        let profile = s.profile();
        let table = table(&profile);
        let mut rows = 0;
        for function in &table.functions {
            for row in &function.rows {
                rows += 1;
                let truth = s.truth[&(function.function, row.line)];
                let peak = row.cells[0].value;
                prop_assert!(peak.value <= truth, "line {}: {peak:?} > {truth}", row.line);
                if let Some(upper) = peak.upper {
                    prop_assert!(upper >= truth, "line {}: {peak:?} < {truth}", row.line);
                }
                prop_assert!(!peak.exact || peak.value == truth);
            }
        }
        prop_assert_eq!(rows, s.truth.len());
    }

    #[test]
    fn one_thread_whose_frees_have_stacks_has_only_exact_peaks(
        seed in proptest::collection::vec((0u8..192, 1u64..5_000_000), 1..250),
    ) {
        let s = run(&seed, FreeTracking::Stacks, true);
        let profile = s.profile();
        for function in &table(&profile).functions {
            for row in &function.rows {
                let truth = s.truth[&(function.function, row.line)];
                let peak = row.cells[0].value;
                prop_assert!(peak.exact && peak.value == truth, "{peak:?} {truth}");
            }
        }
    }
}
