//! All faces show one peak, never above the allocator's own: random jobs, with some snapshots read
//! while the job changes.

use std::path::PathBuf;

use crate::analysis_followed_random::Job;
use crate::analysis_script::{MIB, Script};
use crate::exact_attribution;
use crate::support::one_peak::{OnePeak, one_peak};
use crate::trace_support::{self, Dice};
use memspy::model::{Record, SnapshotConsistency};

const JOBS: u64 = 12;

fn stored(records: &[Record]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.bin");
    std::fs::write(&trace, trace_support::write(records)).unwrap();
    (folder, trace)
}

fn peak_of(records: &[Record]) -> OnePeak {
    let (_folder, trace) = stored(records);
    one_peak(&trace)
}

/// Followed, with addresses after all deltas, most, some or none.
#[test]
fn a_followed_job_has_one_peak() {
    for seed in 0..JOBS {
        let mut job = Job::new(seed, [0, 4, 8, 12][seed as usize % 4], seed % 3 == 0);
        job.counters();
        let before = job.peak;
        for _ in 0..8 {
            for _ in 0..1 + job.dice.roll(8) {
                let together = 1 + job.dice.roll(3) / 2;
                job.change(together);
            }
            if job.dice.roll(3) == 0 {
                job.counters();
            }
            match job.dice.roll(3) {
                0 => job.map(),
                _ => job.torn_map(),
            }
        }
        job.map();
        job.counters();
        let peak = peak_of(&job.records);
        assert!(
            peak.bytes > before && peak.bytes <= job.peak,
            "seed {seed}: {peak:?}, {}",
            job.peak
        );
    }
}

/// Counters and snapshots, and any changes in between; the job's peak is older than the recording,
/// and is reset.
#[test]
fn a_sampled_job_has_one_peak() {
    for seed in 0..JOBS {
        let mut dice = Dice(seed);
        let mut s = Script::new(200);
        s.thread("MainThread", true);
        s.enter(0, "main", 1);
        // Reached before the recording.
        let large = s.alloc(0, 0, 500 * MIB);
        s.free(0, large);
        let mut gone = Vec::new();
        let mut most = 0;
        for _ in 0..60 {
            let blocks: Vec<u64> = s.gpus[&0].blocks.keys().copied().collect();
            s.now += 10_000;
            match dice.roll(8) {
                0..=2 => drop(s.alloc(0, 0, (1 + dice.roll(40)) * MIB)),
                3 if !blocks.is_empty() => {
                    let at = blocks[dice.roll(blocks.len() as u64) as usize];
                    gone.push((at, s.gpus[&0].blocks[&at]));
                    s.free(0, at);
                }
                4 => s.line(0, 1 + dice.roll(9) as u32),
                5 => s.tick(),
                6 => {
                    s.map(0);
                    gone.clear();
                }
                _ => {
                    let mut map = s.block_map(0);
                    let allocated_counter = map.allocated();
                    // Blocks that were there when the read began.
                    for (address, (size, requested)) in gone.drain(..) {
                        if s.gpus[&0].blocks.contains_key(&address) {
                            continue;
                        }
                        let Some(mut segment) = map.segments.first().cloned() else { continue };
                        (segment.address, segment.size) = (address, size);
                        for block in &mut segment.blocks {
                            (block.address, block.size, block.requested) =
                                (address, size, requested);
                        }
                        map.segments.push(segment);
                    }
                    map.segments.sort_by_key(|segment| segment.address);
                    let allocated_in_blocks = map.allocated();
                    map.consistency =
                        SnapshotConsistency::Degraded { allocated_in_blocks, allocated_counter };
                    s.records.push(Record::Snapshot(map));
                }
            }
            most = most.max(s.gpus[&0].counters.allocated() as u64);
            if dice.roll(20) == 0 {
                s.reset_peak(0);
            }
        }
        s.tick();
        s.map(0);
        s.end();
        let peak = peak_of(&s.records);
        assert!(peak.bytes <= most, "seed {seed}: {peak:?}, {most}");
    }
}

#[test]
fn an_exact_recording_has_one_peak() {
    for seed in 0..JOBS {
        let mut dice = Dice(seed);
        let acts = 20 + dice.roll(200);
        let acts: Vec<(u8, u64)> =
            (0..acts).map(|_| (dice.roll(256) as u8, 1 + dice.roll(5_000_000))).collect();
        let s = exact_attribution::run(&acts);
        let peak = peak_of(&s.records);
        assert!(peak.shown == peak.bytes, "seed {seed}: {peak:?}");
    }
}

/// Lost frees make the blocks' sum higher than the allocator's.
#[test]
fn lost_frees_are_no_part_of_the_peak() {
    let mut found = 0;
    for seed in 0..JOBS {
        let mut dice = Dice(seed);
        let acts: Vec<(u8, u64)> =
            (0..120).map(|_| (dice.roll(64) as u8, 1 + dice.roll(5_000_000))).collect();
        let s = exact_attribution::run(&acts);
        let whole = peak_of(&s.records).bytes;
        let mut records = s.records.clone();
        for record in &mut records {
            if let Record::Events(batch) = record {
                let is_free = |event: &memspy::model::Event| {
                    matches!(event.change, memspy::model::EventKind::Freed { .. })
                };
                batch.events.retain(|event| !is_free(event) || dice.roll(2) == 0);
            }
        }
        let peak = peak_of(&records);
        assert!(peak.bytes <= whole, "seed {seed}: {peak:?}, {whole}");
        found += u64::from(records != s.records);
    }
    assert!(found > JOBS / 2, "{found}");
}
