//! Walks a device's blocks in a copy: `active_blocks` (allocated, or waiting for another stream),
//! the pools' cached blocks, `prev` and `next`. A segment begins with a block without mapped
//! predecessor (`DeviceCachingAllocator::snapshot`, c10/cuda/CUDACachingAllocator.cpp, torch 2.1 to
//! 2.15).

use rustc_hash::FxHashMap;

use super::check::BlockSums;
use super::containers::{FlatTable, TreeHeader, TreeNode};
use super::layout::{BlockLayout, PoolsLayout, PrivateLayout, RawBlock};
use super::working_set::{NotCopied, WorkingSet};
use crate::model::{Block, BlockState, PoolId, Segment};
use crate::target::{Addr, Field};

const MAX_BLOCKS: usize = 1 << 21;
const MAX_PRIVATE_POOLS: u64 = 1 << 16;
const EXPANDABLE_SEGMENT: usize = 0x60;
/// Also larger than the number of granules.
const MIN_GRANULE: u64 = 2 << 20;

#[derive(Debug, Clone, Copy)]
pub(super) struct WalkInput<'a> {
    pub(super) index: u32,
    pub(super) device: Addr,
    pub(super) object: &'a [u8],
    pub(super) pools: &'a PoolsLayout,
    pub(super) block: BlockLayout,
    pub(super) private: Option<PrivateLayout>,
}

