//! Chooses pages for the next copy.

use std::collections::BTreeSet;

use rustc_hash::FxHashSet;

use crate::target::PageCache;

/// 64 KiB, doubled each round: a training job allocates objects near recently freed ones.
const NEIGHBOURS: u64 = 16;
/// The maximum: an arena of CPython.
const MAX_NEIGHBOURS: u64 = 256;
/// Growth of a round by neighbours; missing pages are unlimited.
const MAX_GROWTH: f64 = 0.5;

/// Adds missing pages and neighbours; keeps unused pages for a while. `is_all`: a whole walk needed
/// copied pages only.
pub(super) fn remember(pages: &mut Vec<u64>, memory: &PageCache, is_all: bool, round: u32) {
    let (used, more) = (memory.pages(), memory.unplanned_pages());
    if is_all && pages.len() > 2 * used.len() {
        *pages = used;
        return;
    }
    add_missing(pages, &more, round, memory.most_pages());
}

/// `most_pages`: no neighbours beyond.
fn add_missing(pages: &mut Vec<u64>, missing: &[u64], round: u32, most_pages: usize) {
    let mut known: FxHashSet<u64> = pages.iter().copied().collect();
    let room = pages.len() + (pages.len() as f64 * MAX_GROWTH) as usize;
    pages.extend(missing.iter().filter(|page| known.insert(**page)));
    let most = MAX_NEIGHBOURS.min(NEIGHBOURS << round.saturating_sub(1).min(8));
    let mut wide = NEIGHBOURS;
    while wide <= most {
        let around: BTreeSet<u64> = missing.iter().map(|page| page / wide * wide).collect();
        let around = around.into_iter().flat_map(|first| first..first + wide);
        for page in around {
            if pages.len() >= most_pages || pages.len() >= room && wide > NEIGHBOURS {
                return;
            }
            if known.insert(page) {
                pages.push(page);
            }
        }
        wide *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_widen_for_a_job_that_allocates_elsewhere() {
        let known: Vec<u64> = (0..10_000).collect();
        let added = |round| {
            let mut pages = known.clone();
            add_missing(&mut pages, &[50_000], round, usize::MAX);
            assert!(pages.contains(&50_000));
            pages.len() - known.len()
        };
        assert_eq!((added(1), added(2), added(3)), (16, 32, 64));
        assert_eq!((added(5), added(7)), (256, 256));
        // Many distant pages: all are added, neighbours while there is room.
        let missing: Vec<u64> = (0..1_000).map(|number| 100_000 + number * 1_000).collect();
        let mut pages = known.clone();
        add_missing(&mut pages, &missing, 6, usize::MAX);
        assert!(missing.iter().all(|page| pages.contains(page)));
        assert_eq!(pages.len(), known.len() + 16 * missing.len());
        let mut full = known.clone();
        add_missing(&mut full, &missing, 6, known.len());
        assert_eq!(full.len(), known.len() + missing.len(), "no room for neighbours");
        let distinct: FxHashSet<u64> = pages.iter().copied().collect();
        assert_eq!(distinct.len(), pages.len(), "no page is copied twice");
    }
}
