//! Folds exact events: bytes by allocation site.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::live_blocks::{BEFORE, LiveBlocks, NO_EVENT, SITES, ScaledBytes};
use super::site_paths::FirstNodes;
use super::{ExactProfile, MemoryGroup};
use crate::analysis::attribution::{AttributedSnapshot, Moment};
use crate::analysis::folded::{
    AllocatedStack, FoldOptions, FoldedStack, StackLabel, TextBudget, before_path,
};
use crate::analysis::owners::split;
use crate::model::{CudaIndex, Nanos, OwnerId, SiteId, SnapshotConsistency, StackTable};

/// Unsorted.
pub(crate) struct ExactFold {
    pub(crate) stacks: Vec<FoldedStack>,
    pub(crate) total: u64,
    pub(crate) snapshot: AttributedSnapshot,
    /// Bytes older than the recording, absent from the leak view.
    pub(crate) left_out: u64,
    /// By owner, where known.
    pub(crate) left_out_stacks: Vec<FoldedStack>,
    /// With `churn`.
    pub(crate) allocations: u64,
    /// Stacks beyond the text budget.
    pub(crate) unlisted: u64,
}

impl ExactProfile {
    /// The default kind of memory.
    pub fn default_memory(&self) -> MemoryGroup {
        if self.has_torch() || self.others.is_empty() {
            return MemoryGroup::Torch;
        }
        let most = |kind: &&MemoryGroup| self.others.get(kind).map_or(0, |other| other.peak);
        let kinds =
            [MemoryGroup::Driver, MemoryGroup::Physical, MemoryGroup::Managed, MemoryGroup::Pinned];
        kinds.iter().rev().max_by_key(most).copied().unwrap_or(MemoryGroup::Driver)
    }

    /// Folds a moment, or all allocations; `None` without this kind of memory. `most`: PyTorch's
    /// peak.
    pub(crate) fn fold(
        &self,
        device: CudaIndex,
        moment: Moment,
        options: FoldOptions,
        table: &StackTable,
        mut budget: TextBudget,
        most: u64,
    ) -> Option<ExactFold> {
        let kind = options.memory.unwrap_or_else(|| self.default_memory());
        let (ledger, peak, at) = self.ledger_and_peak(kind, device)?;
        let mut allocations = 0;
        let (held, counted, time) = match moment {
            _ if options.churn => {
                allocations = ledger.accounts().iter().map(|account| account.count).sum();
                (ledger.allocated(), 0, self.last)
            }
            Moment::Peak => {
                (ledger.at_peak(self.last.0), if self.min_lifetime > 0 { 0 } else { peak }, at)
            }
            Moment::End => (ledger.at_end(self.last.0), 0, self.last),
        };
        let mut held = self.bytes(&held);
        if !options.churn && kind == MemoryGroup::Torch {
            // Missed frees can exceed the allocator's memory: the counters decide.
            let is_known = moment == Moment::Peak && peak > 0;
            fit(&mut held, if is_known { peak } else { most });
        }
        let mut held: FxHashMap<usize, u64> = held.into_iter().enumerate().collect();
        let (mut left_out, mut left_out_stacks) = (0, Vec::new());
        let owned = match options.churn {
            true => Vec::new(),
            false => self.owned(ledger, moment),
        };
        let mut total: u64 = held.values().sum::<u64>().max(counted);
        if moment == Moment::End && !options.churn {
            left_out = held.remove(&BEFORE).unwrap_or(0);
            total -= left_out;
            left_out_stacks = before_stacks(left_out, &owned, table);
        }
        let known: u64 = held.values().sum();
        if known < total {
            *held.entry(NO_EVENT).or_default() += total - known;
        }
        let snapshot = self.snapshot(kind, device, moment, ledger, time, total);
        let before = held.remove(&BEFORE).unwrap_or(0);
        let mut stacks = before_stacks(before, &owned, table);
        stacks.extend(self.stacks(held, options, table, &mut budget));
        let unlisted = budget.left_out.0;
        Some(ExactFold {
            stacks,
            total,
            snapshot,
            left_out,
            left_out_stacks,
            allocations,
            unlisted,
        })
    }

