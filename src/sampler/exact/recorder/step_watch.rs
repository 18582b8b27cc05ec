//! Training steps. The kernel's program reports them between events, if it knows where they are
//! counted.

use super::{ExactRecorder, MIN_QUIET_NANOS, monotonic};
use crate::model::{MissReason, Nanos, ReaderKind, Record, RecordSink, SinkResult, TrainingStep};
use crate::probe::{AttachedProbes, RawStep};
use crate::sampler::steps::{CounterMeaning, StepLocations};

/// What the kernel's program watches.
#[derive(Debug, Default)]
pub(super) struct StepWatch {
    /// The number of the current counter location.
    number: u32,
    now: Option<WatchedCounter>,
    /// The counter watched before; some of its steps may still be in the ring.
    before: Option<WatchedCounter>,
    /// When the location was last known to be right (CLOCK_MONOTONIC, nanoseconds).
    right: Option<u64>,
    /// Whether a step was reported since the location is watched: later events then belong to no
    /// other step.
    is_told: bool,
}

#[derive(Debug, Clone, Copy)]
struct WatchedCounter {
    counts: CounterMeaning,
    /// When the location before was last known to be right.
    right_before: Option<u64>,
}

impl StepWatch {
    /// New probes watch nothing yet.
    pub(super) fn reset(&mut self) {
        self.now = None;
    }

    /// A step was reported that ran at `time`.
    fn tell(&mut self, time: u64) {
        self.is_told = true;
        if let Some(now) = &mut self.now {
            now.right_before = now.right_before.max(Some(time));
        }
    }

    fn under(&self, number: u32) -> Option<WatchedCounter> {
        match self.number.wrapping_sub(number) {
            0 => self.now,
            1 => self.before,
            _ => None,
        }
    }
}

impl ExactRecorder {
    /// Keeps the kernel program's locations current. If it cannot read them, records the steps read
    /// here.
    pub(super) fn follow_steps(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        if !self.probe.as_ref().is_some_and(AttachedProbes::can_watch) {
            return self.session.record_step(sink).map(drop);
        }
        let told = self.session.last_step();
        let before = monotonic();
        match self.session.step_locations() {
            StepLocations::At(counts, step) => {
                match self.watching.now.is_some_and(|now| now.counts == *counts) {
                    true => self.watching.right = self.watching.right.max(Some(before)),
                    false => self.watch(Some(*counts)),
                }
                let is_of = |last: TrainingStep| (last.step, last.epoch) == (step.step, step.epoch);
                match told.0.is_some_and(is_of) {
                    true => Ok(()),
                    false => self.record_unseen_step(step, before, told, sink),
                }
            }
            StepLocations::Unknown => self.record_over(sink),
            StepLocations::Nowhere => {
                self.watch(None);
                Ok(())
            }
            StepLocations::Unreadable => {
                self.watch(None);
                self.session.record_step(sink).map(drop)
            }
        }
    }

    /// Records a step that memspy itself read after `before`, if no event reported it: a step that
    /// waits for something, or the first one, which allocated before the variable was found. `told`
    /// is what had been reported by then.
    fn record_unseen_step(
        &mut self,
        step: TrainingStep,
        before: u64,
        told: (Option<TrainingStep>, Option<Nanos>),
        sink: &mut dyn RecordSink,
    ) -> SinkResult {
        // Earlier events, and the steps they reported, have left the ring by then.
        let until = before + MIN_QUIET_NANOS;
        while monotonic() < until {
            std::hint::spin_loop();
        }
        self.empty_ring();
        self.record_events(sink)?;
        if !self.is_emptied || self.waiting.len() > 0 || self.session.last_step().0 != told.0 {
            return Ok(()); // The next read is 5 ms away.
        }
        self.last = self.last.max(Nanos(before.saturating_sub(self.epoch)));
        let within = match self.watching.is_told {
            // Every event since the last step was checked.
            true => Some(Nanos(0)),
            false => told.1.map(|until| Nanos(self.last.0.saturating_sub(until.0).max(1))),
        };
        let Some(step) =
            self.session.on_step(TrainingStep { time: self.last, uncertainty: within, ..step })
        else {
            return Ok(());
        };
        self.watching.tell(before);
        self.flush(sink)?;
        sink.record(&Record::Step(step))
    }

    /// Records the end of the last step if its counting variable is gone.
    fn record_over(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        if let Some(over) = self.session.step_over() {
            self.empty_ring();
            self.record_events(sink)?;
            self.last = self.last.max(over.time);
            self.flush(sink)?;
            sink.record(&Record::Step(TrainingStep { time: self.last, ..over }))?;
        }
        // Nothing before belongs to a step.
        if let (None, Some(until)) = self.session.last_step() {
            self.watching.right = self.watching.right.max(Some(until.0 + self.epoch));
        }
        Ok(())
    }

    fn watch(&mut self, counts: Option<CounterMeaning>) {
        let watching = &mut self.watching;
        let Some(probe) = &mut self.probe else { return };
        if watching.now.is_none() && counts.is_none() {
            return;
        }
        watching.number = watching.number.wrapping_add(1);
        watching.is_told = false;
        let right_before = watching.right;
        let now = counts.map(|counts| WatchedCounter { counts, right_before });
        watching.before = std::mem::replace(&mut watching.now, now);
        let steps = counts.map(|counts| counts.places);
        if let Err(error) = probe.watch(steps.as_ref(), watching.number) {
            self.session.losses.add(ReaderKind::Events, MissReason::Failed(error.to_string()), 1);
        }
    }

    /// Records a step seen at an event, after all events before it.
    pub(super) fn record_seen_step(
        &mut self,
        raw: &RawStep,
        sink: &mut dyn RecordSink,
    ) -> SinkResult {
        let Some(watched) = self.watching.under(raw.place) else { return Ok(()) };
        self.last = self.last.max(Nanos(raw.time.saturating_sub(self.epoch)));
        let within = match raw.is_first {
            true => watched.right_before.map(|right| Nanos(raw.time.saturating_sub(right).max(1))),
            false => Some(Nanos(0)),
        };
        // The kernel's program checks the location before it reports a step.
        self.watching.right = self.watching.right.max(Some(raw.time));
        let seen = self.session.step_at_event(&watched.counts, raw, self.last, within);
        if raw.place == self.watching.number {
            self.watching.tell(raw.time);
        }
        let Some(step) = seen else { return Ok(()) };
        self.flush(sink)?;
        sink.record(&Record::Step(step))
    }
}
