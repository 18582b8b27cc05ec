//! The steps of training: the kernel's program sees them between the events, where it can be told where they are counted.

use std::io;

use super::ExactRecorder;
use crate::model::{MissedWhy, Nanos, ReaderKind, Record, RecordSink};
use crate::probe::{Probe, RawStep};
use crate::sampler::steps::{Counts, Places};

/// What the kernel's program watches.
#[derive(Debug, Default)]
pub(super) struct Watching {
    /// The number of the latest place.
    number: u32,
    now: Option<Counts>,
    /// What was watched under the number before: some of it may still come out of the ring.
    before: Option<Counts>,
}

impl Watching {
    /// Other probes watch nothing yet.
    pub(super) fn begin_anew(&mut self) {
        self.now = None;
    }

    fn counts(&self, number: u32) -> Option<Counts> {
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
        match self.session.places() {
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
        if watching.now == counts {
            return;
        }
        watching.number = watching.number.wrapping_add(1);
        watching.before = std::mem::replace(&mut watching.now, counts);
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
        let Some(counts) = self.watching.counts(raw.place) else { return Ok(()) };
        self.last = self.last.max(Nanos(raw.time.saturating_sub(self.epoch)));
        let Some(step) = self.session.seen_step(&counts, raw, self.last) else { return Ok(()) };
        self.flush(sink)?;
        sink.record(&Record::Step(step))
    }
}
