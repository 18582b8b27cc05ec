//! The memory that a walk over the blocks needs. The next walk copies all pieces of this one at
//! once, between two copies of the counters. If the target changes too often, this covers only
//! recently changed pieces and tables; all others are copied before and after, and must be equal.

use rustc_hash::FxHashMap;

use crate::target::{Addr, AddressRange, Memory, MemoryError};

/// A piece never crosses a page boundary.
const PIECE: u64 = 512;
const PAGE: u64 = 4096;
const PIECES_PER_PAGE: u64 = PAGE / PIECE;
/// 256 MiB.
const MAX_RANGES: usize = 1 << 19;
const MAX_APPENDED: usize = 64;
/// Bytes of copies kept for the next read.
const MAX_KEPT: usize = 32 << 20;
const FORGOTTEN_AFTER: u32 = 8;

/// Copies for which a changed piece counts as restless: it probably changes again.
const RESTLESS_PIECE: u64 = 256;
/// The same for a changing target.
const RESTLESS_TARGET: u64 = 64;

#[derive(Debug, Default)]
pub(super) struct WorkingSet {
    /// By address / [`PIECE`].
    pieces: FxHashMap<u64, UsedRange>,
    /// Head, pieces, tail; if restless: stable pieces, head, restless pieces, tail, stable pieces.
    plan: Vec<AddressRange>,
    at_rest: Vec<(u64, usize)>,
    second: usize,
    copies: Vec<u8>,
    wanted: Vec<u64>,
    head: usize,
    tail: usize,
    clock: u64,
    volatile_until: u64,
    volatile: bool,
    planned: bool,
    appended: usize,
    walk: u32,
    forgot: u32,
}

#[derive(Debug, Clone, Copy)]
struct UsedRange {
    at: Option<u32>,
    used: u32,
    volatile_until: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotCopied {
    Wanted,
    Impossible,
}

impl WorkingSet {
    /// `head` and `tail` enclose the pieces that may change. Returns whether the others stayed
    /// equal.
    pub(super) fn copy(
        &mut self,
        memory: &dyn Memory,
        head: AddressRange,
        tail: AddressRange,
    ) -> Result<bool, MemoryError> {
        self.clock += 1;
        let volatile = self.clock < self.volatile_until;
        if !self.planned || volatile != self.volatile {
            self.volatile = volatile;
            self.make_plan(head, tail);
        }
        let len = self.plan.iter().map(|span| span.len).sum();
        self.copies.resize(len, 0);
        if let Err(error) = memory.read_spans(&self.plan, &mut self.copies) {
            if let MemoryError::Fault { span, .. } = error
                && span.addr != head.addr
            {
                self.forget_unmapped(memory, span);
            }
            return Err(error);
        }
        let mut same = true;
        for (number, at) in &self.at_rest {
            let copy = |at: usize| self.copies.get(at..at + PIECE as usize);
            if copy(*at) != copy(at + self.second)
                && let Some(piece) = self.pieces.get_mut(number)
            {
                piece.volatile_until = self.clock + RESTLESS_PIECE;
                same = false;
            }
        }
        self.planned &= same;
        Ok(same)
    }

    pub(super) fn note_change(&mut self) {
        self.volatile_until = self.clock + RESTLESS_TARGET;
    }

    pub(super) fn extend(
        &mut self,
        memory: &dyn Memory,
        tail: AddressRange,
    ) -> Result<(), MemoryError> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.sort_unstable();
        // The old tail was already compared.
        let start = if self.volatile { self.copies.len() } else { self.tail };
        self.plan.pop();
        let first = self.plan.len();
        let at = self.add_to_plan(&wanted, start);
        self.plan.push(tail);
        self.tail = at;
        self.appended += self.plan.len() - first;
        // Many small spans cost more than a few merged ones.
        self.planned &= self.appended < MAX_APPENDED && !self.volatile;
        self.copies.resize(at + tail.len, 0);
        let new = self.plan.get(first..).unwrap_or_default();
        let result = memory.read_spans(new, &mut self.copies[start..]);
        if let Err(MemoryError::Fault { span, index }) = result
            && index + 1 < new.len()
        {
            self.forget_unmapped(memory, span);
        }
        self.planned &= result.is_ok();
        result
    }

    /// Returns large copies to the kernel: the next read makes them anew.
    pub(super) fn release(&mut self) {
        if self.copies.capacity() > MAX_KEPT {
            self.copies = Vec::new();
        }
    }

