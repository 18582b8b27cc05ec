//! Handing on: what the records of a dropped beginning told, for a recording that goes on without them.
//!
//! Whoever keeps only the last minutes lets a profile read all records, asks it at the border of two segments
//! for [`Profile::inheritance`], and puts that in front of the next one. A profile that reads from there on
//! charges every block as the first one would have.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Profile;
use crate::analysis::charge::{Charge, Origin};
use crate::analysis::exact::ExactProfile;
use crate::model::{
    Arena, Inherited, InheritedBlock, InheritedMemory, Maker, Nanos, Pool, Record, Share,
};

/// Makers, each listed once.
#[derive(Debug, Default)]
pub(crate) struct Makers {
    list: Vec<Maker>,
    known: FxHashMap<Maker, u32>,
}

impl Makers {
    /// The index of a maker.
    pub(crate) fn index(&mut self, maker: Maker) -> u32 {
        let list = &mut self.list;
        *self.known.entry(maker).or_insert_with_key(|maker| {
            list.push(maker.clone());
            list.len() as u32 - 1
        })
    }
}

impl Profile {
    /// Whether every block allocated so far has been charged to someone: then a recording can be cut here without
    /// losing anything. Take the tick being collected into account first ([`Profile::finish`]).
    pub fn is_settled(&self) -> bool {
        self.exact().is_some_and(ExactProfile::is_settled)
            || self.exact().is_none() && self.profiles.values().all(|device| device.is_settled())
    }

    /// What a recording that begins at `time` has to know of the memory held then.
    pub fn inheritance(&self, time: Nanos) -> Inherited {
        let mut makers = Makers::default();
        let mut memory = Vec::new();
        match self.exact() {
            Some(exact) => exact.hand_on(&mut makers, &mut memory),
            None => {
                for (&device, profile) in &self.profiles {
                    let Some(mapped) = profile.last_map() else { continue };
                    let mut blocks: Vec<InheritedBlock> = Vec::new();
                    for (address, kind, charge) in profile.living() {
                        blocks.push(InheritedBlock {
                            address,
                            size: kind.size,
                            requested: kind.requested,
                            stands_for: kind.size,
                            born: Nanos(charge.map_or(0, |charge| charge.born)),
                            small: kind.pool == Pool::Small,
                            maker: makers.index(charge.map_or(Maker::Before, maker)),
                        });
                    }
                    blocks.sort_unstable_by_key(|block| block.address);
                    memory.push(InheritedMemory {
                        arena: Arena::Torch(device),
                        mapped: Some(mapped),
                        levels: None,
                        freed_since: 0,
                        blocks,
                    });
                }
            }
        }
        Inherited { time, makers: makers.list, memory }
    }

    /// The records that say how things stand, in the numbers of [`Profile::stacks`]: what a recording that begins now
    /// puts before its inheritance. Definitions and sources are for whoever writes them to add.
    pub fn standing(&self) -> Vec<Record> {
        let mut records = Vec::new();
        records.extend(self.start().cloned().map(Record::Start));
        records.extend(self.runtime().cloned().map(Record::Runtime));
        records.extend(self.devices().iter().cloned().map(Record::Device));
        records.extend(self.exact().map(|exact| Record::Exact(exact.exact().clone())));
        records.extend(self.usage().values().map(|usage| Record::Usage(usage.last.clone())));
        for device in self.gpus() {
            let counters = self.profiles.get(&device).and_then(|p| p.counters.as_ref());
            if let Some((time, counters)) = counters {
                let (time, counters) = (*time, counters.clone());
                records.push(Record::Counters { time, device, counters });
            }
        }
        records
    }

    /// Begins with what an earlier part of the recording handed on.
    pub(super) fn take_inherited(&mut self, inherited: &Inherited) {
        self.finish();
        self.begins = Some(inherited.time);
        self.last_time = self.last_time.max(inherited.time);
        if let Some(exact) = &mut self.exact {
            exact.inherit(inherited, &self.stacks);
            return;
        }
        let mut charges: FxHashMap<(u32, u64), Arc<Charge>> = FxHashMap::default();
        for memory in &inherited.memory {
            let (Arena::Torch(device), Some(mapped)) = (memory.arena, memory.mapped) else {
                continue;
            };
            let blocks = memory.blocks.iter().map(|block| {
                let charge = charges.entry((block.maker, block.born.0)).or_insert_with(|| {
                    let maker = inherited.makers.get(block.maker as usize);
                    maker.map_or_else(Charge::before, |maker| charge(maker, block.born.0))
                });
                (*block, charge.clone())
            });
            self.profiles.entry(device).or_default().inherit(mapped, blocks);
        }
    }
}

fn maker(charge: &Arc<Charge>) -> Maker {
    if let [(Origin::Before, _)] = charge.shares[..] {
        return Maker::Before;
    }
    let share = |&(origin, weight): &(Origin, u64)| match origin {
        Origin::Stack(thread, stack) => Share { by: Some((thread, stack)), weight },
        Origin::Before | Origin::NoStack => Share { by: None, weight },
    };
    Maker::Seen { shares: charge.shares.iter().map(share).collect(), span: charge.span.map(Nanos) }
}

fn charge(maker: &Maker, born: u64) -> Arc<Charge> {
    let Maker::Seen { shares, span } = maker else { return Charge::before() };
    let origin = |share: &Share| match share.by {
        Some((thread, stack)) => (Origin::Stack(thread, stack), share.weight),
        None => (Origin::NoStack, share.weight),
    };
    let mut shares: Vec<(Origin, u64)> = shares.iter().map(origin).collect();
    if shares.iter().all(|share| share.1 == 0) {
        shares = vec![(Origin::NoStack, 1)];
    }
    Arc::new(Charge { shares, span: span.map(|span| span.0), born })
}
