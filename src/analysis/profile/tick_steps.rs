//! A tick's counters: what changed since the previous tick, by device, and for which lines.

use rustc_hash::FxHashMap;

use super::thread_stays::ThreadStay;
use super::{CounterReading, Profile};
use crate::analysis::attribution::{
    AllocationOrigin, BlockAttribution, WaitingPlaces, allocating_between,
};
use crate::analysis::profile::bounds::{BoundsTable, CounterBracket, IntervalBounds};
use crate::analysis::profile::device::DeviceProfile;
use crate::model::{
    AllocatorCounters, CudaIndex, Metric, Nanos, Pool, StackId, StackTable, ThreadSample,
};

/// In periods. In a longer gap between two samples, a loop may leave a line and come back.
const MAX_STAY: u64 = 5;

/// A tick and the previous one, the same for all devices.
struct TickStep<'a> {
    previous: Nanos,
    now: Nanos,
    /// May have allocated between the ticks, with weights.
    between: Vec<(AllocationOrigin, u64)>,
    /// The same while this tick was read.
    within: Vec<(AllocationOrigin, u64)>,
    /// The only stack at work at both ends.
    alone: Option<StackId>,
    stacks: &'a StackTable,
    charges_lines: bool,
}

impl TickStep<'_> {
    /// Returns what the device's counters did since they were read last.
    fn take(
        &self,
        reading: &CounterReading,
        profile: &mut DeviceProfile,
        bounds: &mut BoundsTable,
        places: &mut WaitingPlaces,
    ) -> Option<IntervalBounds> {
        let read_at = profile.counters.as_ref().map_or(Nanos(0), |c| c.0);
        let from = self.previous.max(read_at);
        let old = profile.step(from, self.now, &reading.first, &self.between);
        let between = old.map(|old| {
            if let Some(stack) = self.alone
                && allocated_in_all(&reading.first) > allocated_in_all(&old)
            {
                places.works(stack);
            }
            let between = IntervalBounds::between(&old, &reading.first);
            self.charge(bounds, &between, &self.between);
            between
        });
        if let Some((time, after)) = &reading.after {
            profile.step(self.now, *time, after, &self.within);
            let around = IntervalBounds::between(&reading.first, after);
            self.charge(bounds, &around, &self.within);
            let first = IntervalBounds::at(&reading.first);
            profile.around = Some(Box::new(CounterBracket::between(&first, &around)));
        }
        between
    }

    fn charge(
        &self,
        bounds: &mut BoundsTable,
        step: &IntervalBounds,
        seen: &[(AllocationOrigin, u64)],
    ) {
        if self.charges_lines {
            bounds.charge(step, &stacks_of(seen, step.has_many(), self.stacks));
        }
    }
}

/// Threads at both ends of a tick.
struct TickThreads<'a> {
    stays: Vec<ThreadStay>,
    at_work: &'a [ThreadSample],
    /// The ends are so near that threads probably stayed in between.
    near: bool,
}

impl TickThreads<'_> {
    /// Gives a device's levels to the lines; `before`: around the previous sample.
    fn charge(
        &self,
        profile: &DeviceProfile,
        bounds: &mut BoundsTable,
        step: Option<IntervalBounds>,
        before: Option<&CounterBracket>,
    ) {
        let around = profile.around.as_deref();
        if let Some(mut step) = step {
            step.widen(before, around);
            for stay in &self.stays {
                stay.charge(bounds, &step, self.near, profile.version);
            }
        }
        // A new stack has at least the current values.
        let Some((_, current)) = &profile.counters else { return };
        for thread in self.at_work {
            if bounds.version(thread.stack.0) != profile.version {
                let mut step = IntervalBounds::at(current);
                step.widen(None, around);
                bounds.came(thread.stack.0, &step, profile.version);
            }
        }
    }
}

impl Profile {
    pub(super) fn step_devices(&mut self) {
        let readings: FxHashMap<CudaIndex, CounterReading> =
            self.open_counters.drain(..).map(|reading| (reading.device, reading)).collect();
        let is_moving = !readings.is_empty() || self.profiles.values().any(|p| p.around.is_some());
        let stays = if is_moving && !self.skips_lines { self.thread_stays() } else { Vec::new() };
        let (previous, open) = (&self.previous, &self.open);
        let apart = open.time.0.saturating_sub(previous.time.0);
        let near = apart <= MAX_STAY * 2 * self.half_period();
        let (mut between, mut within) = (Vec::new(), Vec::new());
        if !readings.is_empty() {
            within = open.allocating(open, self.stack_facts());
            between = allocating_between(previous, open, self.stack_facts());
        }
        let alone =
            previous.at_work_alone().filter(|_| previous.at_work_alone() == open.at_work_alone());
        let lines = if self.skips_lines { 0 } else { 16 * (stays.len() + self.at_work.len()) };
        let steps = (self.profiles.len() + readings.len()) * (16 + between.len() + lines);
        self.memory.add_work(steps);
        let tick = TickStep {
            previous: previous.time,
            now: open.time,
            between,
            within,
            alone,
            stacks: &self.stacks,
            charges_lines: !self.skips_lines,
        };
        let threads = TickThreads { stays, at_work: &self.at_work, near };
        for reading in readings.values() {
            let empty_at = self.empty_at;
            self.profiles.entry(reading.device).or_insert_with(|| match empty_at {
                Some(time) => DeviceProfile::from_zero(time),
                None => DeviceProfile::default(),
            });
        }
        for (device, profile) in &mut self.profiles {
            let bounds = self.bounds.entry(*device).or_default();
            let before = profile.around.take();
            let step = match readings.get(device) {
                Some(reading) => tick.take(reading, profile, bounds, &mut self.places),
                None if before.is_some() => {
                    profile.counters.as_ref().map(|c| IntervalBounds::at(&c.1))
                }
                None => None,
            };
            if !self.skips_lines {
                threads.charge(profile, bounds, step, before.as_deref());
            }
        }
    }
}

fn allocated_in_all(counters: &AllocatorCounters) -> i64 {
    counters.stat(Metric::AllocatedBytes, Pool::All).allocated
}

/// As [`BlockAttribution::shown`]; `many`: there were many allocations.
fn stacks_of(seen: &[(AllocationOrigin, u64)], many: bool, stacks: &StackTable) -> Vec<(u32, u64)> {
    let charge = BlockAttribution {
        shares: seen.to_vec(),
        span: None,
        allocated_at: 0,
        certain: false,
        contested: many,
        doubted: false,
    };
    let shown = charge.shown(false, |stack| stacks.get_stack(stack)?.parent);
    let stack = |&(origin, weight): &(AllocationOrigin, u64)| match origin {
        AllocationOrigin::Stack(_, stack) | AllocationOrigin::Below(_, stack) => {
            Some((stack.0, weight))
        }
        AllocationOrigin::Before
        | AllocationOrigin::BeforeOwned(_)
        | AllocationOrigin::NoStack
        | AllocationOrigin::NotSeen => None,
    };
    shown.shares.iter().filter_map(stack).collect()
}
