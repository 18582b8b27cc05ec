//! The changes up to a map: replayed in order, and what is charged where no single allocation is
//! known.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::followed_step::{ChargedPart, FollowedStep};
use crate::analysis::attribution::{
    AllocationOrigin, BlockAttribution, BlockGroup, CounterInterval, CounterIntervals, PerPool,
    SnapshotInterval, attribute_allocations,
};
use crate::analysis::followed::change_window::WindowChange;
use crate::analysis::followed::follow_replay::FollowReplay;
use crate::analysis::followed::highest_moment::{AliveBlock, HighestMoment};
use crate::analysis::followed::pool_change::PoolChange;
use crate::analysis::followed::repeated_steps::PoolDeltas;
use crate::model::{CounterDelta, Pool};

/// Changes up to a map.
#[derive(Debug)]
pub(crate) struct UntilMap {
    pub(super) steps: Vec<FollowedStep>,
    /// The number of the first of them.
    pub(super) first: u64,
}

impl UntilMap {
    /// Replays them. The last of the highest moments, if it is asked for and higher than `above`
    /// bytes.
    pub(super) fn replay(
        &self,
        replay: &mut FollowReplay<'_>,
        above: Option<u64>,
    ) -> Option<HighestMoment> {
        let windows = self.windows();
        let highest = above.and_then(|above| self.highest(&windows, above));
        self.replay_to(self.steps.len(), replay, highest, &windows)
    }

    /// The blocks alive after change `at`, one of [`Self::known_moments`].
    pub(super) fn alive_at(
        &self,
        at: usize,
        replay: &mut FollowReplay<'_>,
    ) -> Option<Vec<AliveBlock>> {
        Some(self.replay_to(at + 1, replay, Some(at), &self.windows())?.blocks)
    }

    /// Replays the first `count` of them, and tells of the moment after the change `wanted`.
    fn replay_to(
        &self,
        count: usize,
        replay: &mut FollowReplay<'_>,
        wanted: Option<usize>,
        windows: &[Option<usize>],
    ) -> Option<HighestMoment> {
        let mut moment = None;
        let mut at = 0;
        while let Some(step) = self.steps.get(at).filter(|_| at < count) {
            let end = windows.get(at).copied().flatten();
            let addresses = end.and_then(|end| self.steps.get(end)?.addresses.as_ref());
            if let (Some(end), Some(addresses)) = (end, addresses) {
                let charged: Vec<_> =
                    self.steps[at..=end].iter().map(FollowedStep::charged_parts).collect();
                let changes: Vec<WindowChange<'_>> = self.steps[at..=end]
                    .iter()
                    .zip(&charged)
                    .map(|(step, parts)| self.replayed(step, parts.as_deref()))
                    .collect();
                replay.addressed_changes(&changes, addresses);
                if let Some(wanted) = wanted.filter(|wanted| (at..=end).contains(wanted)) {
                    moment = self.moment(wanted, replay);
                }
                at = end + 1;
                continue;
            }
            let charged = step.charged_parts();
            let WindowChange { pools, parts } = self.replayed(step, charged.as_deref());
            match charged {
                None => replay.change(&pools),
                Some(_) => replay.guessed_changes(&parts),
            }
            if wanted == Some(at) {
                moment = self.moment(at, replay);
            }
            at += 1;
        }
        moment
    }

    /// The moment after change `at`. After those replayed since, nothing was allocated.
    fn moment(&self, at: usize, replay: &FollowReplay<'_>) -> Option<HighestMoment> {
        // Without addresses too many frees are guessed in the midst of an iteration: of a job on
        // the simulated device less than half of what was drawn was right.
        let step = self.steps.get(at).filter(|_| replay.is_addressed)?;
        let FollowedStep { to: time, live, .. } = *step;
        Some(HighestMoment { time, live, blocks: replay.alive_since(time), unknown: 0 })
    }

    /// The last change after which most was alive, if that is more than `above` bytes. Within a
    /// window the tables tell what was alive if only frees follow.
    fn highest(&self, windows: &[Option<usize>], above: u64) -> Option<usize> {
        let height = |at: usize| self.steps[at].live.iter().sum::<i64>();
        let open = self.steps.iter().position(|step| step.open).unwrap_or(self.steps.len());
        let frees_follow = |at: usize| {
            let end = windows[at].unwrap_or(at);
            // Of changes that one poll saw together it is not told which of them freed a block.
            let is_free =
                |step: &FollowedStep| step.allocations() == 0 && step.to > self.steps[at].to;
            self.steps[at + 1..=end].iter().all(is_free)
        };
        let known = (0..open).filter(|at| frees_follow(*at));
        known.max_by_key(|at| height(*at)).filter(|at| height(*at).max(0) as u64 > above)
    }

