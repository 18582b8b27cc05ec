//! Sums for the trace's trailer.

use crate::model::{MissReason, ReaderKind, Record, RecordingTotals, SnapshotConsistency};

/// Counts as a recorder does.
#[derive(Debug, Default)]
pub struct TotalsCounter {
    totals: RecordingTotals,
}

impl TotalsCounter {
    /// Takes a record.
    pub fn on_record(&mut self, record: &Record) {
        let totals = &mut self.totals;
        match record {
            Record::Sample(sample) => {
                totals.ticks += 1;
                totals.stacks += sample.threads.len() as u64;
            }
            Record::Snapshot(snapshot) => match snapshot.consistency {
                SnapshotConsistency::Consistent => totals.snapshots_consistent += 1,
                SnapshotConsistency::Degraded { .. } => totals.snapshots_degraded += 1,
            },
            Record::Missed(missed) if missed.reader == ReaderKind::Stacks => match missed.why {
                MissReason::Late => {
                    totals.ticks += missed.count;
                    totals.late += missed.count;
                }
                MissReason::Torn => {
                    totals.stacks += missed.count;
                    totals.torn += missed.count;
                }
                MissReason::Failed(_) => {}
            },
            _ => {}
        }
    }

    /// The sums so far. Exact events are missing: records do not determine their sums.
    pub fn totals(&self) -> RecordingTotals {
        self.totals
    }
}
