//! Copies most pages while the process runs, so that a stop need not last as long as all copies.
//!
//! Read all while it runs ([`PageCache::read_ahead`]); stop it; copy again what changes, and the
//! rest while there is time ([`PageCache::read_standing`]); let it continue; read what was not
//! copied in the stop once more ([`PageCache::verify`]). A page that is the same before and after
//! was the same in the stop. Where it differs, reads are torn: they are counted.

use rustc_hash::FxHashSet;

use super::memory::MemoryError;
use super::page_copy::{
    CopyFailure, CopyLimit, CopyProgress, PAGE, PagePlan, beside, by_chunks, copy_pages, read_pages,
};
use super::page_history::{PageHistory, hash};
use super::pages::{CachedPages, NO_PAGE, PageCache, PageCopies};
use super::ptrace_stop::Resumed;

/// What became of a page after the stop.
enum Verdict {
    Changed(Box<[u8]>),
    /// It is no longer there, or its copy is of after the stop.
    Unknown,
    /// It was not there before the stop, but is now.
    Appeared,
}

impl PageCache {
    /// Makes places for planned pages, to be read ahead.
    pub fn begin(&self, plan: PagePlan) {
        self.pages.lock().begin(plan);
    }

    /// Reads the planned pages of the running process. `history` learns which differ from their
    /// last read. Bytes that had none.
    pub fn read_ahead(&self, history: &mut PageHistory) -> u64 {
        let mut pages = self.pages.lock();
        let Some(copies) = pages.copies_mut() else { return 0 };
        let PageCopies { numbers, chunks, index, .. } = copies;
        let limit = CopyLimit::of(&Resumed::default());
        let hashed = |place: usize, page: &[u8]| Some((place, hash(page)));
        let (hashes, missing) =
            copy_pages(&*self.memory, numbers, chunks, &limit, &|_| true, &hashed);
        let mut new = 0;
        for (place, hash) in hashes {
            new += u64::from(history.note(numbers[place], hash));
            index.insert(numbers[place], Ok(place as u32));
        }
        let absent: FxHashSet<usize> =
            missing.iter().flat_map(|(places, _)| places.clone()).collect();
        for (places, why) in missing {
            numbers[places].iter().for_each(|number| index.miss(*number, why));
        }
        let first = numbers.iter().map(|number| history.is_changing(*number)).collect();
        (pages.first, pages.absent) = (first, absent);
        new * PAGE as u64
    }

    /// Bytes of the planned pages that change.
    pub fn changing(&self) -> u64 {
        self.pages.lock().first.iter().filter(|first| **first).count() as u64 * PAGE as u64
    }

    /// Copies the planned pages of the stopped process, while this thread runs `other`, which reads
    /// other memory. Changing ones come first, within the limit `changing`, then the others within
    /// `rest`. Whether all were copied, and `other` was.
    pub fn read_standing_beside(
        &self,
        changing: &CopyLimit,
        rest: &CopyLimit,
        other: impl FnOnce(&CopyProgress) -> bool,
    ) -> bool {
        let copy = || {
            let mut pages = self.pages.lock();
            let is_whole = pages.read_standing(self, changing, true);
            pages.read_standing(self, rest, false) && is_whole
        };
        beside(copy, other)
    }

