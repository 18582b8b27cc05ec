//! How it is known who allocated the blocks of a moment.

use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::attribution::evidence::Evidence;
use crate::analysis::flame::fold::{FoldedStack, PseudoFrame, StackLabel};
use crate::analysis::profile::attributed_snapshot::AttributedSnapshot;

/// How it is known who allocated a moment's blocks, in bytes. Every byte that the recording saw
/// allocated is proven, probable or unattributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeResolution {
    /// Bytes of blocks whose birth the recording saw.
    pub seen: u64,
    /// Of these, bytes of blocks that only one stack came into question for.
    pub one_stack: u64,
    /// Bytes of blocks of which it is proven which stack allocated them; `None` where the allocator
    /// was not followed, and there are no exact events.
    pub certain: Option<u64>,
    /// Bytes of blocks whose stack is probable.
    pub probable: u64,
    /// Of the unattributed bytes, those of blocks for which only samples speak, and for one stack.
    pub sampled: u64,
    /// Of the unattributed bytes, those that no thread seen can have allocated.
    pub not_seen: u64,
    /// Half of the bytes seen were born within a time not longer than this, in nanoseconds.
    pub median: u64,
    /// The same for 95 % of the bytes.
    pub p95: u64,
}

impl TimeResolution {
    /// Bytes that are proven.
    pub fn proven(&self) -> u64 {
        self.certain.unwrap_or(0)
    }

    /// Bytes that are neither proven nor probable.
    pub fn unattributed(&self) -> u64 {
        self.seen.saturating_sub(self.proven()).saturating_sub(self.probable)
    }

    /// Of the unattributed bytes, those that several stacks come into question for.
    pub fn shared(&self) -> u64 {
        self.unattributed().saturating_sub(self.sampled).saturating_sub(self.not_seen)
    }

    /// That of stacks whose blocks all have an event: a stack with a frame is proven, or what
    /// `evidence` says. Bytes from before the recording do not count.
    pub(super) fn of_exact(stacks: &[FoldedStack], evidence: Evidence) -> TimeResolution {
        let certain = (evidence == Evidence::Proven).then_some(0);
        let mut resolution = TimeResolution { certain, ..TimeResolution::default() };
        let is_before =
            |label: &StackLabel| *label == StackLabel::Pseudo(PseudoFrame::BeforeRecording);
        for FoldedStack { path, bytes } in stacks.iter().filter(|it| !it.path.iter().any(is_before))
        {
            resolution.seen += bytes;
            if !path.iter().any(|label| matches!(label, StackLabel::Frame(_))) {
                resolution.not_seen += bytes;
                continue;
            }
            resolution.one_stack += bytes;
            resolution.add(evidence, *bytes);
        }
        resolution
    }

    fn add(&mut self, evidence: Evidence, bytes: u64) {
        match evidence {
            Evidence::Proven => *self.certain.get_or_insert(0) += bytes,
            Evidence::Probable => self.probable += bytes,
            Evidence::Sampled => self.sampled += bytes,
            Evidence::Shared | Evidence::NotSeen | Evidence::Older => {}
        }
    }
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
            }
        }
        resolution.add(charge.evidence(snapshot.followed), *size);
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
