//! Exact events of a job recorded from before its allocator began, and signs of events that do not
//! add up.

use crate::analysis_script::{MIB, Script};
use crate::exact_script::Probed;
use memspy::analysis::{
    BoundedValue, FoldOptions, LineRow, Moment, PeakTime, Profile, flame, lines, peak,
};
use memspy::model::*;
use memspy::render::{self, LinesOptions};

const DEVICE: CudaIndex = CudaIndex(0);

fn rows(profile: &Profile, columns: &[&str]) -> Vec<LineRow> {
    let columns: Vec<StatKey> = columns.iter().map(|key| key.parse().unwrap()).collect();
    let table = lines::table(profile, DEVICE, &columns).unwrap();
    table.functions.into_iter().flat_map(|function| function.rows).collect()
}

fn values(profile: &Profile, line: u32, columns: &[&str]) -> Vec<BoundedValue> {
    let rows = rows(profile, columns);
    let row = rows.iter().find(|row| row.line == line).unwrap();
    row.cells.iter().map(|cell| cell.value).collect()
}

fn exactly(value: u64) -> BoundedValue {
    let value = value as i64;
    BoundedValue { value, exact: true, upper: Some(value) }
}

const PEAKS: [&str; 3] =
    ["allocated_bytes.all.peak", "active_bytes.all.peak", "reserved_bytes.all.peak"];
const SUMS: [&str; 2] = ["allocated_bytes.all.allocated", "allocated_bytes.all.freed"];

/// Bytes of all allocations, as in the flamegraph.
fn churn(profile: &Profile) -> u64 {
    let options = FoldOptions { churn: true, ..FoldOptions::default() };
    flame::fold(profile, DEVICE, Moment::Peak, options).unwrap().total
}

/// A line of 1 MiB blocks before the counters are known, one of 4 MiB after.
fn late(empty: bool) -> Probed {
    let mut s = Probed::new();
    s.exact.frees = FreeTracking::Stacks;
    s.enter(0, "main", 1);
    if empty {
        s.begin_empty();
    } else {
        s.begin();
        // The first counters are not in the recording.
        s.records.retain(|record| !matches!(record, Record::Counters { .. } | Record::Snapshot(_)));
    }
    for _ in 0..4 {
        let block = s.malloc_early(0, 0, MIB);
        s.release_by(0, 0, block);
    }
    s.poll();
    s.line(0, 2);
    for _ in 0..10 {
        let block = s.malloc(0, 0, 4 * MIB);
        s.release_by(0, 0, block);
    }
    s.finish();
    s
}

#[test]
fn frees_before_the_first_counters_do_not_double_later_sizes() {
    for empty in [true, false] {
        let profile = late(empty).profile();
        assert_eq!(values(&profile, 2, &SUMS), [exactly(40 * MIB), exactly(40 * MIB)], "{empty}");
        assert_eq!(churn(&profile), 44 * MIB, "{empty}");
        assert!(profile.warnings().is_empty(), "{:?}", profile.warnings());
    }
}

#[test]
fn peaks_before_the_first_counters_are_known_for_new_allocators() {
    let profile = late(true).profile();
    assert_eq!(values(&profile, 1, &PEAKS), [exactly(MIB); 3]);
    let reserved = exactly(5 * MIB);
    assert_eq!(values(&profile, 2, &PEAKS), [exactly(4 * MIB), exactly(4 * MIB), reserved]);
}

#[test]
fn bytes_freed_before_the_first_counters_are_not_none() {
    let profile = late(true).profile();
    assert_eq!(values(&profile, 1, &SUMS), [exactly(4 * MIB), exactly(4 * MIB)]);
}

#[test]
fn a_table_without_counters_is_not_exact() {
    let mut s = Probed::new();
    s.exact.frees = FreeTracking::Stacks;
    s.enter(0, "main", 1);
    s.begin_empty();
    s.malloc_early(0, 0, 1000);
    let block = s.malloc_early(0, 0, 5 * MIB);
    s.release_by(0, 0, block);
    s.flush();
    s.end();
    let profile = s.profile();
    let least = 5 * (1 << 20) + 1024;
    let at_least = |value| BoundedValue { value, exact: false, upper: None };
    assert_eq!(values(&profile, 1, &PEAKS), [at_least(least), at_least(least), at_least(0)]);
    assert_eq!(values(&profile, 1, &SUMS), [at_least(least), at_least(5 << 20)]);
    let warnings = memspy::render::warnings(&profile);
    assert!(warnings.iter().any(|w| w.contains("nothing was compared")), "{warnings:?}");
}

#[test]
fn a_peak_recorded_from_the_start_is_in_the_recording() {
    let exact = late(true).profile();
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.tick();
    s.records.push(Record::Runtime(TargetRuntime {
        time: Nanos(s.now),
        python: None,
        torch: None,
        allocator: AllocatorBackend::NotInitialized,
    }));
    s.alloc(0, 0, 5 * MIB);
    s.tick();
    s.map(0);
    s.end();
    let sampled = s.profile();
    for profile in [&exact, &sampled] {
        for high in [peak::allocated(profile, DEVICE), profile.peak_reserved(DEVICE)] {
            let high = high.unwrap();
            assert!(matches!(high.reached, PeakTime::Between(..)), "{high:?}");
            assert_eq!(high.within, high.bytes);
        }
        let head = render::header(profile, DEVICE).join("\n");
        assert!(!head.contains("before the recording"), "{head}");
    }
    // What the first snapshot has was not there before either.
    let fold = flame::fold(&sampled, DEVICE, Moment::Peak, FoldOptions::default()).unwrap();
    assert_eq!(crate::analysis_script::text(&sampled, &fold.stacks[0].path), "main:1");
}

