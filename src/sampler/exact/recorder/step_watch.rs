//! Training steps reported by the kernel program.

use super::{ExactRecorder, MIN_QUIET_NANOS, monotonic};
use crate::model::{MissReason, Nanos, ReaderKind, Record, RecordSink, SinkResult, TrainingStep};
use crate::probe::{AttachedProbes, RawStep};
use crate::sampler::steps::{CounterMeaning, StepLocations};

#[derive(Debug, Default)]
pub(super) struct StepWatch {
    number: u32,
    now: Option<WatchedCounter>,
    /// The counter watched before: some of its steps may still be in the ring.
    before: Option<WatchedCounter>,
    /// When the location was last known to be right (CLOCK_MONOTONIC, nanoseconds).
    right: Option<u64>,
    /// A step was reported at this location, so later events belong to no other step.
    has_reported: bool,
}

#[derive(Debug, Clone, Copy)]
struct WatchedCounter {
    counts: CounterMeaning,
    right_before: Option<u64>,
}

impl StepWatch {
    pub(super) fn reset(&mut self) {
        self.now = None;
    }

    fn on_reported(&mut self, time: u64) {
        self.has_reported = true;
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
    /// If the kernel program cannot read its locations, records the steps read here.
    pub(super) fn follow_steps(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        if !self.probe.as_ref().is_some_and(AttachedProbes::can_watch) {
            return self.session.record_step(sink).map(drop);
        }
        let reported = self.session.last_step();
        let before = monotonic();
        match self.session.step_locations() {
            StepLocations::At(counts, step) => {
                match self.watching.now.is_some_and(|now| now.counts == *counts) {
                    true => self.watching.right = self.watching.right.max(Some(before)),
                    false => self.watch(Some(*counts)),
                }
                let is_of = |last: TrainingStep| (last.step, last.epoch) == (step.step, step.epoch);
                match reported.0.is_some_and(is_of) {
                    true => Ok(()),
                    false => self.record_unseen_step(step, before, reported, sink),
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

    /// A step that memspy read after `before`, and no event reported.
    fn record_unseen_step(
        &mut self,
        step: TrainingStep,
        before: u64,
        reported: (Option<TrainingStep>, Option<Nanos>),
        sink: &mut dyn RecordSink,
    ) -> SinkResult {
        let until = before + MIN_QUIET_NANOS;
        while monotonic() < until {
            std::hint::spin_loop();
        }
        self.empty_ring();
        self.record_events(sink)?;
        if !self.is_emptied || self.waiting.len() > 0 || self.session.last_step().0 != reported.0 {
            return Ok(()); // The next read is 5 ms away.
        }
        self.last = self.last.max(Nanos(before.saturating_sub(self.epoch)));
        let within = match self.watching.has_reported {
            true => Some(Nanos(0)),
            false => reported.1.map(|until| Nanos(self.last.0.saturating_sub(until.0).max(1))),
        };
        let Some(step) =
            self.session.on_step(TrainingStep { time: self.last, uncertainty: within, ..step })
        else {
            return Ok(());
        };
        self.watching.on_reported(before);
        self.flush(sink)?;
        sink.record(&Record::Step(step))
    }

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
        watching.has_reported = false;
        let right_before = watching.right;
        let now = counts.map(|counts| WatchedCounter { counts, right_before });
        watching.before = std::mem::replace(&mut watching.now, now);
        let steps = counts.map(|counts| counts.places);
        if let Err(error) = probe.watch(steps.as_ref(), watching.number) {
            self.session.losses.add(ReaderKind::Events, MissReason::Failed(error.to_string()), 1);
        }
    }

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
        // The kernel program checks the location before it reports a step.
        self.watching.right = self.watching.right.max(Some(raw.time));
        let seen = self.session.step_at_event(&watched.counts, raw, self.last, within);
        if raw.place == self.watching.number {
            self.watching.on_reported(raw.time);
        }
        let Some(step) = seen else { return Ok(()) };
        self.flush(sink)?;
        sink.record(&Record::Step(step))
    }
}
