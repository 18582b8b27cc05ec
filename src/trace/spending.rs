//! Bounds the work and memory of reading a file in proportion to its bytes.
//!
//! A few compressed bytes can expand to millions of records. A recorder writes no such blocks: each
//! record's time takes bytes, and a block ends after a second. Blocks with denser records are
//! refused, so that the rest can be read.

use crate::model::{Definition, Record};

/// Work for any file, and per byte of its blocks. A unit is a byte of a record in memory, which
/// takes some nanoseconds. The busiest recordings (a thousand threads, a thousand times a second)
/// need 2,000 units a byte.
const WORK: u64 = 256 << 20;
const WORK_PER_BYTE: u64 = 8192;
/// Memory of definitions for any file, and per byte of its blocks. Recordings with only new stacks
/// take some 100.
const DEFINITIONS: u64 = 128 << 20;
const DEFINITIONS_PER_BYTE: u64 = 192;
/// Memory of a definition in tables and indexes, without text.
const NODE: u64 = 96;
const DEFINITION: u64 = 320;
/// A thread mostly repeats the previous sample.
const THREAD: u64 = 4;

const REPEATED: &str = "this part is repeated beyond what a recorder writes";
const TOO_MUCH_TEXT: &str = "its functions, stacks, threads and source text take more memory than those of any recording of this size";

#[derive(Debug)]
pub(super) struct ReadBudget {
    work: u64,
    definitions: u64,
}

impl Default for ReadBudget {
    fn default() -> Self {
        ReadBudget { work: WORK, definitions: DEFINITIONS }
    }
}

impl ReadBudget {
    pub(super) fn grant(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.work = self.work.saturating_add(bytes.saturating_mul(WORK_PER_BYTE));
        self.definitions =
            self.definitions.saturating_add(bytes.saturating_mul(DEFINITIONS_PER_BYTE));
    }

    pub(super) fn spend(&mut self, record: &Record) -> Result<(), &'static str> {
        let held = record.bytes_held() as u64;
        let work = match record {
            Record::Sample(sample) => 256 + THREAD * sample.threads.len() as u64,
            _ => held,
        };
        take(&mut self.work, work, REPEATED)?;
        let kept = match record {
            Record::Definition(Definition::Frame(..) | Definition::Stack(..)) => NODE,
            Record::Definition(_) | Record::Source(_) => DEFINITION + held,
            _ => 0,
        };
        take(&mut self.definitions, kept, TOO_MUCH_TEXT)
    }

    pub(super) fn spend_skipped(&mut self) -> Result<(), &'static str> {
        take(&mut self.work, 32, REPEATED)
    }
}

/// A refused cost takes nothing: the next block has its whole share.
fn take(left: &mut u64, cost: u64, why: &'static str) -> Result<(), &'static str> {
    *left = left.checked_sub(cost).ok_or(why)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Function, FunctionId, Nanos, RecordingGap, StackSample};

    fn function(length: usize) -> Record {
        let name = "a".repeat(length).into();
        let function =
            Function { name, file: "".into(), first_line: 1, last_line: 1, is_native: false };
        Record::Definition(Definition::Function(FunctionId(0), function))
    }

    #[test]
    fn definitions_are_bounded_by_the_bytes_of_their_block() {
        let mut budget = ReadBudget::default();
        let large = function(40 << 20);
        let taken = (0..10).take_while(|_| budget.spend(&large).is_ok()).count();
        assert_eq!(taken, 3);
        assert_eq!(budget.spend(&large), Err(TOO_MUCH_TEXT));
        budget.grant(1 << 20);
        assert_eq!((0..10).take_while(|_| budget.spend(&large).is_ok()).count(), 4);
    }

    #[test]
    fn work_is_bounded_by_the_bytes_of_each_block() {
        let mut budget = ReadBudget { work: 1000, definitions: 0 };
        let gap = Record::Gap(RecordingGap { from: Nanos(0), to: Nanos(0), why: String::new() });
        assert_eq!((0..10).take_while(|_| budget.spend(&gap).is_ok()).count(), 3);
        assert_eq!(budget.spend(&gap), Err(REPEATED));
        budget.grant(1);
        assert_eq!(budget.spend(&gap), Ok(()));
    }

    #[test]
    fn the_busiest_recording_spends_a_third_of_its_budget() {
        // The busiest recording.
        let mut budget = ReadBudget { work: 0, definitions: 0 };
        let thread = crate::model::ThreadSample {
            thread: crate::model::ThreadId(0),
            stack: crate::model::StackId(0),
            gil: false,
            activity: crate::model::ThreadActivity::Active,
        };
        let sample = StackSample { time: Nanos(0), threads: vec![thread; 1000] };
        let record = Record::Sample(sample);
        for _ in 0..1000 {
            budget.grant(2);
            budget.spend(&record).unwrap();
        }
        assert!(budget.work > 2 * (1000 * 2 * WORK_PER_BYTE) / 3, "{}", budget.work);
    }
}