    /// The changes after which it is known which came before.
    pub(super) fn known_moments(&self) -> impl Iterator<Item = usize> + use<> {
        let windows = self.windows();
        (0..self.steps.len()).filter(move |at| is_known(&windows, *at))
    }

    /// For each change the last one of the window that it belongs to: the changes after which the
    /// addresses were read.
    fn windows(&self) -> Vec<Option<usize>> {
        let mut windows = vec![None; self.steps.len()];
        for (at, step) in self.steps.iter().enumerate() {
            let Some(addresses) = &step.addresses else { continue };
            let first = (at + 1).saturating_sub(addresses.changes.max(1) as usize);
            windows[first..=at].fill(Some(at));
        }
        windows
    }

    /// A change as it is replayed.
    fn replayed<'a>(
        &self,
        step: &'a FollowedStep,
        charged: Option<&'a [ChargedPart]>,
    ) -> WindowChange<'a> {
        let index = |number: u64| number.saturating_sub(self.first) as usize + 1;
        let returned = step.returned.map(|(from, to)| (index(from), index(to)));
        let pool_changes = |pools: &PoolDeltas, attribution, returned, site| {
            [(Pool::Small, pools[0]), (Pool::Large, pools[1])].map(|(pool, delta)| PoolChange {
                pool,
                delta,
                is_open: step.open,
                attribution,
                returned,
                site,
            })
        };
        let of_part =
            |(pools, charge, site): &'a ChargedPart| pool_changes(pools, charge, None, *site);
        let parts: Vec<_> = charged.into_iter().flatten().map(of_part).collect();
        let returned = returned.filter(|_| charged.is_none());
        let pools = [step.small, step.large];
        WindowChange { pools: pool_changes(&pools, &step.charge, returned, step.site), parts }
    }

    /// Charges blocks of which no single allocation is known.
    pub(super) fn charge_left(
        &self,
        mut left: FxHashMap<BlockGroup, Vec<u64>>,
        lived_on: PerPool,
        charges: &mut FxHashMap<u64, Arc<BlockAttribution>>,
    ) {
        let ledger = self.of_several();
        let ends = |step: Option<&FollowedStep>| step.map_or(0, |step| step.to);
        let not_seen = Arc::new(BlockAttribution {
            shares: vec![(AllocationOrigin::NotSeen, 1)],
            span: Some(ends(self.steps.last()).saturating_sub(ends(self.steps.first()))),
            allocated_at: ends(self.steps.last()).max(1),
            certain: false,
            contested: false,
            doubted: false,
        });
        left.retain(|kind, addresses| {
            let most = |i: &CounterInterval| i.most_blocks(kind.pool, kind.size, kind.requested);
            let room = ledger.intervals.iter().map(most).fold(0, u64::saturating_add);
            addresses.sort_unstable();
            let beyond = addresses.split_off(addresses.len().min(room as usize));
            charges.extend(beyond.into_iter().map(|address| (address, not_seen.clone())));
            !addresses.is_empty()
        });
        let born = left.iter().map(|(kind, addresses)| (*kind, addresses.len() as u64)).collect();
        let between = SnapshotInterval {
            survived: lived_on,
            from: ends(self.steps.first()),
            to: ends(self.steps.last()),
            seen_last: &[(AllocationOrigin::NotSeen, 1)],
        };
        let found = attribute_allocations(&ledger, &born, &between);
        for (kind, addresses) in left {
            let charge = found.get(&kind).unwrap_or(&not_seen);
            charges.extend(addresses.into_iter().map(|address| (address, charge.clone())));
        }
    }

    /// The changes of several allocations.
    fn of_several(&self) -> CounterIntervals {
        let mut ledger = CounterIntervals::default();
        for step in &self.steps {
            let all = step.live[0].saturating_add(step.live[1]);
            let live = [all, step.live[0], step.live[1]];
            if let Some(last) = ledger.intervals.last_mut() {
                for (low, now) in last.low_after.iter_mut().zip(live) {
                    *low = (*low).min(now);
                }
            }
            if step.allocated.is_some() || step.allocations() == 0 {
                continue;
            }
            let amounts = |of: fn(&CounterDelta) -> i64| {
                let (small, large) = (of(&step.small), of(&step.large));
                [small.saturating_add(large), small, large]
            };
            ledger.push(CounterInterval {
                from: step.from,
                to: step.to,
                bytes: amounts(|delta| delta.allocated_bytes),
                count: amounts(|delta| delta.allocations),
                requested: amounts(|delta| delta.requested_bytes),
                low_after: live,
                open: step.open,
                seen: step.charge.shares.clone(),
            });
        }
        ledger
    }
}

/// Whether a change is the last of its window, or in none.
fn is_known(windows: &[Option<usize>], at: usize) -> bool {
    windows[at].is_none_or(|end| end == at)
}
