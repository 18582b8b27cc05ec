//! Training iterations: the levels and owners in each.
//!
//! A [clock](super::IterationClock) ends an iteration. The peak is at least the iteration's first
//! level, all levels seen, and the allocator's peak if that rose ([`OpenLevels`]).

mod allocation_period;
mod backward;
mod clock;
mod iteration;
mod level;
mod peak;

pub use allocation_period::{AllocationPeriod, PeriodFinder};
pub(crate) use clock::RunningClock;
pub use clock::{IterationClock, MarkerLine};
pub use iteration::{Iteration, IterationEnd, IterationLevels, IterationOwners, ParameterBytes};

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use crate::analysis::iterations::backward::BackwardBlocks;
use crate::analysis::iterations::peak::OpenLevels;
use crate::model::{
    AllocatorCounters, CounterSnapshot, CudaIndex, Event, ExactSettings, Metric, Nanos,
    OwnershipBreakdown, Pool, StackTable, StepSource, TensorCategory, TrainingStep,
};

/// Later iterations are only counted.
const MAX_ITERATIONS: usize = 1 << 17;

#[derive(Debug, Default)]
pub(crate) struct IterationBuilder {
    done: Vec<Iteration>,
    left_out: u64,
    last: Option<TrainingStep>,
    open: BTreeMap<CudaIndex, OpenLevels>,
    held: BTreeMap<CudaIndex, IterationOwners>,
    /// The last step changed only its epoch.
    keeps_step: bool,
    /// Ended, and the next has not begun.
    is_over: bool,
    begin_is_known: bool,
    /// The last iteration, which each device's next poll may prove, with a moment before its start.
    ended: Option<(usize, Nanos)>,
    begun_after: Nanos,
    /// Each device's last poll, in exact recordings.
    polled: BTreeMap<CudaIndex, Nanos>,
    /// Only if iterations are requested.
    in_backward: Option<BackwardBlocks>,
    by_parameter: bool,
    /// Range in `done` already marked for lost events.
    uncertain: Range<usize>,
    /// Bytes of `done`.
    kept: u64,
}

fn memory_of(held: &IterationOwners) -> u64 {
    let names: usize = held.parameters.keys().map(|name| name.len() + 96).sum();
    (size_of::<IterationOwners>() + held.categories.len() * 32 + names) as u64
}

/// Exact recordings read the clock after a batch of events.
pub(in crate::analysis) const TAKEN_TOGETHER: u64 = 20_000_000;
/// Exact recordings: a level this old is of the current iteration, unless the step counter was not
/// found.
const SETTLED_AFTER: u64 = 1_000_000_000;

/// More per second mean another counter, or memory that is no counter.
const MAX_STEPS: u64 = 1_000_000;

/// Losses are reported every second, or a little later.
const CHECKED_EVERY: u64 = 3_000_000_000;

impl IterationBuilder {
    pub(crate) fn asked_for(by_parameter: bool) -> IterationBuilder {
        let in_backward = Some(BackwardBlocks::default());
        IterationBuilder { in_backward, by_parameter, ..IterationBuilder::default() }
    }

    /// Takes a clock's step, with a time before it.
    pub(crate) fn on_step(&mut self, clock_step: Option<(TrainingStep, Nanos)>) {
        let Some((step, from)) = clock_step else { return };
        if step.is_over {
            return self.take_over(step, from);
        }
        let is_last = |last: TrainingStep| {
            (last.clock, last.step, last.epoch) == (step.clock, step.step, step.epoch)
        };
        if !self.is_over && self.last.is_some_and(is_last) {
            return;
        }
        // A loop variable keeps its last value until the loop restarts, even in a new epoch: no
        // iteration is in between.
        let is_between = std::mem::take(&mut self.is_over)
            || self.keeps_step
                && self.last.is_some_and(|last| last.epoch == step.epoch && step.step < last.step);
        self.keeps_step = step.clock == StepSource::Variable
            && self.last.is_some_and(|last| last.step == step.step && last.epoch != step.epoch);
        let last = self.last.filter(|last| !is_between && last.clock == step.clock);
        let ended = last.and_then(|last| ended_by(&last, &step));
        if let Some((last, named, steps)) = ended {
            let levels = self.end_levels(&step, from);
            let iteration = Iteration {
                step: named.step,
                epoch: named.epoch,
                steps,
                from: last.time,
                begin_is_known: self.begin_is_known,
                to: step.time,
                end: IterationEnd::Counted,
                ends_between_events: step.is_between_events(),
                levels,
                owned: std::mem::take(&mut self.held),
            };
            self.push(iteration);
        }
        let is_first = self.last.replace(step).is_none();
        if is_first || ended.is_none() {
            self.end_levels(&step, from);
            self.ended = None;
            if !is_between && (is_first || !step.is_between_events()) {
                self.open.values_mut().for_each(OpenLevels::doubt_peaks);
            }
        }
        self.begin_is_known = !is_first && (ended.is_some() || is_between);
        self.begun_after = from;
        self.clear_iteration();
    }

