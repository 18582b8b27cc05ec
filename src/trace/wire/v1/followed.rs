//! Encodes counter deltas by column.

use super::varint::{
    PayloadCursor, fold, fold_signed, put, unfold, unfold_signed, unzigzag, zigzag,
};
use super::{BlockClock, MAX_DEVICES, MalformedPayload};
use crate::model::{
    CounterDelta, CudaIndex, FollowedChange, FollowedThread, Nanos, StackId, StackReading,
    ThreadId, ThreadWait,
};

/// Bounds a reader's memory.
pub(crate) const MAX_DELTAS: usize = 1 << 15;
const COLUMNS: usize = 5;
const TIMES: usize = 1;
const SIZES: usize = 2;
const THREADS: usize = 3;
const STACKS: usize = 4;

/// In a kind: a single allocation or free in the small or large pool, or anything.
const SHAPE: u8 = 7;
const ANY_SHAPE: u8 = 4;
const SAME_DEVICE: u8 = 8;
const LIVE_FOLLOWS: u8 = 16;
const COUNTERS_TORN: u8 = 32;
const OTHERS_POSSIBLE: u8 = 64;
const TOTALS_RESET: u8 = 128;

/// Of a thread: two bits each for the stacks before and after, and these.
const HELD_LOCK: u8 = 16;
const SAME_STACK: u8 = 32;
const WAITED_BEFORE: u8 = 64;
const WAITED_AFTER: u8 = 128;

const TOO_MANY: MalformedPayload = MalformedPayload("more deltas than fit into one record");
const UNKNOWN_SHAPE: MalformedPayload = MalformedPayload("a delta of an unknown shape");

/// The next delta is relative to it.
#[derive(Debug, Default)]
pub(crate) struct WireFollowedState {
    columns: [Vec<u8>; COLUMNS],
    device: u32,
    stack: u32,
    live: Vec<[i64; 2]>,
}

impl WireFollowedState {
    /// At a block's start.
    pub(crate) fn reset(&mut self) {
        self.device = 0;
        self.stack = 0;
        self.live.clear();
    }

    pub(crate) fn encode(
        &mut self,
        changes: &[FollowedChange],
        clock: &mut BlockClock,
        out: &mut Vec<u8>,
    ) -> Result<(), MalformedPayload> {
        if changes.len() > MAX_DELTAS {
            return Err(TOO_MANY);
        }
        for column in &mut self.columns {
            column.clear();
        }
        for change in changes {
            let since_before = change.after.0.wrapping_sub(change.before.0);
            put(&mut self.columns[TIMES], clock.encode(change.after.0));
            put(&mut self.columns[TIMES], since_before);
            let kind = self.put_amounts(change)?;
            self.columns[0].push(kind);
            self.put_threads(&change.threads)?;
        }
        put(out, changes.len() as u64);
        for column in &self.columns[1..] {
            put(out, column.len() as u64);
        }
        for column in &self.columns {
            out.extend_from_slice(column);
        }
        Ok(())
    }

    fn put_amounts(&mut self, change: &FollowedChange) -> Result<u8, MalformedPayload> {
        let device = change.device.0;
        let column = &mut self.columns[SIZES];
        let mut kind = shape(change);
        if device == self.device {
            kind |= SAME_DEVICE;
        } else {
            put(column, device.into());
            self.device = device;
        }
        match kind & SHAPE {
            ANY_SHAPE => {
                for pool in [&change.small, &change.large] {
                    put(column, zigzag(pool.allocations));
                    put(column, zigzag(pool.frees));
                    put(column, fold_signed(pool.allocated_bytes));
                    put(column, fold_signed(pool.freed_bytes));
                    put(column, zigzag(pool.requested_bytes));
                    put(column, zigzag(pool.freed_requested_bytes));
                }
            }
            single => {
                let (bytes, requested) = single_amounts(single, change);
                put(column, fold(bytes as u64));
                put(column, zigzag(bytes.wrapping_sub(requested)));
            }
        }
        let expected = expected_live(live_of(&mut self.live, device)?, change);
        if change.live != expected {
            kind |= LIVE_FOLLOWS;
            for (live, expected) in change.live.into_iter().zip(expected) {
                put(&mut self.columns[SIZES], fold_signed(live.wrapping_sub(expected)));
            }
        }
        *live_of(&mut self.live, device)? = change.live;
        for (flag, bit) in [
            (change.counters_torn, COUNTERS_TORN),
            (change.others_possible, OTHERS_POSSIBLE),
            (change.totals_reset, TOTALS_RESET),
        ] {
            if flag {
                kind |= bit;
            }
        }
        Ok(kind)
    }

