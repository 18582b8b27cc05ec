//! Which of several blocks was freed: the rules, and how often each was right in this recording.
//!
//! Where the block that was freed is known, by its address or by what is always freed there, each
//! rule is asked as well. A rule that is seldom wrong leaves no doubt; what another one chose is
//! not probable.

/// The rules, the most telling first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FreeRule {
    /// A function that held it in a variable returned.
    Returned,
    /// Blocks of its site are usually freed at this place.
    Usual,
    /// It is the youngest that is not in use.
    Youngest,
}

/// Answers before they say something.
const MIN_CHECKED: u32 = 16;
/// Per cent of right answers that leave no doubt.
const RELIABLE_PERCENT: u32 = 95;

impl FreeRule {
    pub(super) const ALL: [FreeRule; 3] = [FreeRule::Returned, FreeRule::Usual, FreeRule::Youngest];
}

/// Right answers of each rule, and all.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::analysis) struct CheckedRules([(u32, u32); 3]);

impl CheckedRules {
    pub(super) fn add(&mut self, rule: FreeRule, is_right: bool) {
        let (right, all) = &mut self.0[rule as usize];
        *right = right.saturating_add(u32::from(is_right));
        *all = all.saturating_add(1);
    }

    pub(super) fn join(&mut self, other: &CheckedRules) {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            *own = (own.0.saturating_add(other.0), own.1.saturating_add(other.1));
        }
    }

    pub(super) fn is_reliable(&self, rule: FreeRule) -> bool {
        let (right, all) = self.0[rule as usize];
        all >= MIN_CHECKED && u64::from(right) * 100 >= u64::from(all) * u64::from(RELIABLE_PERCENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_reliable_once_it_was_right_often_enough() {
        let mut checked = CheckedRules::default();
        let mut add = |right, times| {
            (0..times).for_each(|_| checked.add(FreeRule::Youngest, right));
            (checked.is_reliable(FreeRule::Youngest), checked.is_reliable(FreeRule::Usual))
        };
        assert_eq!(add(true, MIN_CHECKED - 1), (false, false), "too few");
        assert_eq!(add(true, 4), (true, false));
        assert_eq!(add(false, 1), (true, false), "one of twenty");
        assert_eq!(add(false, 1), (false, false));
    }
}