    fn take_over(&mut self, step: TrainingStep, from: Nanos) {
        let Some(last) = self.last.filter(|_| !self.is_over) else { return };
        let iteration = Iteration {
            step: last.step,
            epoch: last.epoch,
            steps: 1,
            from: last.time,
            begin_is_known: self.begin_is_known,
            to: from.max(last.time),
            end: IterationEnd::VariableGone,
            ends_between_events: false,
            levels: self.end_levels(&step, from),
            owned: std::mem::take(&mut self.held),
        };
        self.push(iteration);
        self.last = Some(TrainingStep { time: step.time, ..last });
        (self.is_over, self.keeps_step) = (true, false);
        self.clear_iteration();
    }

    fn end_levels(
        &mut self,
        step: &TrainingStep,
        from: Nanos,
    ) -> BTreeMap<CudaIndex, IterationLevels> {
        let is_vague = step.uncertainty.is_some_and(|within| within.0 > SETTLED_AFTER);
        let in_backward = &self.in_backward;
        let end = |(device, open): (&CudaIndex, &mut OpenLevels)| {
            let mut ended = match step.is_between_events() {
                true => open.end_between_events(),
                false => open.end(from, step.time),
            };
            if is_vague {
                open.doubt_peaks();
                ended = ended.uncertain();
            }
            ended.intermediate = in_backward.as_ref().and_then(|it| it.peak(*device));
            (*device, ended)
        };
        self.open.iter_mut().map(end).collect()
    }

    fn push(&mut self, iteration: Iteration) {
        self.ended = None;
        if self.done.len() < MAX_ITERATIONS {
            let levels = iteration.levels.len() * 2 * size_of::<(CudaIndex, IterationLevels)>();
            self.kept += (size_of::<Iteration>() + levels) as u64;
            self.kept += iteration.owned.values().map(memory_of).sum::<u64>();
            self.ended = Some((self.done.len(), self.begun_after));
            self.done.push(iteration);
        } else {
            self.left_out += 1;
        }
    }

    fn clear_iteration(&mut self) {
        self.held.clear();
        if let Some(blocks) = &mut self.in_backward {
            blocks.forget();
        }
    }

    /// The unfinished iteration of a loop variable.
    pub(crate) fn under_way(&self, now: Nanos) -> Option<Iteration> {
        let is_counted = |last: &TrainingStep| last.clock == StepSource::Variable && !self.is_over;
        let last = self.last.filter(is_counted).filter(|_| self.left_out == 0)?;
        let levels = |(device, open): (&CudaIndex, &OpenLevels)| {
            let until = Nanos(u64::MAX);
            let mut levels = open.clone().end(until, until).uncertain();
            levels.intermediate = self.in_backward.as_ref().and_then(|it| it.peak(*device));
            (*device, levels)
        };
        Some(Iteration {
            step: last.step,
            epoch: last.epoch,
            steps: 1,
            from: last.time,
            begin_is_known: self.begin_is_known,
            to: now.max(last.time),
            end: IterationEnd::NotSeen,
            ends_between_events: false,
            levels: self.open.iter().map(levels).collect(),
            owned: self.held.clone(),
        })
    }

    pub(crate) fn memory(&self) -> u64 {
        let open: u64 = self.open.values().map(OpenLevels::memory).sum();
        let passing = self.in_backward.as_ref().map_or(0, BackwardBlocks::memory);
        self.kept + self.held.values().map(memory_of).sum::<u64>() + open + passing
    }

    pub(crate) fn on_exact_settings(&mut self, exact: &ExactSettings) {
        if let Some(blocks) = &mut self.in_backward {
            blocks.begin(exact);
        }
    }

    pub(crate) fn on_backward_event(&mut self, event: &Event, stacks: &StackTable) {
        if let Some(blocks) = &mut self.in_backward {
            blocks.on_event(event, stacks);
        }
    }

    /// Since the previous check, no level is proven.
    pub(crate) fn on_lost_events(&mut self, time: Nanos) {
        self.lose_since(Nanos(time.0.saturating_sub(CHECKED_EVERY)));
    }

    pub(crate) fn lose_since(&mut self, since: Nanos) {
        // Both are in time order: each is marked once.
        let from = self.done.partition_point(|iteration| iteration.to < since);
        let from = from.max(self.uncertain.start);
        let unmarked = from.max(self.uncertain.end).min(self.done.len());
        for iteration in &mut self.done[unmarked..] {
            for levels in iteration.levels.values_mut() {
                *levels = levels.uncertain();
                levels.intermediate = None;
            }
        }
        self.uncertain = from..self.done.len();
        self.open.values_mut().for_each(OpenLevels::doubt_peaks);
        if let Some(blocks) = &mut self.in_backward {
            blocks.mark_lost();
        }
    }

    pub(crate) fn on_freed(&mut self, time: Nanos, device: CudaIndex, level: i64) {
        self.open.entry(device).or_default().freed(time, level);
    }

    pub(crate) fn on_sample_window(&mut self, time: Nanos) {
        for open in self.open.values_mut() {
            open.settle(Nanos(time.0.saturating_sub(SETTLED_AFTER)));
        }
    }

