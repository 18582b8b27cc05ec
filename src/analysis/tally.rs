//! Sums over the records that were kept of a recording, for its trailer.

use crate::model::{Consistency, MissedWhy, ReaderKind, Record, Totals};

/// Counts what a recorder would have counted.
#[derive(Debug, Default)]
pub struct Tally {
    totals: Totals,
}

impl Tally {
    /// Takes a record.
    pub fn take(&mut self, record: &Record) {
        let totals = &mut self.totals;
        match record {
            Record::Sample(sample) => {
                totals.ticks += 1;
                totals.stacks += sample.threads.len() as u64;
            }
            Record::Blocks(map) => match map.consistency {
                Consistency::Consistent => totals.maps_consistent += 1,
                Consistency::Degraded { .. } => totals.maps_degraded += 1,
            },
            Record::Missed(missed) if missed.reader == ReaderKind::Stacks => match missed.why {
                MissedWhy::Late => {
                    totals.ticks += missed.count;
                    totals.late += missed.count;
                }
                MissedWhy::Torn => {
                    totals.stacks += missed.count;
                    totals.torn += missed.count;
                }
                MissedWhy::Failed(_) => {}
            },
            _ => {}
        }
    }

    /// The sums so far. Those of exact events are unknown: some of them cannot be told from the records.
    pub fn totals(&self) -> Totals {
        self.totals
    }
}
