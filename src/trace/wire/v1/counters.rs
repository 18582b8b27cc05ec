//! Encodes each counter as its difference from a prediction by related counters.
//!
//! Of 108 statistics, the pool `all` sums the other two, `current` moves by allocated less freed,
//! and active memory mostly follows allocated memory. Only deviations are written.

use super::varint::{PayloadCursor, fold_signed, put, unfold_signed, unzigzag, zigzag};
use super::{MAX_DEVICES, MalformedPayload};
use crate::model::{AllocatorCounters, Stat};

const CURRENT: usize = 0;
const PEAK: usize = 1;
const ALLOCATED: usize = 2;
const FREED: usize = 3;
const FIELDS: usize = 4;

const ALL: usize = 0;
const SMALL: usize = 1;
const LARGE: usize = 2;
const ROW: usize = 3 * FIELDS;

const ALLOCATION: usize = 0;
const SEGMENT: usize = 1;
const ACTIVE: usize = 2;
const ALLOCATED_BYTES: usize = 4;
const RESERVED_BYTES: usize = 5;
const ACTIVE_BYTES: usize = 6;
const INACTIVE_SPLIT_BYTES: usize = 7;
const REQUESTED_BYTES: usize = 8;
const METRICS: usize = 9;

/// Two more statistics, six single numbers.
const OVERSIZE: usize = METRICS * ROW;
const SINGLES: usize = OVERSIZE + 2 * FIELDS;
const NUMBERS: usize = SINGLES + 6;
const DEVICE_ALLOCATIONS: usize = SINGLES + 3;
const DEVICE_FREES: usize = SINGLES + 4;
const ROWS: usize = NUMBERS.div_ceil(ROW);

/// `present`: which optional counters exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CounterRow {
    numbers: [i64; NUMBERS],
    present: u8,
}

/// As known to writer and reader of a block.
#[derive(Debug, Default)]
pub(crate) struct CountersState {
    devices: Vec<(u32, CounterRow)>,
}

impl CountersState {
    /// At a block's start.
    pub(crate) fn reset(&mut self) {
        self.devices.clear();
    }

    fn row(&mut self, device: u32) -> Result<&mut CounterRow, MalformedPayload> {
        let place = match self.devices.iter().position(|(d, _)| *d == device) {
            Some(place) => place,
            None if self.devices.len() >= MAX_DEVICES => {
                return Err(MalformedPayload("a block has counters of too many devices"));
            }
            None => {
                let zero = CounterRow { numbers: [0; NUMBERS], present: 0 };
                self.devices.push((device, zero));
                self.devices.len() - 1
            }
        };
        Ok(&mut self.devices[place].1)
    }

    pub(crate) fn encode(
        &mut self,
        device: u32,
        counters: &AllocatorCounters,
        out: &mut Vec<u8>,
    ) -> Result<(), MalformedPayload> {
        let before = self.row(device)?;
        let now = flatten(counters);
        out.push(now.present);
        let mut coded = [0u64; NUMBERS];
        let mut delta = [0i64; NUMBERS];
        walk(&before.numbers, &mut delta, |place, index, expected| {
            let step = now.numbers[index].wrapping_sub(before.numbers[index]);
            coded[place] = compress(index, step.wrapping_sub(expected));
            Ok(step)
        })?;
        let mut masks = [0u64; ROWS];
        for (mask, row) in masks.iter_mut().zip(coded.chunks(ROW)) {
            *mask = bits(row);
        }
        put(out, bits(&masks));
        for &mask in masks.iter().filter(|&&mask| mask != 0) {
            put(out, mask);
        }
        for &c in coded.iter().filter(|&&c| c != 0) {
            put(out, c);
        }
        *before = now;
        Ok(())
    }

    pub(crate) fn decode(
        &mut self,
        device: u32,
        counters: &mut AllocatorCounters,
        from: &mut PayloadCursor<'_>,
    ) -> Result<(), MalformedPayload> {
        let before = self.row(device)?;
        let present = from.byte()?;
        let rows = from.number()?;
        let mut masks = [0u64; ROWS];
        for (i, mask) in masks.iter_mut().enumerate() {
            if rows >> i & 1 != 0 {
                *mask = from.number()?;
            }
        }
        let mut delta = [0i64; NUMBERS];
        walk(&before.numbers, &mut delta, |place, index, expected| {
            if masks[place / ROW] >> (place % ROW) & 1 == 0 {
                return Ok(expected);
            }
            Ok(expected.wrapping_add(expand(index, from.number()?)))
        })?;
        for (number, step) in before.numbers.iter_mut().zip(delta) {
            *number = number.wrapping_add(step);
        }
        before.present = present;
        unflatten(before, counters);
        Ok(())
    }
}

