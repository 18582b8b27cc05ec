//! Copies many pages in few system calls on all cores while the process is stopped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{MmapMut, MmapOptions};
use parking_lot::Mutex;

use super::memory::{Addr, AddressRange, Memory, MemoryError};
use super::page_index::PageIndex;
use super::ptrace_stop::Resumed;

/// Larger pieces would copy mostly unneeded bytes.
pub const PAGE: usize = 4096;
pub(super) const CHUNK_PAGES: usize = 256;
/// Pages sorted together (64 MiB, some 25 ms on one slow core). More make longer runs, which copy
/// faster; fewer keep the requested order better.
const PORTION_PAGES: usize = 64 * CHUNK_PAGES;
/// More only wait for the memory.
const MAX_THREADS: usize = 8;
const CHUNKS_PER_THREAD: usize = 8;

/// Mapped, as an allocator keeps freed memory; the kernel gets a dropped mapping back at once.
pub(super) type CopyBuffer = MmapMut;

/// Populated: a page's first write takes as long as its copy.
pub(super) fn new_chunk() -> io::Result<CopyBuffer> {
    MmapOptions::new().len(CHUNK_PAGES * PAGE).populate().map_anon()
}

/// Which pages to copy, and in which order.
#[derive(Debug)]
pub struct PagePlan {
    /// By place: as requested, sorted within each portion to merge neighbours.
    numbers: Vec<u64>,
    /// By chunk.
    spans: Vec<Vec<AddressRange>>,
    /// Built before the process stops.
    index: PageIndex,
}

#[derive(Debug)]
pub(super) struct CopyOutcome {
    /// All was read while the process was stopped.
    pub(super) whole: bool,
    pub(super) failed: Vec<(usize, MemoryError)>,
}

impl PagePlan {
    /// Most important pages first.
    pub(super) fn new(pages: &[u64]) -> PagePlan {
        let mut numbers = pages.to_vec();
        numbers.chunks_mut(PORTION_PAGES).for_each(|portion| portion.sort_unstable());
        let spans = numbers.chunks(CHUNK_PAGES).map(runs).collect();
        let mut index = PageIndex::default();
        for (number, place) in numbers.iter().zip(0..) {
            index.insert(*number, Ok(place));
        }
        PagePlan { numbers, spans, index }
    }

    /// Bytes to copy.
    pub fn bytes(&self) -> u64 {
        self.numbers.len() as u64 * PAGE as u64
    }

    pub(super) fn into_parts(self) -> (Vec<u64>, PageIndex) {
        (self.numbers, self.index)
    }

    /// Reuses `chunks`. Without more memory from the kernel, shortens the plan and reports the rest
    /// as missing.
    pub(super) fn fit(&mut self, mut chunks: Vec<CopyBuffer>) -> Vec<CopyBuffer> {
        chunks.truncate(self.spans.len());
        while chunks.len() < self.spans.len() {
            match new_chunk() {
                Ok(chunk) => chunks.push(chunk),
                Err(_) => {
                    self.spans.truncate(chunks.len());
                    for number in self.numbers.drain(chunks.len() * CHUNK_PAGES..) {
                        self.index.remove(number);
                    }
                }
            }
        }
        chunks
    }

    pub(super) fn copy(
        &self,
        memory: &dyn Memory,
        chunks: &mut [CopyBuffer],
        resumed: &Resumed,
    ) -> CopyOutcome {
        let most = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let threads = (self.spans.len() / CHUNKS_PER_THREAD).clamp(1, most);
        let work = Mutex::new(self.spans.iter().zip(chunks.iter_mut()).enumerate());
        let failed = Mutex::new(Vec::new());
        let copy = || {
            let mut own = Vec::new();
            loop {
                let next = work.lock().next();
                let Some((index, (spans, chunk))) = next else { break };
                self.copy_chunk(memory, index, spans, chunk, resumed, &mut own);
            }
            failed.lock().append(&mut own);
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(copy);
            }
            copy();
        });
        let failed = failed.into_inner();
        let is_answer = |error: &MemoryError| matches!(error, MemoryError::Fault { .. });
        CopyOutcome { whole: failed.iter().all(|(_, error)| is_answer(error)), failed }
    }

    fn copy_chunk(
        &self,
        memory: &dyn Memory,
        index: usize,
        spans: &[AddressRange],
        chunk: &mut [u8],
        resumed: &Resumed,
        failed: &mut Vec<(usize, MemoryError)>,
    ) {
        let before = failed.len();
        let first = index * CHUNK_PAGES;
        let numbers = &self.numbers[first..self.numbers.len().min(first + CHUNK_PAGES)];
        let page = |number: u64| Addr(number.wrapping_mul(PAGE as u64));
        let closed = |(n, number): (usize, &u64)| (first + n, MemoryError::Closed(page(*number)));
        if resumed.is_set() {
            failed.extend(numbers.iter().enumerate().map(closed));
            return;
        }
        if memory.read_spans(spans, &mut chunk[..numbers.len() * PAGE]).is_err() {
            // At least one is gone: read each alone.
            for ((n, &number), out) in numbers.iter().enumerate().zip(chunk.chunks_exact_mut(PAGE))
            {
                if let Err(error) = memory.read(page(number), out) {
                    failed.push((first + n, error));
                }
            }
        }
        // Check after the read: the process may have continued.
        if resumed.is_set() {
            failed.truncate(before);
            failed.extend(numbers.iter().enumerate().map(closed));
        }
    }
}

/// Whether another thread's copy is done.
#[derive(Debug, Clone, Default)]
pub struct CopyProgress(Arc<AtomicBool>);

impl CopyProgress {
    /// Whether it is done.
    pub fn is_done(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `copy` on a new thread, `other` on this one; whether both are whole.
pub(super) fn beside(
    copy: impl FnOnce() -> bool + Send,
    other: impl FnOnce(&CopyProgress) -> bool,
) -> bool {
    let progress = CopyProgress::default();
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let is_whole = copy();
            progress.end();
            is_whole
        });
        let is_whole = other(&progress);
        copying.join().unwrap_or(false) && is_whole
    })
}

pub(super) fn runs(numbers: &[u64]) -> Vec<AddressRange> {
    let mut spans: Vec<AddressRange> = Vec::new();
    for number in numbers {
        let addr = Addr(number.wrapping_mul(PAGE as u64));
        match spans.last_mut() {
            Some(last) if last.addr + last.len as u64 == addr => last.len += PAGE,
            _ => spans.push(AddressRange { addr, len: PAGE }),
        }
    }
    spans
}
