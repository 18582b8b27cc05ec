//! The highest moment of a device between two maps, where the allocator is followed.
//!
//! A job that repeats itself is as high in each iteration, and what is told of one of them can be wrong: of the first, nothing was learned yet. So
//! several moments are kept, and of these the one is shown of which most is known and which is most like the others. A moment that is about as high
//! but has blocks of other sizes is another place of the program, not the peak: it is shown only where it is the highest.

use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::followed::highest_moment::{AliveBlock, HighestMoment};
use crate::analysis::profile::attributed_snapshot::AttributedSnapshot;
use crate::model::{Nanos, SnapshotConsistency};

/// Two moments are about as high if they differ by less than this part.
pub(super) const ABOUT: u64 = 256;
/// Two moments are one place of the program in two iterations if less than this part of their bytes is in blocks of sizes that the other has not.
const OTHER_SIZES: u64 = 16;
/// So many moments are looked at one by one; of those that come later, the longer it takes the fewer ([`Looks`]).
const MAX_LOOKS: u64 = 64;
/// So many are kept.
const MAX_KEPT: usize = 16;

/// The highest moments so far, about as high all of them.
#[derive(Debug, Default)]
pub(super) struct HighestBetween {
    moments: Vec<KeptMoment>,
    /// The best of them.
    best: usize,
    looks: Looks,
}

/// A moment, and who made how many of its bytes.
#[derive(Debug)]
struct KeptMoment {
    snapshot: Arc<AttributedSnapshot>,
    /// Bytes of which it is not known who allocated them. What is older than the recording is less of it in each iteration.
    unknown: u64,
    by_origin: FxHashMap<AllocationOrigin, u64>,
    by_size: FxHashMap<u64, u64>,
}

/// Which of the maps are looked behind, where nothing higher is to be found.
#[derive(Debug, Default)]
struct Looks {
    passed: u64,
    next: u64,
}

impl HighestBetween {
    /// Only what is higher than so many bytes is worth keeping; asked once for each map.
    pub(super) fn above(&mut self) -> u64 {
        let Some(highest) = self.moments.iter().map(|moment| moment.snapshot.allocated).max()
        else {
            return 0;
        };
        let about = highest / ABOUT;
        if self.looks.is_next() { highest - about } else { highest + about }
    }

    /// Takes moments that are higher than [`Self::above`].
    pub(super) fn keep(&mut self, moments: Vec<HighestMoment>) {
        if moments.is_empty() {
            return;
        }
        for moment in moments {
            let moment = KeptMoment::new(moment);
            let height = moment.snapshot.allocated;
            self.moments
                .retain(|kept| height <= kept.snapshot.allocated + kept.snapshot.allocated / ABOUT);
            self.moments.push(moment);
            if self.moments.len() > MAX_KEPT {
                let scores = self.scores().into_iter().enumerate();
                if let Some((worst, _)) = scores.max_by_key(|(_, score)| *score) {
                    self.moments.remove(worst);
                }
            }
        }
        let scores = self.scores();
        // The last of several: most was learned before it.
        let best = scores.iter().enumerate().rev().min_by_key(|(_, score)| **score);
        self.best = best.map_or(0, |(best, _)| best);
    }

    /// The one that is shown.
    pub(super) fn best(&self) -> Option<&Arc<AttributedSnapshot>> {
        Some(&self.moments.get(self.best)?.snapshot)
    }

    /// All that are kept.
    pub(super) fn kept(&self) -> impl Iterator<Item = &AttributedSnapshot> {
        self.moments.iter().map(|moment| &*moment.snapshot)
    }

    /// All that are kept.
    pub(super) fn kept_mut(&mut self) -> impl Iterator<Item = &mut Arc<AttributedSnapshot>> {
        self.moments.iter_mut().map(|moment| &mut moment.snapshot)
    }

    /// For each moment whether it is another place of the program than the highest, how many bytes are not known in it, and how many those of the
    /// highest's place have with another origin, on average.
    fn scores(&self) -> Vec<(bool, u64)> {
        let Some(highest) = self.moments.iter().max_by_key(|moment| moment.snapshot.allocated)
        else {
            return Vec::new();
        };
        let is_other: Vec<bool> =
            self.moments.iter().map(|moment| moment.has_other_sizes(highest)).collect();
        let alike = || self.moments.iter().zip(&is_other).filter(|(_, is_other)| !**is_other);
        let others = alike().count().saturating_sub(1).max(1) as u64;
        let score = |(moment, is_other): (&KeptMoment, &bool)| {
            let differs: u64 = alike().map(|(other, _)| moment.differs(other)).sum();
            (*is_other, moment.unknown + differs / others)
        };
        self.moments.iter().zip(&is_other).map(score).collect()
    }
}

impl KeptMoment {
    fn new(moment: HighestMoment) -> KeptMoment {
        let unknown = moment.unknown;
        let snapshot = snapshot(moment);
        let unknown = unknown.max(snapshot.not_seen()).saturating_add(snapshot.before_recording);
        let (mut by_origin, mut by_size) = (FxHashMap::default(), FxHashMap::default());
        for (size, charge) in &snapshot.blocks {
            *by_size.entry(*size).or_default() += size;
            charge.split(*size, |origin, bytes| *by_origin.entry(origin).or_default() += bytes);
        }
        KeptMoment { snapshot: Arc::new(snapshot), unknown, by_origin, by_size }
    }