    fn put_threads(&mut self, threads: &[FollowedThread]) -> Result<(), MalformedPayload> {
        if threads.len() > FollowedChange::MAX_THREADS {
            return Err(MalformedPayload("more threads than a delta may have"));
        }
        self.columns[THREADS].push(threads.len() as u8);
        for entry in threads {
            put(&mut self.columns[THREADS], entry.thread.0.into());
            let same = entry.before == entry.after && entry.before.stack().is_some();
            // A reader of equal stacks ignores the second one. If that was not taken, the thread
            // did not run in between.
            let after = match entry.wait {
                ThreadWait::Throughout if same => reading_code(StackReading::NotRead),
                _ => reading_code(entry.after),
            };
            let [waited_before, waited_after] = entry.wait.sides();
            let mut flags = reading_code(entry.before) | after << 2;
            for (flag, bit) in [
                (entry.held_lock, HELD_LOCK),
                (same, SAME_STACK),
                (waited_before, WAITED_BEFORE),
                (waited_after, WAITED_AFTER),
            ] {
                flags |= if flag { bit } else { 0 };
            }
            self.columns[THREADS].push(flags);
            let stacks = [entry.before, entry.after].map(StackReading::stack);
            for stack in stacks.into_iter().take(if same { 1 } else { 2 }).flatten() {
                let step = i64::from(stack.0) - i64::from(self.stack);
                put(&mut self.columns[STACKS], zigzag(step));
                self.stack = stack.0;
            }
        }
        Ok(())
    }

    /// `thread` and `stack` convert the file's numbers.
    pub(crate) fn decode(
        &mut self,
        from: &mut PayloadCursor<'_>,
        clock: &mut BlockClock,
        changes: &mut Vec<FollowedChange>,
        thread: impl Fn(u32) -> Option<u32>,
        stack: impl Fn(u32) -> Option<u32>,
    ) -> Result<(), MalformedPayload> {
        changes.clear();
        let mut columns: [_; COLUMNS] = from.columns(MAX_DELTAS, TOO_MANY)?;
        let kinds = columns[0].0;
        for &kind in kinds {
            let after = clock.decode(columns[TIMES].number()?);
            let before = after.wrapping_sub(columns[TIMES].number()?);
            let mut change = self.read_amounts(kind, &mut columns[SIZES])?;
            change.before = Nanos(before);
            change.after = Nanos(after);
            self.read_threads(&mut columns, &mut change, &thread, &stack)?;
            changes.push(change);
        }
        Ok(())
    }

    fn read_amounts(
        &mut self,
        kind: u8,
        column: &mut PayloadCursor<'_>,
    ) -> Result<FollowedChange, MalformedPayload> {
        if kind & SAME_DEVICE == 0 {
            self.device = column.number32()?;
        }
        let mut change = FollowedChange {
            before: Nanos(0),
            after: Nanos(0),
            device: CudaIndex(self.device),
            small: CounterDelta::default(),
            large: CounterDelta::default(),
            live: [0; 2],
            threads: Vec::new(),
            others_possible: kind & OTHERS_POSSIBLE != 0,
            counters_torn: kind & COUNTERS_TORN != 0,
            totals_reset: kind & TOTALS_RESET != 0,
            addresses: None,
        };
        match kind & SHAPE {
            ANY_SHAPE => {
                for pool in [&mut change.small, &mut change.large] {
                    *pool = CounterDelta {
                        allocations: unzigzag(column.number()?),
                        frees: unzigzag(column.number()?),
                        allocated_bytes: unfold_signed(column.number()?),
                        freed_bytes: unfold_signed(column.number()?),
                        requested_bytes: unzigzag(column.number()?),
                        freed_requested_bytes: unzigzag(column.number()?),
                    };
                }
            }
            single @ 0..ANY_SHAPE => {
                let bytes = unfold(column.number()?) as i64;
                let requested = bytes.wrapping_sub(unzigzag(column.number()?));
                let delta = single_delta(single, bytes, requested);
                *(if single & 1 == 0 { &mut change.small } else { &mut change.large }) = delta;
            }
            _ => return Err(UNKNOWN_SHAPE),
        }
        let live = live_of(&mut self.live, self.device)?;
        change.live = expected_live(live, &change);
        if kind & LIVE_FOLLOWS != 0 {
            for live in &mut change.live {
                *live = live.wrapping_add(unfold_signed(column.number()?));
            }
        }
        *live = change.live;
        Ok(change)
    }

