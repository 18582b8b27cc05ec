//! Reserved memory grows without allocated memory: unusable cache, no leak.

use crate::analysis::live::usage_history::PeakUsage;
use crate::model::Segment;

/// One rise may be a step that needed more.
const MIN_RISES: usize = 2;

/// Growth of reserved memory in bytes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReservedGrowth {
    pub bytes: u64,
}

impl ReservedGrowth {
    /// `levels` are in time order; `None` if reserved memory fell, or allocated memory explains it.
    pub fn of(levels: &[PeakUsage]) -> Option<ReservedGrowth> {
        let (first, last) = (levels.first()?, levels.last()?);
        let is_rising = levels.windows(2).all(|pair| pair[0].reserved <= pair[1].reserved);
        let bytes = u64::try_from(last.reserved - first.reserved).ok()?;
        // The driver is never asked for less than a small segment.
        if !is_rising || bytes < Segment::SMALL_SIZE {
            return None;
        }
        // Steps allocate and free: compare the floors of both halves.
        let (early, late) = levels.split_at(levels.len() / 2);
        let growth = |of: fn(&PeakUsage) -> i64| {
            let floor = |part: &[PeakUsage]| part.iter().map(of).min();
            Some(floor(late)?.saturating_sub(floor(early)?))
        };
        let (allocated, reserved) = (growth(|at| at.allocated)?, growth(|at| at.reserved)?);
        let rises = levels.windows(2).filter(|pair| pair[0].reserved < pair[1].reserved).count();
        let is_growth = rises >= MIN_RISES && reserved > 0 && allocated <= reserved / 2;
        is_growth.then_some(ReservedGrowth { bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(levels: &[(i64, i64)]) -> Option<ReservedGrowth> {
        let level = |&(allocated, reserved): &(i64, i64)| PeakUsage {
            allocated: allocated << 20,
            reserved: reserved << 20,
        };
        ReservedGrowth::of(&levels.iter().map(level).collect::<Vec<_>>())
    }

    #[test]
    fn reserved_growth_is_found_under_an_allocated_sawtooth() {
        let growth = Some(ReservedGrowth { bytes: 44 << 20 });
        assert_eq!(grown(&[(5, 60), (9, 82), (5, 82), (9, 104)]), growth);
    }

    #[test]
    fn explained_falling_or_small_growth_is_not_reported() {
        assert_eq!(grown(&[(50, 60), (70, 80), (90, 100), (110, 120)]), None);
        assert_eq!(grown(&[(5, 60), (5, 82), (5, 70), (5, 104)]), None);
        // A leak whose reserved bytes are one segment ahead.
        let leak: Vec<_> = (0..20).map(|n| (50 + 10 * n, 60 + (10 * n + 19) / 20 * 20)).collect();
        assert_eq!(grown(&leak), None);
        assert_eq!(grown(&[(5, 60), (5, 61)]), None);
        assert_eq!(grown(&[(5, 60), (5, 82), (5, 82)]), None, "once");
        assert_eq!(grown(&[]), None);
    }
}