    /// The peak's bytes and time.
    fn ledger_and_peak(
        &self,
        kind: MemoryGroup,
        device: CudaIndex,
    ) -> Option<(&LiveBlocks, u64, Nanos)> {
        Some(match kind {
            MemoryGroup::Torch => {
                let torch = self.torch.get(&device)?;
                let (peak, at) = torch.peak.map_or((0, Nanos(0)), |peak| (peak.bytes, peak.time));
                (&torch.ledger, peak, at)
            }
            other => {
                let other = self.others.get(&other)?;
                (&other.ledger, other.peak, other.peak_time)
            }
        })
    }

    fn owned(&self, ledger: &LiveBlocks, moment: Moment) -> Vec<(OwnerId, u64)> {
        let mut by_owner: BTreeMap<OwnerId, u64> = BTreeMap::new();
        for (owned, bytes) in ledger.owned(moment == Moment::Peak).filter(|(_, bytes)| *bytes > 0) {
            if let Some(owners) = self.before_owners.get(owned) {
                split(owners, bytes, |owner, bytes| *by_owner.entry(owner).or_default() += bytes);
            }
        }
        by_owner.into_iter().collect()
    }

    /// `None` without PyTorch blocks.
    pub(crate) fn allocated_by_stack(
        &self,
        device: CudaIndex,
        table: &StackTable,
        mut budget: TextBudget,
    ) -> Option<Vec<AllocatedStack>> {
        let ledger = &self.torch.get(&device)?.ledger;
        let bytes = self.bytes(&ledger.allocated());
        let mut nodes = FirstNodes::default();
        let mut stacks = Vec::new();
        let mut counts_left_out = 0;
        for (account, (bytes, sums)) in bytes.into_iter().zip(ledger.accounts()).enumerate() {
            if bytes == 0 && sums.count == 0 {
                continue;
            }
            let site = account.checked_sub(SITES).map(|site| SiteId(site as u32));
            let site = site.and_then(|site| table.get_site(site));
            let of_site = site.into_iter().flat_map(|site| [site.stack, site.forward]);
            if !budget.takes(of_site.flatten(), bytes) {
                counts_left_out += sums.count;
                continue;
            }
            let path = self.path_of(account, FoldOptions::default(), table, &mut nodes);
            let count = (!self.is_estimated()).then_some(sums.count);
            stacks.push(AllocatedStack { path, bytes, count });
        }
        stacks.extend(budget.rest().map(|rest| AllocatedStack {
            path: rest.path,
            bytes: rest.bytes,
            count: (!self.is_estimated()).then_some(counts_left_out),
        }));
        Some(stacks)
    }

    /// Where stacks are sampled, they share the total by the bytes that they represent.
    pub(super) fn bytes(&self, held: &[ScaledBytes]) -> Vec<u64> {
        let mut bytes: Vec<u64> = held.iter().map(|amount| amount.bytes).collect();
        if !self.is_estimated() {
            return bytes;
        }
        let sampled = held.get(SITES..).unwrap_or_default();
        let whole: u64 = sampled.iter().map(|amount| amount.bytes).sum();
        let stood_for: u128 = sampled.iter().map(|amount| u128::from(amount.stands_for)).sum();
        if stood_for == 0 {
            return bytes;
        }
        // Differences of cumulative portions add up.
        let mut done: u128 = 0;
        let portion = |upto: u128| (u128::from(whole) * upto / stood_for) as u64;
        for (bytes, amount) in bytes[SITES..].iter_mut().zip(sampled) {
            let upto = done + u128::from(amount.stands_for);
            *bytes = portion(upto) - portion(done);
            done = upto;
        }
        bytes
    }

