//! Memory ranges of a thread's recent frames.

use crate::target::{Addr, AddressRange};

const PAGE: u64 = 4096;
/// Smaller gaps are cheaper than one more range.
const BRIDGED: u64 = 1024;
/// The same on the C stack; smaller, as the job keeps writing to these gaps.
const BRIDGED_ON_C_STACK: u64 = 512;
/// Room for the frames that are called next.
const HEADROOM: u64 = 512;
const MAX_PIECES: usize = 256;
const MAX_BYTES: usize = 512 << 10;
/// A range costs up to 0.5 µs a poll, a KiB written by the job more; a deep stack leaves 60 KiB.
/// Adding a range again costs eight such polls.
const POLLS_UNTIL_TRIM: u32 = 8;
const MIN_SAVED: u64 = 512;

/// Consecutive frames are closer: `DATA_STACK_CHUNK_SIZE` (Python/pystate.c).
const CHUNK: u64 = 16 << 10;

pub(super) fn is_far(from: Addr, at: Addr) -> bool {
    from.0.abs_diff(at.0) > CHUNK
}

#[derive(Debug, Clone, Copy)]
struct StackPiece {
    start: u64,
    end: u64,
    low: u64,
    high: u64,
    offset: usize,
    number: usize,
}

#[derive(Debug, Default)]
pub(super) struct StackPieces {
    list: Vec<StackPiece>,
    last: usize,
    polls: u32,
}

impl StackPieces {
    /// The copies begin at `offset`: C stack first, `leaf`, the innermost frame, last. While that
    /// runs, its callers are unchanged.
    pub(super) fn push(
        &mut self,
        leaf: Addr,
        mut offset: usize,
        spans: &mut Vec<AddressRange>,
    ) -> usize {
        let holds_leaf = |piece: &StackPiece| (piece.start..piece.end).contains(&leaf.0);
        let mut number = 0;
        for is_last in [false, true] {
            for piece in self.list.iter_mut().rev().filter(|piece| holds_leaf(piece) == is_last) {
                let len = (piece.end - piece.start) as usize;
                (piece.offset, piece.number) = (offset, number);
                spans.push(AddressRange { addr: Addr(piece.start), len });
                offset += len;
                number += 1;
            }
        }
        offset
    }

    pub(super) fn bytes(&self) -> usize {
        self.list.iter().map(|piece| (piece.end - piece.start) as usize).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn find<'b>(&mut self, bytes: &'b [u8], at: Addr, len: usize) -> Option<&'b [u8]> {
        let end = at.0.checked_add(len as u64)?;
        let holds = |p: &StackPiece| p.start <= at.0 && end <= p.end;
        if !self.list.get(self.last).is_some_and(holds) {
            self.last = self.list.partition_point(|p| p.start <= at.0).checked_sub(1)?;
        }
        let piece = self.list.get_mut(self.last).filter(|p| holds(p))?;
        piece.low = piece.low.min(at.0);
        piece.high = piece.high.max(end);
        let from = piece.offset + (at.0 - piece.start) as usize;
        bytes.get(from..from + len)
    }

    /// Adds the bytes and their surroundings within the page.
    pub(super) fn want(&mut self, at: Addr, len: usize) -> bool {
        if !at.is_plausible() {
            return false;
        }
        let page_of = |address: u64| address & !(PAGE - 1);
        let end = at.0 + len as u64;
        // An untouched page may be unmapped.
        let page_end = page_of(end + PAGE - 1);
        let start = page_of(at.0).max(at.0.saturating_sub(HEADROOM));
        self.add(
            StackPiece {
                start,
                end: (end + HEADROOM).min(page_end),
                low: at.0,
                high: end,
                offset: 0,
                number: 0,
            },
            BRIDGED,
        )
    }

    pub(super) fn want_only(&mut self, at: Addr, len: usize) -> bool {
        if !at.is_plausible() {
            return false;
        }
        let end = at.0 + len as u64;
        let new = StackPiece { start: at.0, end, low: at.0, high: end, offset: 0, number: 0 };
        self.add(new, BRIDGED_ON_C_STACK)
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
    }

    fn add(&mut self, mut new: StackPiece, bridged: u64) -> bool {
        let from = self.list.partition_point(|p| p.end + bridged < new.start);
        let mut to = from;
        while let Some(p) = self.list.get(to).filter(|p| p.start <= new.end + bridged) {
            new.start = new.start.min(p.start);
            new.end = new.end.max(p.end);
            new.low = new.low.min(p.low);
            new.high = new.high.max(p.high);
            to += 1;
        }
        self.list.splice(from..to, [new]);
        if self.list.len() > MAX_PIECES || self.bytes() > MAX_BYTES {
            self.list.clear();
            return false;
        }
        true
    }

    /// `number`: by the order of [`Self::push`].
    pub(super) fn forget(&mut self, number: usize) {
        self.list.retain(|piece| piece.number != number);
    }

    /// Returns whether the ranges changed. `used`: an idle thread looks up no frames.
    pub(super) fn trim(&mut self, used: impl Iterator<Item = (Addr, usize)>) -> bool {
        self.polls += 1;
        if self.polls < POLLS_UNTIL_TRIM {
            return false;
        }
        self.polls = 0;
        for (at, len) in used {
            self.use_bytes(at, len);
        }
        let saved: u64 =
            self.list.iter().map(|p| (p.end - p.start) - p.used().map_or(0, len_of)).sum();
        let shrinks = saved >= MIN_SAVED || self.list.iter().any(|p| p.used().is_none());
        if shrinks {
            self.list.retain_mut(|piece| {
                let Some((start, end)) = piece.used() else { return false };
                (piece.start, piece.end) = (start, end);
                true
            });
        }
        for piece in &mut self.list {
            (piece.low, piece.high) = (u64::MAX, 0);
        }
        shrinks
    }

    fn use_bytes(&mut self, at: Addr, len: usize) {
        let end = at.0.saturating_add(len as u64);
        let number = self.list.partition_point(|p| p.start <= at.0).checked_sub(1);
        if let Some(piece) = number.and_then(|n| self.list.get_mut(n)).filter(|p| end <= p.end) {
            piece.low = piece.low.min(at.0);
            piece.high = piece.high.max(end);
        }
    }
}

