//! The history that a job records of itself, found by shape. `DeviceCachingAllocator::alloc_buffer`
//! is a `RingBuffer<TraceEntry>` since torch 2.3; before, it has separate members. Unknown entry
//! layouts are refused.

mod clock;
mod entry;
mod ring;
mod traceback;

use rustc_hash::FxHashMap;

use super::discovery;
use super::error::{AllocatorError, reading};
use super::layout::BlockLayout;
use crate::model::{HistoryEvent, RecorderState};
use crate::target::{Addr, Memory};

pub use traceback::{RecordedFrame, RecordedStack};

use clock::TraceClock;
use ring::RingState;
use traceback::TracebackReader;

const ATTEMPTS: u32 = 16;

/// A job's recording of one device.
#[derive(Debug, Default)]
pub struct RecordedHistory {
    /// Stacks are recorded now.
    pub has_recorder: bool,
    /// Capacity in events.
    pub max_entries: u64,
    /// Oldest first.
    pub events: Vec<HistoryEvent>,
    /// Oldest events overwritten during the read.
    pub overwritten: u64,
    /// Oldest events beyond the limit.
    pub beyond_limit: u64,
    /// Of events, blocks and segments (`Block.context` members).
    pub stacks: Vec<RecordedStack>,
    /// Allocation stacks of blocks, by device address.
    pub block_stacks: Vec<(u64, u32)>,
    /// Allocation stacks of segments, by device address of their first block.
    pub segment_stacks: Vec<(u64, u32)>,
    /// Unreadable stacks.
    pub unreadable_stacks: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct HistoryInput<'a> {
    pub(super) index: u32,
    pub(super) device: Addr,
    /// In `NativeCachingAllocator`, after the clock.
    pub(super) vector: Addr,
    pub(super) tables: usize,
    pub(super) block: Option<BlockLayout>,
    pub(super) blocks: &'a [(u64, Addr)],
    pub(super) version: &'a str,
}

/// `keep` must read what events and stacks reference (code objects) before the final check of the
/// ring.
pub(super) fn read(
    memory: &dyn Memory,
    input: HistoryInput<'_>,
    keep: &mut dyn FnMut(&RecordedHistory),
) -> Result<RecordedHistory, AllocatorError> {
    let unknown = |what: &str| AllocatorError::UnknownLayout {
        version: input.version.to_owned(),
        what: what.to_owned(),
    };
    let mut last = unknown("its ring buffer of allocations was not found");
    for _ in 0..ATTEMPTS {
        match attempt(memory, input, keep) {
            Ok(Ok(history)) => return Ok(history),
            Ok(Err(why)) => last = unknown(why),
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// How much is recorded; `None` if the ring was not found.
pub(super) fn recorder(
    memory: &dyn Memory,
    device: Addr,
    vector: Addr,
    tables: usize,
    index: u32,
) -> Option<RecorderState> {
    let copy = discovery::copy_object(memory, device);
    let place = ring::find(memory, &copy, tables)?;
    let state = RingState::read(memory, device, place).ok()??;
    let mut found = RecorderState {
        is_on: place.has_recorder,
        max_entries: state.max_entries,
        entries: 0,
        bytes: state.bytes(),
    };
    if !state.is_empty() {
        let clock = TraceClock::find(memory, vector)?;
        let layout = entry::find_layout(memory, &state, index, &clock)?;
        found.entries = state.bytes() / layout.size() as u64;
    }
    Some(found)
}

fn attempt(
    memory: &dyn Memory,
    input: HistoryInput<'_>,
    keep: &mut dyn FnMut(&RecordedHistory),
) -> Result<Result<RecordedHistory, &'static str>, AllocatorError> {
    let copy = discovery::copy_object(memory, input.device);
    let Some(place) = ring::find(memory, &copy, input.tables) else {
        return Ok(Err("its ring buffer of allocations was not found"));
    };
    let state = RingState::read(memory, input.device, place)
        .map_err(reading("the ring buffer of allocations", input.device))?;
    let Some(state) = state else { return Ok(Err("its ring buffer of allocations is damaged")) };
    let mut history = RecordedHistory {
        has_recorder: place.has_recorder,
        max_entries: state.max_entries,
        ..RecordedHistory::default()
    };
    let mut tracebacks = TracebackReader::default();
    let mut contexts = Vec::new();
    let mut newest = None;
    if !state.is_empty() {
        let Some(clock) = TraceClock::find(memory, input.vector) else {
            return Ok(Err("the clock of its events was not found"));
        };
        let Some(layout) = entry::find_layout(memory, &state, input.index, &clock) else {
            return Ok(Err("the entries of its ring buffer have none of the known layouts"));
        };
        let Some(read) = ring::read_entries(memory, &state, layout, input.index, &clock) else {
            return Ok(Err("the entries of its ring buffer are damaged"));
        };
        newest = read.newest;
        contexts = read.contexts;
        history.events = read.events;
        history.beyond_limit = read.beyond_limit;
    }
    let mut numbers = FxHashMap::default();
    let wanted: Vec<Addr> = contexts.iter().copied().filter(|at| at.0 != 0).collect();
    tracebacks.read(memory, &wanted, &mut numbers);
    for (event, context) in history.events.iter_mut().zip(&contexts) {
        event.stack = numbers.get(context).copied();
    }
    add_block_stacks(memory, &input, &mut tracebacks, &mut numbers, &mut history);
    history.unreadable_stacks = tracebacks.unreadable;
    history.stacks = tracebacks.stacks;
    keep(&history);
    // An overwritten event releases its stack.
    let after = RingState::read(memory, input.device, place)
        .map_err(reading("the ring buffer of allocations", input.device))?;
    let overwritten = after.and_then(|after| state.overwritten(memory, &after, newest));
    let Some(overwritten) = overwritten else {
        return Ok(Err("the job overwrote all of its events each time they were read"));
    };
    let gone = overwritten.saturating_sub(history.beyond_limit);
    history.overwritten = gone;
    history.events.drain(..usize::try_from(gone).unwrap_or(usize::MAX).min(history.events.len()));
    Ok(Ok(history))
}

fn add_block_stacks(
    memory: &dyn Memory,
    input: &HistoryInput<'_>,
    tracebacks: &mut TracebackReader,
    numbers: &mut FxHashMap<Addr, u32>,
    history: &mut RecordedHistory,
) {
    let Some(block) = input.block else { return };
    let of_blocks = traceback::block_contexts(memory, block, input.blocks, tracebacks);
    let wanted: Vec<Addr> =
        of_blocks.iter().flat_map(|(_, own, segment)| [*own, *segment]).collect();
    tracebacks.read(memory, &wanted, numbers);
    for (address, own, segment) in of_blocks {
        history.block_stacks.extend(numbers.get(&own).map(|stack| (address, *stack)));
        history.segment_stacks.extend(numbers.get(&segment).map(|stack| (address, *stack)));
    }
}