    pub(super) fn is_volatile(&self) -> bool {
        self.volatile
    }

    pub(super) fn head(&self, len: usize) -> &[u8] {
        self.copies.get(self.head..self.head + len).unwrap_or_default()
    }

    pub(super) fn tail(&self, len: usize) -> &[u8] {
        self.copies.get(self.tail..self.tail + len).unwrap_or_default()
    }

    pub(super) fn lacks(&self) -> bool {
        !self.wanted.is_empty()
    }

    pub(super) fn get(&mut self, addr: Addr, out: &mut [u8]) -> Result<(), NotCopied> {
        if !addr.is_plausible() {
            return Err(NotCopied::Impossible);
        }
        let mut result = Ok(());
        let mut done = 0;
        while done < out.len() {
            let here = addr.0 + done as u64;
            let (number, offset) = (here / PIECE, (here % PIECE) as usize);
            let part = (PIECE as usize - offset).min(out.len() - done);
            match self.touch(number) {
                Some(at) => match self.copies.get(at + offset..at + offset + part) {
                    Some(copy) => out[done..done + part].copy_from_slice(copy),
                    None => result = Err(NotCopied::Impossible),
                },
                None => result = Err(NotCopied::Wanted),
            }
            done += part;
        }
        result
    }

    /// Whether the table is copied. Tables always count as restless: all else is compared with
    /// them.
    pub(super) fn want(&mut self, addr: Addr, len: u64) -> Result<(), NotCopied> {
        if !addr.is_plausible() || len / PIECE >= MAX_RANGES as u64 {
            return Err(NotCopied::Impossible);
        }
        let mut result = Ok(());
        for number in addr.0 / PIECE..=(addr.0 + len.max(1) - 1) / PIECE {
            if self.touch(number).is_none() {
                result = Err(NotCopied::Wanted);
            }
            if let Some(piece) = self.pieces.get_mut(&number) {
                piece.volatile_until = u64::MAX;
            }
        }
        result
    }

    fn touch(&mut self, number: u64) -> Option<usize> {
        let walk = self.walk;
        if let Some(piece) = self.pieces.get_mut(&number) {
            if piece.at.is_none() && piece.used != walk {
                self.wanted.push(number);
            }
            piece.used = walk;
            return piece.at.map(|at| at as usize);
        }
        if self.pieces.len() < MAX_RANGES {
            self.pieces.insert(
                number,
                UsedRange { at: None, used: walk, volatile_until: self.clock + RESTLESS_PIECE },
            );
            self.wanted.push(number);
        }
        None
    }

