//! Conditions fire when they should, once, and not before.

use memspy::analysis::{TriggerCondition, TriggerWatch};
use memspy::model::*;

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;
const NEVER: [u64; 0] = [];

fn watch(conditions: &[&str]) -> TriggerWatch {
    let mut watch = TriggerWatch::new(conditions.iter().map(|c| c.parse().unwrap()).collect());
    let device = GpuDevice {
        cuda_index: Some(CudaIndex(0)),
        nvml_index: Some(3),
        uuid: None,
        pci_bus_id: None,
        name: None,
        total: Some(1000 * MIB),
    };
    assert_eq!(watch.on_record(&Record::Device(device)), None);
    watch
}

#[derive(Clone, Copy, Default)]
struct Levels {
    allocated: u64,
    allocated_peak: u64,
    reserved: u64,
    ooms: i64,
    retries: i64,
}

fn counters(time: u64, levels: Levels) -> Record {
    let mut counters = AllocatorCounters {
        num_ooms: levels.ooms,
        num_alloc_retries: levels.retries,
        ..Default::default()
    };
    let mut set = |metric: Metric, current: u64, peak: u64| {
        counters.stats[metric as usize][0] =
            Stat { current: current as i64, peak: peak as i64, ..Stat::default() };
    };
    set(Metric::AllocatedBytes, levels.allocated, levels.allocated_peak.max(levels.allocated));
    set(Metric::ReservedBytes, levels.reserved, levels.reserved);
    Record::Counters { time: Nanos(time), device: CudaIndex(0), counters: Box::new(counters) }
}

fn allocated(time: u64, allocated: u64) -> Record {
    counters(time, Levels { allocated, ..Levels::default() })
}

fn usage(time: u64, used: u64) -> Record {
    Record::Usage(DeviceUsage {
        time: Nanos(time),
        nvml_index: 3,
        total: 1000 * MIB,
        used,
        free: 1000 * MIB - used,
        reserved: None,
        process: ProcessUsage::Bytes(used),
    })
}

fn end(time: u64, reason: EndReason) -> Record {
    Record::End(RecordingEnd { time: Nanos(time), reason, totals: RecordingTotals::default() })
}

fn events(changes: &[(u64, EventKind)]) -> Record {
    let event =
        |&(time, change): &(u64, EventKind)| Event { time: Nanos(time), change, site: None };
    Record::Events(EventBatch { events: changes.iter().map(event).collect() })
}

/// The times at which it fires.
fn fired(watch: &mut TriggerWatch, records: &[Record]) -> Vec<u64> {
    records.iter().filter_map(|record| watch.on_record(record)).map(|t| t.time.0).collect()
}

#[test]
fn a_wrong_condition_lists_the_right_ones() {
    for wrong in [
        "",
        "full",
        "used",
        "used>",
        "used>100%",
        "used>-1",
        "growth>1G",
        "growth>1G/week",
        "free>1G",
        "oom>1",
        "used>1Q",
    ] {
        let error = wrong.parse::<TriggerCondition>().unwrap_err().to_string();
        for part in ["oom", "retry", "exit", "used>N", "growth>N/min", wrong] {
            assert!(error.contains(part), "no {part} in: {error}");
        }
    }
    for right in [
        "oom",
        "retry",
        "exit",
        "used>90%",
        "used > 70G",
        "reserved>1.5GiB",
        "allocated>99.5%",
        "growth>500M/h",
    ] {
        assert_eq!(right.parse::<TriggerCondition>().unwrap().to_string(), right.replace(' ', ""));
    }
}

#[test]
fn errors_and_retries_count_from_the_first_poll() {
    let polls = |time, ooms, retries| counters(time, Levels { ooms, retries, ..Levels::default() });
    let records = [
        polls(1, 5, 7),
        polls(2, 5, 7),
        polls(3, 5, 8),
        polls(4, 6, 9),
        polls(5, 6, 9),
        polls(6, 8, 9),
    ];
    assert_eq!(fired(&mut watch(&["oom"]), &records), [4, 6]);
    assert_eq!(fired(&mut watch(&["retry"]), &records), [3, 4]);
    assert_eq!(fired(&mut watch(&["exit"]), &records), NEVER);
    let mut both = watch(&["retry", "oom"]);
    assert_eq!(fired(&mut both, &records), [3, 4, 6]);
    // Counts that were reset.
    assert_eq!(fired(&mut watch(&["oom"]), &[polls(1, 5, 0), polls(2, 0, 0), polls(3, 1, 0)]), [3]);
}

#[test]
fn a_level_fires_when_exceeded_and_again_after_a_fall() {
    let levels = [100, 500, 501, 600, 501, 499, 700];
    let records: Vec<Record> =
        levels.iter().zip(1..).map(|(&level, time)| allocated(time, level * MIB)).collect();
    assert_eq!(fired(&mut watch(&["allocated>500M"]), &records), [3, 7]);
    assert_eq!(fired(&mut watch(&["allocated>50%"]), &records), [3, 7], "of 1000 MiB");
    assert_eq!(fired(&mut watch(&["allocated>700M"]), &records), NEVER);
    assert_eq!(fired(&mut watch(&["reserved>1M"]), &records), NEVER);
    let reserved = |time, reserved| counters(time, Levels { reserved, ..Levels::default() });
    let records = [reserved(1, 10 * MIB), reserved(2, 901 * MIB)];
    assert_eq!(fired(&mut watch(&["reserved>90%"]), &records), [2]);
    assert_eq!(fired(&mut watch(&["allocated>1M"]), &records), NEVER);
    let records = [usage(1, 900 * MIB), usage(2, 901 * MIB), usage(3, 902 * MIB)];
    assert_eq!(fired(&mut watch(&["used>90%"]), &records), [2]);
    assert_eq!(fired(&mut watch(&["used>901M"]), &records), [3]);
}

