//! The ring buffer of a device's events.

use super::clock::TraceClock;
use super::entry::{EntryLayout, StringReader};
use crate::model::HistoryEvent;
use crate::target::{Addr, Field, Memory, MemoryError};
use crate::torch::layout::MUTEX_OWNER;

/// Without `max_entries` PyTorch keeps all.
const MAX_EVENTS: u64 = 1 << 24;
const PIECE: u64 = 1 << 14;
/// `PTHREAD_MUTEX_TIMED_NP` of `std::mutex` (glibc nptl).
const MUTEX_PLAIN: u32 = 0;
/// The greatest `RecordContext` (c10/cuda/CUDACachingAllocator.h).
const MAX_CONTEXT: u32 = 3;
const MAX_BYTES: u64 = 1 << 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RingLayout {
    max_entries: usize,
    next: usize,
    entries: usize,
    pub(super) has_recorder: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RingState {
    pub(super) max_entries: u64,
    /// Index of the oldest entry, once the ring is full.
    next: u64,
    begin: Addr,
    end: Addr,
    capacity: Addr,
    is_busy: bool,
}

#[derive(Debug, Default)]
pub(super) struct RingEntries {
    pub(super) events: Vec<HistoryEvent>,
    pub(super) contexts: Vec<Addr>,
    pub(super) beyond_limit: u64,
    pub(super) newest: Option<(Addr, Vec<u8>, u64)>,
}

/// After `context_recorder_` and `record_context_`. A `RingBuffer` (torch 2.3 to 2.15) has a
/// maximum number, a mutex, the next entry, and a pointer to a vector. In 2.1 and 2.2 the next
/// entry precedes `record_context_`.
pub(super) fn find(memory: &dyn Memory, copy: &[u8], after: usize) -> Option<RingLayout> {
    let word = |at: usize| Field::<u64>::at(at).get(copy);
    let half = |at: usize| Field::<u32>::at(at).get(copy);
    let is_function = |at: usize| word(at).is_some_and(|w| w == 0 || Addr(w).is_plausible());
    let is_ring = |place: &RingLayout| {
        let (Some(most), Some(next), Some(vector)) =
            (word(place.max_entries), word(place.next), word(place.entries))
        else {
            return false;
        };
        let object = Addr(vector);
        most >= 1
            && next < most
            && object.is_plausible()
            && vector.is_multiple_of(8)
            && vector_at(memory, object).is_ok_and(|vector| vector.is_some())
    };
    let newer = |at: usize| {
        let place = RingLayout {
            max_entries: at,
            next: at + 0x30,
            entries: at + 0x38,
            has_recorder: word(at.checked_sub(0x10)?).is_some_and(|w| w != 0),
        };
        let fits = is_function(at - 0x10)
            && half(at - 8).is_some_and(|context| context <= MAX_CONTEXT)
            && half(at + 0x18) == Some(MUTEX_PLAIN)
            && half(at + 0x08).is_some_and(|lock| lock <= 2)
            && word(at + 0x20) == Some(0)
            && word(at + 0x28) == Some(0);
        (fits && is_ring(&place)).then_some(place)
    };
    let older = |at: usize| {
        let place = RingLayout {
            max_entries: at + 0x10,
            next: at,
            entries: at + 0x18,
            has_recorder: word(at.checked_sub(8)?).is_some_and(|w| w != 0),
        };
        let fits =
            is_function(at - 8) && half(at + 8).is_some_and(|context| context <= MAX_CONTEXT);
        (fits && is_ring(&place)).then_some(place)
    };
    let places = || (after..copy.len()).step_by(8);
    places().find_map(newer).or_else(|| places().find_map(older))
}

/// Begin, end, end of capacity.
fn vector_at(memory: &dyn Memory, at: Addr) -> Result<Option<[Addr; 3]>, MemoryError> {
    let bytes: [u8; 24] = memory.bytes(at)?;
    let word = |at: usize| Addr(Field::<u64>::at(at).get(&bytes).unwrap_or(u64::MAX));
    let [begin, end, capacity] = [word(0), word(8), word(16)];
    let empty = [begin, end, capacity] == [Addr(0); 3];
    let filled = begin.is_plausible()
        && begin.0.is_multiple_of(8)
        && begin <= end
        && end <= capacity
        && capacity.0 - begin.0 < MAX_BYTES;
    Ok((empty || filled).then_some([begin, end, capacity]))
}

impl RingState {
    pub(super) fn read(
        memory: &dyn Memory,
        device: Addr,
        place: RingLayout,
    ) -> Result<Option<RingState>, MemoryError> {
        // The lock's holder may write entries.
        let is_busy = memory.u32(MUTEX_OWNER.in_target(device))? != 0;
        let next = memory.u64(device + place.next as u64)?;
        let max_entries = memory.u64(device + place.max_entries as u64)?;
        let vector = memory.pointer(device + place.entries as u64)?;
        let Some([begin, end, capacity]) = vector_at(memory, vector)? else { return Ok(None) };
        Ok(Some(RingState { max_entries, next, begin, end, capacity, is_busy }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    pub(super) fn bytes(&self) -> u64 {
        self.end.0 - self.begin.0
    }

    pub(super) fn begin(&self) -> Addr {
        self.begin
    }

    /// `None` if the ring is another, or all entries may be overwritten.
    pub(super) fn overwritten(
        &self,
        memory: &dyn Memory,
        after: &RingState,
        newest: Option<(Addr, Vec<u8>, u64)>,
    ) -> Option<u64> {
        let Some((at, expected, count)) = newest else {
            return Some(0);
        };
        if after.begin != self.begin || after.end < self.end {
            return None;
        }
        let now = memory.vec(at, expected.len()).ok()?;
        if now != expected {
            return None;
        }
        // The oldest entry may be half overwritten.
        let is_full = count >= self.max_entries;
        let half_written = u64::from(is_full && (self.is_busy || after.is_busy));
        let overwritten = if after.next >= self.next {
            after.next - self.next
        } else {
            count.checked_sub(self.next)?.checked_add(after.next)?
        };
        overwritten.checked_add(half_written)
    }
}

pub(super) fn read_entries(
    memory: &dyn Memory,
    state: &RingState,
    layout: EntryLayout,
    index: u32,
    clock: &TraceClock,
) -> Option<RingEntries> {
    let size = layout.size() as u64;
    let count = state.bytes() / size;
    let next = if state.next < count { state.next } else { 0 };
    let read = count.min(MAX_EVENTS);
    let mut entries = RingEntries { beyond_limit: count - read, ..RingEntries::default() };
    let convert = clock.converter();
    let mut strings = StringReader::default();
    let mut at = count - read;
    while at < count {
        let place = (next + at) % count;
        let piece = PIECE.min(count - at).min(count - place);
        let begin = state.begin + place * size;
        let bytes = memory.vec(begin, (piece * size) as usize).ok()?;
        for (number, entry) in (0..).zip(bytes.chunks_exact(size as usize)) {
            let here = begin + number * size;
            let raw = layout.decode(entry, here, index, clock)?;
            entries.contexts.push(raw.context);
            entries.events.push(raw.event(memory, &convert, &mut strings));
        }
        at += piece;
        if at == count {
            let last = bytes.len() - size as usize;
            let newest = bytes.get(last..)?.to_vec();
            entries.newest = Some((begin + last as u64, newest, count));
        }
    }
    Some(entries)
}
