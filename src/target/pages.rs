//! A page cache: one copy per page serves many objects.

use std::sync::Arc;
use std::time::Instant;

use super::budget::Budget;
use super::memory::{Addr, AddressRange, Memory, MemoryError};
use super::page_copy::{
    CHUNK_PAGES, CopyBuffer, CopyLimit, CopyProgress, PAGE, PagePlan, copy_pages, new_chunk,
};
use super::page_doubts::PageDoubts;
use super::page_index::{LastRegion, PageIndex};
use super::page_reader::PageReader;
use super::ptrace_stop::Resumed;
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

/// A check takes microseconds.
pub(super) const CHECK_EVERY: u32 = 4096;

pub(super) const NO_PAGE: u64 = u64::MAX;

/// Copies each page once, so reads of a stopped process agree.
///
/// Either read while the process is stopped, then close the cache. Or stop it for less time: walk
/// over the running process to learn which pages matter ([`PageCache::pages`]), stop it, copy just
/// these ([`PageCache::copy`]), let it continue, walk over the copy.
pub struct PageCache {
    pub(super) memory: Box<dyn Memory>,
    pub(super) pages: Mutex<CachedPages>,
}

/// Shared by threads.
#[derive(Default)]
pub(super) struct PageCopies {
    pub(super) index: PageIndex,
    pub(super) chunks: Vec<CopyBuffer>,
    /// By place.
    pub(super) numbers: Vec<u64>,
    pub(super) doubts: PageDoubts,
}

#[derive(Default)]
pub(super) struct CachedPages {
    pub(super) copies: Arc<PageCopies>,
    /// Read since it was copied.
    pub(super) used: Vec<bool>,
    pub(super) last: Option<(u64, u32)>,
    pub(super) last_region: LastRegion,
    budget: Option<Budget>,
    /// Part of the budget's memory that is kept for later.
    reserved: f64,
    /// So many pages may be copied whatever is resident.
    granted: usize,
    /// A limit that was exceeded before there was more room.
    exceeded_before: Option<MemoryError>,
    pub(super) closed: bool,
    /// Set when the copied process continues.
    pub(super) resumed: Option<Resumed>,
    /// Copying ends then, unless the copy beside it takes longer.
    until: Option<(Instant, CopyProgress)>,
    /// Pages planned, and pages copied until the stop ended.
    planned: usize,
    pub(super) copied: usize,
    /// Whether there was a stop.
    pub(super) is_of_stop: bool,
    /// Of the planned pages, by place: which were copied while the process was stopped, and which
    /// first, as they change.
    pub(super) standing: Vec<bool>,
    pub(super) first: Vec<bool>,
    /// Places that could not be read before the stop.
    pub(super) absent: FxHashSet<usize>,
    /// Places whose bytes may be of a moment after the stop.
    pub(super) too_late: Vec<usize>,
    /// The last page was read after the stop.
    pub(super) is_late: bool,
    /// The last page's doubt; reads of doubtful bytes; used doubts.
    pub(super) doubt: Option<u32>,
    pub(super) torn_reads: u64,
    pub(super) torn: Vec<bool>,
    pub(super) refused: u64,
    /// A view's missing pages.
    pub(super) wanted: Option<Vec<u64>>,
    pub(super) unchecked: u32,
    pub(super) exceeded: Option<MemoryError>,
}

impl PageCache {
    /// An empty cache over `memory`.
    pub fn new(memory: Box<dyn Memory>) -> PageCache {
        PageCache { memory, pages: Mutex::default() }
    }

    /// Once the budget is used up, every read fails ([`MemoryError::is_limit`]).
    pub fn within(memory: Box<dyn Memory>, budget: Budget) -> PageCache {
        let (granted, budget) = (budget.spare_pages(), Some(budget));
        let pages = CachedPages { granted, budget, ..CachedPages::default() };
        PageCache { memory, pages: Mutex::new(pages) }
    }

