//! Encodes snapshots as edits ([`super::edit_steps`]) of the device's previous one, and blocks of a
//! changed segment likewise.

use super::edit_steps::{BEYOND_PREVIOUS, CHANGE, DROP, KEEP, NEW, StepRun, step};
use super::varint::{PayloadCursor, fold, put, unfold, unzigzag, zigzag};
use super::{MAX_DEVICES, MalformedPayload, TOO_MANY_BLOCKS};
use crate::model::{AllocatorSnapshot, Block, BlockState, PoolId, Segment, SnapshotConsistency};

const SEGMENT_SMALL: u8 = 1;
const SEGMENT_EXPANDABLE: u8 = 2;
const SEGMENT_SAME_HEAD: u8 = 4;
const SEGMENT_RETIRED: u8 = 8;
/// An unusual granule follows.
const SEGMENT_GRANULE: u8 = 16;

const BLOCK_STATE: u8 = 3;
const BLOCK_GAP: u8 = 4;
const BLOCK_NOTHING_REQUESTED: u8 = 8;

/// As known to writer and reader of a block.
#[derive(Debug, Default)]
pub(crate) struct BlocksState {
    devices: Vec<(u32, Vec<Segment>)>,
}

impl BlocksState {
    /// At a block's start.
    pub(crate) fn reset(&mut self) {
        self.devices.clear();
    }

    fn segments(&mut self, device: u32) -> Result<&mut Vec<Segment>, MalformedPayload> {
        let place = match self.devices.iter().position(|(d, _)| *d == device) {
            Some(place) => place,
            None if self.devices.len() >= MAX_DEVICES => {
                return Err(MalformedPayload("a block has snapshots of too many devices"));
            }
            None => {
                self.devices.push((device, Vec::new()));
                self.devices.len() - 1
            }
        };
        Ok(&mut self.devices[place].1)
    }

    /// Without time and device.
    pub(crate) fn encode(
        &mut self,
        snapshot: &AllocatorSnapshot,
        out: &mut Vec<u8>,
    ) -> Result<(), MalformedPayload> {
        let before = self.segments(snapshot.device.0)?;
        put(out, u64::from(snapshot.retries));
        match snapshot.consistency {
            SnapshotConsistency::Consistent => put(out, 0),
            SnapshotConsistency::Degraded { allocated_in_blocks, allocated_counter } => {
                put(out, 1);
                put(out, fold(allocated_in_blocks));
                put(out, fold(allocated_counter));
            }
        }
        encode_segments(before, &snapshot.segments, out);
        before.clone_from(&snapshot.segments);
        Ok(())
    }

    pub(crate) fn decode(
        &mut self,
        snapshot: &mut AllocatorSnapshot,
        from: &mut PayloadCursor<'_>,
        max_blocks: usize,
    ) -> Result<(), MalformedPayload> {
        let kept = |segments: &[Segment]| -> usize {
            segments.iter().map(|segment| 1 + segment.blocks.len()).sum()
        };
        let others = self.devices.iter().filter(|(device, _)| *device != snapshot.device.0);
        let others: usize = others.map(|(_, segments)| kept(segments)).sum();
        let mut room = max_blocks.checked_sub(others).ok_or(TOO_MANY_BLOCKS)?;
        let before = self.segments(snapshot.device.0)?;
        snapshot.retries = from.number32()?;
        snapshot.consistency = match from.number()? {
            0 => SnapshotConsistency::Consistent,
            1 => SnapshotConsistency::Degraded {
                allocated_in_blocks: unfold(from.number()?),
                allocated_counter: unfold(from.number()?),
            },
            _ => return Err(MalformedPayload("a snapshot's consistency is unknown")),
        };
        *before = decode_segments(std::mem::take(before), from, &mut room)?;
        snapshot.segments.clone_from(before);
        Ok(())
    }
}

