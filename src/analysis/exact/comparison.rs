//! Compares events with counters and snapshots.

use super::torch::TorchDevice;
use super::{ExactProfile, span};
use crate::model::{
    AllocatorCounters, AllocatorSnapshot, CounterCheck, CounterSnapshot, CudaIndex, Metric, Pool,
    StackTable,
};

impl ExactProfile {
    pub(crate) fn on_counters(
        &mut self,
        index: CudaIndex,
        counters: &AllocatorCounters,
        table: &StackTable,
    ) {
        if self.early.is_waiting() {
            let before = self.torch.get(&index).map(TorchDevice::seen).unwrap_or_default();
            if self.early.compare(index, counters, before) {
                self.settle_early(table);
            } else {
                return;
            }
        }
        let levels = CounterSnapshot {
            allocated: counters.allocated(),
            peak: counters.max_allocated(),
            reserved: counters.reserved(),
            active: counters.stat(Metric::ActiveBytes, Pool::All).current,
        };
        let device = self.device(index);
        device.read(counters, levels);
        let span = span(levels, device.held());
        self.correct_lines(index);
        if let Some(lines) = self.lines(index) {
            lines.on_counters(span);
        }
    }

    /// Corrects frees of blocks that were smaller than counted.
    pub(super) fn correct_lines(&mut self, index: CudaIndex) {
        let Some(device) = self.torch.get_mut(&index) else { return };
        let freed = std::mem::take(&mut device.freed_corrections);
        let Some(lines) = self.lines(index) else { return };
        for (stack, extent, less) in freed {
            lines.freed_less(stack, extent, less);
        }
    }

    pub(crate) fn on_snapshot(&mut self, snapshot: &AllocatorSnapshot) {
        self.last = self.last.max(snapshot.time);
        if self.interrupted {
            // After a gap, the keyframe has the same blocks with their sites.
            return;
        }
        let device = snapshot.device;
        let freed_early = std::mem::take(&mut self.freed_early);
        self.device(device).on_snapshot(snapshot, &freed_early);
        if self.torch.values().any(|torch| torch.last_snapshot.is_none()) {
            self.freed_early = freed_early;
        }
        for (_, block) in snapshot.blocks() {
            if let Some(torch) = self.torch.get(&device)
                && torch.ledger.live.contains_key(&block.address)
            {
                self.device_of.insert(block.address, device);
            }
        }
    }

    pub(crate) fn on_counter_check(&mut self, counter_check: &CounterCheck) {
        let agreement = self.agreement.entry(counter_check.device).or_default();
        agreement.checks += 1;
        agreement.allocations = counter_check.allocations;
        agreement.requested = counter_check.requested;
        agreement.frees = counter_check.frees.unwrap_or(0);
        let frees_equal = counter_check.frees.is_none_or(|frees| frees == 0);
        let equal = counter_check.allocations == 0 && counter_check.requested == 0 && frees_equal;
        agreement.equal += u64::from(equal);
    }
}
