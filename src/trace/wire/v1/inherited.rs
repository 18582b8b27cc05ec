//! The records of a recording without its beginning: what it inherited, and what ended it.

use bincode::{BorrowDecode, Encode};

use super::events::{arena, put_arena};
use super::varint::{Cursor, fold, fold_signed, put, unfold, unfold_signed, unzigzag, zigzag};
use super::{Malformed, TOO_MANY_BLOCKS};
use crate::model::{
    self, Inherited, InheritedBlock, InheritedMemory, Levels, Maker, Nanos, Share, SiteId, StackId,
    ThreadId,
};
use crate::trace::renumber::Numbering;

const BEFORE: u8 = 0;
const NO_EVENT: u8 = 1;
const LOST: u8 = 2;
const NOT_TAKEN: u8 = 3;
const SITE: u8 = 4;
const SEEN: u8 = 5;
/// A block takes at least so many bytes: bounds what a number that lies makes a reader allocate.
const LEAST_BLOCK: usize = 7;

/// Appends what follows the time.
pub(crate) fn encode(what: &Inherited, out: &mut Vec<u8>) -> Result<(), Malformed> {
    put(out, what.makers.len() as u64);
    for maker in &what.makers {
        put_maker(maker, out);
    }
    put(out, what.memory.len() as u64);
    for memory in &what.memory {
        put_arena(out, memory.arena);
        put(out, memory.mapped.map_or(0, |time| time.0.saturating_add(1)));
        match &memory.levels {
            None => out.push(0),
            Some(Levels { allocated, peak, reserved, active }) => {
                out.push(1);
                for level in [allocated, peak, reserved, active] {
                    put(out, zigzag(*level));
                }
            }
        }
        put(out, memory.freed_since);
        put(out, memory.blocks.len() as u64);
        put_blocks(&memory.blocks, what.makers.len(), out)?;
    }
    Ok(())
}

fn put_maker(maker: &Maker, out: &mut Vec<u8>) {
    match maker {
        Maker::Before => out.push(BEFORE),
        Maker::NoEvent => out.push(NO_EVENT),
        Maker::Lost => out.push(LOST),
        Maker::NotTaken => out.push(NOT_TAKEN),
        Maker::Site(site) => {
            out.push(SITE);
            put(out, site.0.into());
        }
        Maker::Seen { shares, span } => {
            out.push(SEEN);
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
    blocks: &[InheritedBlock],
    makers: usize,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
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
        put(out, zigzag(less(block.born.0, before)));
        before = block.born.0;
    }
    for block in blocks {
        if block.maker as usize >= makers {
            return Err(Malformed("a block has a maker that is not listed"));
        }
        put(out, block.maker.into());
    }
    out.extend(blocks.iter().map(|block| u8::from(block.small)));
    Ok(())
}

/// The reader's numbers for those of the file.
pub(crate) struct Numbers<'a> {
    pub(crate) threads: &'a Numbering,
    pub(crate) stacks: &'a Numbering,
    pub(crate) sites: &'a Numbering,
}

/// Reads what follows the time.
pub(crate) fn decode(
    from: &mut Cursor<'_>,
    time: Nanos,
    numbers: &Numbers<'_>,
    most_blocks: usize,
) -> Result<Inherited, Malformed> {
    let mut room = most_blocks;
    let mut makers = Vec::new();
    for _ in 0..few(count(from, 1)?, &mut room)? {
        makers.push(maker(from, numbers, &mut room)?);
    }
    let mut memory = Vec::new();
    for _ in 0..count(from, 5)? {
        let arena = arena(from)?;
        let mapped = from.number()?.checked_sub(1).map(Nanos);
        let levels = match from.byte()? {
            0 => None,
            1 => {
                let mut level = || from.number().map(unzigzag);
                let (allocated, peak, reserved, active) = (level()?, level()?, level()?, level()?);
                Some(Levels { allocated, peak, reserved, active })
            }
            _ => return Err(Malformed("levels neither there nor absent")),
        };
        let freed_since = from.number()?;
        let blocks = blocks(from, makers.len(), &mut room)?;
        memory.push(InheritedMemory { arena, mapped, levels, freed_since, blocks });
    }
    Ok(Inherited { time, makers, memory })
}

/// A number of things of which each takes at least `least` bytes.
fn count(from: &mut Cursor<'_>, least: usize) -> Result<usize, Malformed> {
    let count = usize::try_from(from.number()?).unwrap_or(usize::MAX);
    match count <= from.left() / least {
        true => Ok(count),
        false => Err(Malformed("more is announced than can follow")),
    }
}

fn maker(
    from: &mut Cursor<'_>,
    numbers: &Numbers<'_>,
    room: &mut usize,
) -> Result<Maker, Malformed> {
    Ok(match from.byte()? {
        BEFORE => Maker::Before,
        NO_EVENT => Maker::NoEvent,
        LOST => Maker::Lost,
        NOT_TAKEN => Maker::NotTaken,
        SITE => {
            let site = numbers.sites.get(from.number32()?);
            site.map_or(Maker::Lost, |site| Maker::Site(SiteId(site)))
        }
        SEEN => {
            let span = from.number()?.checked_sub(1).map(Nanos);
            let mut shares = Vec::new();
            for _ in 0..few(count(from, 2)?, room)? {
                let thread = from.number()?.checked_sub(1);
                let by = match thread {
                    None => None,
                    Some(thread) => {
                        let thread = u32::try_from(thread)
                            .map_err(|_| Malformed("a number is wider than 32 bits"))?;
                        // Of one whose description was lost only the weight stays.
                        numbers.threads.get(thread).zip(numbers.stacks.get(from.number32()?))
                    }
                };
                let by = by.map(|(thread, stack)| (ThreadId(thread), StackId(stack)));
                shares.push(Share { by, weight: from.number()? });
            }
            Maker::Seen { shares, span }
        }
        _ => return Err(Malformed("a maker of an unknown kind")),
    })
}

/// The same number, if there is room for so many more.
fn few(count: usize, room: &mut usize) -> Result<usize, Malformed> {
    *room = room.checked_sub(count).ok_or(TOO_MANY_BLOCKS)?;
    Ok(count)
}

fn blocks(
    from: &mut Cursor<'_>,
    makers: usize,
    room: &mut usize,
) -> Result<Vec<InheritedBlock>, Malformed> {
    let empty = InheritedBlock {
        address: 0,
        size: 0,
        requested: 0,
        stands_for: 0,
        born: Nanos(0),
        small: false,
        maker: 0,
    };
    let mut blocks = vec![empty; few(count(from, LEAST_BLOCK)?, room)?];
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
        block.born = Nanos(before);
    }
    for block in &mut blocks {
        block.maker = from.number32()?;
        if block.maker as usize >= makers {
            return Err(Malformed("a block has a maker that is not listed"));
        }
    }
    for block in &mut blocks {
        block.small = from.byte()? != 0;
    }
    Ok(blocks)
}

/// A condition that came true.
#[derive(Encode, BorrowDecode)]
pub(crate) struct Triggered<'a> {
    condition: &'a str,
    seen: &'a str,
}

impl<'a> From<&'a model::Triggered> for Triggered<'a> {
    fn from(what: &'a model::Triggered) -> Self {
        Triggered { condition: &what.condition, seen: &what.seen }
    }
}

impl Triggered<'_> {
    /// The record this stands for.
    pub(crate) fn at(self, time: Nanos) -> model::Triggered {
        model::Triggered { time, condition: self.condition.to_owned(), seen: self.seen.to_owned() }
    }
}
