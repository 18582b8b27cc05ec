//! Views of a [`PageCache`] for several threads.

use std::sync::Arc;

use super::memory::{Addr, AddressRange, Memory, MemoryError};
use super::page_copy::{CHUNK_PAGES, PAGE, runs};
use super::pages::{CachedPages, PageCache};
use super::ptrace_stop::Resumed;
use parking_lot::Mutex;

struct NoMemory;

impl Memory for NoMemory {
    fn read_spans(&self, spans: &[AddressRange], _: &mut [u8]) -> Result<(), MemoryError> {
        Err(MemoryError::Closed(spans.first().map_or(Addr(0), |span| span.addr)))
    }
}

/// What a view used and missed.
#[derive(Debug, Default)]
pub struct ViewedPages {
    used: Vec<bool>,
    wanted: Vec<u64>,
    torn: Vec<bool>,
    torn_reads: u64,
    exceeded: Option<MemoryError>,
}

impl PageCache {
    /// The same copies for another thread. Notes missing pages. The cache copies nothing while it
    /// has views.
    pub fn view(&self) -> PageCache {
        let view = self.pages.lock().view();
        PageCache { memory: Box::new(NoMemory), pages: Mutex::new(view) }
    }

    /// Ends a view.
    pub fn into_viewed(self) -> ViewedPages {
        let CachedPages { used, wanted, torn, torn_reads, exceeded, .. } = self.pages.into_inner();
        ViewedPages { used, wanted: wanted.unwrap_or_default(), torn, torn_reads, exceeded }
    }

    /// Copies the pages that views missed; whether there were any.
    pub fn take_back(&self, views: Vec<ViewedPages>) -> bool {
        let mut wanted = Vec::new();
        let mut pages = self.pages.lock();
        for view in views {
            pages.used.iter_mut().zip(view.used).for_each(|(used, by_view)| *used |= by_view);
            pages.torn.iter_mut().zip(view.torn).for_each(|(torn, by_view)| *torn |= by_view);
            pages.torn_reads += view.torn_reads;
            pages.exceeded = pages.exceeded.or(view.exceeded);
            wanted.extend(view.wanted);
        }
        wanted.sort_unstable();
        wanted.dedup();
        let mut left = &wanted[..];
        while !left.is_empty() && !pages.closed && pages.is_within_limits() {
            let Some(done) = pages.copy_some(&*self.memory, left) else { break };
            left = &left[done..];
        }
        left.len() < wanted.len()
    }
}

impl CachedPages {
    fn is_within_limits(&mut self) -> bool {
        self.check();
        self.exceeded.is_none()
    }

    /// `numbers`: sorted and unknown. Returns how many it copied.
    fn copy_some(&mut self, memory: &dyn Memory, numbers: &[u64]) -> Option<usize> {
        let copies = Arc::get_mut(&mut self.copies)?;
        let numbers = &numbers[..numbers.len().min(CHUNK_PAGES)];
        let room = copies.room(numbers.len())?;
        let numbers = &numbers[..room.len() / PAGE];
        let mut failed: Vec<(u64, MemoryError)> = Vec::new();
        if memory.read_spans(&runs(numbers), room).is_err() {
            // At least one is gone: read each alone, keep readable ones together.
            let mut slots = room.chunks_exact_mut(PAGE);
            let mut slot = slots.next();
            for &number in numbers {
                let Some(out) = &mut slot else { break };
                match memory.read(Addr(number.wrapping_mul(PAGE as u64)), out) {
                    Ok(()) => slot = slots.next(),
                    Err(error) => failed.push((number, error)),
                }
            }
        }
        // Check after the read: the process may have continued.
        if self.resumed.as_ref().is_some_and(Resumed::is_set) {
            self.closed = true;
            return None;
        }
        let mut errors = failed.iter().peekable();
        for &number in numbers {
            match errors.next_if(|(failed, _)| *failed == number) {
                Some((_, error)) => copies.index.insert(number, Err(*error)),
                None => copies.add(number),
            }
        }
        self.used.resize(copies.numbers.len(), false);
        Some(numbers.len())
    }
}
