//! How sharply it is known who allocated the blocks of a moment.

use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::attribution::evidence::Evidence;
use crate::analysis::profile::attributed_snapshot::AttributedSnapshot;

/// How sharply the births behind a moment's blocks are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeResolution {
    /// Bytes of blocks whose birth the recording saw.
    pub seen: u64,
    /// Of these, bytes of blocks that only one stack came into question for.
    pub one_stack: u64,
    /// Bytes of blocks of which it is proven which stack allocated them; `None` where the allocator was not followed.
    pub certain: Option<u64>,
    /// Where the allocator was followed: bytes of blocks with one stack that the polls did not see allocated, or only far apart, and
    /// the samples did.
    pub from_samples: u64,
    /// Bytes of which nothing is known but that they were allocated during the recording: no thread was seen that can have
    /// done it.
    pub not_seen: u64,
    /// Half of the bytes seen were born within a time not longer than this, in nanoseconds.
    pub median: u64,
    /// The same for 95 % of the bytes.
    pub p95: u64,
}

/// What is known of a moment's blocks.
pub(super) fn resolution(snapshot: &AttributedSnapshot) -> TimeResolution {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    let mut resolution =
        TimeResolution { certain: snapshot.followed.then_some(0), ..TimeResolution::default() };
    for (size, charge) in &snapshot.blocks {
        if let Some(span) = charge.span {
            spans.push((span, *size));
            resolution.seen += size;
            if let [(AllocationOrigin::Stack(..), _)] = charge.shares[..] {
                resolution.one_stack += size;
                if snapshot.followed && charge.evidence(true) == Evidence::Sampled {
                    resolution.from_samples += size;
                }
            }
        }
        if charge.certain {
            *resolution.certain.get_or_insert(0) += size;
        }
        charge.split(*size, |origin, bytes| {
            if matches!(origin, AllocationOrigin::NotSeen | AllocationOrigin::Below(..)) {
                resolution.not_seen += bytes;
            }
        });
    }
    spans.sort_unstable();
    let at = |share: f64| {
        let wanted = (resolution.seen as f64 * share).ceil() as u64;
        let mut sum = 0;
        spans
            .iter()
            .find(|(_, size)| {
                sum += size;
                sum >= wanted
            })
            .map_or(0, |s| s.0)
    };
    TimeResolution { median: at(0.5), p95: at(0.95), ..resolution }
}
