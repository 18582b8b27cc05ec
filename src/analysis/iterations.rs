//! Training iterations: what the memory reached in each, and what held it.
//!
//! An iteration ends when its [clock](super::IterationClock) says so. The level at its begin, all levels seen in it, and the
//! allocator's own high-water mark where that rose in it bound its peak from below; where the mark rose, that is its peak
//! ([`OpenLevels`] tells when). Where every event was seen and the step was made exactly between two of them, all is known.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;

use super::iteration_backward::BackwardBlocks;
use super::iteration_peak::OpenLevels;
use crate::model::{
    AllocatorCounters, Category, CudaIndex, Event, Exact, HolderSnapshot, Levels, Metric, Nanos,
    Pool, StackTable, Step, StepClock,
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
    /// Intermediate gradients: the most bytes asked for that blocks held at once which were allocated while an autograd node
    /// was evaluated, and freed by the backward pass before the iteration ended. `None` where that is not known (sampled
    /// recordings), and where no node was seen to allocate.
    pub intermediate: Option<u64>,
}

/// An iteration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Iteration {
    /// The optimizer's step that it ended with, the value that the loop's variable had in it, else its number.
    pub step: u64,
    /// The value that the epoch's variable had in it.
    pub epoch: Option<u64>,
    /// How many steps it stands for: more than one where several fell between two samples.
    pub steps: u64,
    /// Its begin.
    pub from: Nanos,
    /// Its end.
    pub to: Nanos,
    /// By device.
    pub levels: BTreeMap<CudaIndex, IterationLevels>,
    /// What the look at holders in it saw that found most allocated, by device.
    pub held: BTreeMap<CudaIndex, HeldInIteration>,
}

/// What a look at holders in an iteration saw on a device, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldInIteration {
    /// `allocated_bytes` at that look.
    pub allocated: u64,
    /// Bytes among the other tensors that are results of autograd nodes; `None` where the recording does not tell.
    pub results: Option<u64>,
    /// By category; those missing hold nothing.
    pub categories: BTreeMap<Category, u64>,
    /// Blocks in no tensor that Python or the graph knows: gradients on their way through the backward pass, work spaces.
    pub in_no_tensor: u64,
    /// The bytes of each parameter and of its gradient, by the parameter's name; only if they were asked for.
    pub parameters: BTreeMap<Arc<str>, ParameterBytes>,
}

impl HeldInIteration {
    /// Feature maps: what is saved for the backward pass, and results of nodes that only Python keeps. `None` where the
    /// recording does not tell the latter.
    pub fn feature_maps(&self) -> Option<u64> {
        let saved = self.categories.get(&Category::Saved).copied().unwrap_or_default();
        Some(saved + self.results?)
    }
}

/// A parameter in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ParameterBytes {
    /// Its own.
    pub weight: u64,
    /// Those of its gradient; 0 when it has none.
    pub gradient: u64,
}

/// Iterations being gathered.
#[derive(Debug, Default)]
pub(crate) struct Iterations {
    done: Vec<Iteration>,
    left_out: u64,
    /// The last step.
    last: Option<Step>,
    open: BTreeMap<CudaIndex, OpenLevels>,
    held: BTreeMap<CudaIndex, HeldInIteration>,
    /// Whether the last step came with another epoch only.
    keeps_step: bool,
    /// What the backward pass holds; only where iterations are asked for.
    in_backward: Option<BackwardBlocks>,
    /// Whether parameters are kept one by one.
    by_parameter: bool,
    /// Of `done`, those that lost events have made uncertain already: marked once, they are not walked again.
    uncertain: Range<usize>,
    /// About how many bytes `done` takes.
    kept: u64,
}

/// About how many bytes a look's sums take.
fn memory_of(held: &HeldInIteration) -> u64 {
    let names: usize = held.parameters.keys().map(|name| name.len() + 96).sum();
    (size_of::<HeldInIteration>() + held.categories.len() * 32 + names) as u64
}

/// In exact recordings the clock is looked at after events were taken, all of some milliseconds together.
pub(super) const TAKEN_TOGETHER: u64 = 20_000_000;
/// A level seen so long ago in an exact recording is of the iteration under way: a step is known to have been made later, but
/// for those whose counter could not be found for as long.
const SETTLED_AFTER: u64 = 1_000_000_000;