    /// After the stop: reads all planned pages that were not copied in it once more. Those that
    /// changed are doubtful from now on, but for the bytes that are the same. Bytes read again.
    pub fn verify(&self, history: &mut PageHistory) -> u64 {
        let mut pages = self.pages.lock();
        let CachedPages { copies, standing, too_late, .. } = &mut *pages;
        let Some(copies) = std::sync::Arc::get_mut(copies) else { return 0 };
        let PageCopies { numbers, chunks, index, doubts } = copies;
        let too_late: FxHashSet<usize> = too_late.drain(..).collect();
        let is_wanted = |place: usize| {
            numbers[place] != NO_PAGE && !standing[place] && !too_late.contains(&place)
        };
        let planned = &numbers[..standing.len()];
        let (verdicts, _) = by_chunks(planned, chunks, &|first, numbers, chunk, later| {
            later.resize(chunk.len(), 0);
            let failed = read_pages(&*self.memory, numbers, later, &|n| is_wanted(first + n));
            let mut failed = failed.into_iter().peekable();
            let mut verdicts = Vec::new();
            for n in (0..numbers.len()).filter(|n| is_wanted(first + n)) {
                let was_there = index.has(numbers[n], (first + n) as u32);
                let is_gone = failed.next_if(|(failed, _)| *failed == n).map(|(_, error)| error);
                let page = |bytes: &[u8]| bytes[n * PAGE..(n + 1) * PAGE].into();
                let later: Box<[u8]> = page(later);
                let verdict = match (was_there, is_gone) {
                    (true, None) if *later == chunk[n * PAGE..(n + 1) * PAGE] => continue,
                    (true, None) => Verdict::Changed(later),
                    (true, Some(_)) => Verdict::Unknown,
                    (false, Some(MemoryError::Fault { .. })) => continue,
                    (false, _) => Verdict::Appeared,
                };
                verdicts.push((first + n, verdict));
            }
            (verdicts, Vec::<()>::new())
        });
        let read = (0..planned.len()).filter(|place| is_wanted(*place)).count();
        let unknown = too_late.into_iter().map(|place| (place, Verdict::Unknown));
        for (place, verdict) in verdicts.into_iter().chain(unknown) {
            match verdict {
                Verdict::Changed(later) => {
                    history.note_change(numbers[place], hash(&later));
                    doubts.add(place as u32, later);
                }
                Verdict::Unknown => {
                    let page = &chunks[place / super::page_copy::CHUNK_PAGES];
                    let at = place % super::page_copy::CHUNK_PAGES * PAGE;
                    history.note_change(numbers[place], 0);
                    doubts.add_whole(place as u32, &page[at..at + PAGE]);
                }
                Verdict::Appeared => index.remove(numbers[place]),
            }
        }
        let count = doubts.len();
        pages.torn = vec![false; count];
        pages.last = None;
        read as u64 * PAGE as u64
    }

    /// Bytes copied of the stopped process.
    pub fn copied_standing(&self) -> u64 {
        let pages = self.pages.lock();
        let copied = pages.copies.numbers.iter().zip(&pages.standing);
        copied.filter(|(number, standing)| **standing && **number != NO_PAGE).count() as u64
            * PAGE as u64
    }

    /// Numbers of the doubtful pages of these reads.
    pub fn doubtful_pages(&self) -> Vec<u64> {
        let pages = self.pages.lock();
        let torn = pages.copies.doubts.places().filter(|(_, doubt)| pages.torn[*doubt]);
        torn.map(|(place, _)| pages.copies.numbers[place]).collect()
    }

    /// How many pages these reads were of.
    pub fn torn_pages(&self) -> usize {
        let pages = self.pages.lock();
        pages.torn.iter().filter(|torn| **torn).count() + pages.late()
    }
}

impl CachedPages {
    /// Whether all were copied.
    fn read_standing(&mut self, cache: &PageCache, limit: &CopyLimit, is_first: bool) -> bool {
        let CachedPages { copies, standing, first, absent, too_late, .. } = self;
        let Some(copies) = std::sync::Arc::get_mut(copies) else { return false };
        let PageCopies { numbers, chunks, index, .. } = copies;
        let is_wanted = |place: usize| first[place] == is_first;
        let copied = |place: usize, _: &[u8]| Some(place);
        let (copied, missing) =
            copy_pages(&*cache.memory, numbers, chunks, limit, &is_wanted, &copied);
        // The process stands still: nothing here is done for pages that were left out.
        for place in copied {
            standing[place] = true;
            if absent.contains(&place) {
                index.insert(numbers[place], Ok(place as u32));
            }
        }
        let mut is_whole = true;
        for (places, why) in missing {
            is_whole &= why.is_answer();
            match why {
                CopyFailure::Failed(MemoryError::Fault { .. }) => {
                    standing[places.clone()].fill(true);
                    numbers[places].iter().for_each(|number| index.miss(*number, why));
                }
                CopyFailure::NotBegun => {}
                CopyFailure::TooLate | CopyFailure::Failed(_) => {
                    too_late.extend(places.filter(|place| is_wanted(*place)));
                }
            }
        }
        is_whole
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use parking_lot::Mutex;

    use super::*;
    use crate::target::memory::{Addr, AddressRange, Memory};

    /// Pages by number; others are not mapped.
    #[derive(Clone, Default)]
    struct ChangingPages(Arc<Mutex<std::collections::BTreeMap<u64, [u8; PAGE]>>>);

    impl ChangingPages {
        fn write(&self, number: u64, at: usize, byte: u8) {
            self.0.lock().entry(number).or_insert([0; PAGE])[at] = byte;
        }
    }

    impl Memory for ChangingPages {
        fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
            let pages = self.0.lock();
            let mut rest = out;
            for span in spans {
                let (out, later) = rest.split_at_mut(span.len);
                rest = later;
                let (number, within) = (span.addr.0 / PAGE as u64, span.addr.0 as usize % PAGE);
                for (part, number) in out.chunks_mut(PAGE - within).zip(number..) {
                    let fault = MemoryError::Fault { span: *span, index: 0 };
                    let page = pages.get(&number).ok_or(fault)?;
                    part.copy_from_slice(&page[within..within + part.len()]);
                }
            }
            Ok(())
        }
    }