    pub(crate) fn on_counters(
        &mut self,
        time: Nanos,
        device: CudaIndex,
        counters: &AllocatorCounters,
    ) {
        let stat = |metric: Metric| counters.stat(metric, Pool::All);
        let open = self.open.entry(device).or_default();
        let confirmed =
            open.on_counters(time, stat(Metric::AllocatedBytes), stat(Metric::ReservedBytes));
        if let Some((ended, begun_after)) = self.ended
            && let Some(ended) = self.done.get_mut(ended)
            && let Some(levels) = ended.levels.get_mut(&device)
        {
            levels.allocated_is_exact |= confirmed.allocated == Some(true);
            levels.reserved_is_exact |= confirmed.reserved == Some(true);
            // Nothing was released: the peak is the final level.
            levels.peak_reserved_is_exact |= confirmed.reserved == Some(true)
                && ended.begin_is_known
                && open.nothing_released_since().is_some_and(|since| since <= begun_after);
        }
        // Events show what was reserved; polls, that nothing was released.
        let Some(known_since) = open.reserved_is_known_since() else { return };
        let before = self.polled.insert(device, time).unwrap_or_default();
        for ended in self.done.iter_mut().rev().take_while(|it| it.to > before) {
            if let Some(levels) = ended.levels.get_mut(&device)
                && ended.ends_between_events
                && ended.from >= known_since
            {
                (levels.reserved_is_exact, levels.peak_reserved_is_exact) = (true, true);
            }
        }
    }

    pub(crate) fn on_followed(&mut self, time: Nanos, device: CudaIndex, level: i64) {
        self.open.entry(device).or_default().on_poll(time, level);
    }

    /// No higher level was missed.
    pub(crate) fn on_counter_snapshot(
        &mut self,
        time: Nanos,
        device: CudaIndex,
        now: CounterSnapshot,
    ) {
        let open = self.open.entry(device).or_default();
        open.settle(Nanos(time.0.saturating_sub(SETTLED_AFTER)));
        open.allocated(time, now);
    }

    pub(crate) fn on_ownership(&mut self, snapshot: &OwnershipBreakdown) {
        let time = Nanos(snapshot.time.0.saturating_sub(snapshot.age.0));
        for device in &snapshot.devices {
            let mut held = IterationOwners {
                allocated: device.allocated,
                results: device.results,
                in_no_tensor: device.without_tensor,
                ..Default::default()
            };
            for storages in &device.held {
                *held.categories.entry(storages.category).or_default() += storages.bytes;
                if !self.by_parameter {
                    continue;
                }
                let parameters = &mut held.parameters;
                match (storages.category, storages.owner.strip_suffix(".grad")) {
                    (TensorCategory::Parameter, _) => {
                        let name = std::sync::Arc::clone(&storages.owner);
                        parameters.entry(name).or_default().weight += storages.bytes;
                    }
                    (TensorCategory::Gradient, Some(name)) => {
                        parameters.entry(name.into()).or_default().gradient += storages.bytes;
                    }
                    _ => {}
                }
            }
            held.feature_maps = held.feature_maps_now();
            if let Some(seen) = self.owners_at(time) {
                match seen.entry(device.device) {
                    Entry::Occupied(mut before) => {
                        let most = before.get().feature_maps.max(held.feature_maps);
                        if before.get().allocated <= held.allocated {
                            before.insert(held);
                        }
                        before.get_mut().feature_maps = most;
                    }
                    Entry::Vacant(none) => drop(none.insert(held)),
                }
            }
        }
    }

    /// An owner snapshot may arrive after its iteration.
    fn owners_at(&mut self, time: Nanos) -> Option<&mut BTreeMap<CudaIndex, IterationOwners>> {
        if self.last.is_none_or(|last| last.time <= time) {
            return Some(&mut self.held);
        }
        let after = self.done.partition_point(|iteration| iteration.from <= time);
        let of = self.done.get_mut(after.checked_sub(1)?)?;
        (time < of.to).then_some(&mut of.owned)
    }

    pub(crate) fn step_clock(&self) -> Option<StepSource> {
        self.last.map(|last| last.clock)
    }

    pub(crate) fn at_events(&self) -> bool {
        self.last.is_some_and(|last| last.is_between_events())
    }

    pub(crate) fn done(&self) -> &[Iteration] {
        &self.done
    }

    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }
}

/// Start, name and number of steps; `None` if unrelated.
fn ended_by(last: &TrainingStep, step: &TrainingStep) -> Option<(TrainingStep, TrainingStep, u64)> {
    // A variable numbers the current step, and may restart with an epoch.
    if step.clock == StepSource::Variable {
        let steps = match step.epoch == last.epoch && step.step > last.step {
            true => step.step - last.step,
            false => 1,
        };
        return Some((*last, *last, steps));
    }
    let steps = step.step.checked_sub(last.step).filter(|steps| *steps > 0)?;
    let nanos = u128::from(step.time.0.saturating_sub(last.time.0));
    let most = 1 + nanos * u128::from(MAX_STEPS) / 1_000_000_000;
    (u128::from(steps) <= most).then_some((*last, *step, steps))
}

#[cfg(test)]
#[path = "iterations_tests.rs"]
mod tests;