/// Losses of events are told once a second, or a little later.
const CHECKED_EVERY: u64 = 3_000_000_000;

impl Iterations {
    /// Those that are asked for, with the bytes of each parameter if `by_parameter`.
    pub(crate) fn asked_for(by_parameter: bool) -> Iterations {
        let in_backward = Some(BackwardBlocks::default());
        Iterations { in_backward, by_parameter, ..Iterations::default() }
    }

    /// Takes the step that a clock told of, if it did, and the time after which it was made.
    pub(crate) fn take_step(&mut self, told: Option<(Step, Nanos)>) {
        let Some((step, from)) = told else { return };
        if self.last.is_some_and(|last| (last.step, last.epoch) == (step.step, step.epoch)) {
            return;
        }
        // A loop's variable keeps its last value until the loop begins anew, also when the epoch's has changed already: what
        // was between the two is no iteration.
        let is_between = self.keeps_step
            && self.last.is_some_and(|last| last.epoch == step.epoch && step.step < last.step);
        self.keeps_step = step.clock == StepClock::Variable
            && self.last.is_some_and(|last| last.step == step.step && last.epoch != step.epoch);
        let is_vague = step.within.is_some_and(|within| within.0 > SETTLED_AFTER);
        let end = |open: &mut OpenLevels| match step.is_between_events() {
            true => open.end_between_events(),
            false => {
                let ended = open.end(from);
                if is_vague {
                    open.began_unseen();
                }
                IterationLevels { exact: ended.exact && !is_vague, ..ended }
            }
        };
        // A variable has the number of the step under way, and may begin anew with the next epoch.
        let ended = self.last.filter(|_| !is_between).and_then(|last| match step.clock {
            StepClock::Optimizer if step.step > last.step => {
                Some((last, step, step.step - last.step))
            }
            StepClock::Optimizer => None,
            StepClock::Variable if step.epoch == last.epoch && step.step > last.step => {
                Some((last, last, step.step - last.step))
            }
            StepClock::Variable => Some((last, last, 1)),
        });
        if let Some((last, named, steps)) = ended {
            let iteration = Iteration {
                step: named.step,
                epoch: named.epoch,
                steps,
                from: last.time,
                to: step.time,
                levels: self
                    .open
                    .iter_mut()
                    .map(|(device, open)| {
                        let intermediate =
                            self.in_backward.as_ref().and_then(|it| it.most(*device));
                        (*device, IterationLevels { intermediate, ..end(open) })
                    })
                    .collect(),
                held: std::mem::take(&mut self.held),
            };
            if self.done.len() < MOST {
                let levels = iteration.levels.len() * 2 * size_of::<(CudaIndex, IterationLevels)>();
                self.kept += (size_of::<Iteration>() + levels) as u64;
                self.kept += iteration.held.values().map(memory_of).sum::<u64>();
                self.done.push(iteration);
            } else {
                self.left_out += 1;
            }
        }
        self.held.clear();
        if let Some(blocks) = &mut self.in_backward {
            blocks.forget();
        }
        let is_first = self.last.replace(step).is_none();
        if is_first || ended.is_none() {
            for open in self.open.values_mut() {
                end(open);
                if !is_between && (is_first || !step.is_between_events()) {
                    open.began_unseen();
                }
            }
        }
    }

    /// About how many bytes they take.
    pub(crate) fn memory(&self) -> u64 {
        let open: u64 = self.open.values().map(OpenLevels::memory).sum();
        let passing = self.in_backward.as_ref().map_or(0, BackwardBlocks::memory);
        self.kept + self.held.values().map(memory_of).sum::<u64>() + open + passing
    }

    /// From now on events come as `exact` says.
    pub(crate) fn take_exact(&mut self, exact: &Exact) {
        if let Some(blocks) = &mut self.in_backward {
            blocks.begin(exact);
        }
    }

    /// Takes an event for what the backward pass holds.
    pub(crate) fn take_in_backward(&mut self, event: &Event, stacks: &StackTable) {
        if let Some(blocks) = &mut self.in_backward {
            blocks.take(event, stacks);
        }
    }

