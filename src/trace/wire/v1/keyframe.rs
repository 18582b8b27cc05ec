//! Keyframe and the condition that ended what it replaces.

use std::sync::Arc;

use bincode::{BorrowDecode, Encode};

use super::definitions::ReaderIds;
use super::events::{get_memory_kind, put_memory_kind};
use super::varint::{
    PayloadCursor, fold, fold_signed, put, unfold, unfold_signed, unzigzag, zigzag,
};
use super::{MalformedPayload, TOO_MANY_BLOCKS};
use crate::model::{
    self, AllocationSource, AttributionShare, CounterSnapshot, Keyframe, KeyframeBlock,
    KeyframeMemory, Nanos, SiteId, StackId, ThreadId,
};

const BEFORE: u8 = 0;
const NO_EVENT: u8 = 1;
const LOST: u8 = 2;
const NOT_TAKEN: u8 = 3;
const SITE: u8 = 4;
const SEEN: u8 = 5;
const BEFORE_OWNED: u8 = 6;
const SEEN_CONTESTED: u8 = 7;
/// Bounds what a false count allocates.
const MIN_BLOCK_BYTES: usize = 7;

/// Without the time.
pub(crate) fn encode(what: &Keyframe, out: &mut Vec<u8>) -> Result<(), MalformedPayload> {
    put(out, what.allocation_sources.len() as u64);
    for allocation_source in &what.allocation_sources {
        put_source(allocation_source, out);
    }
    put(out, what.memory.len() as u64);
    for memory in &what.memory {
        put_memory_kind(out, memory.memory_kind);
        put(out, memory.mapped.map_or(0, |time| time.0.saturating_add(1)));
        match &memory.levels {
            None => out.push(0),
            Some(CounterSnapshot { allocated, peak, reserved, active }) => {
                out.push(1);
                for level in [allocated, peak, reserved, active] {
                    put(out, zigzag(*level));
                }
            }
        }
        put(out, memory.freed_since);
        put(out, memory.blocks.len() as u64);
        put_blocks(&memory.blocks, what.allocation_sources.len(), out)?;
    }
    Ok(())
}

fn put_source(allocation_source: &AllocationSource, out: &mut Vec<u8>) {
    match allocation_source {
        AllocationSource::Before => out.push(BEFORE),
        AllocationSource::BeforeOwned(owners) => {
            out.push(BEFORE_OWNED);
            put(out, owners.len() as u64);
            for (path, weight) in owners {
                put(out, path.len() as u64);
                for step in path.iter() {
                    put(out, step.len() as u64);
                    out.extend(step.as_bytes());
                }
                put(out, *weight);
            }
        }
        AllocationSource::NoEvent => out.push(NO_EVENT),
        AllocationSource::Lost => out.push(LOST),
        AllocationSource::NotTaken => out.push(NOT_TAKEN),
        AllocationSource::Site(site) => {
            out.push(SITE);
            put(out, site.0.into());
        }
        AllocationSource::Observed { shares, span, contested } => {
            out.push(if *contested { SEEN_CONTESTED } else { SEEN });
            put(out, span.map_or(0, |span| span.0.saturating_add(1)));
            put(out, shares.len() as u64);
            for share in shares {
                put(out, share.by.map_or(0, |(thread, _)| u64::from(thread.0) + 1));
                if let Some((_, stack)) = share.by {
                    put(out, stack.0.into());
                }
                put(out, share.weight);
            }
        }
    }
}

fn put_blocks(
    blocks: &[KeyframeBlock],
    allocation_sources: usize,
    out: &mut Vec<u8>,
) -> Result<(), MalformedPayload> {
    let less = |a: u64, b: u64| a.wrapping_sub(b) as i64;
    let mut before = 0;
    for block in blocks {
        put(out, fold_signed(less(block.address, before)));
        before = block.address;
    }
    for block in blocks {
        put(out, fold(block.size));
    }
    for block in blocks {
        put(out, zigzag(less(block.size, block.requested)));
    }
    for block in blocks {
        put(out, zigzag(less(block.size, block.stands_for)));
    }
    let mut before = 0;
    for block in blocks {
        put(out, zigzag(less(block.allocated_at.0, before)));
        before = block.allocated_at.0;
    }
    for block in blocks {
        if block.allocation_source as usize >= allocation_sources {
            return Err(MalformedPayload("a block has an unlisted allocation site"));
        }
        put(out, block.allocation_source.into());
    }
    out.extend(blocks.iter().map(|block| u8::from(block.small)));
    Ok(())
}

/// Without the time.
pub(crate) fn decode(
    from: &mut PayloadCursor<'_>,
    time: Nanos,
    numbers: &ReaderIds,
    max_blocks: usize,
) -> Result<Keyframe, MalformedPayload> {
    let mut room = max_blocks;
    let mut allocation_sources = Vec::new();
    for _ in 0..take_room(count(from, 1)?, &mut room)? {
        allocation_sources.push(get_source(from, numbers, &mut room)?);
    }
    let mut memory = Vec::new();
    for _ in 0..count(from, 5)? {
        let memory_kind = get_memory_kind(from)?;
        let mapped = from.number()?.checked_sub(1).map(Nanos);
        let levels = match from.byte()? {
            0 => None,
            1 => {
                let mut level = || from.number().map(unzigzag);
                let (allocated, peak, reserved, active) = (level()?, level()?, level()?, level()?);
                Some(CounterSnapshot { allocated, peak, reserved, active })
            }
            _ => return Err(MalformedPayload("levels neither present nor absent")),
        };
        let freed_since = from.number()?;
        let blocks = blocks(from, allocation_sources.len(), &mut room)?;
        memory.push(KeyframeMemory { memory_kind, mapped, levels, freed_since, blocks });
    }
    Ok(Keyframe { time, allocation_sources, memory })
}