impl StackPiece {
    fn used(&self) -> Option<(u64, u64)> {
        let page_end = (self.high + PAGE - 1) & !(PAGE - 1);
        (self.low <= self.high)
            .then(|| (self.low, self.end.min((self.high + HEADROOM).min(page_end))))
    }
}

fn len_of((start, end): (u64, u64)) -> u64 {
    end - start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_frames_are_merged_and_found() {
        let mut pieces = StackPieces::default();
        for at in [0x5100, 0x5180, 0x9000] {
            assert!(pieces.want(Addr(at), 80));
        }
        let mut spans = Vec::new();
        let end = pieces.push(Addr(0x9000), 16, &mut spans);
        assert_eq!(spans.len(), 2);
        assert_eq!(spans[0].addr, Addr(0x5000), "the frame's page, not the one before");
        let bytes: Vec<u8> = (0..end).map(|n| n as u8).collect();
        let at = 16 + 0x180;
        assert_eq!(pieces.find(&bytes, Addr(0x5180), 80), Some(&bytes[at..at + 80]));
        assert!(pieces.find(&bytes, Addr(0x9000), 80).is_some());
        assert_eq!(pieces.find(&bytes, Addr(0xa000), 80), None);
        assert_eq!(pieces.find(&bytes[..40], Addr(0x9000), 80), None, "what was not read");
    }

    #[test]
    fn the_innermost_frame_is_copied_last() {
        let mut pieces = StackPieces::default();
        let places = [0x5100, 0x9100, 0x7fff_0100, 0x10_0100].map(Addr);
        assert!(places.iter().all(|at| pieces.want_only(*at, 80)));
        let mut spans = Vec::new();
        let end = pieces.push(places[1], 0, &mut spans);
        let order: Vec<_> = spans.iter().map(|span| span.addr).collect();
        assert_eq!(order, [places[2], places[3], places[0], places[1]]);
        let copied: Vec<u8> = (0..end).map(|n| (n / 80) as u8).collect();
        let found = places.map(|at| pieces.find(&copied, at, 80).map(|copy| copy[0]));
        assert_eq!(found, [Some(2), Some(3), Some(0), Some(1)]);
        pieces.forget(1);
        assert!(pieces.find(&copied, places[3], 80).is_none(), "by the number of copying");
        assert!(pieces.find(&copied, places[0], 80).is_some());
    }

    #[test]
    fn unused_ranges_are_dropped_and_implausible_addresses_refused() {
        let mut pieces = StackPieces::default();
        assert!(pieces.want(Addr(0x5100), 80) && pieces.want(Addr(0xf000), 80));
        let mut spans = Vec::new();
        for _ in 0..2 * POLLS_UNTIL_TRIM {
            spans.clear();
            let end = pieces.push(Addr(0), 0, &mut spans);
            assert!(pieces.find(&vec![0; end], Addr(0x5100), 80).is_some());
            pieces.trim([].into_iter());
        }
        assert_eq!((pieces.len(), pieces.list[0].start), (1, 0x5100));
        assert!(!pieces.want(Addr(0), 80) && !pieces.want(Addr(u64::MAX - 8), 80));
        let scattered = |page: u64| Addr(0x10_0000 + page * 3 * PAGE);
        let refused = (0..1000).find(|&page| !pieces.want(scattered(page), 80));
        assert_eq!((refused, pieces.len()), (Some(MAX_PIECES as u64 - 1), 0));
    }

    #[test]
    fn c_stack_ranges_have_little_surroundings() {
        let (from, far) = (Addr(0x7000_1000), Addr(0x7fff_1000));
        assert!(is_far(from, far) && !is_far(from, from + 0x3000));
        let mut pieces = StackPieces::default();
        assert!(pieces.want_only(far, 8) && pieces.want_only(far + 0x70, 72));
        assert_eq!((pieces.len(), pieces.bytes()), (1, 0x70 + 72), "both are of one call");
        assert!(pieces.want_only(far + 0x1000, 8));
        assert_eq!((pieces.len(), pieces.bytes()), (2, 0x70 + 72 + 8));
        assert!(!pieces.want_only(Addr(0), 8));
        pieces.clear();
        assert_eq!((pieces.len(), pieces.bytes()), (0, 0));
    }

    #[test]
    fn ranges_of_a_formerly_deep_stack_shrink() {
        let mut pieces = StackPieces::default();
        let frame = |number: u64| Addr(0x10_0000 + number * 200);
        for number in 0..300 {
            assert!(pieces.want(frame(number), 80));
        }
        assert!(pieces.bytes() > 60_000);
        let shallow = || (0..20).map(|number| (frame(number), 80));
        for _ in 0..2 * POLLS_UNTIL_TRIM {
            pieces.trim(shallow());
        }
        assert!(pieces.bytes() <= 20 * 200 + HEADROOM as usize, "{}", pieces.bytes());
        let mut spans = Vec::new();
        let copied = vec![0; pieces.push(Addr(0), 0, &mut spans)];
        assert!(
            shallow().all(|(at, len)| pieces.find(&copied, at, len).is_some()),
            "what it uses stays"
        );
        for _ in 0..10 * POLLS_UNTIL_TRIM {
            assert!(!pieces.trim(shallow()), "nothing is left to save");
        }
    }
}
