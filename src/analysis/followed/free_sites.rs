//! What is freed at which place: the blocks of a group that one line frees were nearly always allocated by one other.
//!
//! Of several live blocks of one group a free may have been any. In one iteration that cannot be decided: the optimizer's
//! first step makes its state beside gradients of the same size, and `zero_grad` then frees the gradients. In all later ones
//! the gradients are the only young blocks there, so what this line frees becomes clear. Choices made before are then put
//! right: the block that was taken for freed is alive, the one that was taken to be alive was freed.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::{AllocationOrigin, BlockAttribution, BlockGroup};

/// Places remembered, and origins of each.
const MAX_SITES: usize = 1 << 16;
const MAX_ORIGINS: usize = 12;
/// Frees at a place after which it is clear what it frees, and how many times as often as anything else.
const MIN_FREES: u32 = 3;
const CLEAR_RATIO: u32 = 3;
/// The same, to leave no doubt: 95 %.
const ALWAYS_RATIO: u32 = 19;
/// Checked frees before they say something.
const MIN_CHECKED: u32 = 16;
/// Choices remembered: of one origin in one group, and in all. What an optimizer's first step is wrongly taken to have lost is
/// known to be alive only after many frees of others.
const MAX_CHOICES: usize = 1 << 10;
const MAX_ALL_CHOICES: usize = 1 << 16;

/// The calls in which something was freed: where they were made, as [`AllocationOrigin::Below`].
pub(in crate::analysis) type FreeSite = [Option<AllocationOrigin>; 2];

/// Frees of which is known which block they took: how often another sign told the same.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::analysis) struct CheckedFrees {
    right: u32,
    all: u32,
}

impl CheckedFrees {
    pub(in crate::analysis) fn add(&mut self, is_right: bool) {
        self.right = self.right.saturating_add(u32::from(is_right));
        self.all = self.all.saturating_add(1);
    }

    pub(in crate::analysis) fn join(&mut self, other: CheckedFrees) {
        self.right = self.right.saturating_add(other.right);
        self.all = self.all.saturating_add(other.all);
    }

    pub(in crate::analysis) fn is_reliable(self) -> bool {
        let wrong = self.all - self.right;
        self.all >= MIN_CHECKED && self.right >= wrong.saturating_mul(ALWAYS_RATIO)
    }
}

/// Whose blocks are freed at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::analysis) struct UsualSite {
    pub(in crate::analysis) origin: AllocationOrigin,
    /// Hardly ever another's.
    pub(in crate::analysis) is_always: bool,
}

/// A free of which it was not clear which block of its group it was.
#[derive(Debug, Clone)]
pub(in crate::analysis) struct FreeChoice {
    pub(in crate::analysis) site: FreeSite,
    /// When, in nanoseconds since the recording began.
    pub(in crate::analysis) time: u64,
    /// The block taken for the one that was freed.
    pub(in crate::analysis) freed: Arc<BlockAttribution>,
}

/// What was freed where, since the recording began.
#[derive(Debug, Default)]
pub(in crate::analysis) struct FreeSites {
    freed: FxHashMap<(BlockGroup, AllocationOrigin), Vec<(AllocationOrigin, u32)>>,
    choices: FxHashMap<BlockGroup, FxHashMap<AllocationOrigin, VecDeque<FreeChoice>>>,
    /// How many these are.
    all_choices: usize,
    /// When a block was allocated last for which the origin came into question.
    possible: FxHashMap<(BlockGroup, AllocationOrigin), u64>,
    /// How often the youngest of several blocks was freed.
    pub(in crate::analysis) youngest: CheckedFrees,
}

impl FreeSites {
    /// A block was allocated.
    pub(in crate::analysis) fn allocate(
        &mut self,
        group: BlockGroup,
        attribution: &BlockAttribution,
        time: u64,
    ) {
        for origin in attribution.possible_stacks() {
            let key = (group, origin);
            if self.possible.len() < MAX_SITES || self.possible.contains_key(&key) {
                self.possible.insert(key, time);
            }
        }
    }

    /// Whether an origin has not allocated since, as far as is known.
    fn has_ended(&self, group: BlockGroup, origin: AllocationOrigin, since: u64) -> bool {
        self.possible.get(&(group, origin)).is_none_or(|time| *time <= since)
    }

    /// A block of this origin was freed there.
    pub(in crate::analysis) fn add(
        &mut self,
        group: BlockGroup,
        site: &FreeSite,
        origin: AllocationOrigin,
    ) {
        for &side in site.iter().flatten() {
            let key = (group, side);
            if self.freed.len() >= MAX_SITES && !self.freed.contains_key(&key) {
                continue;
            }
            let origins = self.freed.entry(key).or_default();
            if let Some((_, count)) = origins.iter_mut().find(|(known, _)| *known == origin) {
                *count = count.saturating_add(1);
            } else if origins.len() < MAX_ORIGINS {
                origins.push((origin, 1));
            }
        }
    }

