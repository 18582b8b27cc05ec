//! Reads through a [`PageCache`] and copies missing pages.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::memory::{Addr, MemoryError};
use super::page_copy::PAGE;
use super::pages::{CHECK_EVERY, CachedPages, PageCache};
use super::ptrace_stop::Resumed;

/// The locked cache.
pub struct PageReader<'a> {
    cache: &'a PageCache,
    pages: MutexGuard<'a, CachedPages>,
}

impl CachedPages {
    /// Notes bytes that are of no stop, or that a doubtful page does not have in both its reads.
    fn check_doubt(&mut self, within: usize, bytes: &[u8]) {
        if self.is_late {
            self.torn_reads += 1;
        } else if let Some(doubt) = self.doubt
            && self.copies.doubts.concern(doubt, within, bytes)
        {
            self.torn_reads += 1;
            self.torn[doubt as usize] = true;
        }
    }
}

impl<'a> PageReader<'a> {
    pub(super) fn of(cache: &'a PageCache) -> PageReader<'a> {
        PageReader { cache, pages: cache.pages.lock() }
    }
}

impl PageReader<'_> {
    /// [`crate::target::Memory::torn_reads`].
    pub fn torn_reads(&self) -> u64 {
        self.pages.torn_reads
    }

    /// Reads a little-endian `u64`.
    pub fn u64(&mut self, addr: Addr) -> Result<u64, MemoryError> {
        let (number, within) = (addr.0 / PAGE as u64, (addr.0 % PAGE as u64) as usize);
        // Nearly all reads.
        if within <= PAGE - 8 {
            let page = self.page(number)?;
            let word = page[within..].first_chunk().copied().unwrap_or_default();
            self.pages.check_doubt(within, &word);
            return Ok(u64::from_le_bytes(word));
        }
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
            self.pages.check_doubt(within, now);
            out = later;
            at = at.wrapping_add(len as u64);
        }
        Ok(())
    }

    fn page(&mut self, number: u64) -> Result<&[u8], MemoryError> {
        let pages = &mut *self.pages;
        pages.unchecked += 1;
        if pages.unchecked >= CHECK_EVERY {
            pages.check();
        }
        // Without room, copied pages can still be read.
        if pages.exceeded == Some(MemoryError::TimeUp) {
            pages.refused += 1;
            return Err(MemoryError::TimeUp);
        }
        let place = match pages.last {
            Some((last, place)) if last == number => place,
            _ => {
                let place = match pages.copies.index.get(number, &mut pages.last_region) {
                    Some(known) => known?,
                    None => self.copy(number)?,
                };
                self.pages.last = Some((number, place));
                self.pages.doubt = self.pages.copies.doubts.of(place);
                self.pages.is_late = self.pages.is_of_stop && place as usize >= self.pages.copied;
                self.pages.used[place as usize] = true;
                place
            }
        } as usize;
        Ok(self.pages.copies.page(place))
    }

    fn copy(&mut self, number: u64) -> Result<u32, MemoryError> {
        let pages = &mut *self.pages;
        let addr = Addr(number.wrapping_mul(PAGE as u64));
        if let Some(wanted) = &mut pages.wanted {
            wanted.push(number);
            pages.refused += 1;
            return Err(MemoryError::Closed(addr));
        }
        if let Some(error) = pages.refuses(addr) {
            return Err(error);
        }
        let Some(copies) = Arc::get_mut(&mut pages.copies) else {
            pages.refused += 1;
            return Err(MemoryError::OutOfRoom);
        };
        let Some(room) = copies.room(1) else {
            pages.refused += 1;
            return Err(MemoryError::OutOfRoom);
        };
        let read = self.cache.memory.read(addr, room);
        // Check after the read: the process may have continued.
        if pages.resumed.as_ref().is_some_and(Resumed::is_set) {
            pages.closed = true;
            pages.refused += 1;
            return Err(MemoryError::Closed(addr));
        }
        match read {
            Ok(()) => {
                copies.add(number);
                pages.used.push(false);
                Ok(copies.numbers.len() as u32 - 1)
            }
            Err(error) => {
                // The next page reuses the room.
                copies.index.insert(number, Err(error));
                Err(error)
            }
        }
    }
}
