//! The table of lines over simulated processes with known truth.

use crate::analysis_script::{MIB, Script};
use memspy::analysis::{BoundedValue, LineError, LineRow, LineTable, Profile, lines};
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

/// pytorch_memlab's example: `Linear(100, 100)` takes 40,960 bytes, and each line makes one.
#[test]
fn memlabs_example() {
    let mut s = Script::new(1000);
    s.thread("MainThread", true);
    let linear = |s: &mut Script| {
        s.alloc(0, 0, 40_000);
        s.alloc(0, 0, 400);
    };
    s.enter(0, "<module>", 30);
    s.gpus.entry(0).or_default();
    s.tick();
    s.enter(0, "outer", 10);
    s.tick();
    linear(&mut s);
    s.tick();
    s.enter(0, "inner", 20);
    s.tick();
    linear(&mut s);
    s.tick();
    s.line(0, 21);
    s.tick();
    linear(&mut s);
    s.tick();
    s.leave(0);
    s.end();
    let profile = s.profile();
    let table = table(&profile);
    let peak = |name: &str, line| row(&profile, &table, name, line).cells[0].value;
    assert_eq!(peak("inner", 20), exactly(80 << 10));
    assert_eq!(peak("inner", 21), exactly(120 << 10));
    assert_eq!(peak("outer", 10), exactly(120 << 10));
    assert_eq!(peak("<module>", 30), exactly(120 << 10));
    let inner = row(&profile, &table, "inner", 21);
    assert_eq!((inner.allocated, inner.freed), (40 << 10, Some(0)));
    assert_eq!(row(&profile, &table, "outer", 10).allocated, 120 << 10);
    assert_eq!(row(&profile, &table, "outer", 10).samples, 6);
}

#[test]
fn a_peak_below_an_older_one_has_two_bounds() {
    let mut s = Script::new(1000);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    let a = s.alloc(0, 0, 100 * MIB);
    s.free(0, a);
    s.alloc(0, 0, 10 * MIB);
    s.tick();
    s.line(0, 2);
    s.tick();
    let b = s.alloc(0, 0, 20 * MIB);
    s.free(0, b);
    s.alloc(0, 0, 5 * MIB);
    s.tick();
    s.end();
    let profile = s.profile();
    let table = table(&profile);
    let peak = row(&profile, &table, "main", 2).cells[0].value;
    assert_eq!(peak.value, 15 * MIB as i64);
    assert!(!peak.exact);
    assert_eq!(peak.upper, Some(35 * MIB as i64));
    assert_eq!(row(&profile, &table, "main", 1).cells[0].value, exactly(10 * MIB));
}

#[test]
fn any_key_of_memory_stats_can_be_a_column() {
    let mut s = Script::new(1000);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, 1000);
    s.tick();
    let a = s.alloc(0, 0, 3 * MIB);
    s.alloc(0, 0, 2000);
    s.tick();
    s.free(0, a);
    s.tick();
    s.end();
    let keys: Vec<StatKey> = [
        "active_bytes.all.peak",
        "allocated_bytes.small_pool.current",
        "allocation.large_pool.freed",
        "requested_bytes.all.allocated",
    ]
    .iter()
    .map(|k| k.parse().unwrap())
    .collect();
    let profile = s.profile();
    let table = lines::table(&profile, CudaIndex(0), &keys).unwrap();
    let values: Vec<i64> =
        row(&profile, &table, "main", 1).cells.iter().map(|c| c.value.value).collect();
    assert_eq!(values, [(3 * MIB + 3072) as i64, 3072, 1, (3 * MIB + 2000) as i64]);
    assert!(matches!(lines::table(&profile, CudaIndex(1), &keys), Err(LineError::NoGpu(_))));
}

#[test]
fn resets_by_the_job_lose_no_bytes() {
    let mut s = Script::new(1000);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, 10 * MIB);
    s.tick();
    s.reset_accumulated(0);
    s.reset_peak(0);
    s.alloc(0, 0, 4 * MIB);
    s.tick();
    s.end();
    let profile = s.profile();
    let table = table(&profile);
    let row = row(&profile, &table, "main", 1);
    assert_eq!((row.allocated, row.freed), (4 << 20, Some(0)));
    assert_eq!(row.cells[0].value.value, 14 << 20);
}

#[test]
fn recursion_counts_bytes_once() {
    let mut s = Script::new(1000);
    s.thread("MainThread", true);
    s.enter(0, "rec", 1);
    s.enter(0, "rec", 1);
    s.alloc(0, 0, MIB);
    s.tick();
    s.map(0);
    s.alloc(0, 0, 3 * MIB);
    s.tick();
    s.map(0);
    s.end();
    let profile = s.profile();
    let table = table(&profile);
    let row = row(&profile, &table, "rec", 1);
    assert_eq!(
        (row.allocated, row.live, row.live_self, row.samples),
        (3 << 20, 3 << 20, 3 << 20, 2)
    );
}