    /// Also forgets that the old budget was used up.
    pub fn set_budget(&self, budget: Budget) {
        let mut pages = self.pages.lock();
        (pages.budget, pages.exceeded, pages.exceeded_before) = (Some(budget), None, None);
    }

    /// Before a stop: keeps this part of the budget's memory for later reads. Some pages may always
    /// be read until the next call.
    pub fn reserve(&self, part: f64) {
        let mut pages = self.pages.lock();
        if pages.is_of_stop {
            return;
        }
        pages.reserved = part;
        pages.granted = pages.count() + pages.budget.map_or(0, |budget| budget.spare_pages());
        if pages.exceeded == Some(MemoryError::OutOfRoom) {
            (pages.exceeded, pages.exceeded_before) = (None, pages.exceeded);
            pages.check();
        }
    }

    /// From now on only copied pages can be read ([`MemoryError::Closed`]).
    pub fn close(&self) {
        self.pages.lock().closed = true;
    }

    /// Closes it when the process continues.
    pub fn close_with(&self, resumed: Resumed) {
        self.pages.lock().resumed = Some(resumed);
    }

    /// Ends copying at `until`, or with the copy `beside` it, if later.
    pub fn copy_until(&self, until: Instant, beside: &CopyProgress) {
        self.pages.lock().until = Some((until, beside.clone()));
    }

    /// Takes over the planned pages that `other` copied during the stop.
    pub fn adopt(&self, other: PageCache) {
        let (mut pages, mut other) = (self.pages.lock(), other.pages.into_inner());
        let first = pages.count().next_multiple_of(CHUNK_PAGES);
        pages.planned = first + other.planned;
        let (Some(own), Some(others)) = (pages.copies_mut(), other.copies_mut()) else { return };
        // Moves whole chunks from the next one on: copies nothing.
        own.chunks.truncate(first / CHUNK_PAGES);
        own.numbers.resize(first, NO_PAGE);
        own.chunks.append(&mut others.chunks);
        let mut last = None;
        for (&number, place) in others.numbers.iter().zip(0u32..) {
            // Uncopied pages are in no index.
            let is_copied = others.index.has(number, place);
            if is_copied {
                // A copy of the stop replaces one of before it.
                if let Some(Ok(before)) = own.index.get(number, &mut last) {
                    own.numbers[before as usize] = NO_PAGE;
                }
                own.index.insert(number, Ok(first as u32 + place));
            } else if let Some(Err(error)) = others.index.get(number, &mut None) {
                own.index.insert(number, Err(error));
            }
            own.numbers.push(if is_copied { number } else { NO_PAGE });
        }
        let count = pages.count();
        pages.used.resize(count, false);
        pages.standing.resize(count, true);
    }

    /// Bytes copied.
    pub fn copied(&self) -> u64 {
        let pages = self.pages.lock();
        pages.copies.numbers.iter().filter(|number| **number != NO_PAGE).count() as u64
            * PAGE as u64
    }

    /// Whether memory at `addr` differs from the copy, or is unreadable.
    pub fn has_changed(&self, addr: Addr, len: usize) -> bool {
        let (mut copied, mut now) = (vec![0; len], vec![0; len]);
        self.read(addr, &mut copied).is_err()
            || self.memory.read(addr, &mut now).is_err()
            || copied != now
    }

    /// The pages read, in order of their first read.
    pub fn pages(&self) -> Vec<u64> {
        let pages = self.pages.lock();
        let used = pages.copies.numbers.iter().zip(&pages.used).filter(|(_, used)| **used);
        used.map(|(number, _)| *number).collect()
    }

    /// Counts all pages read as copied. Call it just before the process continues.
    pub fn end_copy(&self) {
        let mut pages = self.pages.lock();
        pages.is_of_stop = true;
        (pages.copied, pages.resumed, pages.closed) = (pages.count(), None, false);
    }