/// Each item has at least `least` bytes.
fn count(from: &mut PayloadCursor<'_>, least: usize) -> Result<usize, MalformedPayload> {
    let count = usize::try_from(from.number()?).unwrap_or(usize::MAX);
    match count <= from.left() / least {
        true => Ok(count),
        false => Err(MalformedPayload("more is announced than can follow")),
    }
}

fn get_source(
    from: &mut PayloadCursor<'_>,
    numbers: &ReaderIds,
    room: &mut usize,
) -> Result<AllocationSource, MalformedPayload> {
    Ok(match from.byte()? {
        BEFORE => AllocationSource::Before,
        NO_EVENT => AllocationSource::NoEvent,
        LOST => AllocationSource::Lost,
        NOT_TAKEN => AllocationSource::NotTaken,
        SITE => {
            let site = numbers.sites.get(from.number32()?);
            site.map_or(AllocationSource::Lost, |site| AllocationSource::Site(SiteId(site)))
        }
        tag @ (SEEN | SEEN_CONTESTED) => {
            let span = from.number()?.checked_sub(1).map(Nanos);
            let mut shares = Vec::new();
            for _ in 0..take_room(count(from, 2)?, room)? {
                let thread = from.number()?.checked_sub(1);
                let by = match thread {
                    None => None,
                    Some(thread) => {
                        let thread = u32::try_from(thread)
                            .map_err(|_| MalformedPayload("a number is wider than 32 bits"))?;
                        // Without its description, a share keeps its weight.
                        numbers.threads.get(thread).zip(numbers.stacks.get(from.number32()?))
                    }
                };
                let by = by.map(|(thread, stack)| (ThreadId(thread), StackId(stack)));
                shares.push(AttributionShare { by, weight: from.number()? });
            }
            AllocationSource::Observed { shares, span, contested: tag == SEEN_CONTESTED }
        }
        BEFORE_OWNED => {
            let mut owners = Vec::new();
            for _ in 0..take_room(count(from, 2)?, room)? {
                let mut path: Vec<Arc<str>> = Vec::new();
                for _ in 0..take_room(count(from, 1)?, room)? {
                    let length = count(from, 1)?;
                    let step = std::str::from_utf8(from.bytes(length)?);
                    path.push(step.map_err(|_| MalformedPayload("an owner is no text"))?.into());
                }
                owners.push((path.into(), from.number()?));
            }
            AllocationSource::BeforeOwned(owners)
        }
        _ => return Err(MalformedPayload("an allocation site of an unknown kind")),
    })
}

fn take_room(count: usize, room: &mut usize) -> Result<usize, MalformedPayload> {
    *room = room.checked_sub(count).ok_or(TOO_MANY_BLOCKS)?;
    Ok(count)
}

fn blocks(
    from: &mut PayloadCursor<'_>,
    allocation_sources: usize,
    room: &mut usize,
) -> Result<Vec<KeyframeBlock>, MalformedPayload> {
    let empty = KeyframeBlock {
        address: 0,
        size: 0,
        requested: 0,
        stands_for: 0,
        allocated_at: Nanos(0),
        small: false,
        allocation_source: 0,
    };
    let mut blocks = vec![empty; take_room(count(from, MIN_BLOCK_BYTES)?, room)?];
    let mut before = 0u64;
    for block in &mut blocks {
        before = before.wrapping_add(unfold_signed(from.number()?) as u64);
        block.address = before;
    }
    for block in &mut blocks {
        block.size = unfold(from.number()?);
    }
    for block in &mut blocks {
        block.requested = block.size.wrapping_sub(unzigzag(from.number()?) as u64);
    }
    for block in &mut blocks {
        block.stands_for = block.size.wrapping_sub(unzigzag(from.number()?) as u64);
    }
    let mut before = 0u64;
    for block in &mut blocks {
        before = before.wrapping_add(unzigzag(from.number()?) as u64);
        block.allocated_at = Nanos(before);
    }
    for block in &mut blocks {
        block.allocation_source = from.number32()?;
        if block.allocation_source as usize >= allocation_sources {
            return Err(MalformedPayload("a block has an unlisted allocation site"));
        }
    }
    for block in &mut blocks {
        block.small = from.byte()? != 0;
    }
    Ok(blocks)
}

#[derive(Encode, BorrowDecode)]
pub(crate) struct WireTriggerFired<'a> {
    condition: &'a str,
    seen: &'a str,
}

impl<'a> From<&'a model::TriggerFired> for WireTriggerFired<'a> {
    fn from(what: &'a model::TriggerFired) -> Self {
        WireTriggerFired { condition: &what.condition, seen: &what.seen }
    }
}

impl WireTriggerFired<'_> {
    pub(crate) fn at(self, time: Nanos) -> model::TriggerFired {
        model::TriggerFired {
            time,
            condition: self.condition.to_owned(),
            seen: self.seen.to_owned(),
        }
    }
}
