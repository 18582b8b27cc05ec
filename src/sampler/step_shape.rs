//! The shape of a training step: an owner snapshot shows most at the end of the forward pass and at
//! the peak.
//!
//! A steady loop repeats its allocations: in each step the forward pass ends equally many
//! allocations after the last backward pass started.

use std::collections::VecDeque;
use std::time::Duration;

const STEPS: usize = 16;
const SPANS: usize = 6;
/// How near a moment must be to the forward pass's end or the peak, in a step's allocations or
/// range of levels. It grows with the wait.
const NEAR: f64 = 0.03;
/// One snapshot serves both if the level at the forward pass's end is this near the peak.
const SAME: f64 = 0.8;
/// After this many forward passes, a backward pass was missed.
const MANY_STEPS: f64 = 1.5;
/// One snapshot in this many is for a peak elsewhere.
const PEAK_EVERY: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepMoment {
    pub(super) allocations: i64,
    pub(super) level: i64,
    pub(super) is_backward: bool,
}

#[derive(Debug, Default)]
pub(super) struct StepShape {
    last: Option<StepMoment>,
    /// Allocations when the last backward pass started.
    begun: Option<i64>,
    /// For each step: allocations from there to the last moment before the next backward pass, and
    /// the level then.
    forward: VecDeque<(i64, i64)>,
    levels: VecDeque<(i64, i64)>,
    snapshots: u32,
}

impl StepShape {
    pub(super) fn see(&mut self, now: StepMoment) {
        if self.levels.is_empty() {
            self.levels.push_back((now.level, now.level));
        }
        if let Some((low, high)) = self.levels.back_mut() {
            (*low, *high) = ((*low).min(now.level), (*high).max(now.level));
        }
        let Some(last) = self.last.replace(now) else { return };
        if now.is_backward
            && !last.is_backward
            && let Some(begun) = self.begun.replace(now.allocations)
        {
            push(&mut self.forward, (last.allocations - begun, last.level), STEPS);
        }
    }

    pub(super) fn on_snapshot(&mut self) {
        self.snapshots = self.snapshots.wrapping_add(1);
        if let Some(last) = self.last {
            push(&mut self.levels, (last.level, last.level), SPANS);
        }
    }

    /// A snapshot has been due for `waited`; after `timeout` it is always time.
    pub(super) fn is_time(&self, waited: Duration, timeout: Duration) -> bool {
        let Some(now) = self.last else { return true };
        let part = waited.as_secs_f64() / timeout.as_secs_f64().max(1e-9);
        if part >= 1.0 {
            return true;
        }
        let slack = NEAR + (1.0 - NEAR) * part.powi(3);
        let low = self.levels.iter().map(|it| it.0).min().unwrap_or(now.level);
        let high = self.levels.iter().map(|it| it.1).max().unwrap_or(now.level);
        let near_peak = now.level as f64 >= high as f64 - slack * (high - low) as f64;
        let (Some(begun), Some(end)) = (self.begun, self.forward_end()) else { return near_peak };
        let range = (high - low) as f64;
        let is_peak = (end.1 - low) as f64 >= SAME * range;
        if !is_peak && self.snapshots.is_multiple_of(PEAK_EVERY) {
            return near_peak;
        }
        if now.is_backward {
            // Sample before backward starts to free saved tensors.
            return false;
        }
        let near_level = (now.level - end.1).abs() as f64 <= slack * range;
        let (made, length) = ((now.allocations - begun) as f64, end.0 as f64);
        // Short backward passes are missed: then only the level helps.
        let longest = self.forward.iter().map(|it| it.0).max().unwrap_or_default() as f64;
        let is_unsure = made.max(longest) > MANY_STEPS * length;
        let in_time = length * (1.0 - slack)..=length * (1.0 + slack / 4.0);
        near_level && (is_peak || is_unsure || in_time.contains(&made))
    }

    /// The median, because some backward passes may have been missed.
    fn forward_end(&self) -> Option<(i64, i64)> {
        let mut ends: Vec<(i64, i64)> = self.forward.iter().copied().collect();
        ends.sort_unstable();
        ends.get(ends.len() / 2).copied()
    }
}

fn push<T>(last: &mut VecDeque<T>, next: T, most: usize) {
    if last.len() == most {
        last.pop_front();
    }
    last.push_back(next);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_WAIT: Duration = Duration::from_secs(1);

    /// A step of 100 allocations: 60 forward, all kept; 30 backward, each frees two; 10 in the
    /// optimizer, of `optimizer` bytes each until the step ends.
    fn train(every: usize, optimizer: i64) -> impl Iterator<Item = (usize, StepMoment)> {
        (0i64..).step_by(every).map(move |n| {
            let level = match n % 100 {
                at @ ..60 => at,
                at @ 60..90 => 60 - 2 * (at - 60),
                at => optimizer * (at - 89),
            };
            let is_backward = (60..90).contains(&(n % 100));
            ((n % 100) as usize, StepMoment { allocations: n, level: 1000 + level, is_backward })
        })
    }

    fn snapshot_positions(
        steps: impl Iterator<Item = (usize, StepMoment)>,
        count: usize,
    ) -> Vec<usize> {
        let mut shape = StepShape::default();
        let (mut due, mut made) = (0, Vec::new());
        for (at, now) in steps {
            shape.see(now);
            let waited = u32::try_from((now.allocations - due).max(0)).unwrap();
            if now.allocations >= due && shape.is_time(MAX_WAIT / 1000 * waited, MAX_WAIT) {
                shape.on_snapshot();
                due = now.allocations + 317;
                made.push(at);
                if made.len() == count {
                    break;
                }
            }
        }
        made
    }

    #[test]
    fn snapshots_come_at_the_end_of_forward() {
        for every in [1, 3, 7] {
            let made = snapshot_positions(train(every, 1), 40);
            let late = made[3..].iter().filter(|at| (50..62).contains(*at)).count();
            assert!(late >= 35, "every {every}: {made:?}");
        }
    }

    /// A backward pass of 1 ms is seen in one step of seven.
    #[test]
    fn snapshots_come_at_forward_end_despite_missed_backward_passes() {
        let steps = train(3, 1).map(|(at, mut now)| {
            now.is_backward &= now.allocations / 100 % 7 == 0;
            (at, now)
        });
        let made = snapshot_positions(steps, 40);
        let late = made[3..].iter().filter(|at| (50..64).contains(*at)).count();
        assert!(late >= 33, "{made:?}");
    }

    #[test]
    fn a_peak_elsewhere_gets_every_third_snapshot() {
        let made = snapshot_positions(train(1, 20), 40);
        let forward = made[3..].iter().filter(|at| (50..62).contains(*at)).count();
        let peak = made[3..].iter().filter(|at| **at >= 97).count();
        assert!(forward >= 20 && peak >= 10 && forward + peak >= 36, "{made:?}");
    }

    #[test]
    fn a_snapshot_is_taken_without_a_shape_or_after_timeout() {
        let mut shape = StepShape::default();
        assert!(shape.is_time(Duration::ZERO, MAX_WAIT));
        let moment = |level| StepMoment { allocations: level, level, is_backward: false };
        shape.see(moment(500));
        assert!(shape.is_time(Duration::ZERO, MAX_WAIT), "nothing ever changed");
        shape.see(moment(900));
        shape.see(moment(100));
        assert!(!shape.is_time(Duration::ZERO, MAX_WAIT));
        assert!(!shape.is_time(MAX_WAIT / 2, MAX_WAIT));
        assert!(shape.is_time(MAX_WAIT, MAX_WAIT));
    }
}
