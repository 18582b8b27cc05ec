//! The highest moment of a device between two maps, where the allocator is followed.

use std::sync::Arc;

use crate::analysis::followed::highest_moment::{AliveBlock, HighestMoment};
use crate::analysis::profile::attributed_snapshot::AttributedSnapshot;
use crate::model::{Nanos, SnapshotConsistency};

/// Two moments are about as high if they differ by less than this part.
pub(super) const ABOUT: u64 = 256;
/// As long as more than this part of it is not known, other moments that are about as high are looked at.
const WELL_KNOWN: u64 = 100;
/// So many at most: a job comes to its peak in each iteration.
const MAX_MOMENTS: u32 = 64;

/// The highest moment so far, and of those about as high the one of which most is known.
#[derive(Debug, Default)]
pub(super) struct HighestBetween {
    pub(super) kept: Option<Arc<AttributedSnapshot>>,
    moments: u32,
}

impl HighestBetween {
    /// Only what is higher than so many bytes is worth keeping.
    pub(super) fn above(&self) -> u64 {
        let Some(kept) = &self.kept else { return 0 };
        let about = kept.allocated / ABOUT;
        let is_known = unknown(kept) <= kept.allocated / WELL_KNOWN;
        match is_known || self.moments >= MAX_MOMENTS {
            true => kept.allocated + about,
            false => kept.allocated - about,
        }
    }

    /// Takes a moment that is higher than [`Self::above`].
    pub(super) fn keep(&mut self, moment: HighestMoment) {
        self.moments += 1;
        let moment = snapshot(moment);
        let is_better = |kept: &Arc<AttributedSnapshot>| {
            moment.allocated > kept.allocated + kept.allocated / ABOUT
                || unknown(&moment) < unknown(kept)
        };
        if self.kept.as_ref().is_none_or(is_better) {
            self.kept = Some(Arc::new(moment));
        }
    }
}

/// Bytes of which nobody knows who allocated them. What is older than the recording is less of it in each iteration.
fn unknown(moment: &AttributedSnapshot) -> u64 {
    moment.not_seen().saturating_add(moment.before_recording)
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
        ownerless: Vec::new(),
    };
    for AliveBlock { kind, attribution, address, .. } in moment.blocks {
        snapshot.push(address, kind.size, attribution);
    }
    snapshot
}
