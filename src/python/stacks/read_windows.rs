//! The memory ranges of one thread's last frames. Frames of CPython 3.11+ are consecutive in 16 KiB
//! chunks, others anywhere. Windows merge only across gaps below a page: none touches a page
//! without frames.

use crate::python::scatter_read::{ReadSlot, ScatterRead};
use crate::target::Addr;

const PAGE: u64 = 4096;
const MAX_GAP_BYTES: u64 = 1024;
const HEADROOM: u64 = 512;
const MAX_WINDOW_LEN: u64 = 4 << 20;
const EPOCH: u32 = 64;

#[derive(Debug, Clone, Copy)]
struct ReadWindow {
    start: u64,
    end: u64,
    low: u64,
    high: u64,
    slot: ReadSlot,
}

#[derive(Debug, Clone, Copy)]
struct SecondRead {
    start: u64,
    end: u64,
    slot: ReadSlot,
}

#[derive(Debug, Default)]
pub(in crate::python) struct ReadWindows {
    list: Vec<ReadWindow>,
    again: Vec<SecondRead>,
    last: usize,
    samples: u32,
}

impl ReadWindows {
    pub(in crate::python) fn push(&mut self, batch: &mut ScatterRead) {
        for window in &mut self.list {
            window.slot = batch.push(Addr(window.start), (window.end - window.start) as usize);
        }
        for again in &mut self.again {
            again.slot = batch.push(Addr(again.start), (again.end - again.start) as usize);
        }
    }

