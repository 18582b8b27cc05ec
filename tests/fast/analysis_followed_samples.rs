//! What the polls of a followed recording missed.

use crate::analysis_script::{MIB, Script, text};
use memspy::analysis::{FoldOptions, Moment, flame};
use memspy::model::{
    CounterDelta, CudaIndex, FollowedChange, FollowedChanges, Nanos, Record, ThreadActivity,
};

/// A job that allocates 40 MiB in `train` while the poller had no processor: it saw the counters
/// change, and no stack.
fn unseen_by_polls(activity: ThreadActivity) -> Vec<(String, u64)> {
    let mut s = Script::new(100);
    s.thread("MainThread", true);
    s.gpus.entry(0).or_default();
    s.enter(0, "train", 10);
    s.threads[0].activity = activity;
    s.start();
    s.tick();
    s.map(0);
    s.alloc(0, 0, 40 * MIB);
    let bytes = 40 * MIB as i64;
    let change = FollowedChange {
        before: Nanos(s.now + 10_000),
        after: Nanos(s.now + s.period - 10_000),
        device: CudaIndex(0),
        small: CounterDelta::default(),
        large: CounterDelta {
            allocations: 1,
            allocated_bytes: bytes,
            requested_bytes: bytes,
            ..CounterDelta::default()
        },
        live: [0, bytes],
        threads: Vec::new(),
        others_possible: true,
        counters_torn: false,
        totals_reset: false,
        addresses: None,
    };
    s.records.push(Record::Followed(FollowedChanges { changes: vec![change] }));
    s.tick();
    s.map(0);
    s.end();
    let profile = s.profile();
    let folded = flame::fold(&profile, CudaIndex(0), Moment::End, FoldOptions::default()).unwrap();
    assert_eq!(folded.resolution.certain, Some(0));
    folded.stacks.iter().map(|stack| (text(&profile, &stack.path), stack.bytes)).collect()
}

/// On two busy processors 64 to 86 % of a followed job were `[not seen]`; samples put most of that
/// on the right line.
#[test]
fn allocations_that_polls_missed_are_attributed_by_samples() {
    let stacks = unseen_by_polls(ThreadActivity::Active);
    assert_eq!(stacks.len(), 1, "{stacks:?}");
    assert!(stacks[0].0.starts_with("train") && stacks[0].1 == 40 * MIB, "{stacks:?}");
}

#[test]
fn what_neither_polls_nor_samples_saw_is_not_seen() {
    let stacks = unseen_by_polls(ThreadActivity::Idle);
    assert_eq!(stacks, [("[not seen]".to_owned(), 40 * MIB)]);
}
