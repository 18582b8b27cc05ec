//! Tests of iterations.

use super::*;
use crate::model::DeviceOwners;

#[test]
fn loop_variable_numbers_the_current_step() {
    let mut iterations = IterationBuilder::default();
    let polls = [(1, 0, 7), (2, 0, 8), (3, 0, 8), (5, 0, 10), (6, 1, 0), (7, 1, 1)];
    for (time, epoch, number) in polls {
        let seen = step(time, epoch, number);
        iterations.on_step(seen.map(|(s, from)| (TrainingStep { uncertainty: None, ..s }, from)));
    }
    let of = |i: &Iteration| (i.epoch, i.step, i.steps, i.from.0, i.to.0);
    let seen: Vec<_> = iterations.done().iter().map(of).collect();
    let expected = [(0, 7, 1, 1, 2), (0, 8, 2, 2, 5), (0, 10, 1, 5, 6), (1, 0, 1, 6, 7)];
    assert_eq!(seen, expected.map(|(e, s, n, from, to)| (Some(e), s, n, from, to)));
}

fn step(time: u64, epoch: u64, step: u64) -> Option<(TrainingStep, Nanos)> {
    let clock = StepSource::Variable;
    let step = TrainingStep {
        time: Nanos(time),
        step,
        epoch: Some(epoch),
        clock,
        uncertainty: Some(Nanos(0)),
        is_over: false,
    };
    Some((step, Nanos(time)))
}

#[test]
fn lost_events_leave_no_peak_proven() {
    let mut iterations = IterationBuilder::asked_for(false);
    let second = 1_000_000_000;
    for number in 0..8 {
        let time = Nanos(number * second);
        if number == 6 {
            iterations.on_lost_events(Nanos(time.0 - 1));
        }
        iterations.on_step(step(time.0, 0, number));
        let now = CounterSnapshot { allocated: 10, ..CounterSnapshot::default() };
        iterations.on_counter_snapshot(time, CudaIndex(0), now);
        iterations.on_freed(Nanos(0), CudaIndex(0), 0);
    }
    let exact = |it: &Iteration| it.levels[&CudaIndex(0)].exact;
    let seen: Vec<bool> = iterations.done().iter().map(exact).collect();
    assert_eq!(seen, [true, true, false, false, false, false, true]);
}

#[test]
fn time_between_two_epochs_is_no_iteration() {
    let mut iterations = IterationBuilder::default();
    let polls = [(1, 0, 7), (2, 0, 8), (3, 1, 8), (5, 1, 7), (6, 1, 8), (7, 2, 8), (8, 3, 8)];
    for (time, epoch, number) in polls {
        iterations.on_step(step(time, epoch, number));
    }
    let of = |i: &Iteration| (i.epoch, i.step, i.from.0, i.to.0);
    let seen: Vec<_> = iterations.done().iter().map(of).collect();
    let expected = [(0, 7, 1, 2), (0, 8, 2, 3), (1, 7, 5, 6), (1, 8, 6, 7), (2, 8, 7, 8)];
    assert_eq!(seen, expected.map(|(e, s, from, to)| (Some(e), s, from, to)));
}

#[test]
fn owner_snapshot_with_most_allocated_counts_in_its_own_iteration() {
    let mut iterations = IterationBuilder::default();
    let snapshot = |time, age, allocated| OwnershipBreakdown {
        time: Nanos(time),
        pause: None,
        devices: vec![DeviceOwners {
            device: CudaIndex(0),
            allocated,
            rounding: 0,
            without_tensor: 0,
            results: None,
            held: Vec::new(),
        }],
        age: Nanos(age),
        unnamed_blocks: Vec::new(),
        blocks: Vec::new(),
        retained: Vec::new(),
    };
    for number in 1..=4 {
        iterations.on_step(step(number * 10, 0, number));
        iterations.on_ownership(&snapshot(number * 10 + 2, 0, 100));
        iterations.on_ownership(&snapshot(number * 10 + 3, 0, 100 + number));
        iterations.on_ownership(&snapshot(number * 10 + 4, 0, 50));
    }
    iterations.on_ownership(&snapshot(60, 31, 700)); // Made at 29, in the second.
    iterations.on_ownership(&snapshot(60, 55, 900)); // Before the first.
    let held = |i: &Iteration| i.owned[&CudaIndex(0)].allocated;
    assert_eq!(iterations.done().iter().map(held).collect::<Vec<_>>(), [101, 700, 103]);
}

#[test]
fn reset_or_replaced_counter_ends_no_iteration() {
    let mut iterations = IterationBuilder::default();
    let ms = 1_000_000;
    // The last value is other data in the counter's freed memory.
    let polls = [(1, 3), (2, 4), (3, 6), (4, 1), (5, 2), (6, 7_806_941_921_280)];
    for (time, step) in polls {
        let step = TrainingStep { time: Nanos(time * ms), step, ..TrainingStep::default() };
        iterations.on_step(Some((step, Nanos(time * ms))));
    }
    let of = |i: &Iteration| (i.step, i.steps, i.from.0 / ms, i.to.0 / ms, i.begin_is_known);
    let seen: Vec<_> = iterations.done().iter().map(of).collect();
    assert_eq!(seen, [(4, 1, 1, 2, false), (6, 2, 2, 3, true), (2, 1, 4, 5, false)]);
    assert_eq!(iterations.under_way(Nanos(9 * ms)), None);
}

#[test]
fn last_step_of_a_loop_is_kept_with_its_end() {
    let mut iterations = IterationBuilder::default();
    let over = |time, within| {
        let (over, _) = step(time, 0, 2).unwrap();
        let from = Nanos(time - within);
        Some((TrainingStep { uncertainty: Some(Nanos(within)), is_over: true, ..over }, from))
    };
    for clock_step in [step(10, 0, 1), step(20, 0, 2), over(40, 9), step(60, 0, 1), step(70, 0, 2)]
    {
        iterations.on_step(clock_step);
    }
    let of = |i: &Iteration| (i.step, i.from.0, i.to.0, i.end, i.begin_is_known);
    let (counted, gone) = (IterationEnd::Counted, IterationEnd::VariableGone);
    let expected =
        [(1, 10, 20, counted, false), (2, 20, 31, gone, true), (1, 60, 70, counted, true)];
    assert_eq!(iterations.done().iter().map(of).collect::<Vec<_>>(), expected);
    let last = iterations.under_way(Nanos(99)).unwrap();
    assert_eq!(of(&last), (2, 70, 99, IterationEnd::NotSeen, true));
    iterations.on_step(over(110, 1));
    assert_eq!(iterations.under_way(Nanos(120)), None);
}
