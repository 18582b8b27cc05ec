//! The steps of training: the kernel's program sees them between the events, where it can be told where they are counted.

use std::io;

use super::{ExactRecorder, monotonic};
use crate::model::{MissedWhy, Nanos, ReaderKind, Record, RecordSink};
use crate::probe::{Probe, RawStep};
use crate::sampler::steps::{Counts, Places};

/// What the kernel's program watches.
#[derive(Debug, Default)]
pub(super) struct Watching {
    /// The number of the latest place.
    number: u32,
    now: Option<Watched>,
    /// What was watched under the number before: some of it may still come out of the ring.
    before: Option<Watched>,
    /// When the place was last known to be right (CLOCK_MONOTONIC in nanoseconds).
    right: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Watched {
    counts: Counts,
    /// When the place before was last known to be right.
    right_before: Option<u64>,
}

impl Watching {
    /// Other probes watch nothing yet.
    pub(super) fn begin_anew(&mut self) {
        self.now = None;
    }

    fn under(&self, number: u32) -> Option<Watched> {
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
    pub(super) fn follow_steps(&mut self, sink: &mut dyn RecordSink) -> io::Result<()> {
        if !self.probe.as_ref().is_some_and(Probe::can_watch) {
            return self.session.record_step(sink);
        }
        let before = monotonic();
        match self.session.places() {
            Places::At(counts) if self.watching.now.is_some_and(|now| now.counts == counts) => {
                self.watching.right = self.watching.right.max(Some(before));
            }
            Places::At(counts) => self.watch(Some(counts)),
            Places::Unknown => {}
            Places::Nowhere => self.watch(None),
            Places::Unreadable => {
                self.watch(None);
                return self.session.record_step(sink);
            }
        }
        Ok(())
    }

    fn watch(&mut self, counts: Option<Counts>) {
        let watching = &mut self.watching;
        let Some(probe) = &mut self.probe else { return };
        if watching.now.is_none() && counts.is_none() {
            return;
        }
        watching.number = watching.number.wrapping_add(1);
        let right_before = watching.right;
        let now = counts.map(|counts| Watched { counts, right_before });
        watching.before = std::mem::replace(&mut watching.now, now);
        let steps = counts.map(|counts| counts.places);
        if let Err(error) = probe.watch(steps.as_ref(), watching.number) {
            self.session.losses.add(ReaderKind::Events, MissedWhy::Failed(error.to_string()), 1);
        }
    }

    /// Records a step that was seen at an event, behind all events before it.
    pub(super) fn record_seen_step(
        &mut self,
        raw: &RawStep,
        sink: &mut dyn RecordSink,
    ) -> io::Result<()> {
        let Some(watched) = self.watching.under(raw.place) else { return Ok(()) };
        self.last = self.last.max(Nanos(raw.time.saturating_sub(self.epoch)));
        let within = match raw.is_first {
            true => watched.right_before.map(|right| Nanos(raw.time.saturating_sub(right).max(1))),
            false => Some(Nanos(0)),
        };
        // The kernel's program looks whether the place is right before it tells of a step.
        self.watching.right = self.watching.right.max(Some(raw.time));
        let seen = self.session.seen_step(&watched.counts, raw, self.last, within);
        let Some(step) = seen else { return Ok(()) };
        self.flush(sink)?;
        sink.record(&Record::Step(step))
    }
}