fn encode_segments(before: &[Segment], now: &[Segment], out: &mut Vec<u8>) {
    let mut old = before.iter().peekable();
    let mut run = StepRun::default();
    let mut end = 0u64;
    for segment in now {
        while old.next_if(|o| o.address < segment.address).is_some() {
            run.step(DROP, out);
        }
        match old.next_if(|o| o.address == segment.address) {
            Some(same) if same == segment => run.step(KEEP, out),
            Some(known) => {
                run.end(out);
                put(out, 1 << 2 | CHANGE);
                let same_head = head(known) == head(segment);
                encode_head(segment, same_head, end, out);
                encode_blocks(&known.blocks, segment, out);
            }
            None => {
                run.end(out);
                put(out, 1 << 2 | NEW);
                encode_head(segment, false, end, out);
                encode_blocks(&[], segment, out);
            }
        }
        end = segment.address.wrapping_add(segment.size);
    }
    run.end(out);
    put(out, 0);
}

/// A segment without its blocks.
fn head(segment: &Segment) -> impl PartialEq + use<> {
    let Segment { address, size, stream, small, expandable, granule, retired, pool, .. } = *segment;
    (address, size, stream, small, expandable, granule, retired, pool)
}

fn usual_granule(expandable: bool, small: bool) -> u64 {
    if expandable { Segment::usual_granule(small) } else { 0 }
}

fn encode_head(segment: &Segment, same: bool, end: u64, out: &mut Vec<u8>) {
    let mut flags = 0;
    let unusual = segment.granule != usual_granule(segment.expandable, segment.small);
    for (bit, set) in [
        (SEGMENT_SMALL, segment.small),
        (SEGMENT_EXPANDABLE, segment.expandable),
        (SEGMENT_SAME_HEAD, same),
        (SEGMENT_RETIRED, segment.retired),
        (SEGMENT_GRANULE, unusual && !same),
    ] {
        flags |= if set { bit } else { 0 };
    }
    out.push(flags);
    if !same {
        put(out, fold(segment.address.wrapping_sub(end)));
        put(out, fold(segment.size));
        put(out, segment.stream);
        put(out, segment.pool.0);
        put(out, segment.pool.1);
        if unusual {
            put(out, segment.granule);
        }
    }
}

fn encode_blocks(before: &[Block], segment: &Segment, out: &mut Vec<u8>) {
    let mut old = before.iter().peekable();
    let mut run = StepRun::default();
    let mut end = segment.address;
    let mut rest = &segment.blocks[..];
    while let Some(block) = rest.first() {
        while old.next_if(|o| o.address < block.address).is_some() {
            run.step(DROP, out);
        }
        if old.next_if(|o| *o == block).is_some() {
            run.step(KEEP, out);
            rest = &rest[1..];
            end = block.address.wrapping_add(block.size);
            continue;
        }
        run.end(out);
        // Group new segments under one count.
        let next_old = old.peek().copied();
        let count = 1 + rest[1..]
            .iter()
            .take_while(|b| next_old.is_none_or(|o| b.address < o.address))
            .count();
        put(out, (count as u64) << 2 | NEW);
        for block in &rest[..count] {
            encode_block(block, end, out);
            end = block.address.wrapping_add(block.size);
        }
        rest = &rest[count..];
    }
    run.end(out);
    put(out, 0);
}

fn encode_block(block: &Block, end: u64, out: &mut Vec<u8>) {
    let mut flags = match block.state {
        BlockState::Allocated => 0,
        BlockState::PendingFree => 1,
        BlockState::Inactive => 2,
    };
    if block.address != end {
        flags |= BLOCK_GAP;
    }
    if block.requested == 0 {
        flags |= BLOCK_NOTHING_REQUESTED;
    }
    out.push(flags);
    put(out, fold(block.size));
    if block.address != end {
        put(out, fold(block.address.wrapping_sub(end)));
    }
    if block.requested != 0 {
        put(out, zigzag(block.size.wrapping_sub(block.requested) as i64));
    }
}

fn decode_segments(
    before: Vec<Segment>,
    from: &mut PayloadCursor<'_>,
    room: &mut usize,
) -> Result<Vec<Segment>, MalformedPayload> {
    let mut now = Vec::with_capacity(before.len());
    let mut old = before.into_iter();
    let mut end = 0u64;
    while let Some((kind, count)) = step(from)? {
        for _ in 0..count {
            let segment = match kind {
                KEEP => {
                    let kept = old.next().ok_or(BEYOND_PREVIOUS)?;
                    let count = 1 + kept.blocks.len();
                    *room = room.checked_sub(count).ok_or(TOO_MANY_BLOCKS)?;
                    kept
                }
                DROP => {
                    old.next().ok_or(BEYOND_PREVIOUS)?;
                    continue;
                }
                CHANGE => {
                    decode_segment(Some(old.next().ok_or(BEYOND_PREVIOUS)?), end, from, room)?
                }
                _ => decode_segment(None, end, from, room)?,
            };
            end = segment.address.wrapping_add(segment.size);
            now.push(segment);
        }
    }
    Ok(now)
}

