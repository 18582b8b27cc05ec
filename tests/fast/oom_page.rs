//! The page on an out-of-memory error: owners of all memory, and no two sentences that contradict
//! each other.

use crate::analysis_script::MIB;
use crate::exact_script::Probed;
use memspy::analysis::{OomBuilder, Profile};
use memspy::model::*;
use memspy::render;

const TOTAL: u64 = 3000 * MIB;

/// A job with a model of 900 MiB keeps snapshots in a list, 800 MiB of them; the optimizer's step
/// allocates last.
fn page(with_owners: bool, last: u64) -> String {
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.malloc(0, 0, 900 * MIB);
    s.begin();
    s.records.push(Record::Device(GpuDevice {
        cuda_index: Some(CudaIndex(0)),
        nvml_index: Some(0),
        uuid: None,
        pci_bus_id: None,
        name: Some("H100".into()),
        total: Some(TOTAL),
    }));
    s.line(0, 11);
    for _ in 0..8 {
        s.malloc(0, 0, 100 * MIB);
    }
    if with_owners {
        s.flush();
        let held = |category, owner: &str, mib: u64, count| OwnedStorages {
            category,
            owner: owner.into(),
            bytes: mib * MIB,
            count,
        };
        let device = DeviceOwners {
            device: CudaIndex(0),
            allocated: 1700 * MIB,
            rounding: 0,
            without_tensor: 0,
            results: None,
            held: vec![
                held(TensorCategory::Parameter, "train: model", 890, 4),
                held(TensorCategory::Other, "train: snapshots[*]", 800, 8),
            ],
        };
        let time = Nanos(s.now);
        s.records.push(Record::Ownership(OwnershipBreakdown {
            time,
            pause: None,
            devices: vec![device],
            age: Nanos(0),
            unnamed_blocks: Vec::new(),
            blocks: Vec::new(),
            retained: Vec::new(),
        }));
    }
    s.now += 100_000_000;
    s.line(0, 12);
    s.malloc(0, 0, last * MIB);
    for _ in 0..3 {
        let (memory_kind, size) = (MemoryKind::Driver(None), 400 * MIB);
        s.tell(0, EventKind::Failed { memory_kind, size, code: 2 });
    }
    s.flush();
    for counters in s.gpus.values_mut().map(|gpu| &mut gpu.counters) {
        (counters.num_ooms, counters.num_alloc_retries) = (1, 1);
    }
    s.poll();
    let mut reports = OomBuilder::new(Profile::new());
    for record in &s.records {
        reports.record(record).unwrap();
    }
    let (condition, seen) = ("oom".into(), "ran out".into());
    let trigger = TriggerFired { time: Nanos(s.now), condition, seen };
    reports.record(&Record::TriggerFired(trigger)).unwrap();
    let report = reports.report();
    let mut out = Vec::new();
    render::oom_report_text(&mut out, reports.profile(), &report).unwrap();
    String::from_utf8(out).unwrap()
}

/// A row in MiB.
fn mib(row: &str) -> f64 {
    let mut words = row.split_whitespace();
    let size: f64 = words.next().unwrap().parse().unwrap();
    match words.next().unwrap() {
        "GiB" => size * 1024.0,
        "MiB" => size,
        "KiB" => size / 1024.0,
        _ => 0.0,
    }
}

/// The sum of the rows below a line.
fn sum_below(text: &str, head: &str) -> f64 {
    let rows = text.lines().skip_while(|line| !line.contains(head)).skip(1);
    let is_row = |row: &&str| row.trim_start().starts_with(|first: char| first.is_ascii_digit());
    rows.take_while(is_row).map(mib).sum()
}

#[test]
fn in_short_names_who_holds_and_not_who_allocated_last() {
    let text = page(true, 300);
    println!("{text}");
    let short = text.lines().skip_while(|line| *line != "In short").nth(1).unwrap();
    // The model holds more, but the job cannot do without it.
    assert!(short.contains("train: snapshots[*] holds 800.00 MiB"), "{short}");
    assert!(short.contains("the largest part that could be freed"), "{short}");
    assert!(short.contains("300.00 MiB more was allocated since"), "{short}");
    assert!(!text.contains("was allocated by train"), "{text}");
    // What the snapshot of owners lacks is listed as such.
    let unattributed = |part: &str, row: &str| {
        let found =
            text.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("{text}"));
        assert!(found.contains(row), "{found}");
    };
    unattributed("[unattributed]", "10.00 MiB");
    unattributed("[allocated since this snapshot of the owners: unattributed]", "300.00 MiB");
}

/// Memory allocated after that snapshot is more than any owner holds.
#[test]
fn no_owner_is_named_for_memory_after_the_last_snapshot() {
    let text = page(true, 1000);
    let short = text.lines().skip_while(|line| *line != "In short").nth(1).unwrap();
    assert!(short.contains("was allocated by train (train.py:12)"), "{short}");
    assert!(short.contains("Its owner is unknown"), "{short}");
    assert!(!text.contains("could be freed"), "{text}");
}

#[test]
fn without_owners_the_greatest_line_is_not_called_an_owner() {
    let text = page(false, 1000);
    let short = text.lines().skip_while(|line| *line != "In short").nth(1).unwrap();
    assert!(short.contains("was allocated by train (train.py:12)"), "{short}");
    assert!(short.contains("'record --owners' shows its owner"), "{short}");
}

#[test]
fn rows_have_all_bytes_of_the_device_without_contradiction() {
    for with_owners in [true, false] {
        let text = page(with_owners, 1000);
        let all = sum_below(&text, "  all 2.93 GiB:");
        // Rounded to two decimals each.
        assert!((all - 3000.0).abs() < 20.0, "{all}\n{text}");
        let live = sum_below(&text, "by allocation site");
        assert!((live - 2700.0).abs() < 20.0, "{live}\n{text}");
        assert!(text.contains("would have changed nothing"), "{text}");
        assert!(!text.contains("empty_cache() could return"), "{text}");
    }
}