#[derive(Debug, Default)]
pub(super) struct WalkedBlocks {
    pub(super) segments: Vec<Segment>,
    pub(super) sums: BlockSums,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WalkError {
    Incomplete,
    /// Torn copy, or wrong layout.
    Inconsistent(&'static str),
}

#[derive(Debug, Clone, Copy)]
struct PoolKind {
    small: bool,
    id: PoolId,
    retired: bool,
}

#[derive(Debug)]
struct WalkNode {
    block: RawBlock,
    at: Addr,
    active: bool,
    prev: Option<u32>,
    next: Option<u32>,
    /// 0 if not expandable.
    granule: u64,
}

#[derive(Debug, Default)]
pub(super) struct WalkScratch {
    nodes: Vec<WalkNode>,
    indices: FxHashMap<Addr, u32>,
    pools: FxHashMap<Addr, PoolKind>,
    queue: Vec<Addr>,
}

impl WalkScratch {
    pub(super) fn places(&self) -> impl Iterator<Item = (u64, Addr)> {
        self.nodes.iter().filter(|node| node.block.mapped).map(|node| (node.block.address, node.at))
    }
}

struct BlockWalk<'a, 's> {
    input: WalkInput<'a>,
    set: &'s mut WorkingSet,
    scratch: &'s mut WalkScratch,
    active: usize,
    lacking: bool,
}

pub(super) fn walk(
    ground: WalkInput<'_>,
    set: &mut WorkingSet,
    trail: &mut WalkScratch,
) -> Result<WalkedBlocks, WalkError> {
    set.begin_walk();
    trail.nodes.clear();
    trail.indices.clear();
    trail.pools.clear();
    trail.queue.clear();
    let mut walk = BlockWalk { input: ground, set, scratch: trail, active: 0, lacking: false };
    walk.active_blocks()?;
    walk.cached_blocks()?;
    walk.all_blocks()?;
    walk.granules()?;
    if walk.lacking {
        return Err(WalkError::Incomplete);
    }
    segments(trail)
}

impl BlockWalk<'_, '_> {
    /// Continues, to request as much as possible.
    fn here<T>(&mut self, got: Result<T, NotCopied>) -> Result<Option<T>, WalkError> {
        match got {
            Ok(value) => Ok(Some(value)),
            Err(NotCopied::Wanted) => {
                self.lacking = true;
                Ok(None)
            }
            Err(NotCopied::Impossible) => Err(WalkError::Inconsistent("a pointer leads nowhere")),
        }
    }

    fn bytes<const N: usize>(&mut self, addr: Addr) -> Result<Option<[u8; N]>, WalkError> {
        let mut out = [0; N];
        let got = self.set.get(addr, &mut out);
        Ok(self.here(got)?.map(|()| out))
    }

    fn entries<const N: usize>(
        &mut self,
        table: FlatTable,
        mut each: impl FnMut(&mut Self, &[u8; N]) -> Result<(), WalkError>,
    ) -> Result<(), WalkError> {
        if table.count == 0 {
            return Ok(());
        }
        let whole = self.set.want(table.entries, N as u64 * table.slots);
        if self.here(whole)?.is_none() {
            return Ok(());
        }
        let (mut used, mut slot) = (0, 0);
        let mut copy = [0; 1024];
        while slot < table.slots {
            let slots = (table.slots - slot).min((copy.len() / N) as u64);
            let copy = copy.get_mut(..N * slots as usize).unwrap_or_default();
            let got = self.set.get(table.entries + N as u64 * slot, copy);
            if self.here(got)?.is_some() {
                for entry in copy.as_chunks::<N>().0.iter().filter(|e| FlatTable::is_used(e[0])) {
                    used += 1;
                    each(self, entry)?;
                }
            }
            slot += slots;
        }
        if used == table.count {
            Ok(())
        } else {
            Err(WalkError::Inconsistent("a table has lost entries"))
        }
    }

    fn active_blocks(&mut self) -> Result<(), WalkError> {
        let table = self.input.object.get(self.input.pools.active..).and_then(FlatTable::decode);
        let table =
            table.ok_or(WalkError::Inconsistent("the table of active blocks is invalid"))?;
        self.entries::<{ FlatTable::POINTER_ENTRY }>(table, |walk, entry| {
            walk.scratch.queue.extend(Field::<Addr>::at(8).get(entry));
            Ok(())
        })?;
        self.active = self.scratch.queue.len();
        Ok(())
    }

    fn cached_blocks(&mut self) -> Result<(), WalkError> {
        let (object, layout) = (self.input.object, self.input.pools);
        for at in layout.pools {
            let pool = object.get(at..).ok_or(WalkError::Inconsistent("the object is cut"))?;
            self.pool(self.input.device + at as u64, pool, PoolId::default(), false)?;
        }
        let Some(private) = self.input.private else { return Ok(()) };
        let table = object.get(private.table..).and_then(FlatTable::decode);
        let table =
            table.ok_or(WalkError::Inconsistent("the table of private pools is invalid"))?;
        if table.slots > MAX_PRIVATE_POOLS {
            return Err(WalkError::Inconsistent("the table of private pools is too large"));
        }
        let retired = self.retired_pools(private)?;
        self.entries::<{ FlatTable::PAIR_ENTRY }>(table, |walk, entry| {
            let number = |at| Field::<u64>::at(at).get(entry).unwrap_or(0);
            let (id, owner) = (PoolId(number(0x08), number(0x10)), Addr(number(0x18)));
            for at in private.pools {
                let mut copy = [0; 0x100];
                let copy = copy.get_mut(..layout.pool.len()).unwrap_or_default();
                let got = walk.set.get(owner + at as u64, copy);
                if walk.here(got)?.is_some() {
                    if layout.pool.owner().get(copy) != Some(owner) {
                        return Err(WalkError::Inconsistent("a private pool has another owner"));
                    }
                    walk.pool(owner + at as u64, copy, id, retired.contains(&owner))?;
                }
            }
            Ok(())
        })
    }

    /// `PrivatePool`s from `graph_pools_freeable`.
    fn retired_pools(&mut self, private: PrivateLayout) -> Result<Vec<Addr>, WalkError> {
        let table = self.input.object.get(private.table + FlatTable::SIZE..);
        let Some(table) = table.and_then(FlatTable::decode) else { return Ok(Vec::new()) };
        let mut pools = Vec::new();
        if table.slots <= MAX_PRIVATE_POOLS {
            self.entries::<{ FlatTable::PAIR_ENTRY }>(table, |_, entry| {
                pools.extend(Field::<Addr>::at(0x18).get(entry));
                Ok(())
            })?;
        }
        Ok(pools)
    }

    fn pool(
        &mut self,
        addr: Addr,
        copy: &[u8],
        id: PoolId,
        retired: bool,
    ) -> Result<(), WalkError> {
        let small = self.input.pools.pool.is_small().get(copy);
        let small = small.ok_or(WalkError::Inconsistent("the object is cut"))? != 0;
        self.scratch.pools.insert(addr, PoolKind { small, id, retired });
        for set in 0..self.input.pools.pool.sets {
            let at = set * TreeHeader::SET + TreeHeader::IN_SET;
            let here = addr + at as u64;
            let header = copy.get(at..).and_then(|bytes| TreeHeader::decode(bytes, here));
            self.tree(header.ok_or(WalkError::Inconsistent("a set of blocks is invalid"))?, here)?;
        }
        Ok(())
    }

    fn tree(&mut self, header: TreeHeader, here: Addr) -> Result<(), WalkError> {
        let mut nodes = vec![(header.root, here)];
        let (mut seen, mut complete) = (0, true);
        while let Some((addr, parent)) = nodes.pop() {
            if addr.0 == 0 {
                continue;
            }
            seen += 1;
            if seen > header.count {
                return Err(WalkError::Inconsistent("a set has more nodes than it says"));
            }
            let Some(bytes) = self.bytes::<{ TreeNode::SIZE }>(addr)? else {
                complete = false;
                continue;
            };
            let node = TreeNode::decode(&bytes).filter(|n| n.parent == parent);
            let node = node.ok_or(WalkError::Inconsistent("a node of a set has another parent"))?;
            self.scratch.queue.push(node.value);
            nodes.push((node.left, addr));
            nodes.push((node.right, addr));
        }
        if complete && seen != header.count {
            return Err(WalkError::Inconsistent("a set has fewer nodes than it says"));
        }
        Ok(())
    }

    fn all_blocks(&mut self) -> Result<(), WalkError> {
        let queue = std::mem::take(&mut self.scratch.queue);
        // A neighbour is active only if it is one of these.
        for (at, addr) in queue.iter().enumerate() {
            self.place(*addr, at < self.active)?;
        }
        self.scratch.queue = queue;
        let mut at = 0;
        while let Some(node) = self.scratch.nodes.get(at) {
            let (prev, next) = (node.block.prev, node.block.next);
            let (prev, next) = (self.place(prev, false)?, self.place(next, false)?);
            if let Some(node) = self.scratch.nodes.get_mut(at) {
                (node.prev, node.next) = (prev, next);
            }
            at += 1;
        }
        Ok(())
    }

    fn granules(&mut self) -> Result<(), WalkError> {
        for start in 0..self.scratch.nodes.len() {
            let first = &self.scratch.nodes[start];
            if first.prev.is_some() || first.next.is_none() {
                continue;
            }
            let (mut bytes, mut is_expandable, mut chain) = (0u64, false, Vec::new());
            let mut place = Some(start as u32);
            while let Some((here, node)) =
                place.and_then(|at| Some((at, self.scratch.nodes.get(at as usize)?)))
            {
                bytes = bytes.saturating_add(node.block.size);
                is_expandable |= !node.block.mapped;
                chain.push(here);
                if chain.len() > self.scratch.nodes.len() {
                    return Err(WalkError::Inconsistent("a chain of blocks has no end"));
                }
                place = node.next;
            }
            if !is_expandable {
                continue;
            }
            let block = self.scratch.nodes[start].block;
            let small = self.scratch.pools.get(&block.pool).is_some_and(|pool| pool.small);
            let found = self.granule(self.scratch.nodes[start].at, &block, bytes)?;
            let granule = found.unwrap_or(Segment::usual_granule(small));
            for here in chain {
                self.scratch.nodes[here as usize].granule = granule;
            }
        }
        Ok(())
    }

    /// `segment_size_` of the `ExpandableSegment`, which has the first block's address (`ptr_`),
    /// the granule, and `max_handles_`.
    fn granule(
        &mut self,
        at: Addr,
        first: &RawBlock,
        bytes: u64,
    ) -> Result<Option<u64>, WalkError> {
        for field in self.input.block.expandable_segment() {
            let Some(object) = self.bytes::<8>(field.in_target(at))? else { continue };
            let object = Addr(u64::from_le_bytes(object));
            if !object.is_plausible() || !object.0.is_multiple_of(8) {
                continue;
            }
            let mut copy = [0; EXPANDABLE_SEGMENT];
            match self.set.get(object, &mut copy) {
                Ok(()) => {}
                Err(NotCopied::Wanted) => {
                    self.lacking = true;
                    continue;
                }
                Err(NotCopied::Impossible) => continue,
            }
            let words: Vec<u64> = (0..copy.len())
                .step_by(8)
                .filter_map(|at| Field::<u64>::at(at).get(&copy))
                .collect();
            if !words.contains(&first.address) {
                continue;
            }
            let is_granule = |word: &&u64| {
                **word >= MIN_GRANULE
                    && bytes.is_multiple_of(**word)
                    && words.contains(&(bytes / **word))
            };
            if let Some(granule) = words.iter().find(is_granule) {
                return Ok(Some(*granule));
            }
        }
        Ok(None)
    }

    fn place(&mut self, addr: Addr, active: bool) -> Result<Option<u32>, WalkError> {
        if addr.0 == 0 {
            return Ok(None);
        }
        if let Some(place) = self.scratch.indices.get(&addr) {
            return Ok(Some(*place));
        }
        let place = self.scratch.nodes.len();
        if place >= MAX_BLOCKS {
            return Err(WalkError::Inconsistent("there are too many blocks"));
        }
        let mut copy = [0; BlockLayout::MAX_LEN];
        let copy = copy.get_mut(..self.input.block.len()).unwrap_or_default();
        let got = self.set.get(addr, copy);
        if self.here(got)?.is_none() {
            return Ok(None);
        }
        let block =
            self.input.block.decode(copy).ok_or(WalkError::Inconsistent("a block is invalid"))?;
        if u32::try_from(block.device) != Ok(self.input.index) {
            return Err(WalkError::Inconsistent("a block belongs to another device"));
        }
        let place = place as u32;
        self.scratch.indices.insert(addr, place);
        self.scratch.nodes.push(WalkNode {
            block,
            at: addr,
            active,
            prev: None,
            next: None,
            granule: 0,
        });
        Ok(Some(place))
    }
}

fn block_of(WalkNode { block, active, .. }: &WalkNode) -> Block {
    Block {
        address: block.address,
        size: block.size,
        requested: if *active { block.requested } else { 0 },
        state: match (block.allocated, *active) {
            (true, _) => BlockState::Allocated,
            (false, true) => BlockState::PendingFree,
            (false, false) => BlockState::Inactive,
        },
    }
}

fn segments(trail: &WalkScratch) -> Result<WalkedBlocks, WalkError> {
    let mut found = WalkedBlocks::default();
    let node = |place: Option<u32>| trail.nodes.get(place? as usize);
    let mut placed = 0;
    for (start, first) in (0..).zip(&trail.nodes) {
        if !first.block.mapped || node(first.prev).is_some_and(|prev| prev.block.mapped) {
            continue;
        }
        let pool = trail.pools.get(&first.block.pool);
        let pool = *pool.ok_or(WalkError::Inconsistent("a block is in no known pool"))?;
        let mut segment = Segment {
            address: first.block.address,
            size: 0,
            stream: first.block.stream,
            small: pool.small,
            // Its address range exceeds the device, so part is always unmapped. Other segments have
            // no unmapped blocks.
            expandable: first.prev.is_some(),
            granule: first.granule,
            retired: pool.retired,
            pool: pool.id,
            blocks: Vec::new(),
        };
        let (mut place, mut before) = (Some(start), first.prev);
        while let Some(here) = node(place) {
            let WalkNode { block, active, .. } = here;
            if here.prev != before {
                return Err(WalkError::Inconsistent("a block has another neighbour"));
            }
            if !block.mapped {
                segment.expandable = true;
                break;
            }
            if block.address != segment.address + segment.size || block.pool != first.block.pool {
                return Err(WalkError::Inconsistent("the blocks of a segment do not join"));
            }
            if block.allocated && !active {
                return Err(WalkError::Inconsistent("an allocated block is not active"));
            }
            segment.size += block.size;
            segment.blocks.push(block_of(here));
            found.sums.add(pool.small, block.allocated, *active, block.size, block.requested);
            placed += 1;
            if placed > trail.nodes.len() {
                return Err(WalkError::Inconsistent("a chain of blocks has no end"));
            }
            (before, place) = (place, here.next);
        }
        found.segments.push(segment);
    }
    if placed != trail.nodes.iter().filter(|node| node.block.mapped).count() {
        return Err(WalkError::Inconsistent("a block is in no segment"));
    }
    found.segments.sort_unstable_by_key(|segment| segment.address);
    Ok(found)
}
