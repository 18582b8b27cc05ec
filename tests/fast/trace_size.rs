//! How many bytes a recording takes.

use crate::trace_support::Loop;
use crate::trace_support::allocations::{self, Allocations, Likeness};
use memspy::model::{Record, RecordSink};
use memspy::trace::TraceWriter;

const SECONDS: u64 = 60;
const RATE: u64 = 200;

/// Bytes per sample of a minute at 200 samples a second.
fn bytes_per_sample(moves: bool, mut more: impl FnMut(&mut Loop, u64) -> Vec<Record>) -> f64 {
    let mut it = Loop::new(99);
    let mut opening = Vec::new();
    it.opening(&mut opening);
    it.define(30, 4, &mut opening);
    let mut writer = TraceWriter::new(Vec::new()).unwrap();
    for record in &opening {
        writer.record(record).unwrap();
    }
    for tick in 0..SECONDS * RATE {
        writer.record(&it.sample(moves)).unwrap();
        for record in more(&mut it, tick) {
            writer.record(&record).unwrap();
        }
    }
    let (_, written) = writer.finish().unwrap();
    written.bytes as f64 / (SECONDS * RATE) as f64
}

#[test]
fn a_steady_stack_takes_a_few_bytes_per_sample() {
    let steady = bytes_per_sample(false, |_, _| Vec::new());
    let moving = bytes_per_sample(true, |_, _| Vec::new());
    println!("steady stack {steady:.1}, moving stack {moving:.1} bytes per sample");
    assert!(steady < 8.0, "{steady}");
    assert!(moving < 12.0, "{moving}");
}

#[test]
fn busy_counters_at_every_sample_take_under_40_bytes() {
    let mut changed = 0;
    let mut before = None;
    let counters = |it: &mut Loop, _| {
        let record = it.counters();
        let Record::Counters { counters, .. } = &record else { unreachable!() };
        if let Some(before) = before.replace(counters.clone()) {
            changed += memspy::model::StatKey::all()
                .filter(|key| key.value_in(counters) != key.value_in(&before))
                .count();
        }
        vec![record]
    };
    let steady = bytes_per_sample(false, counters);
    let changed = changed as f64 / (SECONDS * RATE) as f64;
    println!("with counters {steady:.1} bytes per sample, {changed:.1} numbers changed");
    assert!(changed > 40.0, "{changed}");
    assert!(steady < 40.0, "{steady}");
}

#[test]
fn a_block_map_costs_what_changed_in_it() {
    let with_maps = bytes_per_sample(false, |it, tick| match tick % 20 {
        0 => vec![it.map(50)],
        _ => Vec::new(),
    });
    let without = bytes_per_sample(false, |_, _| Vec::new());
    let map = (with_maps - without) * 20.0;
    println!("{map:.0} bytes per map of 1000 blocks, ten maps a second");
    assert!(map < 500.0, "{map}");
}

fn bytes_per_event(likeness: Likeness) -> f64 {
    let records = Allocations::story(likeness, 7, 1000, 512);
    crate::trace_support::write(&records).len() as f64 / allocations::count(&records) as f64
}

#[test]
fn an_exact_event_takes_12_bytes_in_a_training_loop() {
    let [training, varied, random] =
        [Likeness::Training, Likeness::Varied, Likeness::Random].map(bytes_per_event);
    println!("bytes per event: {training:.2} training, {varied:.2} varied, {random:.2} random");
    assert!(training < 5.0, "{training}");
    assert!(varied < 12.0, "{varied}");
    assert!(random < 16.0, "{random}");
}