#[test]
fn a_peak_between_two_reads_counts_but_no_earlier_one() {
    let peaks =
        |time, allocated_peak| counters(time, Levels { allocated_peak, ..Levels::default() });
    let mut watch = watch(&["allocated>500M"]);
    assert_eq!(fired(&mut watch, &[peaks(1, 800 * MIB), peaks(2, 800 * MIB)]), NEVER);
    assert_eq!(fired(&mut watch, &[peaks(3, 801 * MIB)]), [3]);
}

#[test]
fn part_of_an_unknown_device_is_never_exceeded() {
    let mut watch = TriggerWatch::new(vec!["allocated>1%".parse().unwrap()]);
    assert_eq!(watch.on_record(&allocated(1, 999 * MIB)), None);
}

#[test]
fn exact_events_tell_levels_between_two_polls() {
    let level = |allocated: u64, reserved: u64| memspy::model::CounterSnapshot {
        allocated: allocated as i64,
        reserved: reserved as i64,
        ..Default::default()
    };
    let change = |levels| EventKind::Allocated {
        memory_kind: MemoryKind::Torch(CudaIndex(0)),
        address: 512,
        size: 512,
        levels: Some(levels),
        block: None,
    };
    let records = [events(&[
        (1, change(level(10 * MIB, 20 * MIB))),
        (2, change(level(501 * MIB, 600 * MIB))),
        (3, change(level(9 * MIB, 600 * MIB))),
    ])];
    assert_eq!(fired(&mut watch(&["allocated>500M"]), &records), [2]);
    assert_eq!(fired(&mut watch(&["reserved>59%"]), &records), [2]);
    assert_eq!(fired(&mut watch(&["reserved>60%"]), &records), NEVER);
}

#[test]
fn growth_is_that_of_what_stays() {
    // A sawtooth whose floor stays: 100 to 900 MiB every second.
    let saw = |floor: &dyn Fn(u64) -> u64| -> Vec<Record> {
        (0..1800)
            .map(|n| {
                let time = n * SECOND / 10;
                allocated(time, floor(time) + (n % 10) * 80 * MIB)
            })
            .collect()
    };
    assert_eq!(fired(&mut watch(&["growth>50M/min"]), &saw(&|_| 100 * MIB)), NEVER);
    // One that rises by 60 MiB a minute.
    let leak = saw(&|time| 100 * MIB + time * MIB / SECOND);
    let found = fired(&mut watch(&["growth>50M/min"]), &leak);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!((60 * SECOND..75 * SECOND).contains(&found[0]), "not before a minute: {found:?}");
    assert_eq!(fired(&mut watch(&["growth>70M/min"]), &leak), NEVER);
    assert_eq!(fired(&mut watch(&["growth>1G/h"]), &leak), NEVER, "an hour was not seen");
    // A constant level is no growth, and a single rise is over after a minute.
    let step = saw(&|time| if time < 90 * SECOND { 0 } else { 500 * MIB });
    let found = fired(&mut watch(&["growth>500M/min"]), &step);
    assert!(found.len() == 1 && found[0] >= 90 * SECOND, "{found:?}");
    // Nothing is recorded while nothing changes: samples let time pass.
    let sample = |time| Record::Sample(StackSample { time: Nanos(time), threads: Vec::new() });
    let mut quiet = vec![allocated(0, 100 * MIB)];
    quiet.extend((1..100).map(|n| sample(n * SECOND)));
    quiet.push(allocated(100 * SECOND, 400 * MIB));
    quiet.extend((101..200).map(|n| sample(n * SECOND)));
    let found = fired(&mut watch(&["growth>550M/min"]), &quiet);
    assert!(found.len() == 1 && (130 * SECOND..140 * SECOND).contains(&found[0]), "{found:?}");
}

#[test]
fn an_end_is_a_condition_and_may_tell_of_one() {
    let exited = end(9 * SECOND, EndReason::TargetExited);
    let interrupted = end(9 * SECOND, EndReason::Interrupted);
    assert_eq!(fired(&mut watch(&["exit"]), std::slice::from_ref(&exited)), [9 * SECOND]);
    assert_eq!(fired(&mut watch(&["exit"]), std::slice::from_ref(&interrupted)), NEVER);
    let refused = |time| {
        let memory_kind = MemoryKind::Driver(Some(CudaIndex(0)));
        (time, EventKind::Failed { memory_kind, size: 77 * MIB, code: 2 })
    };
    let after = EventKind::Allocated {
        memory_kind: MemoryKind::Torch(CudaIndex(0)),
        address: 512,
        size: 512,
        levels: None,
        block: None,
    };
    let dies = |changes: &[(u64, EventKind)], end: &Record| {
        let mut watch = watch(&["oom"]);
        assert_eq!(watch.on_record(&events(changes)), None);
        watch.on_record(end)
    };
    let died = dies(&[refused(8 * SECOND)], &exited).unwrap();
    assert_eq!(died.condition, "oom");
    assert!(died.seen.contains("77.00 MiB 1.000 s before the job ended"), "{}", died.seen);
    assert_eq!(dies(&[refused(8 * SECOND)], &interrupted), None, "memspy ended, not the job");
    assert_eq!(dies(&[refused(SECOND)], &exited), None, "long before");
    assert_eq!(dies(&[refused(8 * SECOND), (8 * SECOND + 1, after)], &exited), None, "it went on");
}
