//! Missed observations, by reader and reason.

use std::collections::BTreeMap;

use crate::model::{MissReason, MissedObservation, ReaderKind};

/// Distinct failure texts, at most.
const REASONS: usize = 64;

/// Missed observations with one reader and reason.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    pub reader: ReaderKind,
    pub why: MissReason,
    pub count: u64,
}

/// All missed observations.
#[derive(Debug, Default)]
pub struct LossCounts {
    late: BTreeMap<ReaderKind, u64>,
    torn: BTreeMap<ReaderKind, u64>,
    failed: BTreeMap<(ReaderKind, String), u64>,
}

impl LossCounts {
    pub(crate) fn add(&mut self, missed: &MissedObservation) {
        let count = match &missed.why {
            MissReason::Late => self.late.entry(missed.reader).or_default(),
            MissReason::Torn => self.torn.entry(missed.reader).or_default(),
            MissReason::Failed(why) => {
                // Texts that always differ must not use unbounded memory.
                let full = self.failed.len() >= REASONS;
                let key = (missed.reader, why.clone());
                let key = if full && !self.failed.contains_key(&key) {
                    (missed.reader, "other reasons".to_owned())
                } else {
                    key
                };
                self.failed.entry(key).or_default()
            }
        };
        *count = count.saturating_add(missed.count);
    }

    /// Readings of `reader` that came too late.
    pub fn late(&self, reader: ReaderKind) -> u64 {
        self.late.get(&reader).copied().unwrap_or(0)
    }

    /// Readings of `reader` that stayed inconsistent.
    pub fn torn(&self, reader: ReaderKind) -> u64 {
        self.torn.get(&reader).copied().unwrap_or(0)
    }

    /// Readings of `reader` that failed.
    pub fn failed(&self, reader: ReaderKind) -> u64 {
        let of_reader = |(k, n): (&(ReaderKind, String), &u64)| (k.0 == reader).then_some(*n);
        self.failed.iter().filter_map(of_reader).sum()
    }

    /// All losses, by reason and reader.
    pub fn all(&self) -> Vec<Loss> {
        let simple = |snapshot: &BTreeMap<ReaderKind, u64>, why: MissReason| {
            snapshot
                .iter()
                .map(|(&reader, &count)| Loss { reader, why: why.clone(), count })
                .collect::<Vec<_>>()
        };
        let mut all = simple(&self.late, MissReason::Late);
        all.extend(simple(&self.torn, MissReason::Torn));
        all.extend(self.failed.iter().map(|((reader, why), &count)| Loss {
            reader: *reader,
            why: MissReason::Failed(why.clone()),
            count,
        }));
        all
    }
}