    /// Whose blocks of this group are freed there, if that is clear.
    pub(in crate::analysis) fn usual(
        &self,
        group: BlockGroup,
        site: &FreeSite,
    ) -> Option<UsualSite> {
        let of_side = |side: &AllocationOrigin| {
            let origins = self.freed.get(&(group, *side))?;
            let &(origin, count) = origins.iter().max_by_key(|(_, count)| *count)?;
            let others: u32 = origins.iter().filter(|o| o.0 != origin).map(|o| o.1).sum();
            let is_times = |ratio| count >= others.saturating_mul(ratio);
            let usual = UsualSite { origin, is_always: is_times(ALWAYS_RATIO) };
            (count >= MIN_FREES && is_times(CLEAR_RATIO)).then_some((count, usual))
        };
        let sides = site.iter().flatten().filter_map(of_side);
        sides.max_by_key(|(count, _)| *count).map(|(_, usual)| usual)
    }

    /// Remembers a choice, to put it right when more is known.
    pub(in crate::analysis) fn remember(&mut self, group: BlockGroup, choice: FreeChoice) {
        let Some(origin) = choice.freed.possible_stacks().first().copied() else { return };
        if self.all_choices == MAX_ALL_CHOICES {
            return;
        }
        let choices = self.choices.entry(group).or_default().entry(origin).or_default();
        choices.push_back(choice);
        if choices.len() > MAX_CHOICES {
            choices.pop_front();
        } else {
            self.all_choices += 1;
        }
    }

    /// Forgets the choices made in a group: which of its blocks are alive is known by other means.
    pub(in crate::analysis) fn settle(&mut self, group: BlockGroup) {
        drop(self.take_choices(group));
    }

    fn take_choices(&mut self, group: BlockGroup) -> Vec<FreeChoice> {
        let of_group = self.choices.remove(&group).into_iter().flat_map(FxHashMap::into_values);
        let taken: Vec<FreeChoice> = of_group.flatten().collect();
        self.all_choices -= taken.len();
        taken
    }

    /// The groups with choices.
    pub(in crate::analysis) fn open_groups(&self) -> impl Iterator<Item = &BlockGroup> {
        self.choices.keys()
    }

    /// Puts choices right: `blocks` are those of the group that are alive. Gives the blocks with another attribution.
    pub(in crate::analysis) fn correct(
        &mut self,
        group: BlockGroup,
        mut blocks: Vec<(u64, Arc<BlockAttribution>)>,
    ) -> Vec<(u64, Arc<BlockAttribution>)> {
        let mut corrected = Vec::new();
        let mut choices = self.take_choices(group);
        choices.sort_by_key(|choice| choice.time);
        blocks.sort_by_key(|(address, block)| (block.allocated_at, *address));
        let mut kept = Vec::new();
        for choice in choices {
            let freed = choice.freed.possible_stacks();
            if !freed.iter().all(|of| self.has_ended(group, *of, choice.time)) {
                continue;
            }
            let usual = self.usual(group, &choice.site).map(|usual| usual.origin);
            let usual = usual.filter(|usual| !freed.contains(usual));
            let is_usual = |(_, block): &(u64, Arc<BlockAttribution>)| {
                usual.is_some() && block.only_stack() == usual
            };
            if let Some(at) = blocks.iter().position(is_usual) {
                let (address, _) = blocks.remove(at);
                corrected.push((address, choice.freed.uncertain()));
            } else {
                kept.push(choice);
            }
        }
        kept.into_iter().for_each(|choice| self.remember(group, choice));
        corrected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Pool, StackId, ThreadId};

    const GROUP: BlockGroup = BlockGroup { size: 4096, requested: 4096, pool: Pool::Small };

    fn origin(stack: u32) -> AllocationOrigin {
        AllocationOrigin::Stack(ThreadId(0), StackId(stack))
    }

    fn block(stack: u32, allocated_at: u64) -> Arc<BlockAttribution> {
        let shares = vec![(origin(stack), 1)];
        Arc::new(BlockAttribution { shares, allocated_at, ..(*BlockAttribution::before()).clone() })
    }

    /// One of stack 2 was taken for freed at 60 where as a rule those of stack 1 are.
    fn with_choice() -> FreeSites {
        let site = [Some(AllocationOrigin::Below(ThreadId(0), StackId(9))), None];
        let mut sites = FreeSites::default();
        (0..MIN_FREES).for_each(|_| sites.add(GROUP, &site, origin(1)));
        let freed = block(2, 10);
        sites.remember(GROUP, FreeChoice { site, time: 60, freed });
        sites
    }

    /// Who is charged then with the one block alive, of stack 1 and allocated at 50.
    fn corrected(mut sites: FreeSites) -> Vec<AllocationOrigin> {
        let corrected = sites.correct(GROUP, vec![(7, block(1, 50))]);
        corrected.iter().filter_map(|(_, block)| block.only_stack()).collect()
    }

    #[test]
    fn a_sign_is_reliable_once_it_was_right_often_enough() {
        let mut checked = CheckedFrees::default();
        let mut add = |is_right, times| {
            (0..times).for_each(|_| checked.add(is_right));
            checked.is_reliable()
        };
        assert!(!add(true, MIN_CHECKED - 1), "too few");
        assert!(add(true, 4));
        assert!(add(false, 1), "one of twenty");
        assert!(!add(false, 1));
    }

    #[test]
    fn what_is_usually_freed_there_was_freed() {
        assert_eq!(corrected(with_choice()), [origin(2)]);
    }

    #[test]
    fn a_choice_of_a_group_that_is_known_by_other_means_changes_nothing_later() {
        let mut sites = with_choice();
        sites.settle(GROUP);
        assert_eq!((sites.open_groups().count(), sites.all_choices), (0, 0));
        assert_eq!(corrected(sites), []);
    }
}