    /// Pages read beyond the plan.
    pub fn unplanned_pages(&self) -> Vec<u64> {
        let pages = self.pages.lock();
        let unplanned = pages.copies.numbers[pages.planned..].iter();
        unplanned.copied().filter(|number| *number != NO_PAGE).collect()
    }

    /// Pages read after the copy, which may not match it.
    pub fn late_pages(&self) -> usize {
        self.pages.lock().late()
    }

    /// Reads refused by a limit or a running process.
    pub fn refused(&self) -> u64 {
        self.pages.lock().refused
    }

    /// Before a stop: whether what is reserved for later begins. Counts as a refused read.
    pub fn has_no_room(&self) -> bool {
        let mut pages = self.pages.lock();
        let is_full = !pages.is_of_stop && pages.exceeded == Some(MemoryError::OutOfRoom);
        pages.refused += u64::from(is_full);
        is_full
    }

    /// Pages that leave room in the budget for what is made of them.
    pub fn most_pages(&self) -> usize {
        self.pages.lock().budget.map_or(usize::MAX, |budget| budget.pages())
    }

    /// The exceeded limit, if any.
    pub fn exceeded(&self) -> Option<MemoryError> {
        let mut pages = self.pages.lock();
        pages.check();
        pages.exceeded.or(pages.exceeded_before)
    }

    /// Drops all copies and makes room for `pages`, before the stop.
    pub fn plan(&self, pages: &[u64]) -> PagePlan {
        let mut cache = self.pages.lock();
        let mut plan = PagePlan::new(pages);
        let CachedPages { budget, exceeded, .. } = *cache;
        let chunks = cache.copies_mut().map(|copies| std::mem::take(&mut copies.chunks));
        let chunks = plan.fit(chunks.unwrap_or_default());
        let copies = Arc::new(PageCopies { chunks, ..PageCopies::default() });
        *cache = CachedPages { copies, budget, exceeded, ..CachedPages::default() };
        plan
    }

    /// Copies the planned pages of the stopped process; returns whether all were copied before it
    /// continued.
    pub fn copy(&self, plan: PagePlan, resumed: &Resumed) -> bool {
        let mut pages = self.pages.lock();
        pages.begin(plan);
        let Some(copies) = pages.copies_mut() else { return false };
        let PageCopies { numbers, chunks, index, .. } = copies;
        let limit = CopyLimit::of(resumed);
        let missing =
            copy_pages(&*self.memory, numbers, chunks, &limit, &|_| true, &|_, _| None::<()>).1;
        for (places, why) in &missing {
            numbers[places.clone()].iter().for_each(|number| index.miss(*number, *why));
        }
        missing.iter().all(|(_, why)| why.is_answer())
    }

    /// Reads many small places under one lock.
    pub fn reader(&self) -> PageReader<'_> {
        PageReader::of(self)
    }
}

impl PageCopies {
    pub(super) fn page(&self, place: usize) -> &[u8] {
        let start = place % CHUNK_PAGES * PAGE;
        &self.chunks[place / CHUNK_PAGES][start..start + PAGE]
    }

    /// For at most `most` adjacent pages; `None`: no memory.
    pub(super) fn room(&mut self, most: usize) -> Option<&mut [u8]> {
        let count = self.numbers.len();
        let (chunk, first) = (count / CHUNK_PAGES, count % CHUNK_PAGES);
        if chunk >= self.chunks.len() {
            self.chunks.push(new_chunk().ok()?);
        }
        let end = CHUNK_PAGES.min(first + most);
        Some(&mut self.chunks[chunk][first * PAGE..end * PAGE])
    }

    pub(super) fn add(&mut self, number: u64) {
        self.index.insert(number, Ok(self.numbers.len() as u32));
        self.numbers.push(number);
    }
}

