//! Encodes batches of exact events by column.
//!
//! A training loop repeats sizes, addresses and sites in each iteration; compression finds that in
//! separate columns.

use super::varint::{PayloadCursor, fold, fold_signed, put, unfold, unfold_signed};
use super::{BlockClock, MAX_DEVICES, MalformedPayload};
use crate::model::{
    AddressSpace, CounterSnapshot, CudaIndex, DriverEvent, Event, EventKind, MemoryKind, Nanos,
    SiteId,
};

/// Bounds a reader's memory.
pub(crate) const MAX_EVENTS: usize = 1 << 16;
const COLUMNS: usize = 7;
const TIMES: usize = 1;
const PLACES: usize = 2;
const SITES: usize = 3;
const ADDRESSES: usize = 4;
const SIZES: usize = 5;
const LEVELS: usize = 6;

/// Kinds in the low three bits.
const ALLOCATED_TORCH: u8 = 0;
const ALLOCATED: u8 = 1;
const FREED_TORCH: u8 = 2;
const FREED: u8 = 3;
const FAILED: u8 = 4;
const MARKED: u8 = 5;
const CHANGE: u8 = 7;
const HAS_SITE: u8 = 8;
const HAS_LEVELS: u8 = 16;
const PEAK_FOLLOWS: u8 = 32;
const REST_FOLLOWS: u8 = 64;
const SAME_DEVICE: u8 = 128;
/// Only with [`FREED_TORCH`]; with [`ALLOCATED_TORCH`] the bit is [`HAS_LEVELS`].
const IN_BACKWARD: u8 = 16;

/// The last column, block sizes: no block, one of the requested size rounded up to `UNIT`, or one
/// whose size follows.
const NO_BLOCK: u64 = 0;
const ROUNDED_BLOCK: u64 = 1;
const BLOCK_FOLLOWS: u64 = 2;
/// Of the format, whatever PyTorch rounds to.
const UNIT: u64 = 512;

const TOO_MANY: MalformedPayload = MalformedPayload("more events than fit into one record");
const UNKNOWN_KIND: MalformedPayload = MalformedPayload("an event of an unknown kind");

/// The next event is relative to it.
#[derive(Debug, Default)]
pub(crate) struct EventsState {
    columns: [Vec<u8>; COLUMNS],
    address: u64,
    device: u32,
    levels: Vec<CounterSnapshot>,
    blocks: Vec<u8>,
    has_blocks: bool,
}

impl EventsState {
    /// At a block's start.
    pub(crate) fn reset(&mut self) {
        self.address = 0;
        self.device = 0;
        self.levels.clear();
    }

    pub(crate) fn encode(
        &mut self,
        events: &[Event],
        clock: &mut BlockClock,
        out: &mut Vec<u8>,
    ) -> Result<(), MalformedPayload> {
        if events.len() > MAX_EVENTS {
            return Err(TOO_MANY);
        }
        for column in &mut self.columns {
            column.clear();
        }
        self.blocks.clear();
        self.has_blocks = false;
        for event in events {
            let time = clock.encode(event.time.0);
            put(&mut self.columns[TIMES], time);
            if let Some(site) = event.site {
                put(&mut self.columns[SITES], site.0.into());
            }
            let site = if event.site.is_some() { HAS_SITE } else { 0 };
            let kind = site | self.change(&event.change)?;
            self.columns[0].push(kind);
        }
        put(out, events.len() as u64);
        for column in &self.columns[1..] {
            put(out, column.len() as u64);
        }
        for column in &self.columns {
            out.extend_from_slice(column);
        }
        if self.has_blocks {
            out.extend_from_slice(&self.blocks);
        }
        Ok(())
    }

    fn put_block(&mut self, requested: u64, block: Option<u64>) {
        self.has_blocks |= block.is_some();
        match block {
            None => put(&mut self.blocks, NO_BLOCK),
            Some(block) if block == rounded(requested) => put(&mut self.blocks, ROUNDED_BLOCK),
            Some(block) => {
                put(&mut self.blocks, BLOCK_FOLLOWS);
                put(&mut self.blocks, fold(block));
            }
        }
    }

