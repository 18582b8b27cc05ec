//! Sums up losses to one record a second.

use crate::model::{MissReason, MissedObservation, Nanos, ReaderKind};

#[derive(Debug, Default)]
pub(super) struct PendingLosses {
    counts: Vec<(ReaderKind, MissReason, u64)>,
}

impl PendingLosses {
    pub(super) fn add(&mut self, reader: ReaderKind, why: MissReason, count: u64) {
        if count == 0 {
            return;
        }
        match self.counts.iter_mut().find(|(r, w, _)| *r == reader && *w == why) {
            Some((_, _, sum)) => *sum += count,
            None => self.counts.push((reader, why, count)),
        }
    }

    pub(super) fn drain(&mut self, time: Nanos) -> impl Iterator<Item = MissedObservation> {
        std::mem::take(&mut self.counts)
            .into_iter()
            .map(move |(reader, why, count)| MissedObservation { time, reader, why, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_one_kind_are_one_record() {
        let mut losses = PendingLosses::default();
        losses.add(ReaderKind::Stacks, MissReason::Torn, 1);
        losses.add(ReaderKind::Snapshots, MissReason::Torn, 1);
        losses.add(ReaderKind::Stacks, MissReason::Torn, 2);
        losses.add(ReaderKind::Stacks, MissReason::Late, 0);
        let taken: Vec<_> = losses.drain(Nanos(5)).map(|m| (m.reader, m.count)).collect();
        assert_eq!(taken, [(ReaderKind::Stacks, 3), (ReaderKind::Snapshots, 1)]);
        assert_eq!(losses.drain(Nanos(6)).count(), 0);
    }
}
