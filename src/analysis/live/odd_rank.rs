//! Finds a rank that holds more than the others.

use std::collections::BTreeMap;

/// Smaller differences are ignored.
const MIN_BYTES: u64 = 1 << 20;
/// As are those below 1/100 of the others' bytes.
const MIN_PART: u64 = 100;

/// The memory of one rank, in bytes: the least on its devices while it was observed, and by owner.
/// Ranks are looked at one after the other, so in different moments of a step: what differs at the
/// least level lasts.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankHolding {
    pub label: String,
    pub allocated: u64,
    pub owners: BTreeMap<String, u64>,
}

/// A rank that holds more.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OddRank {
    pub label: String,
    /// Than the others' median.
    pub more: u64,
    /// The owner with at least half of that, and its part.
    pub owner: Option<(String, u64)>,
}

/// The rank that holds more, if any.
pub fn odd_rank(ranks: &[RankHolding]) -> Option<OddRank> {
    let odd = ranks.iter().max_by_key(|rank| rank.allocated)?;
    let others: Vec<&RankHolding> = ranks.iter().filter(|rank| rank.label != odd.label).collect();
    let usual = middle(others.iter().map(|rank| rank.allocated))?;
    let more = odd.allocated.saturating_sub(usual);
    // Ignore differences below twice the others' spread.
    let lowest = others.iter().map(|rank| rank.allocated).min()?;
    let highest = others.iter().map(|rank| rank.allocated).max()?;
    if more < MIN_BYTES
        || more < usual / MIN_PART
        || odd.allocated.saturating_sub(highest) < 2 * (highest - lowest)
    {
        return None;
    }
    let of_owner = |(owner, bytes): (&String, &u64)| {
        let in_others = others.iter().map(|rank| rank.owners.get(owner).copied().unwrap_or(0));
        let more = bytes.saturating_sub(middle(in_others).unwrap_or(0));
        (owner.clone(), more)
    };
    // An owner with much more than that has what only lives for a moment.
    let fits = |(_, by_owner): &(String, u64)| (more / 2..=more + more / 4).contains(by_owner);
    let owner = odd.owners.iter().map(of_owner).filter(fits).max_by_key(|(_, more)| *more);
    Some(OddRank { label: odd.label.clone(), more, owner })
}

/// The lower median.
fn middle(values: impl Iterator<Item = u64>) -> Option<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(number: u32, seen: u64) -> RankHolding {
        let owners =
            [("model", 400), ("seen[*]", seen)].map(|(of, mib)| (of.to_owned(), mib << 20));
        let allocated = (400 + seen) << 20;
        let label = format!("rank {number}");
        RankHolding { label, allocated, owners: owners.into_iter().collect() }
    }

    #[test]
    fn larger_rank_is_named_with_its_owner() {
        let ranks = [rank(0, 3), rank(1, 1300), rank(2, 1), rank(3, 2)];
        let odd = odd_rank(&ranks).unwrap();
        assert_eq!((odd.label.as_str(), odd.more), ("rank 1", 1298 << 20));
        assert_eq!(odd.owner, Some(("seen[*]".to_owned(), 1298 << 20)));
        assert_eq!(odd_rank(&ranks[..2]).unwrap().more, 1297 << 20);
    }

    #[test]
    fn what_lives_for_a_moment_is_no_owner_of_the_difference() {
        let mut odd = rank(1, 300);
        odd.owners.insert("step: squares[*]".to_owned(), 5000 << 20);
        let found = odd_rank(&[rank(0, 0), odd]).unwrap();
        assert_eq!(found.owner, Some(("seen[*]".to_owned(), 300 << 20)));
    }

    #[test]
    fn similar_or_all_different_ranks_are_not_odd() {
        assert_eq!(odd_rank(&[rank(0, 3), rank(1, 5), rank(2, 1)]), None);
        assert_eq!(odd_rank(&[rank(0, 0), rank(1, 400), rank(2, 800)]), None);
        assert_eq!(odd_rank(&[rank(0, 900)]), None);
        assert_eq!(odd_rank(&[]), None);
    }
}