    fn change(&mut self, change: &EventKind) -> Result<u8, MalformedPayload> {
        Ok(match *change {
            EventKind::Allocated { memory_kind, address, size, levels, block } => {
                self.put_address(address);
                put(&mut self.columns[SIZES], fold(size));
                match memory_kind {
                    MemoryKind::Torch(device) => {
                        self.put_block(size, block);
                        let same = self.put_device(device);
                        let levels = match levels {
                            Some(levels) => HAS_LEVELS | self.put_levels(device.0, levels)?,
                            None => 0,
                        };
                        ALLOCATED_TORCH | same | levels
                    }
                    _ if levels.is_some() || block.is_some() => {
                        return Err(MalformedPayload(
                            "PyTorch's counters or block with memory that is not its own",
                        ));
                    }
                    other => {
                        put_memory_kind(&mut self.columns[PLACES], other);
                        ALLOCATED
                    }
                }
            }
            EventKind::Freed { memory_kind: AddressSpace::Torch, address, in_backward } => {
                self.put_address(address);
                FREED_TORCH | if in_backward { IN_BACKWARD } else { 0 }
            }
            EventKind::Freed { in_backward: true, .. } => {
                return Err(MalformedPayload("memory that is not PyTorch's, freed by its engine"));
            }
            EventKind::Freed { memory_kind, address, .. } => {
                self.put_address(address);
                self.columns[PLACES].push(freed_code(memory_kind));
                FREED
            }
            EventKind::Failed { memory_kind, size, code } => {
                put_memory_kind(&mut self.columns[PLACES], memory_kind);
                put(&mut self.columns[PLACES], code.into());
                put(&mut self.columns[SIZES], fold(size));
                FAILED
            }
            EventKind::Marked(mark) => {
                self.columns[PLACES].push(match mark {
                    DriverEvent::ContextCreated => 0,
                    DriverEvent::ModuleLoaded => 1,
                    DriverEvent::LibraryLoaded => 2,
                });
                MARKED
            }
        })
    }

    fn put_address(&mut self, address: u64) {
        let delta = address.wrapping_sub(self.address) as i64;
        put(&mut self.columns[ADDRESSES], fold_signed(delta));
        self.address = address;
    }

    fn put_device(&mut self, device: CudaIndex) -> u8 {
        if device.0 == self.device {
            return SAME_DEVICE;
        }
        put(&mut self.columns[PLACES], device.0.into());
        self.device = device.0;
        0
    }

    fn put_levels(&mut self, device: u32, now: CounterSnapshot) -> Result<u8, MalformedPayload> {
        let before = *self.levels_of(device)?;
        let column = &mut self.columns[LEVELS];
        put(column, fold_signed(now.allocated.wrapping_sub(before.allocated)));
        let mut flags = 0;
        let peak = before.peak.max(now.allocated);
        if now.peak != peak {
            flags |= PEAK_FOLLOWS;
            put(column, fold_signed(now.peak.wrapping_sub(peak)));
        }
        let active = now.allocated.wrapping_add(before.active.wrapping_sub(before.allocated));
        if now.reserved != before.reserved || now.active != active {
            flags |= REST_FOLLOWS;
            put(column, fold_signed(now.reserved.wrapping_sub(before.reserved)));
            put(column, fold_signed(now.active.wrapping_sub(active)));
        }
        *self.levels_of(device)? = now;
        Ok(flags)
    }

    fn levels_of(&mut self, device: u32) -> Result<&mut CounterSnapshot, MalformedPayload> {
        let index = device as usize;
        if index >= MAX_DEVICES {
            return Err(MalformedPayload("more devices than a trace may have"));
        }
        if index >= self.levels.len() {
            self.levels.resize(index + 1, CounterSnapshot::default());
        }
        Ok(&mut self.levels[index])
    }

