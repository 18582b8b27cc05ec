//! Many pages copied in few system calls, by all cores: while a process stands still for it, every millisecond counts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{MmapMut, MmapOptions};
use parking_lot::Mutex;

use super::memory::{Addr, AddressRange, Memory, MemoryError};
use super::page_index::PageIndex;
use super::ptrace_stop::GoneOn;

/// Bytes copied at once for a small look. Longer pieces copy mostly what nobody looks at.
pub const PAGE: usize = 4096;
/// Pages copied by one system call, and for which room is made at once.
pub(super) const CHUNK_PAGES: usize = 256;
/// Pages that are sorted together: the more, the longer are the runs of neighbours, which the kernel copies faster; the fewer,
/// the more exactly is copied first what comes first. 64 MiB take some 25 ms on one slow core.
const PORTION_PAGES: usize = 64 * CHUNK_PAGES;
/// Threads that copy; more only wait for the memory.
const MAX_THREADS: usize = 8;
/// Chunks that make another thread worth its start.
const CHUNKS_A_THREAD: usize = 8;

/// The copies of some pages, one after the other.
///
/// A mapping of its own, not from the heap: an allocator keeps what it is given back, and a look needs many times what memspy
/// otherwise does. Dropped, it is the kernel's again at once.
pub(super) type CopyBuffer = MmapMut;

/// Room for a chunk, in memory already: a first write to each page takes as long as its copy.
pub(super) fn new_chunk() -> io::Result<CopyBuffer> {
    MmapOptions::new().len(CHUNK_PAGES * PAGE).populate().map_anon()
}

/// Which pages are to be copied, and in which order.
#[derive(Debug)]
pub struct PagePlan {
    /// By place. The order asked for, but sorted within each portion, so that neighbours are read as one.
    numbers: Vec<u64>,
    /// By chunk.
    spans: Vec<Vec<AddressRange>>,
    /// Where each page will be, made before the process is stopped.
    index: PageIndex,
}

/// What a copy came to.
#[derive(Debug)]
pub(super) struct CopyOutcome {
    /// Whether everything was read while the process stood still.
    pub(super) whole: bool,
    /// Places that were not read, and why.
    pub(super) failed: Vec<(usize, MemoryError)>,
}

impl PagePlan {
    /// A plan for these pages, of which those that come first are copied first.
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

    /// How many bytes are to be copied.
    pub fn bytes(&self) -> u64 {
        self.numbers.len() as u64 * PAGE as u64
    }

    /// The pages by place, and where each is.
    pub(super) fn into_parts(self) -> (Vec<u64>, PageIndex) {
        (self.numbers, self.index)
    }

    /// Chunks for all of it, those at hand first. Where the kernel gives no more memory, the plan becomes shorter: what is not
    /// copied is missing, and told so.
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

    /// Copies all into `chunks`, until the process goes on.
    pub(super) fn copy(
        &self,
        memory: &dyn Memory,
        chunks: &mut [CopyBuffer],
        gone_on: &GoneOn,
    ) -> CopyOutcome {
        let most = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let threads = (self.spans.len() / CHUNKS_A_THREAD).clamp(1, most);
        let work = Mutex::new(self.spans.iter().zip(chunks.iter_mut()).enumerate());
        let failed = Mutex::new(Vec::new());
        let copy = || {
            let mut own = Vec::new();
            loop {
                let next = work.lock().next();
                let Some((index, (spans, chunk))) = next else { break };
                self.copy_chunk(memory, index, spans, chunk, gone_on, &mut own);
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
        gone_on: &GoneOn,
        failed: &mut Vec<(usize, MemoryError)>,
    ) {
        let before = failed.len();
        let first = index * CHUNK_PAGES;
        let numbers = &self.numbers[first..self.numbers.len().min(first + CHUNK_PAGES)];
        let page = |number: u64| Addr(number.wrapping_mul(PAGE as u64));
        let closed = |(n, number): (usize, &u64)| (first + n, MemoryError::Closed(page(*number)));
        if gone_on.is_set() {
            failed.extend(numbers.iter().enumerate().map(closed));
            return;
        }
        if memory.read_spans(spans, &mut chunk[..numbers.len() * PAGE]).is_err() {
            // One of them is gone: each by itself.
            for ((n, &number), out) in numbers.iter().enumerate().zip(chunk.chunks_exact_mut(PAGE))
            {
                if let Err(error) = memory.read(page(number), out) {
                    failed.push((first + n, error));
                }
            }
        }
        // Asked after the read: it may have met the process as it went on.
        if gone_on.is_set() {
            failed.truncate(before);
            failed.extend(numbers.iter().enumerate().map(closed));
        }
    }
}

/// Whether a copy that another thread makes is made.
#[derive(Debug, Clone, Default)]
pub struct CopyProgress(Arc<AtomicBool>);

impl CopyProgress {
    /// Whether nothing is left to copy.
    pub fn is_done(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Copies on a thread of its own while this one does `other`, which can ask whether the copy is made; whether both are whole.
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

/// Sorted pages as spans: neighbours are one.
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
