//! The blocks of one group in a replay: which of them is freed.
//!
//! It is the youngest of these, in order:
//!
//! 1. those that a function allocated and held in a variable: it returned in this change;
//! 2. those of the stack whose blocks are usually freed at this place (`free_sites.rs`);
//! 3. all but the block that was allocated last and just now: `x = f(x)` allocates its result
//!    before it drops what `x` was. How often this is right is measured in each recording, where
//!    the block that was freed is known; if it is not nearly always, the block that may have been
//!    freed instead is not *probable*.
//!
//! A block of the map before can be freed only as often as addresses of its batch are gone in the
//! map that follows: the blocks that were new in one map are a batch, for which of them has which
//! address is not known.
//!
//! Where none of all these can have been freed, one was whose address another of its kind has now.
//! One that several maps had, such as a parameter or an optimizer's state, stays: then nothing is
//! known of the block that was freed.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::BlockAttribution;
use crate::analysis::followed::free_sites::{CheckedFrees, FreeSite, UsualSite};

/// For this many nanoseconds after it was allocated a block is taken to be in use if nothing else
/// was allocated since.
const IN_USE_FOR: u64 = 100_000;

/// A block that is alive in the replay.
#[derive(Debug, Clone)]
pub(super) struct ReplayedBlock {
    /// The change that allocated it, or the address at which the map before had it.
    pub(super) from: BlockSource,
    pub(super) attribution: Arc<BlockAttribution>,
    /// In which changes the frame that allocated it can have dropped its variables.
    pub(super) returned: Option<(usize, usize)>,
    pub(super) is_gone: bool,
    pub(super) batch: usize,
    /// Whether several maps had it in its place.
    pub(super) lasts: bool,
    /// Which address the tables of the allocator say that it was given.
    pub(super) given: Option<u64>,
    /// Another block may have been freed instead.
    pub(super) doubted: bool,
}

impl ReplayedBlock {
    /// Whom it is charged to.
    pub(super) fn charge(&self) -> Arc<BlockAttribution> {
        match self.doubted && !self.attribution.doubted {
            true => self.attribution.in_doubt(),
            false => self.attribution.clone(),
        }
    }

    /// Its address, where that is known.
    pub(super) fn address(&self) -> Option<u64> {
        match self.from {
            BlockSource::Snapshot(address) => Some(address),
            BlockSource::Change(_) => self.given,
        }
    }
}

/// A block that was taken for the one that was freed.
#[derive(Debug)]
pub(super) struct ReplayedFree {
    pub(super) block: ReplayedBlock,
    pub(super) site: FreeSite,
    pub(super) time: u64,
    /// Whether it may have been one with another origin.
    pub(super) is_open: bool,
}

/// When and where one block of a group is freed.
pub(super) struct FreeMoment {
    /// The change.
    pub(super) change: usize,
    pub(super) time: u64,
    pub(super) site: FreeSite,
    /// Whose blocks of the group are freed there.
    pub(super) usual: Option<UsualSite>,
    /// How often the youngest was the right one until now.
    pub(super) youngest: CheckedFrees,
    /// The change that allocated last in any group.
    pub(super) last: Option<usize>,
}

