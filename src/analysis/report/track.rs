//! `MemoryTrack`: memory at key moments, by stack.

use crate::analysis::folded::StackLabel;
use crate::model::{MemoryKind, Nanos};

use super::segment_map::SegmentMap;

/// A key moment, in bytes: `total` by counter or blocks, `shared` of it estimated in proportion.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyMoment {
    pub time: Nanos,
    pub total: u64,
    pub reserved: Option<u64>,
    pub shared: u64,
}

/// An allocation site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SitePath {
    /// Outermost frame first; empty for [`MemoryTrack::small`].
    pub path: Vec<StackLabel>,
    /// Bytes are estimated from sampled allocations.
    pub is_estimate: bool,
    /// Counted bytes without a block, of unknown lifetimes.
    pub is_remainder: bool,
}

/// Blocks of one stack, live at the moments `from..to`; `to` is past the last if still live.
/// `count` is 0 for a remainder.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockSpan {
    pub stack: u32,
    pub from: u32,
    pub to: u32,
    pub bytes: u64,
    pub count: u64,
}

/// Blocks of one stack that lived between two moments; `before` is the later one.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChurnedBytes {
    pub stack: u32,
    pub before: u32,
    pub bytes: u64,
    pub count: u64,
}

/// One kind of memory.
#[derive(Debug, Clone)]
pub struct MemoryTrack {
    /// Which kind.
    pub kind: MemoryKind,
    /// The moments, earliest first.
    pub moments: Vec<KeyMoment>,
    /// The time of the peak in the other reports.
    pub peak_time: Option<Nanos>,
    /// Stacks; the first joins the small ones.
    pub stacks: Vec<SitePath>,
    /// How many stacks the first one joins.
    pub small: u64,
    /// Lifetimes.
    pub spans: Vec<BlockSpan>,
    /// Blocks live at no moment; `None` without events.
    pub churned: Option<Vec<ChurnedBytes>>,
    /// Some snapshots of the segments.
    pub maps: Vec<SegmentMap>,
}

impl MemoryTrack {
    /// Bytes of each stack, adding up to [`KeyMoment::total`].
    pub fn live(&self, moment: usize) -> Vec<u64> {
        let mut bytes = vec![0u64; self.stacks.len()];
        for span in &self.spans {
            if (span.from as usize) <= moment && moment < span.to as usize {
                bytes[span.stack as usize] += span.bytes;
            }
        }
        let shared = u128::from(self.moments.get(moment).map_or(0, |moment| moment.shared));
        let estimated = |stack: &SitePath| stack.is_estimate;
        let all = bytes.iter().zip(&self.stacks).filter(|(_, stack)| estimated(stack));
        let all: u128 = all.map(|(bytes, _)| u128::from(*bytes)).sum();
        // Running portions add up to the whole.
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

    /// The moment of the other reports' peak, else the highest.
    pub fn peak(&self) -> Option<usize> {
        let highest = |number: &usize| {
            let moment = &self.moments[*number];
            let is_peak = self.peak_time == Some(moment.time);
            (is_peak, moment.total, std::cmp::Reverse(*number))
        };
        (0..self.moments.len()).max_by_key(highest)
    }
}

/// Scales to `total`: late frees make more blocks seem live than there were.
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