    /// `site` converts the file's numbers.
    pub(crate) fn decode(
        &mut self,
        from: &mut PayloadCursor<'_>,
        clock: &mut BlockClock,
        events: &mut Vec<Event>,
        site: impl Fn(u32) -> Option<u32>,
    ) -> Result<(), MalformedPayload> {
        events.clear();
        let mut columns: [_; COLUMNS] = from.columns(MAX_EVENTS, TOO_MANY)?;
        let kinds = columns[0].0;
        for &kind in kinds {
            let time = Nanos(clock.decode(columns[TIMES].number()?));
            let number = match kind & HAS_SITE {
                0 => None,
                _ => Some(columns[SITES].number32()?),
            };
            let change = self.read_change(kind, &mut columns)?;
            events.push(Event { time, change, site: number.and_then(&site).map(SiteId) });
        }
        if from.is_empty() {
            return Ok(());
        }
        for event in events {
            if let EventKind::Allocated { memory_kind: MemoryKind::Torch(_), size, block, .. } =
                &mut event.change
            {
                *block = match from.number()? {
                    NO_BLOCK => None,
                    ROUNDED_BLOCK => Some(rounded(*size)),
                    BLOCK_FOLLOWS => Some(unfold(from.number()?)),
                    _ => return Err(MalformedPayload("a block of an unknown kind")),
                };
            }
        }
        Ok(())
    }