    pub(in crate::python) fn first<'b>(
        &mut self,
        batch: &'b ScatterRead,
        at: Addr,
        len: usize,
    ) -> Option<&'b [u8]> {
        let end = at.0.checked_add(len as u64)?;
        let holds = |w: &ReadWindow| w.start <= at.0 && end <= w.end;
        if !self.list.get(self.last).is_some_and(holds) {
            self.last = self.list.partition_point(|w| w.start <= at.0).checked_sub(1)?;
        }
        let window = self.list.get_mut(self.last).filter(|w| holds(w))?;
        window.low = window.low.min(at.0);
        window.high = window.high.max(end);
        let from = (at.0 - window.start) as usize;
        batch.get(window.slot)?.get(from..from + len)
    }

    pub(in crate::python) fn second<'b>(
        &self,
        batch: &'b ScatterRead,
        at: Addr,
        len: usize,
    ) -> Option<&'b [u8]> {
        let end = at.0.checked_add(len as u64)?;
        let again = self.again.iter().find(|w| w.start <= at.0 && end <= w.end)?;
        let from = (at.0 - again.start) as usize;
        batch.get(again.slot)?.get(from..from + len)
    }

    /// Adds the bytes and their surroundings within the page to the next batch.
    pub(in crate::python) fn want(&mut self, at: Addr, len: usize) {
        if !at.is_plausible() {
            return;
        }
        let page = at.0 & !(PAGE - 1);
        let end = at.0 + len as u64;
        let page_end = (end + PAGE - 1) & !(PAGE - 1);
        self.cover(page, (end + HEADROOM).min(page_end), at.0, end);
    }

    pub(in crate::python) fn read_again(&mut self, frames: impl Iterator<Item = Addr>, len: usize) {
        self.again.clear();
        for at in frames {
            let (start, mut end) = (at.0, at.0 + len as u64);
            let page_end = (end + PAGE - 1) & !(PAGE - 1);
            if self.again.is_empty() {
                end = (end + HEADROOM).min(page_end);
            }
            let near = self
                .again
                .iter_mut()
                .find(|w| start < w.end + MAX_GAP_BYTES && w.start < end + MAX_GAP_BYTES);
            match near {
                Some(near) => {
                    near.start = near.start.min(start);
                    near.end = near.end.max(end);
                }
                None => self.again.push(SecondRead { start, end, slot: ReadSlot::default() }),
            }
        }
    }

    pub(in crate::python) fn forget(&mut self, slot: ReadSlot) {
        self.list.retain(|w| w.slot != slot);
        self.again.retain(|w| w.slot != slot);
    }

    pub(in crate::python) fn settle(&mut self) {
        self.samples += 1;
        if !self.samples.is_multiple_of(EPOCH) {
            return;
        }
        self.list.retain_mut(|window| {
            if window.low > window.high {
                return false;
            }
            let page_end = (window.high + PAGE - 1) & !(PAGE - 1);
            window.start = window.low;
            window.end = window.end.min((window.high + HEADROOM).min(page_end));
            (window.low, window.high) = (u64::MAX, 0);
            true
        });
    }

    fn cover(&mut self, start: u64, end: u64, low: u64, high: u64) {
        let mut new = ReadWindow { start, end, low, high, slot: ReadSlot::default() };
        let from = self.list.partition_point(|w| w.end + MAX_GAP_BYTES < new.start);
        let mut to = from;
        while let Some(w) = self.list.get(to).filter(|w| w.start <= new.end + MAX_GAP_BYTES) {
            new.start = new.start.min(w.start);
            new.end = new.end.max(w.end);
            new.low = new.low.min(w.low);
            new.high = new.high.max(w.high);
            to += 1;
        }
        if new.end - new.start > MAX_WINDOW_LEN {
            // The pointer chain was invalid: start over.
            self.list.clear();
            self.list.push(ReadWindow { start, end, low, high, slot: ReadSlot::default() });
            return;
        }
        self.list.splice(from..to, [new]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::MemoryImage;

    fn pages(first: u64, count: usize) -> MemoryImage {
        let mut image = MemoryImage::default();
        image.insert(Addr(first), &vec![7; count * PAGE as usize]);
        image
    }

    #[test]
    fn wanted_bytes_are_read_next_time_and_neighbours_merge() {
        let mut windows = ReadWindows::default();
        let mut batch = ScatterRead::default();
        windows.want(Addr(0x5100), 80);
        windows.want(Addr(0x5180), 80);
        windows.want(Addr(0x9000), 80);
        assert_eq!(windows.list.len(), 2);
        windows.read_again([Addr(0x5180), Addr(0x5100)].into_iter(), 80);
        windows.push(&mut batch);
        let mut image = pages(0x5000, 1);
        image.insert(Addr(0x9000), &[9; PAGE as usize]);
        batch.read(&image).unwrap();
        assert_eq!(batch.fault(), None);
        assert_eq!(windows.first(&batch, Addr(0x5100), 80), Some(&[7; 80][..]));
        assert_eq!(windows.first(&batch, Addr(0x9000), 80), Some(&[9; 80][..]));
        assert_eq!(windows.second(&batch, Addr(0x5180), 80), Some(&[7; 80][..]));
        assert_eq!(windows.second(&batch, Addr(0x9000), 80), None);
        assert_eq!(windows.first(&batch, Addr(0xa000), 80), None);
    }

    #[test]
    fn unused_windows_are_dropped_and_long_ones_shrink() {
        let mut windows = ReadWindows::default();
        windows.want(Addr(0x5100), 80);
        windows.want(Addr(0xf000), 80);
        let mut batch = ScatterRead::default();
        for sample in 0..2 * EPOCH {
            batch.clear();
            windows.push(&mut batch);
            batch.read(&pages(0x5000, 16)).unwrap();
            if sample > 0 {
                assert!(windows.first(&batch, Addr(0x5100), 80).is_some());
            }
            windows.settle();
        }
        assert_eq!(windows.list.len(), 1);
        assert_eq!(windows.list[0].start, 0x5100);
    }

    #[test]
    fn wild_addresses_do_not_overflow() {
        let mut windows = ReadWindows::default();
        for at in [0, u64::MAX - 8, 0x7fff_ffff_f000, 0x1000] {
            windows.want(Addr(at), 80);
            windows.read_again([Addr(at & ((1 << 47) - 1))].into_iter(), 80);
        }
    }
}
