//! The highest moment of a followed device between two snapshots.
//!
//! A training loop peaks in each iteration, and the first peak is known worst. So several moments
//! are kept: the best has the most known bytes and is most like the others. A moment with other
//! block sizes is another phase, shown only if it is the highest.

use std::hash::Hash;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::{AllocationOrigin, AttributedSnapshot};
use crate::analysis::followed::{AliveBlock, HighestMoment};
use crate::model::{Nanos, SnapshotConsistency};

/// Levels are about equal within 1/256.
pub(super) const ABOUT: u64 = 256;
/// Two moments are one phase if less than 1/16 of the bytes have sizes that the other lacks.
const OTHER_SIZES: u64 = 16;
/// Number of snapshots examined one by one; later ones more rarely.
const MAX_EXAMINED: u64 = 64;
const MAX_KEPT: usize = 16;

/// The highest moments so far, about equally high.
#[derive(Debug, Default)]
pub(super) struct HighestBetween {
    moments: Vec<KeptMoment>,
    best: usize,
    pace: SnapshotPace,
}

#[derive(Debug)]
struct KeptMoment {
    snapshot: Arc<AttributedSnapshot>,
    /// Bytes without a site, or older than the recording: fewer in each iteration.
    unknown: u64,
    by_origin: FxHashMap<AllocationOrigin, u64>,
    by_size: FxHashMap<u64, u64>,
}

/// Which snapshots to examine although no higher moment is expected.
#[derive(Debug, Default)]
struct SnapshotPace {
    passed: u64,
    next: u64,
}

impl HighestBetween {
    /// Moments above this level are worth keeping. Call once for each snapshot.
    pub(super) fn above(&mut self) -> u64 {
        let Some(highest) = self.moments.iter().map(|moment| moment.snapshot.allocated).max()
        else {
            return 0;
        };
        let about = highest / ABOUT;
        if self.pace.is_next() { highest - about } else { highest + about }
    }

    pub(super) fn keep(&mut self, moment: HighestMoment) {
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
        let scores = self.scores();
        // Of equal ones, the latest: attribution improves.
        let best = scores.iter().enumerate().rev().min_by_key(|(_, score)| **score);
        self.best = best.map_or(0, |(best, _)| best);
    }

    pub(super) fn best(&self) -> Option<&Arc<AttributedSnapshot>> {
        Some(&self.moments.get(self.best)?.snapshot)
    }

    pub(super) fn kept(&self) -> impl Iterator<Item = &AttributedSnapshot> {
        self.moments.iter().map(|moment| &*moment.snapshot)
    }

    pub(super) fn kept_mut(&mut self) -> impl Iterator<Item = &mut Arc<AttributedSnapshot>> {
        self.moments.iter_mut().map(|moment| &mut moment.snapshot)
    }

    /// Whether it is another phase; then its unknown bytes, plus the average bytes with another
    /// site in moments of its phase.
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

    fn differs(&self, other: &KeptMoment) -> u64 {
        missing(&self.by_origin, &other.by_origin)
    }

    /// Whether the sizes differ by more than the other's unknown bytes explain.
    fn has_other_sizes(&self, other: &KeptMoment) -> bool {
        let explained = other.unknown + self.snapshot.allocated / OTHER_SIZES;
        missing(&self.by_size, &other.by_size) > explained
    }
}

impl SnapshotPace {
    fn is_next(&mut self) -> bool {
        self.passed += 1;
        let is_next = self.passed >= self.next;
        if is_next {
            self.next = self.passed + (self.passed / MAX_EXAMINED).max(1);
        }
        is_next
    }
}

/// Bytes beyond the other's, by key.
fn missing<K: Hash + Eq>(bytes: &FxHashMap<K, u64>, other: &FxHashMap<K, u64>) -> u64 {
    let in_other = |key| other.get(key).copied().unwrap_or(0);
    bytes.iter().map(|(key, bytes)| bytes.saturating_sub(in_other(key))).sum()
}

/// No snapshot was read then: cached bytes are unknown.
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
    use crate::analysis::followed::tests::moment_of;

    fn best_of(moments: Vec<HighestMoment>) -> u64 {
        let mut between = HighestBetween::default();
        for moment in moments {
            assert!(moment.allocated() > between.above());
            between.keep(moment);
        }
        between.best().unwrap().time.0
    }

    /// At first, most bytes are older than the recording; at last, some are probable.
    #[test]
    fn of_equal_moments_the_best_known_is_shown() {
        let first = moment_of(1, &[(0, 6000), (1, 400)], 0);
        let middle = moment_of(2, &[(2, 6000), (1, 400)], 0);
        let last = moment_of(3, &[(2, 6000), (1, 400)], 900);
        assert_eq!(best_of(vec![first, middle, last]), 2);
    }

    /// At first, it is unknown which of two blocks was freed.
    #[test]
    fn of_equally_known_moments_the_most_typical_is_shown() {
        let with = |time, count: usize| {
            let mut blocks = vec![(1, 10); 100 - count];
            blocks.resize(100, (2, 10));
            moment_of(time, &blocks, 0)
        };
        let moments = vec![with(1, 90), with(2, 10), with(3, 9), with(4, 10), with(5, 40)];
        assert_eq!(best_of(moments), 4);
    }

    /// With changing shapes, another phase can be about as high.
    #[test]
    fn another_phase_is_shown_only_if_it_is_the_highest() {
        let elsewhere = |time, height: u64| moment_of(time, &[(1, height - 400), (2, 400)], 0);
        let peak = |unknown| moment_of(2, &[(1, 1000)], unknown);
        assert_eq!(best_of(vec![elsewhere(1, 999), peak(0)]), 2);
        assert_eq!(best_of(vec![elsewhere(1, 1001), peak(0)]), 1);
        // The highest moment's unknown bytes may have these sizes.
        assert_eq!(best_of(vec![elsewhere(1, 999), peak(950)]), 1);
    }

    #[test]
    fn a_higher_moment_replaces_lower_ones() {
        let mut between = HighestBetween::default();
        assert_eq!(between.above(), 0);
        between.keep(moment_of(1, &[(1, 1000)], 0));
        between.keep(moment_of(2, &[(2, 2000)], 1500));
        assert_eq!(between.best().unwrap().time.0, 2);
        assert_eq!(between.kept().count(), 1);
        assert_eq!(between.above(), 1993);
    }

    #[test]
    fn few_moments_are_kept_and_few_are_examined() {
        let mut between = HighestBetween::default();
        let wants = |between: &mut HighestBetween| between.above() < 1000;
        let mut looked_at = 0;
        for time in 0..10_000 {
            if wants(&mut between) {
                looked_at += 1;
                between.keep(moment_of(time, &[(1 + time as u32 % 7, 1000)], 0));
            }
        }
        assert_eq!(between.kept().count(), MAX_KEPT);
        assert!((64..600).contains(&looked_at), "{looked_at}");
    }
}
