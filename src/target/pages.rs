//! Memory kept by page: a look at many small objects costs one copy for each page they lie in.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use super::memory::{Addr, Memory, MemoryError, Span};

/// Bytes copied at once. Longer pieces copy mostly what nobody looks at.
const PAGE: usize = 4096;
/// Pages for which room is made at once.
const PAGES_A_CHUNK: usize = 256;

/// The memory of a process that stands still, as copies of the pages looked at. What is copied once is never read again, so
/// all looks through one cache agree with each other; a process that runs on needs a new one.
pub struct PageCache {
    memory: Box<dyn Memory>,
    pages: Mutex<Pages>,
}

/// The copies.
#[derive(Default)]
struct Pages {
    /// By page number: its place among the copies, or why there is none.
    known: FxHashMap<u64, Result<u32, MemoryError>>,
    chunks: Vec<Box<[u8]>>,
    count: usize,
    /// The page looked at last.
    last: Option<(u64, u32)>,
    closed: bool,
}

impl PageCache {
    /// An empty cache over `memory`.
    pub fn new(memory: Box<dyn Memory>) -> PageCache {
        PageCache { memory, pages: Mutex::default() }
    }

    /// Ends the copying: whatever was not looked at until now cannot be read any more
    /// ([`MemoryError::Closed`]). For when the process goes on.
    pub fn close(&self) {
        self.lock().closed = true;
    }

    /// Bytes copied so far.
    pub fn copied(&self) -> u64 {
        (self.lock().count * PAGE) as u64
    }

    /// A look at many small places without taking the lock for each.
    pub fn look(&self) -> Look<'_> {
        Look { memory: &*self.memory, pages: self.lock() }
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        // A panic elsewhere leaves the copies as they were.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cache, held for a while.
pub struct Look<'a> {
    memory: &'a dyn Memory,
    pages: MutexGuard<'a, Pages>,
}

impl Look<'_> {
    /// Reads a little-endian `u64`.
    pub fn u64(&mut self, addr: Addr) -> Result<u64, MemoryError> {
        let mut out = [0; 8];
        self.read(addr, &mut out)?;
        Ok(u64::from_le_bytes(out))
    }

    /// Reads a pointer.
    pub fn pointer(&mut self, addr: Addr) -> Result<Addr, MemoryError> {
        self.u64(addr).map(Addr)
    }

    /// Fills `out` from `addr` on.
    pub fn read(&mut self, addr: Addr, mut out: &mut [u8]) -> Result<(), MemoryError> {
        let mut at = addr.0;
        while !out.is_empty() {
            let within = (at % PAGE as u64) as usize;
            let len = out.len().min(PAGE - within);
            let page = self.page(at / PAGE as u64)?;
            let (now, later) = out.split_at_mut(len);
            now.copy_from_slice(&page[within..within + len]);
            out = later;
            at = at.wrapping_add(len as u64);
        }
        Ok(())
    }

    fn page(&mut self, number: u64) -> Result<&[u8], MemoryError> {
        let place = match self.pages.last {
            Some((last, place)) if last == number => place,
            _ => {
                let place = match self.pages.known.get(&number) {
                    Some(known) => (*known)?,
                    None => self.copy(number)?,
                };
                self.pages.last = Some((number, place));
                place
            }
        } as usize;
        let start = place % PAGES_A_CHUNK * PAGE;
        Ok(&self.pages.chunks[place / PAGES_A_CHUNK][start..start + PAGE])
    }

    fn copy(&mut self, number: u64) -> Result<u32, MemoryError> {
        let pages = &mut *self.pages;
        let addr = Addr(number * PAGE as u64);
        if pages.closed {
            return Err(MemoryError::Closed(addr));
        }
        if pages.count.is_multiple_of(PAGES_A_CHUNK) {
            pages.chunks.push(vec![0; PAGES_A_CHUNK * PAGE].into_boxed_slice());
        }
        let start = pages.count % PAGES_A_CHUNK * PAGE;
        let chunk = &mut pages.chunks[pages.count / PAGES_A_CHUNK];
        let read = self.memory.read(addr, &mut chunk[start..start + PAGE]);
        let place = pages.count as u32;
        match read {
            Ok(()) => {
                pages.count += 1;
                pages.known.insert(number, Ok(place));
                Ok(place)
            }
            Err(error) => {
                // The room is taken by the next page.
                if pages.count.is_multiple_of(PAGES_A_CHUNK) {
                    pages.chunks.pop();
                }
                pages.known.insert(number, Err(error));
                Err(error)
            }
        }
    }
}

impl Memory for PageCache {
    fn read_spans(&self, spans: &[Span], mut out: &mut [u8]) -> Result<(), MemoryError> {
        let mut look = self.look();
        for (index, span) in spans.iter().enumerate() {
            let Some((now, later)) = out.split_at_mut_checked(span.len) else {
                return Err(MemoryError::Fault { span: *span, index });
            };
            look.read(span.addr, now).map_err(|error| match error {
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
    use super::super::image::MemoryImage;
    use super::*;

    fn image() -> MemoryImage {
        let mut image = MemoryImage::default();
        let bytes: Vec<u8> = (0..3 * PAGE).map(|n| (n / 7) as u8).collect();
        image.insert(Addr(0x10000), &bytes);
        image
    }

    #[test]
    fn reads_across_pages_are_whole_and_faults_are_named() {
        let cache = PageCache::new(Box::new(image()));
        let memory: &dyn Memory = &cache;
        let plain = image();
        let plain: &dyn Memory = &plain;
        for (at, len) in [(0x10000, 8), (0x10ffc, 8), (0x10f00, 5000), (0x10003, 1)] {
            assert_eq!(memory.vec(Addr(at), len).unwrap(), plain.vec(Addr(at), len).unwrap());
        }
        let bad = Span { addr: Addr(0x12ffc), len: 8 };
        let good = Span { addr: Addr(0x10000), len: 8 };
        let error = memory.read_spans(&[good, bad], &mut [0; 16]).unwrap_err();
        assert_eq!(error, MemoryError::Fault { span: bad, index: 1 });
        assert_eq!(cache.copied(), 3 * PAGE as u64);
    }

    #[test]
    fn what_was_not_looked_at_is_closed() {
        let cache = PageCache::new(Box::new(image()));
        let memory: &dyn Memory = &cache;
        let known = memory.u64(Addr(0x10008)).unwrap();
        cache.close();
        assert_eq!(memory.u64(Addr(0x10008)), Ok(known));
        assert_eq!(memory.u64(Addr(0x11008)), Err(MemoryError::Closed(Addr(0x11000))));
    }
}