impl CachedPages {
    /// Copies nothing.
    pub(super) fn view(&self) -> CachedPages {
        let CachedPages { budget, exceeded, reserved, is_of_stop, copied, .. } = *self;
        CachedPages {
            copies: Arc::clone(&self.copies),
            used: vec![false; self.used.len()],
            torn: vec![false; self.torn.len()],
            wanted: Some(Vec::new()),
            budget,
            exceeded,
            reserved,
            is_of_stop,
            copied,
            ..CachedPages::default()
        }
    }

    pub(super) fn count(&self) -> usize {
        self.copies.numbers.len()
    }

    pub(super) fn late(&self) -> usize {
        self.count() - self.copied
    }

    /// Makes places for the pages of `plan`.
    pub(super) fn begin(&mut self, plan: PagePlan) {
        let Some(copies) = self.copies_mut() else { return };
        (copies.numbers, copies.index) = plan.into_parts();
        let count = copies.numbers.len();
        (self.planned, self.copied) = (count, count);
        self.granted = count + self.budget.map_or(0, |budget| budget.spare_pages());
        self.used = vec![false; count];
        self.standing = vec![false; count];
        self.first = vec![false; count];
    }

    /// `None` while other threads have views.
    pub(super) fn copies_mut(&mut self) -> Option<&mut PageCopies> {
        Arc::get_mut(&mut self.copies)
    }

    pub(super) fn check(&mut self) {
        self.unchecked = 0;
        if self.exceeded != Some(MemoryError::TimeUp) {
            let is_granted = self.count() < self.granted;
            let now = self.budget.and_then(|budget| budget.exceeded(self.reserved));
            let now = now.filter(|now| *now != MemoryError::OutOfRoom || !is_granted);
            self.exceeded = now.or(self.exceeded);
        }
        self.check_time();
    }

    fn check_time(&mut self) {
        let is_over = |(until, beside): &(Instant, CopyProgress)| {
            beside.is_done() && Instant::now() >= *until
        };
        if self.exceeded.is_none() && self.until.as_ref().is_some_and(is_over) {
            self.exceeded = Some(MemoryError::TimeUp);
        }
    }

    pub(super) fn refuses(&mut self, addr: Addr) -> Option<MemoryError> {
        let error = match self.closed {
            true => Some(MemoryError::Closed(addr)),
            false => {
                self.check_time();
                self.exceeded
            }
        };
        self.refused += u64::from(error.is_some());
        error
    }
}

fn fault_of(error: MemoryError, addr: Addr, len: usize) -> MemoryError {
    match error {
        MemoryError::Fault { .. } => {
            MemoryError::Fault { span: AddressRange { addr, len }, index: 0 }
        }
        other => other,
    }
}

impl Memory for PageCache {
    fn torn_reads(&self) -> u64 {
        self.pages.lock().torn_reads
    }

    fn read(&self, addr: Addr, out: &mut [u8]) -> Result<(), MemoryError> {
        let mut reader = self.reader();
        let len = out.len();
        if len == 8 {
            let word = reader.u64(addr).map_err(|error| fault_of(error, addr, len))?;
            out.copy_from_slice(&word.to_le_bytes());
            return Ok(());
        }
        reader.read(addr, out).map_err(|error| fault_of(error, addr, len))
    }

