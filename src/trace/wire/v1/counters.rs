//! Counters: each written as its difference from what its relatives let one expect.
//!
//! The 108 statistics are far from independent: the pool `all` is the sum of the other two, `current`
//! moves by what was allocated less what was freed, active memory mostly moves with allocated memory.
//! Only what departs from that is written.

use super::varint::{Cursor, fold_signed, put, unfold_signed, unzigzag, zigzag};
use super::{MAX_DEVICES, Malformed};
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
const ROWS: usize = NUMBERS.div_ceil(ROW);

/// The order in which the numbers of a metric are written: each after those it is expected from.
const ORDER: [(usize, usize); ROW] = [
    (SMALL, ALLOCATED),
    (SMALL, FREED),
    (LARGE, ALLOCATED),
    (LARGE, FREED),
    (ALL, ALLOCATED),
    (ALL, FREED),
    (SMALL, CURRENT),
    (LARGE, CURRENT),
    (ALL, CURRENT),
    (SMALL, PEAK),
    (LARGE, PEAK),
    (ALL, PEAK),
];

/// All counters as one row of numbers, and which of the optional ones are there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    numbers: [i64; NUMBERS],
    present: u8,
}

/// The counters before, per device, as both writer and reader of a block know them.
#[derive(Debug, Default)]
pub(crate) struct CountersState {
    devices: Vec<(u32, Row)>,
}

impl CountersState {
    /// Forgets the counters before: what a block's start does.
    pub(crate) fn reset(&mut self) {
        self.devices.clear();
    }

    fn row(&mut self, device: u32) -> Result<&mut Row, Malformed> {
        let place = match self.devices.iter().position(|(d, _)| *d == device) {
            Some(place) => place,
            None if self.devices.len() >= MAX_DEVICES => {
                return Err(Malformed("a block has counters of too many devices"));
            }
            None => {
                let zero = Row { numbers: [0; NUMBERS], present: 0 };
                self.devices.push((device, zero));
                self.devices.len() - 1
            }
        };
        Ok(&mut self.devices[place].1)
    }

    /// Appends `counters` relative to those before of the same device.
    pub(crate) fn encode(
        &mut self,
        device: u32,
        counters: &AllocatorCounters,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let before = self.row(device)?;
        let now = flatten(counters);
        out.push(now.present);
        let mut coded = [0u64; NUMBERS];
        let mut delta = [0i64; NUMBERS];
        for (place, slot) in coded.iter_mut().enumerate() {
            let index = index_at(place);
            let step = now.numbers[index].wrapping_sub(before.numbers[index]);
            *slot = compress(index, step.wrapping_sub(expect(index, before, &delta)));
            delta[index] = step;
        }
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

    /// Reads counters of `device` into `counters`.
    pub(crate) fn decode(
        &mut self,
        device: u32,
        counters: &mut AllocatorCounters,
        from: &mut Cursor<'_>,
    ) -> Result<(), Malformed> {
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
        for place in 0..NUMBERS {
            let index = index_at(place);
            let mut step = expect(index, before, &delta);
            if masks[place / ROW] >> (place % ROW) & 1 != 0 {
                step = step.wrapping_add(expand(index, from.number()?));
            }
            delta[index] = step;
        }
        for (number, step) in before.numbers.iter_mut().zip(delta) {
            *number = number.wrapping_add(step);
        }
        before.present = present;
        unflatten(before, counters);
        Ok(())
    }
}

/// A bit for each that is not 0, the first being the lowest.
fn bits(numbers: &[u64]) -> u64 {
    let bit = |(i, &n): (usize, &u64)| u64::from(n != 0) << i;
    numbers.iter().enumerate().map(bit).sum()
}

/// The number written at `place`.
fn index_at(place: usize) -> usize {
    if place >= OVERSIZE {
        return place;
    }
    let (pool, field) = ORDER[place % ROW];
    place / ROW * ROW + pool * FIELDS + field
}

/// By how much the number at `index` is expected to differ from the one before, given the
/// differences of the numbers written earlier.
fn expect(index: usize, before: &Row, delta: &[i64; NUMBERS]) -> i64 {
    if index >= SINGLES {
        return match index - SINGLES {
            3 => delta[SEGMENT * ROW + ALLOCATED],
            4 => delta[SEGMENT * ROW + FREED],
            _ => 0,
        };
    }
    if index >= OVERSIZE {
        return 0;
    }
    let (metric, field) = (index / ROW, index % FIELDS);
    let pool = index % ROW / FIELDS;
    let stat = index - field;
    match field {
        CURRENT => delta[stat + ALLOCATED].wrapping_sub(delta[stat + FREED]),
        PEAK => {
            let current = before.numbers[stat].wrapping_add(delta[stat]);
            let peak = before.numbers[index];
            current.max(peak).wrapping_sub(peak)
        }
        _ if pool == ALL => delta[index + FIELDS].wrapping_add(delta[index + 2 * FIELDS]),
        // Reserved memory is active, inactive in split segments, or (seldom) wholly inactive.
        FREED if metric == INACTIVE_SPLIT_BYTES => {
            let same_place = |metric: usize| stat - (INACTIVE_SPLIT_BYTES - metric) * ROW;
            let grown = |stat: usize| delta[stat + ALLOCATED].wrapping_sub(delta[stat + FREED]);
            delta[stat + ALLOCATED]
                .wrapping_add(grown(same_place(ACTIVE_BYTES)))
                .wrapping_sub(grown(same_place(RESERVED_BYTES)))
        }
        _ => match metric {
            ACTIVE => delta[index - (ACTIVE - ALLOCATION) * ROW],
            ACTIVE_BYTES => delta[index - (ACTIVE_BYTES - ALLOCATED_BYTES) * ROW],
            REQUESTED_BYTES => delta[index - (REQUESTED_BYTES - ALLOCATED_BYTES) * ROW],
            // What a step allocates it mostly frees.
            _ if field == FREED => delta[stat + ALLOCATED],
            _ => 0,
        },
    }
}

/// Whether the number at `index` counts bytes in units of 512.
fn in_units(index: usize) -> bool {
    (ALLOCATED_BYTES * ROW..REQUESTED_BYTES * ROW).contains(&index)
}

fn compress(index: usize, value: i64) -> u64 {
    if in_units(index) { fold_signed(value) } else { zigzag(value) }
}

fn expand(index: usize, coded: u64) -> i64 {
    if in_units(index) { unfold_signed(coded) } else { unzigzag(coded) }
}

fn flatten(counters: &AllocatorCounters) -> Row {
    let mut row = Row { numbers: [0; NUMBERS], present: 0 };
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

fn unflatten(row: &Row, counters: &mut AllocatorCounters) {
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
            let mut row = Row { numbers: [0; NUMBERS], present };
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
                let mut cursor = Cursor(&bytes);
                prop_assert_eq!(read.decode(device, &mut copy, &mut cursor), Ok(()));
                prop_assert_eq!(&copy, &counters);
                prop_assert!(cursor.is_empty());
            }
        }
    }

    #[test]
    fn every_number_is_written_once_and_after_those_it_is_expected_from() {
        let mut seen = [false; NUMBERS];
        for place in 0..NUMBERS {
            let index = index_at(place);
            assert!(!seen[index]);
            let mut poisoned = [0; NUMBERS];
            for (slot, &seen) in poisoned.iter_mut().zip(&seen) {
                *slot = if seen { 0 } else { 1 << 40 };
            }
            let zero = Row { numbers: [0; NUMBERS], present: 0 };
            assert_eq!(expect(index, &zero, &poisoned), 0, "number {index} at {place}");
            seen[index] = true;
        }
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
