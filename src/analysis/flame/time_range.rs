//! A part of a recording: only what happened from one moment to another.

use crate::model::{EventBatch, EventKind, FollowedChanges, Nanos, Record, RecordSink, SinkResult};

/// PyTorch asks the driver again before it gives up: a refusal at most this long before the counter rose belongs to that error.
const MAX_REFUSAL_AGE: u64 = 2_000_000_000;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;

/// Passes on the records of a stretch of time, as if the recording had begun and ended there.
pub struct TimeRange<'a> {
    sink: &'a mut dyn RecordSink,
    from: Option<Nanos>,
    to: Option<Nanos>,
}

impl<'a> TimeRange<'a> {
    /// Passes to `sink` what is not before `from` and not after `to`.
    pub fn new(
        sink: &'a mut dyn RecordSink,
        from: Option<Nanos>,
        to: Option<Nanos>,
    ) -> TimeRange<'a> {
        TimeRange { sink, from, to }
    }

    fn has(&self, time: Nanos) -> bool {
        self.from.is_none_or(|from| time >= from) && self.to.is_none_or(|to| time <= to)
    }
}

impl RecordSink for TimeRange<'_> {
    fn record(&mut self, record: &Record) -> SinkResult {
        match record {
            Record::Events(batch) => {
                let events = batch.events.iter().filter(|event| self.has(event.time));
                let mut part = EventBatch { events: events.copied().collect() };
                if self.from.is_some() {
                    // Levels tell a block's size by what came before: without that, it is what was asked for, rounded.
                    for event in &mut part.events {
                        if let EventKind::Allocated { levels, .. } = &mut event.change {
                            *levels = None;
                        }
                    }
                }
                match part.events.is_empty() {
                    true => Ok(()),
                    false => self.sink.record(&Record::Events(part)),
                }
            }
            Record::Followed(followed) => {
                let changes = followed.changes.iter().filter(|change| self.has(change.after));
                let changes: Vec<_> = changes.cloned().collect();
                match changes.is_empty() {
                    true => Ok(()),
                    false => self.sink.record(&Record::Followed(FollowedChanges { changes })),
                }
            }
            // How it is recorded holds from before on; but what was there at the beginning is not what is there now.
            Record::ExactSettings(settings) => {
                let mut settings = settings.clone();
                settings.starts_empty &= self.from.is_none();
                self.sink.record(&Record::ExactSettings(settings))
            }
            Record::Runtime(_) => self.sink.record(record),
            _ if record.time().is_none_or(|time| self.has(time)) => self.sink.record(record),
            _ => Ok(()),
        }
    }
}

/// Takes the records of a recording and tells when the job last ran out of memory.
#[derive(Debug, Default)]
pub struct OomMoment {
    /// The last refusal of the driver.
    refused: Option<Nanos>,
    /// The last refusal before the counter last rose, and when it was seen to have risen.
    told: Option<Nanos>,
    ooms: Vec<(u32, i64)>,
}

impl OomMoment {
    /// The moment; `None` when it did not.
    pub fn time(&self) -> Option<Nanos> {
        self.told.or(self.refused)
    }

    fn is_told(&mut self, time: Nanos) {
        let refused = self.refused.filter(|at| time.0.saturating_sub(at.0) <= MAX_REFUSAL_AGE);
        self.told = Some(refused.unwrap_or(time));
    }
}

impl RecordSink for OomMoment {
    fn record(&mut self, record: &Record) -> SinkResult {
        match record {
            Record::Events(batch) => {
                for event in &batch.events {
                    if let EventKind::Failed { code: OUT_OF_MEMORY, .. } = event.change {
                        self.refused = Some(event.time);
                    }
                }
            }
            Record::Counters { time, device, counters } => {
                let known = self.ooms.iter_mut().find(|(of, _)| *of == device.0);
                match known {
                    Some((_, before)) if counters.num_ooms > *before => {
                        *before = counters.num_ooms;
                        self.is_told(*time);
                    }
                    Some(_) => {}
                    None => self.ooms.push((device.0, counters.num_ooms)),
                }
            }
            _ => {}
        }
        Ok(())
    }
}
