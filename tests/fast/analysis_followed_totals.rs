//! All that was allocated in a followed recording, freed or not.

use crate::analysis_followed::{MIB, Script, allocated, freed, in_mib, stood, went};
use memspy::analysis::{Evidence, FoldOptions, FoldedProfile};

fn totals(script: &Script) -> (Vec<(String, u64)>, FoldedProfile) {
    script.folded(FoldOptions { churn: true, ..FoldOptions::default() })
}

/// What was freed before the first snapshot is in no moment, but in the totals.
#[test]
fn what_was_freed_at_once_counts_with_its_stack() {
    let mut script = Script::new();
    for _ in 0..3 {
        script.allocates(2, 3_000, stood(0));
        script.frees(2);
    }
    script.allocates(4, 3_000, went(0, 1));
    let (stacks, folded) = totals(&script);
    assert!(stacks.iter().any(|(path, mib)| path == "f" && *mib > 6), "{stacks:?}");
    assert_eq!((folded.total, folded.allocations), (10 * MIB, Some(4)));
    let known = folded.resolution;
    assert_eq!((known.seen, known.one_stack, known.certain), (10 * MIB, 6 * MIB, Some(6 * MIB)));
    let proven =
        FoldOptions { churn: true, evidence: Some(Evidence::Proven), ..FoldOptions::default() };
    let (stacks, folded) = script.folded(proven);
    assert_eq!((stacks, folded.total, folded.allocations), (in_mib(&[("f", 6)]), 6 * MIB, Some(3)));
}

#[test]
fn snapshots_leave_totals_unchanged_and_unseen_allocations_stay_not_seen() {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(0));
    script.blocks = vec![(0, 2)];
    script.map();
    script.allocates(8, 500_000, stood(1));
    script.change(freed(2, 10), 2_000, Vec::new());
    script.blocks.clear();
    script.map();
    let (stacks, folded) = totals(&script);
    assert_eq!(stacks, in_mib(&[("[not seen]", 8), ("f", 2)]));
    assert_eq!((folded.total, folded.allocations), (10 * MIB, Some(2)));
    assert_eq!(folded.resolution.not_seen, 8 * MIB);
}

/// The program does the same in each step; one was seen as a single delta.
#[test]
fn a_delta_of_several_allocations_follows_earlier_steps() {
    let mut script = Script::new();
    for _ in 0..4 {
        for (mib, stack) in [(2, 0), (4, 1), (8, 0), (16, 1), (32, 0)] {
            script.allocates(mib, 3_000, stood(stack));
        }
        script.change(freed(5, 62), 2_000, Vec::new());
    }
    script.change(allocated(2, 6), 80_000, went(0, 1));
    let (stacks, folded) = totals(&script);
    assert_eq!(stacks, in_mib(&[("f", 4 * 42 + 2), ("g", 4 * 20 + 4)]));
    assert_eq!((folded.total, folded.allocations), ((4 * 62 + 6) * MIB, Some(22)));
    assert_eq!(folded.resolution.certain, Some(4 * 62 * MIB), "what is likely is not proven");
}

/// At a rest, 40,000 blocks a second are in deltas of dozens, and in a busy job many seconds pass
/// between snapshots.
#[test]
fn changes_are_recognised_for_as_long_as_polls_rest() {
    const BLOCKS: u64 = 64;
    const RESTED: u64 = 6_000;
    let all = (1..=BLOCKS).sum();
    let mut script = Script::new();
    for _ in 0..2 {
        for mib in 1..=BLOCKS {
            script.allocates(mib, 3_000, stood((mib % 2) as u32));
        }
        script.change(freed(BLOCKS as i64, all), 2_000, Vec::new());
    }
    for _ in 0..RESTED {
        script.change(allocated(BLOCKS as i64, all), 300_000, went(0, 1));
        script.change(freed(BLOCKS as i64, all), 300_000, Vec::new());
    }
    let (stacks, _) = totals(&script);
    let made = |odd: u64| -> u64 { (1..=BLOCKS).filter(|mib| mib % 2 == odd).sum() };
    let steps = RESTED + 2;
    assert_eq!(stacks, in_mib(&[("f", steps * made(0)), ("g", steps * made(1))]));
}