    /// Bytes that have another origin in the other moment.
    fn differs(&self, other: &KeptMoment) -> u64 {
        missing(&self.by_origin, &other.by_origin)
    }

    /// Whether more of it is in blocks of sizes that the other has not than what is not known of the other explains.
    fn has_other_sizes(&self, other: &KeptMoment) -> bool {
        let explained = other.unknown + self.snapshot.allocated / OTHER_SIZES;
        missing(&self.by_size, &other.by_size) > explained
    }
}

impl Looks {
    fn is_next(&mut self) -> bool {
        self.passed += 1;
        let is_next = self.passed >= self.next;
        if is_next {
            self.next = self.passed + (self.passed / MAX_LOOKS).max(1);
        }
        is_next
    }
}

/// How many bytes the other has not under the same key.
fn missing<K: Hash + Eq>(bytes: &FxHashMap<K, u64>, other: &FxHashMap<K, u64>) -> u64 {
    let in_other = |key| other.get(key).copied().unwrap_or(0);
    bytes.iter().map(|(key, bytes)| bytes.saturating_sub(in_other(key))).sum()
}

/// What is known of such a moment. Of the cache nothing is: no map was read.
fn snapshot(moment: HighestMoment) -> AttributedSnapshot {
    let allocated = moment.allocated();
    let mut snapshot = AttributedSnapshot {
        time: Nanos(moment.time),
        allocated,
        in_blocks: allocated,
        reserved: None,
        pending_free: 0,
        largest_free: 0,
        consistency: SnapshotConsistency::Consistent,
        before_recording: 0,
        followed: true,
        blocks: Vec::with_capacity(moment.blocks.len()),
        addresses: moment.blocks.iter().map(|block| block.address).collect(),
        ownerless: Vec::new(),
    };
    for AliveBlock { kind, attribution, address, .. } in moment.blocks {
        snapshot.push(address, kind.size, attribution);
    }
    snapshot
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::followed::highest_moment::tests::moment_of;

    /// When the best of these moments was, each of which the maps ask for.
    fn best_of(moments: Vec<HighestMoment>) -> u64 {
        let mut between = HighestBetween::default();
        for moment in moments {
            assert!(moment.allocated() > between.above());
            between.keep(vec![moment]);
        }
        between.best().unwrap().time.0
    }

    /// A loop is as high in each iteration: of the first, most is older than the recording, and of the last a part was guessed.
    #[test]
    fn of_equally_high_moments_the_one_is_best_of_which_most_is_known() {
        let first = moment_of(1, &[(0, 6000), (1, 400)], 0);
        let middle = moment_of(2, &[(2, 6000), (1, 400)], 0);
        let last = moment_of(3, &[(2, 6000), (1, 400)], 900);
        assert_eq!(best_of(vec![first, middle, last]), 2);
    }

    /// In the first iteration it was not learned yet which of two blocks is freed.
    #[test]
    fn of_moments_of_which_as_much_is_known_the_one_is_best_that_is_most_like_the_others() {
        let with = |time, count: usize| {
            let mut blocks = vec![(1, 10); 100 - count];
            blocks.resize(100, (2, 10));
            moment_of(time, &blocks, 0)
        };
        let moments = vec![with(1, 90), with(2, 10), with(3, 9), with(4, 10), with(5, 40)];
        assert_eq!(best_of(moments), 4);
    }

    /// A job whose shapes change is about as high in another step, where it is somewhere else.
    #[test]
    fn a_moment_with_blocks_of_other_sizes_is_shown_only_if_it_is_the_highest() {
        let elsewhere = |time, height: u64| moment_of(time, &[(1, height - 400), (2, 400)], 0);
        let peak = |unknown| moment_of(2, &[(1, 1000)], unknown);
        assert_eq!(best_of(vec![elsewhere(1, 999), peak(0)]), 2);
        assert_eq!(best_of(vec![elsewhere(1, 1001), peak(0)]), 1);
        // What is not known of the highest may have been of these sizes.
        assert_eq!(best_of(vec![elsewhere(1, 999), peak(950)]), 1);
    }

    #[test]
    fn a_higher_moment_is_the_best_and_what_is_much_lower_is_not_asked_for() {
        let mut between = HighestBetween::default();
        assert_eq!(between.above(), 0);
        between.keep(vec![moment_of(1, &[(1, 1000)], 0)]);
        between.keep(vec![moment_of(2, &[(2, 2000)], 1500)]);
        assert_eq!(between.best().unwrap().time.0, 2);
        assert_eq!(between.kept().count(), 1);
        assert_eq!(between.above(), 1993);
    }

    #[test]
    fn few_moments_are_kept_and_in_the_long_run_few_are_looked_at() {
        let mut between = HighestBetween::default();
        let wants = |between: &mut HighestBetween| between.above() < 1000;
        let mut looked_at = 0;
        for time in 0..10_000 {
            if wants(&mut between) {
                looked_at += 1;
                between.keep(vec![moment_of(time, &[(1 + time as u32 % 7, 1000)], 0)]);
            }
        }
        assert_eq!(between.kept().count(), MAX_KEPT);
        assert!((64..600).contains(&looked_at), "{looked_at}");
    }
}
