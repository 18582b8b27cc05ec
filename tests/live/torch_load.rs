//! Snapshots read while the target allocates without pause: no inconsistent one is called
//! consistent.

use std::time::{Duration, Instant};

use crate::support::everything_is_there;
use crate::support::sim;
use crate::support::target::Target;
use memspy::model::{AllocatorSnapshot, BlockState, CudaIndex, Nanos, SnapshotConsistency};
use memspy::target::Process;
use memspy::torch::{AllocatorError, AllocatorReader};

const DEVICE: CudaIndex = CudaIndex(0);

fn start() -> (Target, AllocatorReader) {
    let mut target = sim::start("allocator_load.py", &[]);
    target.say("hold 1");
    target.read_until_ready();
    target.say("hold 0");
    target.read_until_ready();
    let reader = AllocatorReader::attach(&Process::open(target.pid()).unwrap()).unwrap().unwrap();
    (target, reader)
}

#[derive(Default)]
struct Tally {
    consistent: u32,
    degraded: u32,
    torn: u32,
    retries: u32,
    blocks: usize,
    took: Vec<Duration>,
    counters: Vec<Duration>,
    torn_counters: u32,
}

/// Reads snapshots for about as long as the target works, and checks each consistent one.
fn watch(
    target: &mut Target,
    reader: &mut AllocatorReader,
    request: &str,
    mut check: impl FnMut(&AllocatorSnapshot),
) -> Tally {
    let seconds: f64 = request.split_whitespace().nth(1).unwrap().parse().unwrap();
    target.say(request);
    target.read_until_ready();
    std::thread::sleep(Duration::from_millis(300));
    let end = Instant::now() + Duration::from_secs_f64(seconds - 0.5);
    let mut tally = Tally::default();
    let mut counters = Vec::new();
    while Instant::now() < end {
        let start = Instant::now();
        match reader.counters(&mut counters) {
            Ok(()) => {}
            // Interrupted in the middle of a change by another job on the same core.
            Err(AllocatorError::Torn { .. }) => tally.torn_counters += 1,
            Err(error) => panic!("{error}"),
        }
        tally.counters.push(start.elapsed());
        let counted = Instant::now();
        match reader.blocks(DEVICE, &|| Nanos(0)) {
            Ok(map) => {
                tally.took.push(counted.elapsed());
                tally.retries += map.retries;
                if map.consistency == SnapshotConsistency::Consistent {
                    tally.consistent += 1;
                    tally.blocks = map.blocks().count();
                    check(&map);
                } else {
                    tally.degraded += 1;
                }
            }
            Err(AllocatorError::Torn { .. }) => tally.torn += 1,
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_millis(5).saturating_sub(start.elapsed()));
    }
    let work = target.read_until_ready();
    tally.took.sort();
    // On a busy machine there may have been none at all.
    let at = |part: f64| tally.took.get((tally.took.len() as f64 * part) as usize);
    println!(
        "{request}: {} consistent, {} degraded, {} torn; {} retries; {} blocks; map median {:?}, 90 % {:?}; target: {}",
        tally.consistent,
        tally.degraded,
        tally.torn,
        tally.retries,
        tally.blocks,
        at(0.5),
        at(0.9),
        work[0]
    );
    tally
}

/// The numbers (modulo 4096) of live blocks, which must be the last allocated ones without a gap:
/// see `churn` in allocator_load.py.
fn is_one_instant(map: &AllocatorSnapshot, blocks: usize) {
    let sizes = [1000, 40_000, 500_000, 3 << 20, 25 << 20];
    let mut alive: Vec<usize> = map
        .blocks()
        .filter(|(_, b)| b.state == BlockState::Allocated)
        .map(|(_, b)| {
            let rest = sizes.iter().map(|size| (b.requested as usize).wrapping_sub(*size));
            rest.min().filter(|n| *n < 4096).expect("a size that was never asked for")
        })
        .collect();
    alive.sort_unstable();
    assert!(alive.len() == blocks || alive.len() == blocks + 1, "{} alive", alive.len());
    let gaps = alive.windows(2).filter(|w| w[1] != w[0] + 1).count();
    let wraps = alive.first() == Some(&0) && alive.last() == Some(&4095);
    assert!(gaps == usize::from(wraps), "{gaps} gaps in {alive:?}");
    for segment in &map.segments {
        let mut end = segment.address;
        for block in &segment.blocks {
            assert_eq!(block.address, end);
            end += block.size;
        }
        assert_eq!(end, segment.address + segment.size);
    }
}

#[test]
fn snapshots_of_a_busy_job_are_one_instants_truth() {
    let (mut target, mut reader) = start();
    for held in [0, 600] {
        target.say(&format!("hold {held}"));
        target.read_until_ready();
        let tally = watch(&mut target, &mut reader, "train 2", |_| {});
        assert!(tally.consistent > 0, "a training loop has moments of rest");
    }
    target.finish();

    let (mut target, mut reader) = start();
    // These have none, unless something else interrupts them. More blocks make it rarer: the last
    // may take ten rounds.
    for blocks in [40, 300, 2000].into_iter().take(if everything_is_there() { 3 } else { 2 }) {
        let request = format!("churn 2 {blocks}");
        // On a busy machine a round may have none; without any, nothing would be checked.
        let checked = (0..10).any(|_| {
            watch(&mut target, &mut reader, &request, |map| is_one_instant(map, blocks)).consistent
                > 0
        });
        assert!(checked, "{request}: no consistent map in ten rounds");
    }
    target.finish();
}