/// One bit per number that is not 0, lowest first.
fn bits(numbers: &[u64]) -> u64 {
    let bit = |(i, &n): (usize, &u64)| u64::from(n != 0) << i;
    numbers.iter().enumerate().map(bit).sum()
}

/// Visits the numbers as written, each after those that predict it.
///
/// `number` gets position, index and expected difference; the real one, which it returns, goes into
/// `delta`.
#[inline]
fn walk(
    before: &[i64; NUMBERS],
    delta: &mut [i64; NUMBERS],
    mut number: impl FnMut(usize, usize, i64) -> Result<i64, MalformedPayload>,
) -> Result<(), MalformedPayload> {
    let mut place = 0;
    let mut next = |delta: &mut [i64; NUMBERS], index: usize, expected: i64| {
        delta[index] = number(place, index, expected)?;
        place += 1;
        Ok(())
    };
    for metric in 0..METRICS {
        let row = metric * ROW;
        let [all, small, large] = [ALL, SMALL, LARGE].map(|pool| row + pool * FIELDS);
        for stat in [small, large] {
            for field in [ALLOCATED, FREED] {
                let expected = expected_flow(metric, stat, field, delta);
                next(delta, stat + field, expected)?;
            }
        }
        for field in [ALLOCATED, FREED] {
            let both = delta[small + field].wrapping_add(delta[large + field]);
            next(delta, all + field, both)?;
        }
        for stat in [small, large, all] {
            let expected = grown(delta, stat);
            next(delta, stat + CURRENT, expected)?;
        }
        for stat in [small, large, all] {
            let current = before[stat + CURRENT].wrapping_add(delta[stat + CURRENT]);
            let peak = before[stat + PEAK];
            next(delta, stat + PEAK, current.max(peak).wrapping_sub(peak))?;
        }
    }
    for index in OVERSIZE..NUMBERS {
        let expected = match index {
            DEVICE_ALLOCATIONS => delta[SEGMENT * ROW + ALLOCATED],
            DEVICE_FREES => delta[SEGMENT * ROW + FREED],
            _ => 0,
        };
        next(delta, index, expected)?;
    }
    Ok(())
}

fn grown(delta: &[i64; NUMBERS], stat: usize) -> i64 {
    delta[stat + ALLOCATED].wrapping_sub(delta[stat + FREED])
}

/// Of what a small or large pool allocated or freed.
fn expected_flow(metric: usize, stat: usize, field: usize, delta: &[i64; NUMBERS]) -> i64 {
    let same_place = |other: usize| stat - (metric - other) * ROW;
    match metric {
        ACTIVE => delta[same_place(ALLOCATION) + field],
        ACTIVE_BYTES | REQUESTED_BYTES => delta[same_place(ALLOCATED_BYTES) + field],
        // Reserved memory is active, inactive in split segments, or (seldom) wholly inactive.
        INACTIVE_SPLIT_BYTES if field == FREED => delta[stat + ALLOCATED]
            .wrapping_add(grown(delta, same_place(ACTIVE_BYTES)))
            .wrapping_sub(grown(delta, same_place(RESERVED_BYTES))),
        // Iterations mostly free what they allocate.
        _ if field == FREED => delta[stat + ALLOCATED],
        _ => 0,
    }
}

/// Counts bytes in units of 512.
fn in_units(index: usize) -> bool {
    (ALLOCATED_BYTES * ROW..REQUESTED_BYTES * ROW).contains(&index)
}

fn compress(index: usize, value: i64) -> u64 {
    if in_units(index) { fold_signed(value) } else { zigzag(value) }
}

fn expand(index: usize, coded: u64) -> i64 {
    if in_units(index) { unfold_signed(coded) } else { unzigzag(coded) }
}

