//! The pieces of the target's memory that a walk over the blocks needs, copied in one system call.
//!
//! A walk follows pointers, and each pointer followed by a read of its own costs a system call while
//! the target goes on. So the pieces that one walk touched are remembered and the next walk copies
//! all of them at once, between two copies of the counters; only what is new has to be followed.
//!
//! When the target changes things too often to keep still for that long, only the pieces that changed
//! lately and the tables are copied between the two copies of the counters; all others are copied
//! before and once more after, and count only if they are the same. All of it is one system call.

use rustc_hash::FxHashMap;

use crate::target::{Addr, AddressRange, Memory, MemoryError};

/// Bytes of a piece, aligned to their number: never across the end of a page.
const PIECE: u64 = 512;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Neighbouring pieces of one page are copied together with what lies between them.
const PIECES_PER_PAGE: u64 = PAGE / PIECE;
/// A bound against damage: 256 MiB.
const MAX_RANGES: usize = 1 << 19;
/// After this many spans were added one by one, all are put in order again.
const MAX_APPENDED: usize = 64;
/// Pieces that this many walks did not touch are forgotten; checked once in as many walks.
const FORGOTTEN_AFTER: u32 = 8;

/// A piece that changed is taken to change again for this many copies.
const RESTLESS_PIECE: u64 = 256;
/// A target that changed things during a copy is taken to do so again for this many copies.
const RESTLESS_TARGET: u64 = 64;

/// The working set of one device's walks.
#[derive(Debug, Default)]
pub(super) struct WorkingSet {
    /// By number (address / [`PIECE`]).
    pieces: FxHashMap<u64, WorkingSetRange>,
    /// What one read copies: the head, the pieces, the tail; for a restless target the pieces at
    /// rest, the head, the restless pieces, the tail, and again the pieces at rest.
    plan: Vec<AddressRange>,
    /// The pieces at rest, and where their first copy lies.
    at_rest: Vec<(u64, usize)>,
    /// How far their second copies lie behind the first ones.
    second: usize,
    /// The copies, in the order of the plan, then those of later extensions.
    copies: Vec<u8>,
    /// The pieces asked for and not copied yet.
    wanted: Vec<u64>,
    /// Where the head's copy lies.
    head: usize,
    /// Where the last copy of the tail lies.
    tail: usize,
    /// Number of copies made.
    clock: u64,
    /// Until when the target is taken to be restless.
    volatile_until: u64,
    /// Whether the plan is made for a restless target.
    volatile: bool,
    /// Whether the plan still says where every piece is copied to.
    planned: bool,
    /// How many spans were added to the plan since it was made.
    appended: usize,
    walk: u32,
    /// The walk after which unused pieces were last forgotten.
    forgot: u32,
}

#[derive(Debug, Clone, Copy)]
struct WorkingSetRange {
    /// Where its copy lies; `None` before it was copied.
    at: Option<u32>,
    /// The last walk that touched it.
    used: u32,
    /// Until when it is taken to change often.
    volatile_until: u64,
}

/// Why a look into the working set gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotCopied {
    /// It is not in the set yet; it is now wanted.
    Wanted,
    /// It cannot be in the target at all.
    Impossible,
}

impl WorkingSet {
    /// Copies all pieces, and `head` before and `tail` after everything that may change meanwhile.
    /// Says whether what is not between the two stayed the same.
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

    /// Takes note that the target changed something during the last copy.
    pub(super) fn note_change(&mut self) {
        self.volatile_until = self.clock + RESTLESS_TARGET;
    }

