//! When the job last ran out of memory.

use crate::model::{EventKind, Nanos, Record, RecordSink, SinkResult};

/// In nanoseconds: refusals up to this age belong to a moment. PyTorch asks the driver again before
/// it raises the error, so the refusal is at most this much older than the counter's rise.
pub(super) const MAX_REFUSAL_AGE: u64 = 2_000_000_000;

/// Finds when the job last ran out of memory.
#[derive(Debug, Default)]
pub struct OomMoment {
    /// The driver's last refusal.
    refused: Option<Nanos>,
    /// The refusal of the last out-of-memory error, or when the counter rose.
    reported: Option<Nanos>,
    ooms: Vec<(u32, i64)>,
}

impl OomMoment {
    /// The moment; `None` without an error.
    pub fn time(&self) -> Option<Nanos> {
        self.reported.or(self.refused)
    }

    fn report(&mut self, time: Nanos) {
        let refused = self.refused.filter(|at| time.0.saturating_sub(at.0) <= MAX_REFUSAL_AGE);
        self.reported = Some(refused.unwrap_or(time));
    }
}

impl RecordSink for OomMoment {
    fn record(&mut self, record: &Record) -> SinkResult {
        match record {
            Record::Events(batch) => {
                for event in &batch.events {
                    if let EventKind::Failed { code: EventKind::OUT_OF_MEMORY, .. } = event.change {
                        self.refused = Some(event.time);
                    }
                }
            }
            Record::Counters { time, device, counters } => {
                let known = self.ooms.iter_mut().find(|(of, _)| *of == device.0);
                match known {
                    Some((_, before)) if counters.num_ooms > *before => {
                        *before = counters.num_ooms;
                        self.report(*time);
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
