//! `MemoryTrack`: one kind of memory of a recording, at a few hundred moments, by stack.

use crate::analysis::flame::fold::StackLabel;
use crate::model::{MemoryKind, Nanos};

use super::segment_map::SegmentMap;

/// A moment that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportMoment {
    /// When.
    pub time: Nanos,
    /// Bytes allocated: by the allocator's counter, or in blocks where no counter was read.
    pub total: u64,
    /// Bytes reserved, where they are known.
    pub reserved: Option<u64>,
    /// Of the total, bytes that are shared among stacks in proportion to what each stands for; 0 where every allocation has
    /// its stack.
    pub shared: u64,
}

/// Where memory was allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportStack {
    /// From the outermost frame to the innermost; empty for [`MemoryTrack::small`].
    pub path: Vec<StackLabel>,
    /// Whether its bytes are an estimate, of a sample of the allocations.
    pub is_estimate: bool,
    /// Whether it stands for what a counter has and no block shows: then nothing is known of lifetimes.
    pub is_remainder: bool,
}

/// Blocks of one stack that lived from one key moment to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockSpan {
    /// Number of the stack.
    pub stack: u32,
    /// The first moment at which they lived.
    pub from: u32,
    /// The first moment at which they did not live any more; the number of moments for those that never ended.
    pub to: u32,
    /// Their bytes.
    pub bytes: u64,
    /// How many; 0 for a remainder.
    pub count: u64,
}

/// Blocks of one stack that were allocated and freed between two moments next to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChurnedBytes {
    /// Number of the stack.
    pub stack: u32,
    /// The moment before which they were freed.
    pub before: u32,
    /// Their bytes.
    pub bytes: u64,
    /// How many.
    pub count: u64,
}

/// One kind of memory.
#[derive(Debug, Clone)]
pub struct MemoryTrack {
    /// Which.
    pub kind: MemoryKind,
    /// The moments, earliest first.
    pub moments: Vec<ReportMoment>,
    /// The peak as other reports of the recording have it.
    pub peak_time: Option<Nanos>,
    /// Stacks; the first one is what stands for all that hold too little to be seen.
    pub stacks: Vec<ReportStack>,
    /// How many stacks the first one stands for.
    pub small: u64,
    /// Lifetimes.
    pub spans: Vec<BlockSpan>,
    /// What lived too short to be in any moment; `None` where no events were recorded.
    pub churned: Option<Vec<ChurnedBytes>>,
    /// Some of the allocator's segments along the recording.
    pub maps: Vec<SegmentMap>,
}

impl MemoryTrack {
    /// The bytes of each stack at a moment. They add up to [`ReportMoment::total`].
    pub fn live(&self, moment: usize) -> Vec<u64> {
        let mut bytes = vec![0u64; self.stacks.len()];
        for span in &self.spans {
            if (span.from as usize) <= moment && moment < span.to as usize {
                bytes[span.stack as usize] += span.bytes;
            }
        }
        let shared = u128::from(self.moments.get(moment).map_or(0, |moment| moment.shared));
        let estimated = |stack: &ReportStack| stack.is_estimate;
        let all = bytes.iter().zip(&self.stacks).filter(|(_, stack)| estimated(stack));
        let all: u128 = all.map(|(bytes, _)| u128::from(*bytes)).sum();
        // Differences of running portions add up to the whole.
        let portion = |upto: u128| (shared * upto).checked_div(all).unwrap_or(0);
        let mut done: u128 = 0;
        for (bytes, _) in bytes.iter_mut().zip(&self.stacks).filter(|(_, s)| estimated(s)) {
            let upto = done + u128::from(*bytes);
            *bytes = (portion(upto) - portion(done)) as u64;
            done = upto;
        }
        fit(&mut bytes, self.moments.get(moment).map_or(0, |moment| moment.total));
        bytes
    }

    /// The number of the peak as the other reports have it, else of the highest moment.
    pub fn peak(&self) -> Option<usize> {
        let highest = |number: &usize| {
            let moment = &self.moments[*number];
            let is_peak = self.peak_time == Some(moment.time);
            (is_peak, moment.total, std::cmp::Reverse(*number))
        };
        (0..self.moments.len()).max_by_key(highest)
    }
}

/// Scales the bytes down to `total`. Frees can be recorded late, so more blocks seem alive than the
/// allocator had.
fn fit(bytes: &mut [u64], total: u64) {
    let sum: u128 = bytes.iter().map(|bytes| u128::from(*bytes)).sum();
    if sum <= u128::from(total) {
        return;
    }
    let portion = |upto: u128| (u128::from(total) * upto / sum) as u64;
    let mut done: u128 = 0;
    for bytes in bytes {
        let upto = done + u128::from(*bytes);
        *bytes = portion(upto) - portion(done);
        done = upto;
    }
}