fn decode_segment(
    known: Option<Segment>,
    end: u64,
    from: &mut PayloadCursor<'_>,
    room: &mut usize,
) -> Result<Segment, MalformedPayload> {
    *room = room.checked_sub(1).ok_or(TOO_MANY_BLOCKS)?;
    let flags = from.byte()?;
    if flags & SEGMENT_SAME_HEAD != 0 {
        let mut segment = known.ok_or(MalformedPayload("a new segment has no head"))?;
        segment.blocks = decode_blocks(&segment.blocks, segment.address, from, room)?;
        return Ok(segment);
    }
    let address = unfold(from.number()?).wrapping_add(end);
    let size = unfold(from.number()?);
    let stream = from.number()?;
    let pool = PoolId(from.number()?, from.number()?);
    let (small, expandable) = (flags & SEGMENT_SMALL != 0, flags & SEGMENT_EXPANDABLE != 0);
    let granule = match flags & SEGMENT_GRANULE {
        0 => usual_granule(expandable, small),
        _ => from.number()?,
    };
    let before = known.map(|s| s.blocks).unwrap_or_default();
    Ok(Segment {
        address,
        size,
        stream,
        small,
        expandable,
        granule,
        retired: flags & SEGMENT_RETIRED != 0,
        pool,
        blocks: decode_blocks(&before, address, from, room)?,
    })
}

fn decode_blocks(
    before: &[Block],
    start: u64,
    from: &mut PayloadCursor<'_>,
    room: &mut usize,
) -> Result<Vec<Block>, MalformedPayload> {
    let mut now = Vec::with_capacity(before.len());
    let mut rest = before;
    let mut end = start;
    while let Some((kind, count)) = step(from)? {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if kind != DROP {
            *room = room.checked_sub(count).ok_or(TOO_MANY_BLOCKS)?;
        }
        if kind == NEW {
            // A block takes at least two bytes, which bounds a false count.
            now.reserve(count.min(from.left() / 2));
            for _ in 0..count {
                let block = decode_block(end, from)?;
                end = block.address.wrapping_add(block.size);
                now.push(block);
            }
            continue;
        }
        let (passed, left) = rest.split_at_checked(count).ok_or(BEYOND_PREVIOUS)?;
        rest = left;
        match (kind, passed.last()) {
            (KEEP, Some(last)) => {
                now.extend_from_slice(passed);
                end = last.address.wrapping_add(last.size);
            }
            (KEEP | DROP, _) => {}
            _ => return Err(MalformedPayload("a block is neither kept, dropped nor new")),
        }
    }
    Ok(now)
}