impl FreeMoment {
    fn is_in_use(&self, block: &ReplayedBlock) -> bool {
        let age = self.time.saturating_sub(block.attribution.allocated_at);
        Some(block.from) == self.last.map(BlockSource::Change) && age <= IN_USE_FOR
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockSource {
    Snapshot(u64),
    Change(usize),
}

/// The blocks of one group.
#[derive(Debug, Default)]
pub(super) struct GroupReplay {
    /// From the oldest to the youngest.
    pub(super) live: Vec<ReplayedBlock>,
    pub(super) frees: Vec<ReplayedFree>,
    /// How many addresses of each batch were freed and not taken yet. Which of a batch had which
    /// address is not known.
    pub(super) gone: FxHashMap<usize, usize>,
    /// The batch of each address of the map before.
    pub(super) batches: FxHashMap<u64, usize>,
}

impl GroupReplay {
    /// Adds a block that `change` allocated.
    pub(super) fn push(
        &mut self,
        change: usize,
        attribution: Arc<BlockAttribution>,
        returned: Option<(usize, usize)>,
    ) {
        self.live.push(ReplayedBlock {
            from: BlockSource::Change(change),
            attribution,
            returned,
            is_gone: false,
            batch: 0,
            lasts: false,
            given: None,
            doubted: false,
        });
    }

    /// Where the block is that is at this address.
    pub(super) fn at_address(&self, address: u64) -> Option<usize> {
        self.live.iter().position(|block| block.address() == Some(address))
    }

    /// Takes the block at `at` for the one that was freed.
    pub(super) fn remove(&mut self, at: usize, site: FreeSite, time: u64) -> &mut ReplayedFree {
        let block = self.live.remove(at);
        self.take_address(&block);
        let free = ReplayedFree { block, site, time, is_open: false };
        self.frees.push_mut(free)
    }

    /// Frees a block. Where only its age speaks for it, and age is no good sign in this recording,
    /// the next block is in doubt. `checked` counts how often age is right.
    pub(super) fn free(&mut self, moment: &FreeMoment, checked: &mut CheckedFrees) {
        let told = self.told(moment);
        let Some(at) = told.or_else(|| self.youngest(moment)) else { return };
        let origin = self.live[at].attribution.only_stack();
        let is_always = |usual: UsualSite| usual.is_always && Some(usual.origin) == origin;
        if moment.usual.is_some_and(is_always) {
            self.check(at, moment, checked);
        }
        let other = self.other(at);
        if let Some(other) = other.filter(|_| told.is_none() && !moment.youngest.is_reliable()) {
            self.live[other].doubted = true;
        }
        self.remove(at, moment.site, moment.time).is_open = other.is_some();
    }

    /// The block of another site that may have been freed instead of one: the youngest, if
    /// possible one without doubt.
    fn other(&self, freed: usize) -> Option<usize> {
        let shares = &self.live[freed].attribution.shares;
        let differs =
            |block: &ReplayedBlock| self.can_free(block) && block.attribution.shares != *shares;
        let clear = self.live.iter().rposition(|block| !block.doubted && differs(block));
        clear.or_else(|| self.live.iter().rposition(differs))
    }

    /// Notes whether the freed block and the youngest are of one site, if blocks of others could go.
    pub(super) fn check(&self, freed: usize, moment: &FreeMoment, checked: &mut CheckedFrees) {
        if let (Some(_), Some(youngest)) = (self.other(freed), self.youngest(moment)) {
            let shares = |at: usize| &self.live[at].attribution.shares;
            checked.add(shares(youngest) == shares(freed));
        }
    }

    /// A block of the map before was freed: it had one of the addresses of its batch that are gone,
    /// whichever that was.
    pub(super) fn take_address(&mut self, block: &ReplayedBlock) {
        if let BlockSource::Snapshot(_) = block.from
            && !block.attribution.certain
            && let Some(gone) = self.gone.get_mut(&block.batch)
        {
            *gone = gone.saturating_sub(1);
        }
    }

    /// Whether the map that ends the replay leaves it open or shows that it was freed.
    pub(super) fn can_free(&self, block: &ReplayedBlock) -> bool {
        match block.from {
            BlockSource::Change(_) => true,
            BlockSource::Snapshot(_) if block.attribution.certain => block.is_gone,
            BlockSource::Snapshot(_) => self.gone.get(&block.batch).is_some_and(|gone| *gone > 0),
        }
    }

    /// Which block is freed most likely.
    pub(super) fn choose(&self, moment: &FreeMoment) -> Option<usize> {
        self.told(moment).or_else(|| self.youngest(moment))
    }

    /// The block that the place of the free tells.
    fn told(&self, moment: &FreeMoment) -> Option<usize> {
        let youngest = |test: &dyn Fn(&ReplayedBlock) -> bool| self.live.iter().rposition(test);
        let returned = |block: &ReplayedBlock| {
            let within = block.returned.filter(|(from, to)| (*from..=*to).contains(&moment.change));
            within.is_some() && !moment.is_in_use(block)
        };
        youngest(&returned).or_else(|| {
            let usual = Some(moment.usual?.origin);
            let is_usual = |block: &ReplayedBlock| {
                self.can_free(block) && block.attribution.only_stack() == usual
            };
            youngest(&|b| is_usual(b) && !moment.is_in_use(b)).or_else(|| youngest(&is_usual))
        })
    }

    fn youngest(&self, moment: &FreeMoment) -> Option<usize> {
        let youngest = |test: &dyn Fn(&ReplayedBlock) -> bool| self.live.iter().rposition(test);
        youngest(&|b| self.can_free(b) && !moment.is_in_use(b))
            .or_else(|| youngest(&|b| self.can_free(b)))
            .or_else(|| youngest(&|b| !b.lasts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::attribution::AllocationOrigin;
    use crate::model::{StackId, ThreadId};

    /// Whether the block that is left is in doubt, of two of these sites, where the youngest was
    /// the right one so often.
    fn doubts(sites: [u32; 2], right: u32) -> bool {
        let mut group = GroupReplay::default();
        for (change, site) in (1..).zip(sites) {
            let shares = vec![(AllocationOrigin::Stack(ThreadId(0), StackId(site)), 1)];
            let attribution = BlockAttribution { shares, ..(*BlockAttribution::before()).clone() };
            group.push(change, Arc::new(attribution), None);
        }
        let mut youngest = CheckedFrees::default();
        (0..right).for_each(|_| youngest.add(true));
        let (change, time, site) = (3, 900_000, [None; 2]);
        let moment = FreeMoment { change, time, site, usual: None, last: None, youngest };
        group.free(&moment, &mut CheckedFrees::default());
        group.live[0].charge().doubted
    }

    #[test]
    fn which_block_lives_is_in_doubt_where_only_its_age_tells_and_seldom_rightly() {
        assert!(doubts([1, 2], 0));
        assert!(!doubts([1, 1], 0), "both are of one site");
        assert!(!doubts([1, 2], 100), "measured");
    }
}