    /// Events were lost since the last check of the probes: nothing of that time is certain.
    pub(crate) fn take_lost(&mut self, time: Nanos) {
        self.lose_since(Nanos(time.0.saturating_sub(CHECKED_EVERY)));
    }

    /// Of nothing that happened since then anything is certain.
    pub(crate) fn lose_since(&mut self, since: Nanos) {
        // Losses are told in the order of their times, and iterations stand in it: each is marked once at most.
        let from = self.done.partition_point(|iteration| iteration.to < since);
        let from = from.max(self.uncertain.start);
        let unmarked = from.max(self.uncertain.end).min(self.done.len());
        for iteration in &mut self.done[unmarked..] {
            for levels in iteration.levels.values_mut() {
                (levels.exact, levels.intermediate) = (false, None);
            }
        }
        self.uncertain = from..self.done.len();
        self.open.values_mut().for_each(OpenLevels::began_unseen);
        if let Some(blocks) = &mut self.in_backward {
            blocks.lose();
        }
    }

    /// The level once memory has been given up.
    pub(crate) fn take_freed(&mut self, device: CudaIndex, level: i64) {
        self.open.entry(device).or_default().freed(level);
    }

    /// A look at the target begins: what was seen before it is of the iteration under way.
    pub(crate) fn take_tick(&mut self, time: Nanos) {
        for open in self.open.values_mut() {
            open.settle(time);
        }
    }

    pub(crate) fn take_counters(
        &mut self,
        time: Nanos,
        device: CudaIndex,
        counters: &AllocatorCounters,
    ) {
        let stat = |metric: Metric| counters.stat(metric, Pool::All);
        let open = self.open.entry(device).or_default();
        open.look(time, stat(Metric::AllocatedBytes), stat(Metric::ReservedBytes));
    }

    /// The levels after an allocation: nothing higher comes unseen.
    pub(crate) fn take_levels(&mut self, time: Nanos, device: CudaIndex, now: Levels) {
        let open = self.open.entry(device).or_default();
        open.settle(Nanos(time.0.saturating_sub(SETTLED_AFTER)));
        open.allocated(time, now);
    }

    pub(crate) fn take_holders(&mut self, snapshot: &HolderSnapshot) {
        let time = Nanos(snapshot.time.0.saturating_sub(snapshot.age.0));
        for device in &snapshot.devices {
            let mut held = HeldInIteration {
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
                match (storages.category, storages.holder.strip_suffix(".grad")) {
                    (Category::Parameter, _) => {
                        let name = Arc::clone(&storages.holder);
                        parameters.entry(name).or_default().weight += storages.bytes;
                    }
                    (Category::Gradient, Some(name)) => {
                        parameters.entry(name.into()).or_default().gradient += storages.bytes;
                    }
                    _ => {}
                }
            }
            if let Some(seen) = self.held_at(time) {
                match seen.entry(device.device) {
                    Entry::Occupied(mut before) if before.get().allocated <= held.allocated => {
                        before.insert(held);
                    }
                    Entry::Occupied(_) => {}
                    Entry::Vacant(none) => drop(none.insert(held)),
                }
            }
        }
    }

    /// What was held in the iteration of that time: a look is told some time after it, when others may have ended.
    fn held_at(&mut self, time: Nanos) -> Option<&mut BTreeMap<CudaIndex, HeldInIteration>> {
        if self.last.is_none_or(|last| last.time <= time) {
            return Some(&mut self.held);
        }
        // They follow each other in time.
        let after = self.done.partition_point(|iteration| iteration.from <= time);
        let of = self.done.get_mut(after.checked_sub(1)?)?;
        (time < of.to).then_some(&mut of.held)
    }

