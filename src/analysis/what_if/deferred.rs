//! Frees of blocks that another stream still used (`record_stream`): PyTorch takes them back later.
//!
//! Its counters say after each allocation how many bytes wait. Which blocks these are follows from
//! their sizes; where several sets fit, the newest is taken.

/// A freed block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NumberedFree {
    pub(super) block: u32,
    pub(super) size: u64,
}

/// Freed blocks that PyTorch may not have taken back.
#[derive(Debug, Default)]
pub(super) struct DeferredFrees {
    /// They waited at the last allocation, oldest first.
    waiting: Vec<NumberedFree>,
    /// Freed since.
    fresh: Vec<NumberedFree>,
    /// The most that waited and fits no set of blocks.
    pub(super) unknown: u64,
}

impl DeferredFrees {
    pub(super) fn free(&mut self, freed: NumberedFree) {
        self.fresh.push(freed);
    }

    /// What PyTorch took back before an allocation after which `waits` bytes wait; `None`: unknown.
    pub(super) fn taken_back(&mut self, waits: Option<u64>) -> Vec<NumberedFree> {
        let mut all = std::mem::take(&mut self.waiting);
        let older = all.len();
        all.append(&mut self.fresh);
        match waits {
            // Without counters, what waited goes on to wait.
            None => {
                let taken = all.split_off(older);
                self.waiting = all;
                taken
            }
            Some(0) => all,
            Some(waits) => {
                let kept = which_wait(&all, older, waits);
                let found = kept.iter().fold(0, |sum: u64, at| sum.saturating_add(all[*at].size));
                self.unknown = self.unknown.max(waits.saturating_sub(found));
                self.waiting = kept.iter().map(|at| all[*at]).collect();
                let is_taken = |at: &usize| kept.binary_search(at).is_err();
                (0..all.len()).filter(is_taken).map(|at| all[at]).collect()
            }
        }
    }

    /// All of them: the device was waited for.
    pub(super) fn take_all(&mut self) -> Vec<NumberedFree> {
        self.taken_back(Some(0))
    }
}

/// Indices of blocks that add up to `waits`, or to less if none do. The first `older` blocks waited
/// before: the oldest of them end first.
fn which_wait(all: &[NumberedFree], older: usize, waits: u64) -> Vec<usize> {
    let sum =
        |from: usize| all[from..older].iter().fold(0, |sum: u64, it| sum.saturating_add(it.size));
    for first in 0..=older {
        let Some(rest) = waits.checked_sub(sum(first)) else { continue };
        let of_fresh = |at: usize| at >= older && all[at].size == rest;
        let fresh = match rest {
            0 => Some(Vec::new()),
            _ => match (older..all.len()).rev().find(|at| of_fresh(*at)) {
                Some(one) => Some(vec![one]),
                None => newest_run(all, older, rest),
            },
        };
        if let Some(fresh) = fresh {
            return (first..older).chain(fresh).collect();
        }
    }
    // The newest that fit.
    let mut kept = Vec::new();
    let mut left = waits;
    for (at, freed) in all.iter().enumerate().rev() {
        if freed.size <= left {
            left -= freed.size;
            kept.push(at);
        }
    }
    kept.reverse();
    kept
}

/// The newest blocks one after the other that add up to `sum`.
fn newest_run(all: &[NumberedFree], older: usize, sum: u64) -> Option<Vec<usize>> {
    (older..all.len()).rev().find_map(|last| {
        let mut left = sum;
        for at in (older..=last).rev() {
            left = left.checked_sub(all[at].size)?;
            if left == 0 {
                return Some((at..=last).collect());
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(freed: &[NumberedFree]) -> Vec<u32> {
        freed.iter().map(|it| it.block).collect()
    }

    #[test]
    fn blocks_wait_as_long_as_the_counters_say() {
        let mut frees = DeferredFrees::default();
        for (block, size) in [(1, 512), (2, 1024), (3, 2048)] {
            frees.free(NumberedFree { block, size });
        }
        assert_eq!(blocks(&frees.taken_back(Some(1024))), [1, 3]);
        frees.free(NumberedFree { block: 4, size: 4096 });
        assert_eq!(blocks(&frees.taken_back(Some(1024 + 4096))), [0_u32; 0]);
        // The older of the two ends first.
        assert_eq!(blocks(&frees.taken_back(Some(4096))), [2]);
        frees.free(NumberedFree { block: 5, size: 512 });
        assert_eq!(blocks(&frees.taken_back(Some(0))), [4, 5]);
        assert_eq!(frees.unknown, 0);
    }

    #[test]
    fn several_blocks_may_wait_and_unknown_bytes_are_counted() {
        let mut frees = DeferredFrees::default();
        for block in 1..=4 {
            frees.free(NumberedFree { block, size: u64::from(block) * 512 });
        }
        // 2 and 3, or 1 and 4: neighbours are likelier.
        assert_eq!(blocks(&frees.taken_back(Some(2560))), [1, 4]);
        assert_eq!(blocks(&frees.taken_back(Some(9000))), [0_u32; 0]);
        assert_eq!(frees.unknown, 9000 - 2560);
        assert_eq!(blocks(&frees.take_all()), [2, 3]);
    }

    #[test]
    fn without_counters_a_free_is_done_at_once() {
        let mut frees = DeferredFrees::default();
        frees.free(NumberedFree { block: 1, size: 512 });
        assert_eq!(blocks(&frees.taken_back(None)), [1]);
    }
}