#[test]
fn a_reserved_peak_from_before_keeps_its_moment() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    let old = s.malloc(0, 0, 300 * MIB);
    s.begin();
    s.release(0, old);
    // Out of the cache: nothing is reserved.
    s.malloc(0, 0, 300 * MIB);
    s.finish();
    let profile = s.profile();
    let reserved = profile.peak_reserved(DEVICE).unwrap();
    assert!(reserved.bytes as u64 >= 300 * MIB, "{reserved:?}");
    assert_eq!(reserved.reached, PeakTime::BeforeRecording);
}

/// A block larger than its event says, gone before any snapshot.
fn inconsistent() -> Probed {
    let mut s = Probed::new();
    s.exact.frees = FreeTracking::Stacks;
    s.enter(0, "main", 1);
    s.begin_empty();
    s.unsplit = 512 << 10;
    let block = s.malloc_early(0, 0, 11 * MIB);
    s.unsplit = 0;
    s.release_by(0, 0, block);
    s.line(0, 2);
    s.malloc_early(0, 0, MIB);
    s.poll();
    s.line(0, 3);
    s.malloc(0, 0, MIB);
    s
}

#[test]
fn sums_unequal_to_the_counters_make_every_report_inexact() {
    let mut s = inconsistent();
    s.finish();
    let profile = s.profile();
    for line in 1..=3 {
        for columns in [&PEAKS[..], &SUMS, &["allocation.all.peak", "requested_bytes.all.current"]]
        {
            let values = values(&profile, line, columns);
            assert!(values.iter().all(|value| !value.exact), "{line}: {values:?}");
        }
    }
    let off = "counted +524288 bytes allocated and +524288 freed";
    let head = render::header(&profile, DEVICE).join("\n");
    assert!(head.contains(off), "{head}");
    assert!(!head.contains("bytes allocated and freed equal"), "{head}");
    let mut table = Vec::new();
    let lines = lines::table(&profile, DEVICE, &lines::default_columns()).unwrap();
    render::lines_text(&mut table, &profile, &lines, &LinesOptions::default()).unwrap();
    let table = String::from_utf8(table).unwrap();
    assert!(table.contains(off) && table.contains("Nothing is marked exact"), "{table}");
    let mut json = Vec::new();
    render::lines_json(&mut json, &profile, &lines, &[]).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["exact"]["bytes_off"]["allocated"], 524_288);
    let mut summary = Vec::new();
    render::summary(&mut summary, &profile, "x.memspy", 1).unwrap();
    assert!(String::from_utf8(summary).unwrap().contains(off));
}

#[test]
fn sums_that_equal_the_counters_are_said_to() {
    let head = render::header(&late(true).profile(), DEVICE).join("\n");
    assert!(head.contains("bytes allocated and freed equal too (2 comparisons)"), "{head}");
}

/// Lost events leave nothing exact either.
#[test]
fn after_lost_events_nothing_is_exact() {
    let mut s = late(true);
    let why = MissReason::Late;
    let missed =
        MissedObservation { time: Nanos(s.now), reader: ReaderKind::Events, why, count: 7 };
    let end = s.records.len() - 1;
    s.records.insert(end, Record::Missed(missed));
    let profile = s.profile();
    for columns in [&PEAKS[..], &SUMS] {
        assert!(values(&profile, 2, columns).iter().all(|value| !value.exact));
    }
}

/// Two threads allocate at once: the first one's counter includes what the second's event reports
/// later.
#[test]
fn another_threads_pending_allocation_is_not_counted_twice() {
    let mut s = Probed::new();
    s.exact.frees = FreeTracking::Stacks;
    s.thread("worker", false);
    s.enter(0, "main", 1);
    s.enter(1, "work", 5);
    s.begin();
    for is_freed in [false, true] {
        let (mine, others) = (s.malloc_unseen(0, 0, 4 * MIB), s.malloc_unseen(1, 0, MIB));
        let (here, there) = (s.site(0), s.site(1));
        s.tell_malloc(0, mine, 4 * MIB, here);
        if is_freed {
            s.release_by(0, 0, mine);
        }
        s.tell_malloc(0, others, MIB, there);
        s.poll();
    }
    s.finish();
    let profile = s.profile();
    assert_eq!(values(&profile, 1, &SUMS[..1]), [exactly(8 * MIB)]);
    assert_eq!(values(&profile, 1, &SUMS[1..]), [exactly(4 * MIB)]);
    assert_eq!(values(&profile, 5, &SUMS[..1]), [exactly(2 * MIB)]);
    assert!(profile.warnings().is_empty(), "{:?}", profile.warnings());
}