    pub(crate) fn by_variable(&self) -> bool {
        self.last.is_some_and(|last| last.clock == StepClock::Variable)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HeldOnDevice;

    #[test]
    fn a_variable_has_the_number_of_the_step_under_way() {
        let mut iterations = Iterations::default();
        for (time, epoch, step) in
            [(1, 0, 7), (2, 0, 8), (3, 0, 8), (5, 0, 10), (6, 1, 0), (7, 1, 1)]
        {
            let clock = StepClock::Variable;
            let step = Step { time: Nanos(time), step, epoch: Some(epoch), clock, within: None };
            iterations.take_step(Some((step, Nanos(time))));
        }
        let of = |i: &Iteration| (i.epoch, i.step, i.steps, i.from.0, i.to.0);
        let seen: Vec<_> = iterations.done().iter().map(of).collect();
        let expected = [(0, 7, 1, 1, 2), (0, 8, 2, 2, 5), (0, 10, 1, 5, 6), (1, 0, 1, 6, 7)];
        assert_eq!(seen, expected.map(|(e, s, n, from, to)| (Some(e), s, n, from, to)));
    }

    fn step(time: u64, epoch: u64, step: u64) -> Option<(Step, Nanos)> {
        let clock = StepClock::Variable;
        let step =
            Step { time: Nanos(time), step, epoch: Some(epoch), clock, within: Some(Nanos(0)) };
        Some((step, Nanos(time)))
    }

    #[test]
    fn where_events_were_lost_no_peak_is_certain() {
        let mut iterations = Iterations::asked_for(false);
        let second = 1_000_000_000;
        for number in 0..8 {
            let time = Nanos(number * second);
            if number == 6 {
                iterations.take_lost(Nanos(time.0 - 1));
            }
            iterations.take_step(step(time.0, 0, number));
            let now = Levels { allocated: 10, ..Levels::default() };
            iterations.take_levels(time, CudaIndex(0), now);
            iterations.take_freed(CudaIndex(0), 0);
        }
        let exact = |it: &Iteration| it.levels[&CudaIndex(0)].exact;
        let seen: Vec<bool> = iterations.done().iter().map(exact).collect();
        assert_eq!(seen, [true, true, false, false, false, false, true]);
    }

    #[test]
    fn what_is_between_two_epochs_is_no_iteration() {
        let mut iterations = Iterations::default();
        let looks = [(1, 0, 7), (2, 0, 8), (3, 1, 8), (5, 1, 7), (6, 1, 8), (7, 2, 8), (8, 3, 8)];
        for (time, epoch, number) in looks {
            iterations.take_step(step(time, epoch, number));
        }
        let of = |i: &Iteration| (i.epoch, i.step, i.from.0, i.to.0);
        let seen: Vec<_> = iterations.done().iter().map(of).collect();
        let expected = [(0, 7, 1, 2), (0, 8, 2, 3), (1, 7, 5, 6), (1, 8, 6, 7), (2, 8, 7, 8)];
        assert_eq!(seen, expected.map(|(e, s, from, to)| (Some(e), s, from, to)));
    }

    #[test]
    fn of_several_looks_the_one_with_most_allocated_counts_where_it_was_made() {
        let mut iterations = Iterations::default();
        let look = |time, age, allocated| HolderSnapshot {
            time: Nanos(time),
            pause: None,
            devices: vec![HeldOnDevice {
                device: CudaIndex(0),
                allocated,
                rounding: 0,
                without_tensor: 0,
                results: None,
                held: Vec::new(),
            }],
            age: Nanos(age),
            nameless: Vec::new(),
        };
        for number in 1..=4 {
            iterations.take_step(step(number * 10, 0, number));
            iterations.take_holders(&look(number * 10 + 2, 0, 100));
            iterations.take_holders(&look(number * 10 + 3, 0, 100 + number));
            iterations.take_holders(&look(number * 10 + 4, 0, 50));
        }
        iterations.take_holders(&look(60, 31, 700)); // Made at 29, in the second.
        iterations.take_holders(&look(60, 55, 900)); // Before the first.
        let held = |i: &Iteration| i.held[&CudaIndex(0)].allocated;
        assert_eq!(iterations.done().iter().map(held).collect::<Vec<_>>(), [101, 700, 103]);
    }

    #[test]
    fn a_counter_that_begins_anew_ends_no_iteration() {
        let mut iterations = Iterations::default();
        for (time, step) in [(1, 3), (2, 4), (3, 6), (4, 1), (5, 2)] {
            iterations.take_step(Some((
                Step { time: Nanos(time), step, ..Step::default() },
                Nanos(time),
            )));
        }
        let of = |i: &Iteration| (i.step, i.steps, i.from.0, i.to.0);
        let seen: Vec<_> = iterations.done().iter().map(of).collect();
        assert_eq!(seen, [(4, 1, 1, 2), (6, 2, 2, 3), (2, 1, 4, 5)]);
    }
}