    fn snapshot(
        &self,
        kind: MemoryGroup,
        device: CudaIndex,
        moment: Moment,
        ledger: &LiveBlocks,
        time: Nanos,
        total: u64,
    ) -> AttributedSnapshot {
        let torch = self.torch.get(&device).filter(|_| kind == MemoryGroup::Torch);
        let levels = match moment {
            Moment::Peak => torch.and_then(|t| t.peak).and_then(|h| h.levels),
            Moment::End => torch.and_then(|t| t.levels),
        };
        let before = ledger.at_peak(self.last.0).get(BEFORE).map_or(0, |held| held.bytes);
        AttributedSnapshot {
            followed: false,
            time,
            allocated: total,
            in_blocks: total,
            reserved: levels.map(|l| l.reserved.max(0) as u64),
            pending_free: levels.map_or(0, |l| (l.active - l.allocated).max(0) as u64),
            largest_free: torch.map_or(0, |t| t.largest_free),
            consistency: SnapshotConsistency::Consistent,
            before_recording: before,
            blocks: Vec::new(),
            addresses: Vec::new(),
            ownerless: Vec::new(),
        }
    }

    fn stacks(
        &self,
        held: FxHashMap<usize, u64>,
        options: FoldOptions,
        table: &StackTable,
        budget: &mut TextBudget,
    ) -> Vec<FoldedStack> {
        let mut by_path: FxHashMap<Vec<StackLabel>, u64> = FxHashMap::default();
        let mut nodes = FirstNodes::default();
        let mut held: Vec<(usize, u64)> =
            held.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        held.sort_unstable_by_key(|&(account, bytes)| (std::cmp::Reverse(bytes), account));
        for (account, bytes) in held {
            let site = account.checked_sub(SITES).map(|site| SiteId(site as u32));
            let site = site.and_then(|site| table.get_site(site));
            let stacks = site.into_iter().flat_map(|site| {
                let native = site.native.stack().filter(|_| options.native);
                [native.or(site.stack), site.forward]
            });
            if !budget.takes(stacks.flatten(), bytes) {
                continue;
            }
            let path = self.path_of(account, options, table, &mut nodes);
            *by_path.entry(path).or_default() += bytes;
        }
        let stack = |(path, bytes)| FoldedStack { path, bytes, evidence: None };
        let listed = by_path.into_iter().map(stack);
        listed.chain(budget.rest()).collect()
    }

    pub(crate) fn accounts_by_block(
        &self,
        time: Nanos,
    ) -> FxHashMap<CudaIndex, FxHashMap<u64, usize>> {
        self.torch.iter().map(|(device, torch)| (*device, torch.accounts_at(time))).collect()
    }
}

/// Reduces the sum to `most`: younger bytes in proportion, older ones only if needed.
pub(super) fn fit(held: &mut [u64], most: u64) {
    let sum: u64 = held.iter().sum();
    let over = sum.saturating_sub(most);
    if over == 0 {
        return;
    }
    let older = held.get(BEFORE).copied().unwrap_or(0);
    let (whole, kept) = (sum - older, (sum - older).saturating_sub(over));
    let portion =
        |upto: u64| (u128::from(kept) * u128::from(upto) / u128::from(whole.max(1))) as u64;
    let mut done = 0;
    for (account, bytes) in held.iter_mut().enumerate() {
        if account == BEFORE {
            *bytes = (*bytes).min(most);
            continue;
        }
        let upto = done + *bytes;
        *bytes = portion(upto) - portion(done);
        done = upto;
    }
}

fn before_stacks(bytes: u64, owned: &[(OwnerId, u64)], table: &StackTable) -> Vec<FoldedStack> {
    let mut rest = bytes;
    let mut stacks = Vec::new();
    for &(owner, bytes) in owned {
        let bytes = bytes.min(rest);
        rest -= bytes;
        let path = before_path(Some(owner), table);
        stacks.push(FoldedStack { path, bytes, evidence: None });
    }
    stacks.push(FoldedStack { path: before_path(None, table), bytes: rest, evidence: None });
    stacks.retain(|stack| stack.bytes > 0);
    stacks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_never_exceed_the_allocator() {
        let fitted = |older: u64, most: u64| {
            let mut held = vec![0; SITES + 2];
            (held[BEFORE], held[SITES], held[SITES + 1]) = (older, 30, 10);
            fit(&mut held, most);
            [BEFORE, SITES, SITES + 1].map(|account| held[account])
        };
        assert_eq!(fitted(5, 45), [5, 30, 10]);
        assert_eq!(fitted(5, 25), [5, 15, 5]);
        assert_eq!(fitted(50, 40), [40, 0, 0]);
    }
}
