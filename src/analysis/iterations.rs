//! Training iterations: what the memory reached in each, and what held it.
//!
//! An iteration ends when the step counter of an optimizer rises. The level at its begin, all levels seen in it, and the
//! allocator's own high-water mark where that rose in it bound its peak from below; where the mark rose, that is its peak.
//! The counter is looked at when a sample is taken, so ends are known to within the time between two samples.

use std::collections::BTreeMap;

use crate::model::{
    AllocatorCounters, Category, CudaIndex, HolderSnapshot, Levels, Metric, Nanos, Pool, Step,
};

/// Iterations kept; those after are left out, and counted.
const MOST: usize = 1 << 17;

/// One device in one iteration, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IterationLevels {
    /// Greatest `allocated_bytes` seen.
    pub peak_allocated: i64,
    /// Whether that is the peak itself: the allocator's high-water mark rose to it, or every allocation was seen.
    pub exact: bool,
    /// `allocated_bytes` at its end.
    pub allocated: i64,
    /// Greatest `reserved_bytes` seen.
    pub peak_reserved: i64,
    /// `reserved_bytes` at its end.
    pub reserved: i64,
}

/// An iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Iteration {
    /// The optimizer's step that it ended with.
    pub step: u64,
    /// How many steps it stands for: more than one where several fell between two samples.
    pub steps: u64,
    /// Its begin.
    pub from: Nanos,
    /// Its end.
    pub to: Nanos,
    /// By device.
    pub levels: BTreeMap<CudaIndex, IterationLevels>,
    /// The bytes by category of the last look at holders in it, by device.
    pub held: BTreeMap<CudaIndex, BTreeMap<Category, u64>>,
}

/// Iterations being gathered.
#[derive(Debug, Default)]
pub(crate) struct Iterations {
    done: Vec<Iteration>,
    left_out: u64,
    /// The last step counted, and when it was seen.
    last: Option<(u64, Nanos)>,
    open: BTreeMap<CudaIndex, IterationLevels>,
    held: BTreeMap<CudaIndex, BTreeMap<Category, u64>>,
    /// The allocator's high-water mark as last seen.
    marks: BTreeMap<CudaIndex, i64>,
}

impl Iterations {
    pub(crate) fn take_step(&mut self, step: Step) {
        if let Some((last, from)) = self.last
            && step.step > last
        {
            let iteration = Iteration {
                step: step.step,
                steps: step.step - last,
                from,
                to: step.time,
                levels: self.open.clone(),
                held: std::mem::take(&mut self.held),
            };
            if self.done.len() < MOST {
                self.done.push(iteration);
            } else {
                self.left_out += 1;
            }
        }
        self.held.clear();
        self.last = Some((step.step, step.time));
        for levels in self.open.values_mut() {
            levels.peak_allocated = levels.allocated;
            levels.peak_reserved = levels.reserved;
            levels.exact = false;
        }
    }

    pub(crate) fn take_counters(&mut self, device: CudaIndex, counters: &AllocatorCounters) {
        let stat = |metric: Metric| counters.stat(metric, Pool::All);
        let (allocated, reserved) = (stat(Metric::AllocatedBytes), stat(Metric::ReservedBytes));
        let levels = self.open.entry(device).or_default();
        levels.allocated = allocated.current;
        levels.reserved = reserved.current;
        levels.peak_reserved = levels.peak_reserved.max(reserved.current);
        let mark = self.marks.insert(device, allocated.peak);
        // It rose since the last look: what it rose to was reached in between.
        if mark.is_some_and(|mark| mark < allocated.peak) {
            levels.peak_allocated = allocated.peak;
            levels.exact = true;
        } else if levels.peak_allocated < allocated.current {
            levels.peak_allocated = allocated.current;
            levels.exact = false;
        }
    }

    /// The levels after an allocation: nothing higher comes unseen.
    pub(crate) fn take_levels(&mut self, device: CudaIndex, now: Levels) {
        let levels = self.open.entry(device).or_default();
        levels.allocated = now.allocated;
        levels.reserved = now.reserved;
        levels.peak_allocated = levels.peak_allocated.max(now.allocated);
        levels.peak_reserved = levels.peak_reserved.max(now.reserved);
        levels.exact = true;
    }

    pub(crate) fn take_holders(&mut self, snapshot: &HolderSnapshot) {
        for device in &snapshot.devices {
            let held = self.held.entry(device.device).or_default();
            held.clear();
            for storages in &device.held {
                *held.entry(storages.category).or_default() += storages.bytes;
            }
        }
    }

    pub(crate) fn done(&self) -> &[Iteration] {
        &self.done
    }

    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(current: i64, peak: i64) -> AllocatorCounters {
        let mut counters = AllocatorCounters::default();
        let stat = &mut counters.stats[Metric::AllocatedBytes as usize][Pool::All as usize];
        (stat.current, stat.peak) = (current, peak);
        counters
    }

    fn step(time: u64, step: u64) -> Step {
        Step { time: Nanos(time), step }
    }

    #[test]
    fn an_iterations_peak_is_exact_where_the_mark_rose_in_it() {
        let device = CudaIndex(0);
        let mut iterations = Iterations::default();
        iterations.take_counters(device, &counters(10, 100));
        iterations.take_step(step(5, 3)); // What was before is no whole iteration.
        iterations.take_counters(device, &counters(40, 100));
        iterations.take_counters(device, &counters(20, 100));
        iterations.take_step(step(10, 4));
        iterations.take_counters(device, &counters(30, 150));
        iterations.take_step(step(20, 6));
        iterations.take_step(step(30, 7));
        let done = iterations.done();
        let of = |i: usize| {
            let levels = done[i].levels[&device];
            (done[i].step, done[i].steps, levels.peak_allocated, levels.exact, levels.allocated)
        };
        assert_eq!(of(0), (4, 1, 40, false, 20));
        assert_eq!(of(1), (6, 2, 150, true, 30));
        // Nothing happened: the level it began with.
        assert_eq!(of(2), (7, 1, 30, false, 30));
        assert_eq!((done[1].from, done[1].to), (Nanos(10), Nanos(20)));
        // A counter that begins anew begins no iteration.
        iterations.take_step(step(40, 1));
        assert_eq!(iterations.done().len(), 3);
    }
}