    /// Numbers of the pages with pieces.
    pub(super) fn pages(&self) -> Vec<u64> {
        let mut pages: Vec<u64> = self.pieces.keys().map(|piece| piece / PIECES_PER_PAGE).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    pub(super) fn begin_walk(&mut self) {
        self.walk = self.walk.wrapping_add(1);
        self.wanted.clear();
    }

    /// Call after a complete walk.
    pub(super) fn forget_unused(&mut self) {
        if self.walk.wrapping_sub(self.forgot) < FORGOTTEN_AFTER {
            return;
        }
        self.forgot = self.walk;
        let (before, walk) = (self.pieces.len(), self.walk);
        self.pieces.retain(|_, piece| walk.wrapping_sub(piece.used) < FORGOTTEN_AFTER);
        self.planned &= self.pieces.len() == before;
    }

    pub(super) fn clear(&mut self) {
        *self = WorkingSet::default();
    }

    fn make_plan(&mut self, head: AddressRange, tail: AddressRange) {
        let clock = self.clock;
        let (mut resting, mut others) = (Vec::new(), Vec::new());
        for (number, piece) in &self.pieces {
            let at_rest = self.volatile && piece.volatile_until <= clock;
            if at_rest { &mut resting } else { &mut others }.push(*number);
        }
        resting.sort_unstable();
        others.sort_unstable();
        self.plan.clear();
        self.head = self.add_to_plan(&resting, 0);
        let resting_spans = self.plan.len();
        self.at_rest.clear();
        let first_copy = |number: &u64| Some((*number, self.pieces.get(number)?.at? as usize));
        self.at_rest.extend(resting.iter().filter_map(first_copy));
        self.plan.push(head);
        // Restless pieces of a span come last, which decides.
        self.tail = self.add_to_plan(&others, self.head + head.len);
        self.plan.push(tail);
        self.second = self.tail + tail.len;
        self.plan.extend_from_within(..resting_spans);
        self.appended = 0;
        self.wanted.clear();
        self.planned = true;
    }

    fn add_to_plan(&mut self, numbers: &[u64], mut at: usize) -> usize {
        merge(numbers, |span, covered| {
            place(&mut self.pieces, covered, at);
            at += span.len;
            self.plan.push(span);
        });
        at
    }

    fn forget_unmapped(&mut self, memory: &dyn Memory, span: AddressRange) {
        let end = span.addr.0 + span.len as u64;
        let mut page = span.addr.0;
        while page < end {
            let next = (page / PAGE + 1) * PAGE;
            if memory.read(Addr(page), &mut [0; 1]).is_err() {
                for number in page / PIECE..next / PIECE {
                    self.pieces.remove(&number);
                }
            }
            page = next;
        }
        self.planned = false;
    }
}

fn place(pieces: &mut FxHashMap<u64, UsedRange>, covered: std::ops::Range<u64>, at: usize) {
    for (number, index) in covered.zip(0..) {
        if let Some(piece) = pieces.get_mut(&number) {
            piece.at = u32::try_from(at + index * PIECE as usize).ok();
        }
    }
}

/// Across gaps within a page, and adjacent pages.
fn merge(numbers: &[u64], mut each: impl FnMut(AddressRange, std::ops::Range<u64>)) {
    let mut run: Option<std::ops::Range<u64>> = None;
    let mut emit = |run: std::ops::Range<u64>| {
        let len = (run.end - run.start) * PIECE;
        each(AddressRange { addr: Addr(run.start * PIECE), len: len as usize }, run);
    };
    for &number in numbers {
        match &mut run {
            Some(run)
                if number <= run.end
                    || number / PIECES_PER_PAGE == (run.end - 1) / PIECES_PER_PAGE =>
            {
                run.end = run.end.max(number + 1);
            }
            _ => {
                if let Some(done) = run.replace(number..number + 1) {
                    emit(done);
                }
            }
        }
    }
    if let Some(done) = run {
        emit(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::MemoryImage;

    const HEAD: AddressRange = AddressRange { addr: Addr(0x10000), len: 8 };

    fn image() -> MemoryImage {
        let mut image = MemoryImage::default();
        let bytes: Vec<u8> = (0..0x4000u32).map(|i| (i / 16) as u8).collect();
        image.insert(Addr(0x10000), &bytes);
        image
    }

    #[test]
    fn wanted_pieces_are_copied_from_then_on() {
        let (image, mut set) = (image(), WorkingSet::default());
        set.copy(&image, HEAD, HEAD).unwrap();
        set.begin_walk();
        let mut out = [0; 32];
        assert_eq!(set.get(Addr(0x111f0), &mut out), Err(NotCopied::Wanted));
        assert!(set.lacks());
        set.extend(&image, HEAD).unwrap();
        set.begin_walk();
        assert_eq!(set.get(Addr(0x111f0), &mut out), Ok(()));
        assert_eq!((out[0], out[31]), (0x1f, 0x20), "it spans two pieces");
        set.copy(&image, HEAD, HEAD).unwrap();
        assert_eq!(set.get(Addr(0x111f0), &mut out), Ok(()));
        assert_eq!(set.plan.len(), 3, "the two pieces touch and are one span");
        assert_eq!(set.tail(8), &[0; 8]);
    }

    #[test]
    fn unmapped_addresses_are_dropped() {
        let (image, mut set) = (image(), WorkingSet::default());
        let mut out = [0; 8];
        assert_eq!(set.get(Addr(0), &mut out), Err(NotCopied::Impossible));
        assert_eq!(set.get(Addr(0x13ff0), &mut out), Err(NotCopied::Wanted));
        assert_eq!(set.get(Addr(0x14010), &mut out), Err(NotCopied::Wanted));
        assert!(set.copy(&image, HEAD, HEAD).is_err());
        set.copy(&image, HEAD, HEAD).unwrap();
        assert_eq!(set.get(Addr(0x13ff0), &mut out), Ok(()));
        assert_eq!(set.get(Addr(0x14010), &mut out), Err(NotCopied::Wanted));
    }

    #[test]
    fn nearby_pieces_are_one_span_and_distant_ones_are_not() {
        let mut spans = Vec::new();
        merge(&[8, 10, 15, 16, 24 + 7, 40], |span, _| {
            spans.push((span.addr.0 / PIECE, span.len / 512))
        });
        assert_eq!(spans, [(8, 9), (31, 1), (40, 1)]);
    }
}