fn decode_block(end: u64, from: &mut PayloadCursor<'_>) -> Result<Block, MalformedPayload> {
    let flags = from.byte()?;
    let size = unfold(from.number()?);
    let mut address = end;
    if flags & BLOCK_GAP != 0 {
        address = address.wrapping_add(unfold(from.number()?));
    }
    let mut requested = 0;
    if flags & BLOCK_NOTHING_REQUESTED == 0 {
        requested = size.wrapping_sub(unzigzag(from.number()?) as u64);
    }
    let state = match flags & BLOCK_STATE {
        0 => BlockState::Allocated,
        1 => BlockState::PendingFree,
        2 => BlockState::Inactive,
        _ => return Err(MalformedPayload("a block's state is unknown")),
    };
    Ok(Block { address, size, requested, state })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CudaIndex, Nanos};
    use proptest::prelude::*;

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0..20u64, (0..6u64).prop_map(|v| v * 512), any::<u64>()]
    }

    fn block() -> impl Strategy<Value = Block> {
        (number(), number(), number(), 0..3usize).prop_map(|(address, size, requested, state)| {
            use BlockState::{Allocated, Inactive, PendingFree};
            Block { address, size, requested, state: [Allocated, PendingFree, Inactive][state] }
        })
    }

    fn segment() -> impl Strategy<Value = Segment> {
        let blocks = proptest::collection::vec(block(), 0..5);
        (number(), number(), number(), any::<(bool, bool, bool)>(), number(), blocks).prop_map(
            |(address, size, stream, (small, expandable, retired), granule, blocks)| Segment {
                address,
                size,
                stream,
                small,
                expandable,
                granule,
                retired,
                pool: PoolId(stream & 1, size & 3),
                blocks,
            },
        )
    }

    fn snapshot() -> impl Strategy<Value = AllocatorSnapshot> {
        let segments = proptest::collection::vec(segment(), 0..6);
        (0..2u32, any::<u32>(), any::<bool>(), segments).prop_map(
            |(device, retries, consistent, segments)| AllocatorSnapshot {
                time: Nanos(0),
                device: CudaIndex(device),
                retries,
                consistency: if consistent {
                    SnapshotConsistency::Consistent
                } else {
                    SnapshotConsistency::Degraded { allocated_in_blocks: 512, allocated_counter: 7 }
                },
                segments,
            },
        )
    }

    /// In sequence, some segments and blocks removed or altered.
    fn snapshots() -> impl Strategy<Value = Vec<AllocatorSnapshot>> {
        let edits = proptest::collection::vec(any::<(u8, u8, u8)>(), 0..8);
        (snapshot(), proptest::collection::vec(edits, 0..5), snapshot()).prop_map(
            |(first, edits, last)| {
                let mut all = vec![first];
                for edit in edits {
                    let mut next = all[all.len() - 1].clone();
                    next.segments.sort_by_key(|s| s.address);
                    for (at, what, value) in edit {
                        if next.segments.is_empty() {
                            break;
                        }
                        let place = usize::from(at) % next.segments.len();
                        let segment = &mut next.segments[place];
                        segment.blocks.sort_by_key(|b| b.address);
                        match what % 4 {
                            0 => drop(next.segments.remove(place)),
                            1 => segment.size ^= 512,
                            2 => drop(segment.blocks.pop()),
                            _ => {
                                for block in segment.blocks.iter_mut().skip(usize::from(value % 4))
                                {
                                    block.size ^= u64::from(value);
                                }
                            }
                        }
                    }
                    all.push(next);
                }
                all.push(last);
                all
            },
        )
    }

    proptest! {
        #[test]
        fn every_sequence_of_snapshots_reads_back(snapshots in snapshots()) {
            let (mut write, mut read) = (BlocksState::default(), BlocksState::default());
            for snapshot in snapshots {
                let mut bytes = Vec::new();
                prop_assert_eq!(write.encode(&snapshot, &mut bytes), Ok(()));
                let mut copy = AllocatorSnapshot { segments: Vec::new(), ..snapshot.clone() };
                let mut cursor = PayloadCursor(&bytes);
                prop_assert_eq!(read.decode(&mut copy, &mut cursor, 1000), Ok(()));
                prop_assert_eq!(&copy, &snapshot);
                prop_assert!(cursor.is_empty());
            }
        }
    }

    #[test]
    fn an_unchanged_snapshot_takes_few_bytes() {
        let block = |i: u64| Block {
            address: (1 << 40) + i * 1024,
            size: 1024,
            requested: 1000,
            state: BlockState::Allocated,
        };
        let mut snapshot = AllocatorSnapshot {
            time: Nanos(0),
            device: CudaIndex(0),
            retries: 0,
            consistency: SnapshotConsistency::Consistent,
            segments: vec![Segment {
                address: 1 << 40,
                size: 2 << 20,
                stream: 0,
                small: true,
                expandable: false,
                granule: 0,
                retired: false,
                pool: PoolId(0, 0),
                blocks: (0..2048).map(block).collect(),
            }],
        };
        let mut state = BlocksState::default();
        let mut whole = Vec::new();
        state.encode(&snapshot, &mut whole).unwrap();
        assert!(whole.len() < 2048 * 3 + 40, "{}", whole.len());
        let mut same = Vec::new();
        state.encode(&snapshot, &mut same).unwrap();
        assert_eq!(same.len(), 4);
        snapshot.segments[0].blocks[1000].state = BlockState::Inactive;
        snapshot.segments[0].blocks[1000].requested = 0;
        let mut changed = Vec::new();
        state.encode(&snapshot, &mut changed).unwrap();
        assert!(changed.len() < 20, "{}", changed.len());
    }
}