    fn read_change(
        &mut self,
        kind: u8,
        columns: &mut [PayloadCursor<'_>; COLUMNS],
    ) -> Result<EventKind, MalformedPayload> {
        Ok(match kind & CHANGE {
            ALLOCATED_TORCH => {
                let address = self.address(columns)?;
                let size = unfold(columns[SIZES].number()?);
                if kind & SAME_DEVICE == 0 {
                    self.device = columns[PLACES].number32()?;
                }
                let device = self.device;
                let levels = match kind & HAS_LEVELS {
                    0 => None,
                    _ => Some(self.read_levels(device, kind, &mut columns[LEVELS])?),
                };
                let memory_kind = MemoryKind::Torch(CudaIndex(device));
                EventKind::Allocated { memory_kind, address, size, levels, block: None }
            }
            ALLOCATED => {
                let address = self.address(columns)?;
                let size = unfold(columns[SIZES].number()?);
                let memory_kind = get_memory_kind(&mut columns[PLACES])?;
                EventKind::Allocated { memory_kind, address, size, levels: None, block: None }
            }
            FREED_TORCH => {
                let in_backward = kind & IN_BACKWARD != 0;
                EventKind::Freed {
                    memory_kind: AddressSpace::Torch,
                    address: self.address(columns)?,
                    in_backward,
                }
            }
            FREED => {
                let address = self.address(columns)?;
                let memory_kind = freed(columns[PLACES].byte()?)?;
                EventKind::Freed { memory_kind, address, in_backward: false }
            }
            FAILED => {
                let memory_kind = get_memory_kind(&mut columns[PLACES])?;
                let code = columns[PLACES].number32()?;
                EventKind::Failed { memory_kind, size: unfold(columns[SIZES].number()?), code }
            }
            MARKED => EventKind::Marked(match columns[PLACES].byte()? {
                0 => DriverEvent::ContextCreated,
                1 => DriverEvent::ModuleLoaded,
                2 => DriverEvent::LibraryLoaded,
                _ => return Err(UNKNOWN_KIND),
            }),
            _ => return Err(UNKNOWN_KIND),
        })
    }

    fn address(
        &mut self,
        columns: &mut [PayloadCursor<'_>; COLUMNS],
    ) -> Result<u64, MalformedPayload> {
        let delta = unfold_signed(columns[ADDRESSES].number()?);
        self.address = self.address.wrapping_add(delta as u64);
        Ok(self.address)
    }

    fn read_levels(
        &mut self,
        device: u32,
        kind: u8,
        column: &mut PayloadCursor<'_>,
    ) -> Result<CounterSnapshot, MalformedPayload> {
        let before = *self.levels_of(device)?;
        let mut next = || column.number().map(unfold_signed);
        let allocated = before.allocated.wrapping_add(next()?);
        let mut now = CounterSnapshot {
            allocated,
            peak: before.peak.max(allocated),
            reserved: before.reserved,
            active: allocated.wrapping_add(before.active.wrapping_sub(before.allocated)),
        };
        if kind & PEAK_FOLLOWS != 0 {
            now.peak = now.peak.wrapping_add(next()?);
        }
        if kind & REST_FOLLOWS != 0 {
            now.reserved = now.reserved.wrapping_add(next()?);
            now.active = now.active.wrapping_add(next()?);
        }
        *self.levels_of(device)? = now;
        Ok(now)
    }
}

/// The usual block size.
fn rounded(requested: u64) -> u64 {
    requested.max(1).checked_next_multiple_of(UNIT).unwrap_or(u64::MAX)
}

/// The kind; then, if it may have a device, 0 or the device's number plus 1.
pub(super) fn put_memory_kind(out: &mut Vec<u8>, memory_kind: MemoryKind) {
    let (code, device) = match memory_kind {
        MemoryKind::Torch(device) => (0, Some(Some(device))),
        MemoryKind::Driver(device) => (1, Some(device)),
        MemoryKind::Physical(device) => (2, Some(device)),
        MemoryKind::Mapping => (3, None),
        MemoryKind::Managed => (4, None),
        MemoryKind::PinnedHost => (5, None),
    };
    out.push(code);
    if let Some(device) = device {
        put(out, device.map_or(0, |d| u64::from(d.0) + 1));
    }
}

pub(super) fn get_memory_kind(
    from: &mut PayloadCursor<'_>,
) -> Result<MemoryKind, MalformedPayload> {
    let code = from.byte()?;
    let mut device = || -> Result<Option<CudaIndex>, MalformedPayload> {
        let number = from.number()?;
        let index =
            |n: u64| u32::try_from(n).map_err(|_| MalformedPayload("a device beyond all numbers"));
        number.checked_sub(1).map(index).transpose().map(|index| index.map(CudaIndex))
    };
    Ok(match code {
        0 => MemoryKind::Torch(device()?.ok_or(UNKNOWN_KIND)?),
        1 => MemoryKind::Driver(device()?),
        2 => MemoryKind::Physical(device()?),
        3 => MemoryKind::Mapping,
        4 => MemoryKind::Managed,
        5 => MemoryKind::PinnedHost,
        _ => return Err(UNKNOWN_KIND),
    })
}

fn freed_code(memory_kind: AddressSpace) -> u8 {
    match memory_kind {
        AddressSpace::Torch => 0,
        AddressSpace::Driver => 1,
        AddressSpace::Physical => 2,
        AddressSpace::Mapping => 3,
        AddressSpace::PinnedHost => 5,
    }
}

fn freed(code: u8) -> Result<AddressSpace, MalformedPayload> {
    Ok(match code {
        0 => AddressSpace::Torch,
        1 => AddressSpace::Driver,
        2 => AddressSpace::Physical,
        3 => AddressSpace::Mapping,
        5 => AddressSpace::PinnedHost,
        _ => return Err(UNKNOWN_KIND),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn events() -> Vec<Event> {
        let torch = |device| MemoryKind::Torch(CudaIndex(device));
        let levels = |allocated, peak, reserved, active| {
            Some(CounterSnapshot { allocated, peak, reserved, active })
        };
        let allocated = |memory_kind, address, size, levels| EventKind::Allocated {
            memory_kind,
            address,
            size,
            levels,
            block: None,
        };
        let with_block = |size, block| EventKind::Allocated {
            memory_kind: torch(0),
            address: 1 << 40,
            size,
            levels: None,
            block: Some(block),
        };
        let changes = [
            with_block(1000, 1024),
            with_block(1000, 2048),
            with_block(u64::MAX, 7),
            allocated(torch(0), 0x7f00_0000_0000, 1000, levels(1024, 1024, 2 << 20, 1024)),
            allocated(torch(1), 0x7f00_0000_0200, 512, None),
            allocated(torch(0), u64::MAX, u64::MAX, levels(i64::MIN, i64::MAX, -1, 7)),
            EventKind::Freed { memory_kind: AddressSpace::Torch, address: 0, in_backward: false },
            EventKind::Freed { memory_kind: AddressSpace::Torch, address: 512, in_backward: true },
            allocated(MemoryKind::Driver(None), 4096, 77, None),
            allocated(MemoryKind::Driver(Some(CudaIndex(3))), 4096, 77, None),
            allocated(MemoryKind::Physical(Some(CudaIndex(0))), 12, 2 << 20, None),
            allocated(MemoryKind::Mapping, 1 << 40, 2 << 20, None),
            allocated(MemoryKind::Managed, 5, 6, None),
            allocated(MemoryKind::PinnedHost, 5, 6, None),
            EventKind::Freed {
                memory_kind: AddressSpace::Driver,
                address: 4096,
                in_backward: false,
            },
            EventKind::Freed {
                memory_kind: AddressSpace::Physical,
                address: 12,
                in_backward: false,
            },
            EventKind::Freed {
                memory_kind: AddressSpace::Mapping,
                address: 1 << 40,
                in_backward: false,
            },
            EventKind::Freed {
                memory_kind: AddressSpace::PinnedHost,
                address: 5,
                in_backward: false,
            },
            EventKind::Failed { memory_kind: torch(1), size: 1 << 50, code: 2 },
            EventKind::Marked(DriverEvent::ContextCreated),
            EventKind::Marked(DriverEvent::ModuleLoaded),
            EventKind::Marked(DriverEvent::LibraryLoaded),
        ];
        changes
            .into_iter()
            .zip(0u32..)
            .map(|(change, i)| Event {
                time: Nanos(u64::from(i) * 1000),
                change,
                site: (i % 3 != 0).then_some(SiteId(i)),
            })
            .collect()
    }

    fn encoded(state: &mut EventsState, clock: &mut BlockClock, events: &[Event]) -> Vec<u8> {
        let mut bytes = Vec::new();
        state.encode(events, clock, &mut bytes).unwrap();
        bytes
    }

    fn decoded(
        state: &mut EventsState,
        clock: &mut BlockClock,
        bytes: &[u8],
    ) -> Result<Vec<Event>, MalformedPayload> {
        let mut events = Vec::new();
        state.decode(&mut PayloadCursor(bytes), clock, &mut events, Some).map(|()| events)
    }

    #[test]
    fn every_event_reads_back_twice() {
        let (mut write, mut read) = (EventsState::default(), EventsState::default());
        let mut clocks = [BlockClock::default(); 2];
        for _ in 0..2 {
            let bytes = encoded(&mut write, &mut clocks[0], &events());
            assert_eq!(decoded(&mut read, &mut clocks[1], &bytes), Ok(events()));
        }
    }

    fn read_back(bytes: &[u8]) -> Result<Vec<Event>, MalformedPayload> {
        decoded(&mut EventsState::default(), &mut BlockClock::default(), bytes)
    }

    #[test]
    fn truncated_bytes_are_refused() {
        let encoded = |events: &[Event]| {
            encoded(&mut EventsState::default(), &mut BlockClock::default(), events)
        };
        let bytes = encoded(&events());
        let mut without_blocks = events();
        for event in &mut without_blocks {
            if let EventKind::Allocated { block, .. } = &mut event.change {
                *block = None;
            }
        }
        let columns = encoded(&without_blocks).len();
        for length in (0..bytes.len()).filter(|length| *length != columns) {
            assert!(read_back(&bytes[..length]).is_err(), "{length}");
        }
        assert_eq!(read_back(&bytes[..columns]), Ok(without_blocks));
    }

    proptest! {
        #[test]
        fn damaged_bytes_are_refused_or_decode_to_events(
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = encoded(&mut EventsState::default(), &mut BlockClock::default(), &events());
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(events) = read_back(&bytes) {
                let again = encoded(&mut EventsState::default(), &mut BlockClock::default(), &events);
                prop_assert_eq!(read_back(&again), Ok(events));
            }
        }
    }
}