    fn word(cache: &PageCache, number: u64, at: u64) -> Result<u64, MemoryError> {
        cache.reader().u64(Addr(number * PAGE as u64 + at))
    }

    /// A stop that copies `changing` pages, if it has the time, and no others.
    fn stop(cache: &PageCache, history: &mut PageHistory, has_time: bool) -> u64 {
        let over = CopyLimit { until: Some(Instant::now()), ..CopyLimit::of(&Resumed::default()) };
        let changing = if has_time { CopyLimit::of(&Resumed::default()) } else { over.clone() };
        cache.read_standing_beside(&changing, &over, |_| true);
        let read = cache.verify(history);
        cache.end_copy();
        read
    }

    fn cache_of(memory: &ChangingPages) -> PageCache {
        for number in 1..=3 {
            memory.write(number, 0, number as u8);
        }
        PageCache::new(Box::new(memory.clone()))
    }

    #[test]
    fn a_page_that_changes_after_its_copy_is_doubtful_where_it_changed() {
        let (memory, mut history) = (ChangingPages::default(), PageHistory::default());
        let cache = cache_of(&memory);
        cache.begin(cache.plan(&[1, 2, 3]));
        assert_eq!(cache.read_ahead(&mut history), 3 * PAGE as u64);
        memory.write(2, 64, 9);
        assert_eq!(stop(&cache, &mut history, true), 3 * PAGE as u64, "none was known to change");
        assert_eq!((word(&cache, 1, 0), word(&cache, 2, 0)), (Ok(1), Ok(2)));
        assert_eq!((cache.torn_reads(), cache.torn_pages()), (0, 0), "these bytes are the same");
        assert!(word(&cache, 2, 64).is_ok() && word(&cache, 2, 64).is_ok());
        let mut both = [0; 2 * PAGE];
        cache.read(Addr(2 * PAGE as u64), &mut both).unwrap();
        assert_eq!((cache.torn_reads(), cache.torn_pages()), (3, 1));
        assert_eq!(cache.doubtful_pages(), [2]);
        history.note_needed(&[2]);
        // The next round copies it in the stop.
        cache.begin(cache.plan(&[1, 2, 3]));
        assert_eq!(cache.read_ahead(&mut history), 0);
        assert_eq!(cache.changing(), PAGE as u64);
        memory.write(2, 64, 11);
        assert_eq!(stop(&cache, &mut history, true), 2 * PAGE as u64);
        memory.write(2, 64, 12);
        assert_eq!((word(&cache, 2, 64), cache.torn_reads()), (Ok(11), 0));
        // Unless there is no time.
        cache.begin(cache.plan(&[1, 2, 3]));
        cache.read_ahead(&mut history);
        memory.write(2, 64, 13);
        assert_eq!(stop(&cache, &mut history, false), 3 * PAGE as u64);
        assert!(word(&cache, 2, 64).is_ok());
        assert_eq!(cache.torn_pages(), 1);
    }

    #[test]
    fn pages_that_come_and_go_are_not_of_the_stop() {
        let (memory, mut history) = (ChangingPages::default(), PageHistory::default());
        let cache = cache_of(&memory);
        cache.begin(cache.plan(&[1, 2, 3, 4, 5]));
        cache.read_ahead(&mut history);
        memory.0.lock().remove(&3);
        memory.write(4, 0, 4);
        stop(&cache, &mut history, true);
        assert!(word(&cache, 5, 0).is_err(), "neither before nor after");
        assert_eq!(cache.torn_reads(), 0);
        assert!(word(&cache, 3, 0).is_ok() && word(&cache, 3, 8).is_ok());
        assert_eq!((cache.torn_reads(), cache.torn_pages()), (2, 1));
        assert_eq!((word(&cache, 4, 0), cache.late_pages()), (Ok(4), 1));
        assert_eq!((word(&cache, 4, 8), cache.torn_reads()), (Ok(0), 4), "each read counts");
        assert_eq!(cache.torn_pages(), 2, "a page that is read late is of no stop");
    }
}
