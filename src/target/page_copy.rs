//! Copies many pages in few system calls on all cores.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

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
    /// Built before the process stops.
    index: PageIndex,
}

/// How long a copy of a stopped process may go on.
#[derive(Debug, Clone)]
pub struct CopyLimit {
    /// When the process continues: what is read later is not of the stop.
    pub resumed: Resumed,
    /// Begins nothing after this.
    pub until: Option<Instant>,
}

impl CopyLimit {
    /// Until the process continues.
    pub fn of(resumed: &Resumed) -> CopyLimit {
        CopyLimit { resumed: resumed.clone(), until: None }
    }

    fn is_over(&self) -> bool {
        self.resumed.is_set() || self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// Why a page was not copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyFailure {
    Failed(MemoryError),
    /// Its old bytes are still there.
    NotBegun,
    /// Its bytes may be of a later moment.
    TooLate,
}

impl CopyFailure {
    /// Whether it is the kernel's answer about the stopped process.
    pub(super) fn is_answer(self) -> bool {
        matches!(self, CopyFailure::Failed(MemoryError::Fault { .. }))
    }
}

impl PagePlan {
    /// Most important pages first.
    pub(super) fn new(pages: &[u64]) -> PagePlan {
        let mut numbers = pages.to_vec();
        numbers.chunks_mut(PORTION_PAGES).for_each(|portion| portion.sort_unstable());
        let mut index = PageIndex::default();
        for (number, place) in numbers.iter().zip(0..) {
            index.insert(*number, Ok(place));
        }
        PagePlan { numbers, index }
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
        let wanted = |numbers: &[u64]| numbers.len().div_ceil(CHUNK_PAGES);
        chunks.truncate(wanted(&self.numbers));
        while chunks.len() < wanted(&self.numbers) {
            match new_chunk() {
                Ok(chunk) => chunks.push(chunk),
                Err(_) => {
                    for number in self.numbers.drain(chunks.len() * CHUNK_PAGES..) {
                        self.index.remove(number);
                    }
                }
            }
        }
        chunks
    }
}

/// Copies pages into `chunks`, by place, but not where `is_wanted` refuses. `each` gets the copied
/// ones. Returns its results, and the places that were not copied (of which some were not wanted).
pub(super) fn copy_pages<R: Send>(
    memory: &dyn Memory,
    numbers: &[u64],
    chunks: &mut [CopyBuffer],
    limit: &CopyLimit,
    is_wanted: &(dyn Fn(usize) -> bool + Sync),
    each: &(dyn Fn(usize, &[u8]) -> Option<R> + Sync),
) -> (Vec<R>, Vec<(Range<usize>, CopyFailure)>) {
    by_chunks(numbers, chunks, &|first, numbers, chunk, _| {
        let all = first..first + numbers.len();
        if limit.is_over() {
            return (Vec::new(), vec![(all, CopyFailure::NotBegun)]);
        }
        let failed = read_pages(memory, numbers, chunk, &|n| is_wanted(first + n));
        // Check after the read: the process may have continued.
        if limit.resumed.is_set() {
            return (Vec::new(), vec![(all, CopyFailure::TooLate)]);
        }
        let mut next = failed.iter().map(|(n, _)| first + n).peekable();
        let wanted = all.filter(|place| is_wanted(*place));
        let copied = wanted.filter(|place| next.next_if_eq(place).is_none());
        let page = |place: usize| &chunk[(place - first) * PAGE..][..PAGE];
        let results = copied.filter_map(|place| each(place, page(place))).collect();
        let failed = failed.into_iter().map(|(n, error)| (first + n, CopyFailure::Failed(error)));
        (results, failed.map(|(place, why)| (place..place + 1, why)).collect())
    })
}

/// Reads wanted pages, each into its part of `out`. Returns the failed ones, in order.
pub(super) fn read_pages(
    memory: &dyn Memory,
    numbers: &[u64],
    mut out: &mut [u8],
    is_wanted: &dyn Fn(usize) -> bool,
) -> Vec<(usize, MemoryError)> {
    let (mut parts, mut at) = (Vec::new(), 0);
    while at < numbers.len() {
        let first = at;
        let is_next = |at: usize| at == first || numbers[at] == numbers[at - 1].wrapping_add(1);
        while at < numbers.len() && is_wanted(at) && is_next(at) {
            at += 1;
        }
        let skipped = usize::from(at == first);
        at += skipped;
        let (part, rest) = out.split_at_mut((at - first) * PAGE);
        out = rest;
        if skipped == 0 {
            parts.push((first, addr_of(numbers[first]), part));
        }
    }
    let mut places: Vec<_> = parts.iter_mut().map(|(_, at, out)| (*at, &mut **out)).collect();
    if memory.read_parts(&mut places).is_ok() {
        return Vec::new();
    }
    // At least one is gone: read each alone.
    let mut failed = Vec::new();
    for (first, addr, part) in parts {
        for (n, out) in part.chunks_exact_mut(PAGE).enumerate() {
            let read = memory.read(addr + (n * PAGE) as u64, out);
            failed.extend(read.err().map(|error| (first + n, error)));
        }
    }
    failed
}

type ChunkWork<'w, A, B> =
    &'w (dyn Fn(usize, &[u64], &mut [u8], &mut Vec<u8>) -> (Vec<A>, Vec<B>) + Sync);

/// Runs `work` on all chunks with several threads. It gets a chunk's first place, its numbers, and
/// room for another chunk.
pub(super) fn by_chunks<A: Send, B: Send>(
    numbers: &[u64],
    chunks: &mut [CopyBuffer],
    work: ChunkWork<'_, A, B>,
) -> (Vec<A>, Vec<B>) {
    let most = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let count = numbers.len().div_ceil(CHUNK_PAGES);
    let threads = (count / CHUNKS_PER_THREAD).clamp(1, most);
    let items = Mutex::new(numbers.chunks(CHUNK_PAGES).zip(chunks.iter_mut()).enumerate());
    let done = Mutex::new((Vec::new(), Vec::new()));
    let run = || {
        let (mut first, mut second, mut room) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let next = items.lock().next();
            let Some((index, (numbers, chunk))) = next else { break };
            let (mut a, mut b) = work(index * CHUNK_PAGES, numbers, chunk, &mut room);
            first.append(&mut a);
            second.append(&mut b);
        }
        let mut done = done.lock();
        done.0.append(&mut first);
        done.1.append(&mut second);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
    done.into_inner()
}

pub(super) fn addr_of(number: u64) -> Addr {
    Addr(number.wrapping_mul(PAGE as u64))
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
        let addr = addr_of(*number);
        match spans.last_mut() {
            Some(last) if last.addr + last.len as u64 == addr => last.len += PAGE,
            _ => spans.push(AddressRange { addr, len: PAGE }),
        }
    }
    spans
}