fn flatten(counters: &AllocatorCounters) -> CounterRow {
    let mut row = CounterRow { numbers: [0; NUMBERS], present: 0 };
    let oversize = [&counters.oversize_allocations, &counters.oversize_segments];
    let stats = counters.stats.iter().flatten().chain(oversize);
    for (slot, stat) in row.numbers.chunks_exact_mut(FIELDS).zip(stats) {
        slot.copy_from_slice(&[stat.current, stat.peak, stat.allocated, stat.freed]);
    }
    let optional = [
        counters.num_sync_all_streams,
        counters.num_device_alloc,
        counters.num_device_free,
        counters.max_split_size,
    ];
    row.numbers[SINGLES] = counters.num_alloc_retries;
    row.numbers[SINGLES + 1] = counters.num_ooms;
    for (i, value) in optional.into_iter().enumerate() {
        row.numbers[SINGLES + 2 + i] = value.unwrap_or(0);
        row.present |= u8::from(value.is_some()) << i;
    }
    row
}

fn unflatten(row: &CounterRow, counters: &mut AllocatorCounters) {
    let AllocatorCounters { stats, oversize_allocations, oversize_segments, .. } = counters;
    let places = stats.iter_mut().flatten().chain([oversize_allocations, oversize_segments]);
    for (slot, stat) in row.numbers.chunks_exact(FIELDS).zip(places) {
        *stat = Stat {
            current: slot[CURRENT],
            peak: slot[PEAK],
            allocated: slot[ALLOCATED],
            freed: slot[FREED],
        };
    }
    let single = |i: usize| row.numbers[SINGLES + i];
    let optional = |i: usize| (row.present >> i & 1 != 0).then(|| single(2 + i));
    counters.num_alloc_retries = single(0);
    counters.num_ooms = single(1);
    counters.num_sync_all_streams = optional(0);
    counters.num_device_alloc = optional(1);
    counters.num_device_free = optional(2);
    counters.max_split_size = optional(3);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counters() -> impl Strategy<Value = AllocatorCounters> {
        let number = (any::<i64>(), 0..64u32).prop_map(|(v, shift)| v >> shift);
        (proptest::collection::vec(number, NUMBERS), any::<u8>()).prop_map(|(numbers, present)| {
            let mut row = CounterRow { numbers: [0; NUMBERS], present };
            row.numbers.copy_from_slice(&numbers);
            let mut counters = AllocatorCounters::default();
            unflatten(&row, &mut counters);
            counters
        })
    }

    proptest! {
        #[test]
        fn every_sequence_of_counters_reads_back(
            sequence in proptest::collection::vec((0..3u32, counters()), 0..10),
        ) {
            let (mut write, mut read) = (CountersState::default(), CountersState::default());
            let mut copy = AllocatorCounters::default();
            for (device, counters) in sequence {
                let mut bytes = Vec::new();
                prop_assert_eq!(write.encode(device, &counters, &mut bytes), Ok(()));
                let mut cursor = PayloadCursor(&bytes);
                prop_assert_eq!(read.decode(device, &mut copy, &mut cursor), Ok(()));
                prop_assert_eq!(&copy, &counters);
                prop_assert!(cursor.is_empty());
            }
        }
    }

    #[test]
    fn every_number_is_written_once_after_its_predictors() {
        let mut order = Vec::new();
        let mut delta = [1 << 40; NUMBERS];
        walk(&[0; NUMBERS], &mut delta, |place, index, expected| {
            assert_eq!(place, order.len());
            assert_eq!(expected, 0, "number {index} at {place}");
            order.push(index);
            Ok(0)
        })
        .unwrap();
        order.sort_unstable();
        assert_eq!(order, (0..NUMBERS).collect::<Vec<_>>());
    }

    #[test]
    fn an_allocation_of_one_block_is_small() {
        let mut state = CountersState::default();
        let mut counters = AllocatorCounters::default();
        state.encode(0, &counters, &mut Vec::new()).unwrap();
        for metric in [ALLOCATION, ACTIVE, ALLOCATED_BYTES, ACTIVE_BYTES, REQUESTED_BYTES] {
            let amount = if metric >= ALLOCATED_BYTES { 1 << 20 } else { 1 };
            for pool in [ALL, LARGE] {
                let stat = &mut counters.stats[metric][pool];
                stat.current += amount;
                stat.peak += amount;
                stat.allocated += amount;
            }
        }
        let mut bytes = Vec::new();
        state.encode(0, &counters, &mut bytes).unwrap();
        assert!(bytes.len() <= 17, "30 numbers changed, {} bytes", bytes.len());
    }
}