    fn read_spans(&self, spans: &[AddressRange], mut out: &mut [u8]) -> Result<(), MemoryError> {
        let mut reader = self.reader();
        for (index, span) in spans.iter().enumerate() {
            let Some((now, later)) = out.split_at_mut_checked(span.len) else {
                return Err(MemoryError::Fault { span: *span, index });
            };
            reader.read(span.addr, now).map_err(|error| match error {
                MemoryError::Fault { .. } => MemoryError::Fault { span: *span, index },
                other => other,
            })?;
            out = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    struct WaitingMemory(Mutex<Receiver<()>>);

    impl Memory for WaitingMemory {
        fn read_spans(&self, _: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
            self.0.lock().recv().map_err(|_| MemoryError::Gone)?;
            out.fill(0);
            Ok(())
        }
    }

    /// Pages below 100, filled with their numbers; counts reads.
    struct NumberedPages(Arc<AtomicUsize>);

    impl Memory for NumberedPages {
        fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
            self.0.fetch_add(out.len() / PAGE, Ordering::Relaxed);
            let numbers = spans.iter().flat_map(|span| {
                let first = span.addr.0 / PAGE as u64;
                first..first + span.len.div_ceil(PAGE) as u64
            });
            for (number, page) in numbers.zip(out.chunks_mut(PAGE)) {
                if number >= 100 {
                    return Err(MemoryError::Fault { span: spans[0], index: 0 });
                }
                page.fill(number as u8);
            }
            Ok(())
        }
    }

    fn number_in(cache: &PageCache, page: u64) -> Option<u64> {
        Some(cache.reader().u64(Addr(page * PAGE as u64)).ok()? & 0xff)
    }

    #[test]
    fn adopted_pages_are_not_read_again() {
        let reads = Arc::new(AtomicUsize::new(0));
        let cache = || PageCache::new(Box::new(NumberedPages(Arc::clone(&reads))));
        let (own, other) = (cache(), cache());
        assert!(own.copy(own.plan(&[1, 2, 3]), &Resumed::default()));
        assert!(other.copy(other.plan(&[3, 4, 200]), &Resumed::default()));
        assert_eq!(number_in(&other, 5), Some(5));
        own.adopt(other);
        own.end_copy();
        assert_eq!((own.late_pages(), own.unplanned_pages()), (0, vec![5]));
        let before = reads.load(Ordering::Relaxed);
        for page in [5, 4, 3, 1] {
            assert_eq!(number_in(&own, page), Some(page));
        }
        assert_eq!((own.pages(), reads.load(Ordering::Relaxed)), (vec![1, 3, 4, 5], before));
        for page in 6..=99 {
            assert_eq!(number_in(&own, page), Some(page));
        }
        assert_eq!((own.late_pages(), number_in(&own, 200)), (94, None));
        assert_eq!(number_in(&own, 4), Some(4));
    }

    #[test]
    fn changes_after_the_copy_are_noticed() {
        let cache = PageCache::new(Box::new(NumberedPages(Arc::default())));
        let at = Addr(7 * PAGE as u64);
        assert!(!cache.has_changed(at, 48));
        assert!(cache.has_changed(Addr(200 * PAGE as u64), 48), "gone");
        let changed = PageCache { memory: Box::new(Counting(AtomicUsize::new(0))), ..cache };
        assert!(changed.has_changed(at, 48));
    }

    /// Different bytes at each read.
    struct Counting(AtomicUsize);

    impl Memory for Counting {
        fn read_spans(&self, _: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
            out.fill(self.0.fetch_add(1, Ordering::Relaxed) as u8);
            Ok(())
        }
    }

    #[test]
    fn reads_beside_a_copy_may_last_as_long() {
        let (go, gone) = channel();
        let (more, has_more) = channel();
        let large = PageCache::new(Box::new(WaitingMemory(Mutex::new(gone))));
        let small = PageCache::new(Box::new(WaitingMemory(Mutex::new(has_more))));
        let plan = large.plan(&[1, 2, 3]);
        let read = |page: u64| small.reader().u64(Addr(page * PAGE as u64));
        let limit = CopyLimit::of(&Resumed::default());
        large.begin(plan);
        let whole = large.read_standing_beside(&limit, &limit, |copying| {
            small.copy_until(Instant::now(), copying);
            (0..2).for_each(|_| more.send(()).unwrap());
            assert_eq!(read(10), Ok(0), "the time is over, but the copy is still made");
            go.send(()).unwrap();
            while !copying.is_done() {
                std::thread::yield_now();
            }
            assert_eq!(read(11), Err(MemoryError::TimeUp));
            true
        });
        assert!(whole);
        assert_eq!(large.reader().u64(Addr(2 * PAGE as u64)), Ok(0));
    }
}
