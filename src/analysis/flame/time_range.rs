//! A part of a recording, from one moment to another.

use crate::model::{EventBatch, EventKind, FollowedChanges, Nanos, Record, RecordSink, SinkResult};

/// Passes on a time range's records, as if the recording began and ended there.
pub struct TimeRange<'a> {
    sink: &'a mut dyn RecordSink,
    from: Option<Nanos>,
    to: Option<Nanos>,
}

impl<'a> TimeRange<'a> {
    /// Passes records from `from` to `to`, both included, to `sink`.
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
                    // A size from levels needs earlier events; without levels, the rounded request
                    // counts.
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
            // Earlier settings hold; but `starts_empty` is about the original beginning.
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
