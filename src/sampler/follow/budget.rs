//! The processor budget of polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The processor time for all polls of a recording; clones share it.
///
/// Each process gets an equal share, at most two processors: one polls, the rest read addresses.
#[derive(Debug, Clone)]
pub struct FollowBudget {
    processors: f64,
    followed: Arc<AtomicUsize>,
}

impl FollowBudget {
    /// More processors are useless for one process.
    pub const MOST: f64 = 2.0;

    /// A budget in processors: 0.5 is half of one.
    pub fn new(processors: f64) -> FollowBudget {
        FollowBudget { processors, followed: Arc::default() }
    }

    /// The default for all ranks on a machine with this many processors.
    pub fn for_machine(processors: usize) -> FollowBudget {
        FollowBudget::new(match processors {
            0..=3 => 0.1,
            4..=7 => 0.5,
            many => (many / 8) as f64,
        })
    }

    /// Processors for a process that is followed alone.
    pub fn of_one_process(&self) -> f64 {
        self.processors.min(Self::MOST)
    }

    /// Processors for all processes together.
    pub fn processors(&self) -> f64 {
        self.processors
    }

    pub(super) fn join(&self) -> BudgetPart {
        self.followed.fetch_add(1, Ordering::Relaxed);
        BudgetPart(self.clone())
    }
}

pub(super) struct BudgetPart(FollowBudget);

impl BudgetPart {
    pub(super) fn processors(&self) -> f64 {
        self.all().min(1.0)
    }

    pub(super) fn to_spare(&self) -> f64 {
        (self.all() - 1.0).clamp(0.0, 1.0)
    }

    fn all(&self) -> f64 {
        let followed = self.0.followed.load(Ordering::Relaxed).max(1);
        self.0.processors / followed as f64
    }
}

impl Drop for BudgetPart {
    fn drop(&mut self) {
        self.0.followed.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_followed_together_share_one_budget() {
        let budget = FollowBudget::new(1.0);
        let ranks: Vec<BudgetPart> = (0..8).map(|_| budget.clone().join()).collect();
        assert!(ranks.iter().all(|rank| rank.processors() == 0.125));
        let mut ranks = ranks;
        ranks.truncate(2);
        assert!(ranks.iter().all(|rank| rank.processors() == 0.5), "six have ended");
    }

    #[test]
    fn no_process_uses_more_than_two_processors() {
        let budget = FollowBudget::for_machine(128);
        assert_eq!((budget.processors(), budget.of_one_process()), (16.0, 2.0));
        let part = budget.join();
        assert_eq!(
            (part.processors(), part.to_spare()),
            (1.0, 1.0),
            "one thread polls, one reads addresses"
        );
        let small = FollowBudget::new(0.5).join();
        assert_eq!((small.processors(), small.to_spare()), (0.5, 0.0), "polling comes first");
        let small: Vec<f64> =
            [1, 2, 4, 8, 16].map(|n| FollowBudget::for_machine(n).processors()).into();
        assert_eq!(small, [0.1, 0.1, 0.5, 1.0, 2.0]);
    }
}
