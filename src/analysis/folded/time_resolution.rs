//! How precisely a moment's allocation sites are known.

use crate::analysis::attribution::{AllocationOrigin, AttributedSnapshot, Evidence};
use crate::analysis::folded::{FoldedStack, PseudoFrame, StackLabel};

/// A moment's bytes by evidence. Those allocated during the recording are proven, probable or
/// unattributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TimeResolution {
    /// Allocated during the recording.
    pub seen: u64,
    /// Of these, in blocks with one possible stack.
    pub one_stack: u64,
    /// Proven; `None` unless followed or exact.
    pub certain: Option<u64>,
    /// Probable.
    pub probable: u64,
    /// Unattributed, with one sampled stack.
    pub sampled: u64,
    /// Unattributed: no recorded thread can have allocated them.
    pub not_seen: u64,
    /// Half of `seen` was allocated in intervals of at most this length, in nanoseconds.
    pub median: u64,
    /// The same for 95 %.
    pub p95: u64,
}

impl TimeResolution {
    /// Proven bytes.
    pub fn proven(&self) -> u64 {
        self.certain.unwrap_or(0)
    }

    /// Bytes that are neither proven nor probable.
    pub fn unattributed(&self) -> u64 {
        self.seen.saturating_sub(self.proven()).saturating_sub(self.probable)
    }

    /// Unattributed bytes with several possible stacks.
    pub fn shared(&self) -> u64 {
        self.unattributed().saturating_sub(self.sampled).saturating_sub(self.not_seen)
    }

    /// For an exact recording: stacks with a frame have this `evidence`. Bytes older than the
    /// recording do not count.
    pub(in crate::analysis) fn of_exact(
        stacks: &[FoldedStack],
        evidence: Evidence,
    ) -> TimeResolution {
        let certain = (evidence == Evidence::Proven).then_some(0);
        let mut resolution = TimeResolution { certain, ..TimeResolution::default() };
        let is_before =
            |label: &StackLabel| *label == StackLabel::Pseudo(PseudoFrame::BeforeRecording);
        for FoldedStack { path, bytes, .. } in
            stacks.iter().filter(|it| !it.path.iter().any(is_before))
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

pub(in crate::analysis) fn resolution(snapshot: &AttributedSnapshot) -> TimeResolution {
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
