//! Which pages of a running process change, by hashes of their earlier reads.

use rustc_hash::{FxHashMap, FxHashSet};

/// Of a page that was read once.
const UNKNOWN: u8 = 2;
/// Of a page that changed in its last comparison; each comparison without a change takes one.
const CHANGED: u8 = 3;
/// Of a page whose changed bytes were needed.
const NEEDED: u8 = 5;

/// What is known of pages from earlier reads.
#[derive(Debug, Default)]
pub struct PageHistory {
    pages: FxHashMap<u64, PageRecord>,
}

#[derive(Debug, Clone, Copy)]
struct PageRecord {
    hash: u64,
    heat: u8,
}

impl PageHistory {
    /// 0: a page that stays the same.
    pub fn heat(&self, number: u64) -> u8 {
        self.pages.get(&number).map_or(UNKNOWN, |record| record.heat)
    }

    /// Whether its last comparison found a change, or one of the last did that mattered.
    pub fn is_changing(&self, number: u64) -> bool {
        self.heat(number) >= CHANGED
    }

    /// Expects these pages to change again: their changed bytes were needed.
    pub fn note_needed(&mut self, numbers: &[u64]) {
        for number in numbers {
            if let Some(record) = self.pages.get_mut(number) {
                record.heat = NEEDED;
            }
        }
    }

    /// Forgets all other pages.
    pub fn retain(&mut self, numbers: &[u64]) {
        if self.pages.len() > numbers.len() {
            let kept: FxHashSet<u64> = numbers.iter().copied().collect();
            self.pages.retain(|number, _| kept.contains(number));
        }
    }

    /// Compares it with its last read; whether this is the first.
    pub(super) fn note(&mut self, number: u64, hash: u64) -> bool {
        let Some(record) = self.pages.get_mut(&number) else {
            self.pages.insert(number, PageRecord { hash, heat: UNKNOWN });
            return true;
        };
        record.heat = match record.hash == hash {
            true => record.heat.saturating_sub(1),
            false => record.heat.max(CHANGED),
        };
        record.hash = hash;
        false
    }

    pub(super) fn note_change(&mut self, number: u64, hash: u64) {
        self.pages.insert(number, PageRecord { hash, heat: CHANGED });
    }
}

/// Only guides which pages are copied: a collision costs another copy.
pub(super) fn hash(page: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [1u64, 2, 3, 4];
    let (words, _) = page.as_chunks::<8>();
    for four in words.as_chunks::<4>().0 {
        for (lane, word) in lanes.iter_mut().zip(four) {
            *lane = (lane.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR);
        }
    }
    let mix = |sum: u64, lane: u64| (sum.rotate_left(17) ^ lane).wrapping_mul(FACTOR);
    lanes.into_iter().fold(0, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changing_pages_stay_hot_for_some_comparisons() {
        let mut history = PageHistory::default();
        assert_eq!((history.heat(7), history.is_changing(7)), (UNKNOWN, false));
        for hash in [1, 1, 1, 2] {
            history.note(7, hash);
        }
        assert!(history.is_changing(7));
        let heats: Vec<u8> = (0..4)
            .map(|_| {
                history.note(7, 2);
                history.heat(7)
            })
            .collect();
        assert_eq!(heats, [2, 1, 0, 0]);
        history.note_needed(&[7, 8]);
        let for_long: Vec<bool> = (0..3)
            .map(|_| {
                history.note(7, 2);
                history.is_changing(7)
            })
            .collect();
        assert_eq!(for_long, [true, true, false]);
        history.retain(&[]);
        assert_eq!(history.heat(7), UNKNOWN);
    }

    #[test]
    fn any_changed_byte_changes_the_hash() {
        let page = [7; 4096];
        for at in [0, 8, 16, 24, 100, 4095] {
            let mut other = page;
            other[at] ^= 1;
            assert_ne!(hash(&page), hash(&other), "{at}");
        }
    }
}