    /// Copies the pieces wanted, then `tail` again. What was copied before stays as it was.
    pub(super) fn extend(
        &mut self,
        memory: &dyn Memory,
        tail: AddressRange,
    ) -> Result<(), MemoryError> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.sort_unstable();
        // The old tail was compared already; what lies behind it as well.
        let start = if self.volatile { self.copies.len() } else { self.tail };
        self.plan.pop();
        let first = self.plan.len();
        let at = self.add_to_plan(&wanted, start);
        self.plan.push(tail);
        self.tail = at;
        self.appended += self.plan.len() - first;
        // Many small spans cost more than few large ones: join them before the next copy.
        self.planned &= self.appended < MAX_APPENDED && !self.volatile;
        self.copies.resize(at + tail.len, 0);
        let new = self.plan.get(first..).unwrap_or_default();
        let result = memory.read_spans(new, &mut self.copies[start..]);
        if let Err(MemoryError::Fault { span, index }) = result
            && index + 1 < new.len()
        {
            self.forget_unmapped(memory, span);
        }
        // After a failure nothing of this extension may be believed.
        self.planned &= result.is_ok();
        result
    }

    /// Whether the last copy was one of a restless target.
    pub(super) fn is_volatile(&self) -> bool {
        self.volatile
    }

    /// The copy of the head, `len` bytes long.
    pub(super) fn head(&self, len: usize) -> &[u8] {
        self.copies.get(self.head..self.head + len).unwrap_or_default()
    }

    /// The last copy of the tail, `len` bytes long.
    pub(super) fn tail(&self, len: usize) -> &[u8] {
        self.copies.get(self.tail..self.tail + len).unwrap_or_default()
    }

    /// Whether something is wanted that was not copied yet.
    pub(super) fn lacks(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Fills `out` with the copy of what lies at `addr`.
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

    /// Asks for a table of `len` bytes at `addr`, and says whether it is there already. A table is
    /// always taken to be restless: what it lists is the measure of everything else.
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

    /// Where the copy of a piece lies; when there is none, it is wanted from now on.
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
                WorkingSetRange {
                    at: None,
                    used: walk,
                    volatile_until: self.clock + RESTLESS_PIECE,
                },
            );
            self.wanted.push(number);
        }
        None
    }

    /// Begins another walk over the same copies.
    pub(super) fn begin_walk(&mut self) {
        self.walk = self.walk.wrapping_add(1);
        // What an earlier walk wanted and never got is wanted again only if this one touches it.
        self.wanted.clear();
    }

    /// Forgets what no recent walk has touched, every now and then. To be called after a walk that
    /// found everything.
    pub(super) fn forget_unused(&mut self) {
        if self.walk.wrapping_sub(self.forgot) < FORGOTTEN_AFTER {
            return;
        }
        self.forgot = self.walk;
        let (before, walk) = (self.pieces.len(), self.walk);
        self.pieces.retain(|_, piece| walk.wrapping_sub(piece.used) < FORGOTTEN_AFTER);
        self.planned &= self.pieces.len() == before;
    }

    /// Starts again with nothing.
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
        // What a span covers between its pieces may be restless: those are placed last, which counts.
        self.tail = self.add_to_plan(&others, self.head + head.len);
        self.plan.push(tail);
        self.second = self.tail + tail.len;
        self.plan.extend_from_within(..resting_spans);
        self.appended = 0;
        self.wanted.clear();
        self.planned = true;
    }

    /// Plans to copy the pieces `numbers` to `at`; returns where their copies end.
    fn add_to_plan(&mut self, numbers: &[u64], mut at: usize) -> usize {
        merge(numbers, |span, covered| {
            place(&mut self.pieces, covered, at);
            at += span.len;
            self.plan.push(span);
        });
        at
    }

    /// Drops the pieces of `span` that cannot be read any more.
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

/// Notes that the pieces `covered` are copied to `at`.
fn place(pieces: &mut FxHashMap<u64, WorkingSetRange>, covered: std::ops::Range<u64>, at: usize) {
    for (number, index) in covered.zip(0..) {
        if let Some(piece) = pieces.get_mut(&number) {
            piece.at = u32::try_from(at + index * PIECE as usize).ok();
        }
    }
}

/// Joins the pieces `numbers`, which are sorted, to spans: with what lies between two pieces of one
/// page, and with the next page where they touch.
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
    fn what_is_wanted_once_is_copied_ever_after() {
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
    fn an_address_that_is_not_mapped_is_forgotten() {
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
    fn pieces_of_a_page_are_one_span_and_distant_pages_are_not() {
        let mut spans = Vec::new();
        merge(&[8, 10, 15, 16, 24 + 7, 40], |span, _| {
            spans.push((span.addr.0 / PIECE, span.len / 512))
        });
        assert_eq!(spans, [(8, 9), (31, 1), (40, 1)]);
    }
}
