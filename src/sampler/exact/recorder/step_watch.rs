//! The steps of training: the kernel's program sees them between the events, where it can be told where they are counted.

use super::{ExactRecorder, MIN_QUIET_NANOS, monotonic};
use crate::model::{MissReason, Nanos, ReaderKind, Record, RecordSink, SinkResult, TrainingStep};
use crate::probe::{AttachedProbes, RawStep};
use crate::sampler::steps::{CounterMeaning, StepLocations};

/// What the kernel's program watches.
#[derive(Debug, Default)]
pub(super) struct StepWatch {
    /// The number of the latest place.
    number: u32,
    now: Option<WatchedCounter>,
    /// What was watched under the number before: some of it may still come out of the ring.
    before: Option<WatchedCounter>,
    /// When the place was last known to be right (CLOCK_MONOTONIC in nanoseconds).
    right: Option<u64>,
    /// Whether a step was told of since the place is watched: events since then are known not to be of another one.
    is_told: bool,
}

#[derive(Debug, Clone, Copy)]
struct WatchedCounter {
    counts: CounterMeaning,
    /// When the place before was last known to be right.
    right_before: Option<u64>,
}

impl StepWatch {
    /// Other probes watch nothing yet.
    pub(super) fn reset(&mut self) {
        self.now = None;
    }

    /// A step was told of that was under way at `time`.
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
    /// Keeps the places current that the kernel's program reads; where it cannot read them, records the steps as they are
    /// now.
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

    /// Records a step that memspy itself read after `before`, if there was no event that told of it: one that waits for
    /// something, or the first one, which allocated before the variable had been found. `told` is what had been told until
    /// then.
    fn record_unseen_step(
        &mut self,
        step: TrainingStep,
        before: u64,
        told: (Option<TrainingStep>, Option<Nanos>),
        sink: &mut dyn RecordSink,
    ) -> SinkResult {
        // An event of before has come out of the ring by then, and the step that it told of.
        let until = before + MIN_QUIET_NANOS;
        while monotonic() < until {
            std::hint::spin_loop();
        }
        self.empty_ring();
        self.record_events(sink)?;
        if !self.is_emptied || self.waiting.len() > 0 || self.session.last_step().0 != told.0 {
            return Ok(()); // The next look is 5 ms away.
        }
        self.last = self.last.max(Nanos(before.saturating_sub(self.epoch)));
        let within = match self.watching.is_told {
            // Every event since the last step was looked at.
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

    /// Records that the last step is over, if the variable that counted is gone.
    fn record_over(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        if let Some(over) = self.session.step_over() {
            self.empty_ring();
            self.record_events(sink)?;
            self.last = self.last.max(over.time);
            self.flush(sink)?;
            sink.record(&Record::Step(TrainingStep { time: self.last, ..over }))?;
        }
        // Nothing that was there is of a step.
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

    /// Records a step that was seen at an event, behind all events before it.
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
        // The kernel's program looks whether the place is right before it tells of a step.
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
