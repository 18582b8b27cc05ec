//! Keeps records in time order.

use crate::model::{FollowedChanges, Record, RecordSink, SinkResult};

pub(super) struct ReorderBuffer<'a> {
    sink: &'a mut dyn RecordSink,
    held: Vec<Record>,
    waiting: usize,
}

impl<'a> ReorderBuffer<'a> {
    pub(super) fn new(sink: &'a mut dyn RecordSink) -> Self {
        ReorderBuffer { sink, held: Vec::new(), waiting: 0 }
    }

    pub(super) fn expect_late(&mut self) {
        self.waiting += 1;
    }

    /// `None` if the late record failed.
    pub(super) fn late(&mut self, record: Option<Record>) -> SinkResult {
        if let Some(record) = record {
            let time = record.time();
            // A definition has no time: it stays before the record that needs it.
            let before = |held: &Record| held.time().is_some_and(|t| Some(t) <= time);
            let at = self.held.iter().rposition(before).map_or(0, |at| at + 1);
            self.held.insert(at, record);
            self.divide_changes(at);
        }
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting > 0 { Ok(()) } else { self.release() }
    }

    /// Splits the next batch: its deltas before the record at `at` go first.
    fn divide_changes(&mut self, at: usize) {
        let Some(time) = self.held.get(at).and_then(Record::time) else { return };
        let next = self.held.iter().skip(at + 1).position(|held| held.time().is_some());
        let Some(next) = next.map(|after| at + 1 + after) else { return };
        let Some(Record::Followed(batch)) = self.held.get_mut(next) else { return };
        let later = batch.changes.partition_point(|change| change.after <= time);
        if later == 0 {
            return;
        }
        let changes = batch.changes.drain(..later).collect();
        let earlier = Record::Followed(FollowedChanges { changes });
        let record = self.held.remove(at);
        self.held.insert(next - 1, earlier);
        self.held.insert(next, record);
    }

    pub(super) fn release(&mut self) -> SinkResult {
        self.waiting = 0;
        self.held.drain(..).try_for_each(|record| self.sink.record(&record))
    }
}

impl RecordSink for ReorderBuffer<'_> {
    fn record(&mut self, record: &Record) -> SinkResult {
        if self.waiting == 0 {
            return self.sink.record(record);
        }
        self.held.push(record.clone());
        Ok(())
    }

    fn sync(&mut self) -> SinkResult {
        self.sink.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        Definition, FollowedChange, Function, FunctionId, MissReason, MissedObservation, Nanos,
        ReaderKind, StackSample,
    };

    fn sample(time: u64) -> Record {
        Record::Sample(StackSample { time: Nanos(time), threads: Vec::new() })
    }

    fn late(time: u64) -> Record {
        let (reader, why) = (ReaderKind::Snapshots, MissReason::Torn);
        Record::Missed(MissedObservation { time: Nanos(time), reader, why, count: 1 })
    }

    fn definition() -> Record {
        let function = Function {
            name: "f".into(),
            file: "a".into(),
            first_line: 1,
            last_line: 1,
            is_native: false,
        };
        Record::Definition(Definition::Function(FunctionId(0), function))
    }

    #[test]
    fn a_late_record_is_sorted_by_time() {
        let mut sink = Vec::new();
        let mut order = ReorderBuffer::new(&mut sink);
        order.record(&sample(1)).unwrap();
        order.expect_late();
        for record in [sample(2), definition(), sample(4)] {
            order.record(&record).unwrap();
        }
        order.late(Some(late(3))).unwrap();
        order.record(&sample(5)).unwrap();
        assert_eq!(sink, [sample(1), sample(2), late(3), definition(), sample(4), sample(5)]);
    }

    fn followed(times: &[u64]) -> Record {
        let change = |after: &u64| FollowedChange {
            before: Nanos(after - 1),
            after: Nanos(*after),
            ..FollowedChange::empty()
        };
        Record::Followed(FollowedChanges { changes: times.iter().map(change).collect() })
    }

    #[test]
    fn a_late_snapshot_splits_a_batch_of_deltas() {
        let mut sink = Vec::new();
        let mut order = ReorderBuffer::new(&mut sink);
        order.expect_late();
        for record in [sample(2), definition(), followed(&[3, 5, 7, 9]), sample(9)] {
            order.record(&record).unwrap();
        }
        order.late(Some(late(6))).unwrap();
        let divided = [followed(&[3, 5]), late(6), followed(&[7, 9])];
        assert_eq!(sink[..2], [sample(2), definition()]);
        assert_eq!(sink[2..5], divided);
        assert_eq!(sink[5], sample(9));
    }

    #[test]
    fn all_wait_until_the_last_late_one_has_come() {
        let mut sink = Vec::new();
        let mut order = ReorderBuffer::new(&mut sink);
        order.expect_late();
        order.expect_late();
        order.record(&sample(2)).unwrap();
        order.late(Some(late(1))).unwrap();
        order.record(&sample(3)).unwrap();
        order.late(None).unwrap();
        assert_eq!(sink, [late(1), sample(2), sample(3)]);
    }
}