    fn read_threads(
        &mut self,
        columns: &mut [PayloadCursor<'_>; COLUMNS],
        change: &mut FollowedChange,
        thread: &impl Fn(u32) -> Option<u32>,
        stack: &impl Fn(u32) -> Option<u32>,
    ) -> Result<(), MalformedPayload> {
        let count = usize::from(columns[THREADS].byte()?);
        if count > FollowedChange::MAX_THREADS {
            return Err(MalformedPayload("more threads than a delta may have"));
        }
        for _ in 0..count {
            let number = columns[THREADS].number32()?;
            let flags = columns[THREADS].byte()?;
            let before = self.read_reading(flags & 3, &mut columns[STACKS], stack)?;
            let after = match flags & SAME_STACK {
                0 => self.read_reading(flags >> 2 & 3, &mut columns[STACKS], stack)?,
                _ => before,
            };
            let held_lock = flags & HELD_LOCK != 0;
            let sides = [WAITED_BEFORE, WAITED_AFTER].map(|bit| flags & bit != 0);
            let is_same = flags & SAME_STACK != 0 && before.stack().is_some();
            let ran_not = sides == [true; 2] && is_same && flags >> 2 & 3 == 0;
            let wait = if ran_not { ThreadWait::Throughout } else { ThreadWait::from(sides) };
            match thread(number) {
                Some(known) => change.threads.push(FollowedThread {
                    thread: ThreadId(known),
                    before,
                    after,
                    held_lock,
                    wait,
                }),
                None => change.others_possible = true,
            }
        }
        Ok(())
    }

    fn read_reading(
        &mut self,
        code: u8,
        column: &mut PayloadCursor<'_>,
        stack: &impl Fn(u32) -> Option<u32>,
    ) -> Result<StackReading, MalformedPayload> {
        Ok(match code {
            0 => StackReading::NotRead,
            1 => StackReading::Torn,
            2 => StackReading::NoFrames,
            _ => {
                let number = i64::from(self.stack).wrapping_add(unzigzag(column.number()?));
                self.stack = u32::try_from(number)
                    .map_err(|_| MalformedPayload("a stack's number beyond all numbers"))?;
                let known = stack(self.stack).map(StackId);
                known.map_or(StackReading::NotRead, StackReading::Whole)
            }
        })
    }
}

/// The most compact shape for `change`.
fn shape(change: &FollowedChange) -> u8 {
    (0..ANY_SHAPE)
        .find(|&single| {
            let (bytes, requested) = single_amounts(single, change);
            let delta = single_delta(single, bytes, requested);
            let none = CounterDelta::default();
            [change.small, change.large]
                == if single & 1 == 0 { [delta, none] } else { [none, delta] }
        })
        .unwrap_or(ANY_SHAPE)
}

/// Bytes and requested bytes.
fn single_amounts(single: u8, change: &FollowedChange) -> (i64, i64) {
    let pool = if single & 1 == 0 { &change.small } else { &change.large };
    match single & 2 {
        0 => (pool.allocated_bytes, pool.requested_bytes),
        _ => (pool.freed_bytes, pool.freed_requested_bytes),
    }
}

fn single_delta(single: u8, bytes: i64, requested: i64) -> CounterDelta {
    let none = CounterDelta::default();
    match single & 2 {
        0 => CounterDelta {
            allocations: 1,
            allocated_bytes: bytes,
            requested_bytes: requested,
            ..none
        },
        _ => {
            CounterDelta { frees: 1, freed_bytes: bytes, freed_requested_bytes: requested, ..none }
        }
    }
}

fn expected_live(before: &[i64; 2], change: &FollowedChange) -> [i64; 2] {
    let after = |live: i64, delta: &CounterDelta| {
        live.wrapping_add(delta.allocated_bytes).wrapping_sub(delta.freed_bytes)
    };
    [after(before[0], &change.small), after(before[1], &change.large)]
}

fn live_of(all: &mut Vec<[i64; 2]>, device: u32) -> Result<&mut [i64; 2], MalformedPayload> {
    let index = device as usize;
    if index >= MAX_DEVICES {
        return Err(MalformedPayload("more devices than a trace may have"));
    }
    if index >= all.len() {
        all.resize(index + 1, [0; 2]);
    }
    Ok(&mut all[index])
}

fn reading_code(reading: StackReading) -> u8 {
    match reading {
        StackReading::NotRead => 0,
        StackReading::Torn => 1,
        StackReading::NoFrames => 2,
        StackReading::Whole(_) => 3,
    }
}

#[cfg(test)]
#[path = "followed_tests.rs"]
mod tests;