#[test]
fn lines_of_idle_threads_are_not_charged() {
    let mut s = Script::new(1000);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.thread("feeder", false);
    s.enter(1, "wait", 1);
    s.threads[1].activity = ThreadActivity::Idle;
    s.alloc(0, 0, MIB);
    s.tick();
    s.alloc(0, 0, MIB);
    s.tick();
    s.end();
    let profile = s.profile();
    let table = table(&profile);
    assert_eq!(table.functions.len(), 1);
    assert_eq!(row(&profile, &table, "main", 1).allocated, MIB as i64);
}

fn leaves_a_trace(stat: Stat) -> bool {
    stat.freed != stat.allocated
}

/// Random programs in which no line repeats within a sampling interval: line numbers only grow.
fn run(seed: Vec<(u8, u64)>, resets: bool) -> Script {
    let mut s = Script::new(1000);
    s.thread("MainThread", true);
    s.enter(0, "f", 1);
    let mut line = 1;
    let mut depth = 1;
    let mut was_reset = false;
    s.alloc(0, 0, 100);
    for (what, n) in seed {
        match what % 10 {
            0..=2 => {
                s.alloc(0, 0, n);
            }
            3 | 4 => {
                let blocks: Vec<u64> = s.gpus[&0].blocks.keys().copied().collect();
                if !blocks.is_empty() {
                    s.free(0, blocks[n as usize % blocks.len()]);
                }
            }
            5 => {
                line += 1;
                s.line(0, line);
            }
            6 if depth < 6 => {
                depth += 1;
                line += 1;
                s.enter(0, ["f", "g", "h"][n as usize % 3], line);
            }
            7 if depth > 1 => {
                depth -= 1;
                s.leave(0);
            }
            // A reset that leaves `current - (allocated - freed)` unchanged is invisible, as are
            // two of one interval that together do.
            8 if resets && !was_reset && leaves_a_trace(s.gpus[&0].counters.stats[4][0]) => {
                was_reset = true;
                s.reset_accumulated(0);
            }
            _ => {
                was_reset = false;
                s.tick();
            }
        }
    }
    s.tick();
    s.end();
    s
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn limits_contain_the_truth_and_exact_values_are_true(
        seed in proptest::collection::vec((any::<u8>(), 1u64..5_000_000), 1..250),
        resets in any::<bool>(),
    ) {
        let s = run(seed, resets);
        let profile = s.profile();
        let table = match lines::table(&profile, CudaIndex(0), &lines::default_columns()) {
            Ok(table) => table,
            Err(_) => return Ok(()),
        };
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
}

/// A chain of `depth` stacks over `frames` frames; looks at the innermost.
fn deep_chain(depth: u32, frames: u32) -> Profile {
    let mut profile = Profile::new();
    let mut take = |record: Record| profile.record(&record).unwrap();
    let function = |name: &str| Function {
        name: name.into(),
        file: "a.py".into(),
        first_line: 1,
        last_line: 9,
        is_native: false,
    };
    take(Record::Definition(Definition::Function(FunctionId(0), function("f"))));
    for line in 0..frames {
        let frame = Frame { function: FunctionId(0), line: line + 1 };
        take(Record::Definition(Definition::Frame(FrameId(line), frame)));
    }
    for i in 0..depth {
        let node = StackNode {
            parent: i.checked_sub(1).map(StackId),
            frame: FrameId(i % frames),
            module: None,
        };
        take(Record::Definition(Definition::Stack(StackId(i), node)));
    }
    let thread = Thread { os_id: Some(1), python_id: 1, name: None, main: true };
    take(Record::Definition(Definition::Thread(ThreadId(0), thread)));
    for time in 1..4 {
        let sample = ThreadSample {
            thread: ThreadId(0),
            stack: StackId(depth - 1),
            gil: true,
            activity: ThreadActivity::Active,
        };
        take(Record::Sample(StackSample { time: Nanos(time * 5_000_000), threads: vec![sample] }));
        let mut counters = AllocatorCounters::default();
        let bytes = Stat { current: 4096, peak: 4096, allocated: 4096, freed: 0 };
        counters.stats[Metric::AllocatedBytes as usize][Pool::All as usize] = bytes;
        take(Record::Counters {
            time: Nanos(time * 5_000_000),
            device: CudaIndex(0),
            counters: Box::new(counters),
        });
    }
    profile.finish();
    profile
}

#[test]
fn lines_of_deep_stacks_take_linear_time() {
    // With quadratic work this was 2^38 steps.
    let table =
        lines::table(&deep_chain(1 << 19, 1 << 19), CudaIndex(0), &lines::default_columns());
    let rows: usize = table.unwrap().functions.iter().map(|f| f.rows.len()).sum();
    assert_eq!(rows, 1 << 19);
}

#[test]
fn lines_of_a_recursion_count_a_sample_once() {
    let table = lines::table(&deep_chain(10, 3), CudaIndex(0), &lines::default_columns()).unwrap();
    let samples: Vec<u64> = table.functions[0].rows.iter().map(|row| row.samples).collect();
    assert_eq!(samples, [3, 3, 3]);
}
