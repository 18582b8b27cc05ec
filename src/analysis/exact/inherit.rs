//! Handing on the blocks of an exact recording, each with its site.

use super::extent::Extent;
use super::ledger::{Amount, BEFORE, Block, Ledger, NO_EVENT, NO_SITE, SITES, SMALL};
use super::torch::{Height, TorchDevice};
use super::{Early, ExactProfile, MemoryKind, Other, kind_of, span};
use crate::analysis::profile::inherit::Makers;
use crate::model::{
    Arena, CudaIndex, Frees, Inherited, InheritedBlock, InheritedMemory, Levels, Maker, Nanos,
    SiteId, StackTable,
};

impl ExactProfile {
    /// Adds the living blocks of every kind.
    pub(crate) fn hand_on(&self, makers: &mut Makers, memory: &mut Vec<InheritedMemory>) {
        for (&device, torch) in &self.torch {
            memory.push(InheritedMemory {
                arena: Arena::Torch(device),
                mapped: torch.last_map,
                levels: torch.levels,
                freed_since: torch.freed_since(),
                blocks: blocks(&torch.ledger, makers),
            });
        }
        for (&kind, other) in &self.others {
            let arena = match kind {
                MemoryKind::Driver => Arena::Driver(None),
                MemoryKind::Physical => Arena::Physical(None),
                MemoryKind::Managed => Arena::Managed,
                MemoryKind::Pinned => Arena::PinnedHost,
                MemoryKind::Torch => continue,
            };
            memory.push(InheritedMemory {
                arena,
                mapped: None,
                levels: None,
                freed_since: 0,
                blocks: blocks(&other.ledger, makers),
            });
        }
    }

    /// Begins with what was handed on.
    pub(crate) fn inherit(&mut self, inherited: &Inherited, table: &StackTable) {
        self.last = self.last.max(inherited.time);
        // A map that stands before tells no makers.
        self.device_of.clear();
        self.freed_early.clear();
        self.lines.clear();
        // What the allocator did before is no longer in the recording.
        (self.starts_empty, self.early) = (false, Early::default());
        let (least_life, from_maps) = (self.least_life, self.exact.frees == Frees::Maps);
        for torch in self.torch.values_mut() {
            let largest_free = torch.largest_free;
            *torch = TorchDevice::new(least_life, from_maps);
            torch.largest_free = largest_free;
        }
        for memory in &inherited.memory {
            let account = |block: &InheritedBlock| {
                account(inherited.makers.get(block.maker as usize).unwrap_or(&Maker::Lost))
            };
            match (memory.arena, kind_of(memory.arena)) {
                (Arena::Torch(device), _) => {
                    for block in &memory.blocks {
                        self.device(device).ledger.inherit(block.address, living(block, account));
                        self.device_of.insert(block.address, device);
                    }
                    self.begin_at(device, memory, inherited.time);
                }
                (_, Some(kind)) => {
                    let least_life = self.least_life;
                    let other = self.others.entry(kind).or_insert_with(|| Other {
                        ledger: Ledger::new(least_life),
                        ..Other::default()
                    });
                    for block in &memory.blocks {
                        other.ledger.inherit(block.address, living(block, account));
                    }
                    (other.height, other.height_at) = (other.ledger.total, inherited.time);
                    other.ledger.reach(inherited.time.0);
                }
                (_, None) => {}
            }
        }
        // Whose lines the sites count to follows from the stacks that their threads were seen with.
        for maker in &inherited.makers {
            if let Maker::Site(site) = maker {
                let _ = self.counts_to(*site, table);
            }
        }
    }

    fn begin_at(&mut self, device: CudaIndex, memory: &InheritedMemory, time: Nanos) {
        let freed = memory.freed_since as i64;
        let torch = self.device(device);
        torch.inherit(memory.mapped, memory.levels, memory.freed_since);
        let now = memory.levels.map(|levels| Levels {
            allocated: levels.allocated - freed,
            active: levels.active - freed,
            ..levels
        });
        let bytes = now.map_or(torch.ledger.total, |levels| levels.allocated.max(0) as u64);
        if !torch.deaths_from_maps {
            torch.reach(Height { time, bytes, levels: now });
        }
        if let Some(now) = now {
            self.lines.entry(device).or_default().saw(span(now, None));
        }
    }
}

fn blocks(ledger: &Ledger, makers: &mut Makers) -> Vec<InheritedBlock> {
    let mut blocks: Vec<InheritedBlock> = Vec::with_capacity(ledger.live.len());
    for (&address, block) in &ledger.live {
        let Amount { bytes, stands_for } = block.amount();
        let maker = match block.account as usize {
            BEFORE => Maker::Before,
            NO_EVENT => Maker::NoEvent,
            NO_SITE => Maker::Lost,
            SMALL => Maker::NotTaken,
            site => Maker::Site(SiteId((site - SITES) as u32)),
        };
        blocks.push(InheritedBlock {
            address,
            size: bytes,
            requested: block.requested,
            stands_for,
            born: Nanos(block.born),
            small: block.small,
            maker: makers.index(maker),
        });
    }
    blocks.sort_unstable_by_key(|block| block.address);
    blocks
}

fn account(maker: &Maker) -> usize {
    match maker {
        Maker::Before => BEFORE,
        Maker::NoEvent => NO_EVENT,
        Maker::Lost | Maker::Seen { .. } => NO_SITE,
        Maker::NotTaken => SMALL,
        Maker::Site(site) => SITES + site.0 as usize,
    }
}

fn living(block: &InheritedBlock, account: impl Fn(&InheritedBlock) -> usize) -> Block {
    let InheritedBlock { size, requested, small, .. } = *block;
    Block::new(Extent { size, requested, small }, block.stands_for, account(block), block.born.0)
}
