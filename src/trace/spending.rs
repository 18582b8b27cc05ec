//! What the records of a file may cost whoever takes them: each no more than its bytes' share.
//!
//! A few bytes of a compressed block can stand for millions of records. A recorder does not write such blocks: the time
//! of each record is measured in nanoseconds, so it takes some bytes however little happened, and a block ends after
//! a second. What is told more often than that is refused where it is read, block by block, so that the rest is read.

use crate::model::{Definition, Record};

/// Work that may be done for any file, and for each byte of its blocks. A unit is a byte that a record
/// takes in memory, which costs its reader and the analysis some nanoseconds. The busiest recordings (a
/// thousand threads, a thousand times a second) need 2,000 units for a byte.
const WORK: u64 = 256 << 20;
const WORK_PER_BYTE: u64 = 8192;
/// What definitions may take in the memory of whoever keeps them, for any file and for each byte of its
/// blocks. Of recordings in which no stack comes twice they take some 100 bytes for a byte.
const DEFINITIONS: u64 = 128 << 20;
const DEFINITIONS_PER_BYTE: u64 = 192;
/// What a frame or a stack takes in tables and in what finds it there, and what any other definition
/// takes there besides its text.
const NODE: u64 = 96;
const DEFINITION: u64 = 320;
/// What a thread of a sample costs: mostly, it is where it was in the sample before.
const THREAD: u64 = 4;

const REPEATED: &str = "this part is repeated beyond what a recorder writes";
const TOO_MUCH_TEXT: &str = "its functions, stacks, threads and source text take more memory than those of any recording of this size";

/// What may still be spent on a file.
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
    /// A block of so many bytes of the file begins: it brings its share.
    pub(super) fn grant(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.work = self.work.saturating_add(bytes.saturating_mul(WORK_PER_BYTE));
        self.definitions =
            self.definitions.saturating_add(bytes.saturating_mul(DEFINITIONS_PER_BYTE));
    }

    /// Takes what a record costs; the reason why it is refused, if it costs too much.
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

    /// Takes what a record costs that is not given on.
    pub(super) fn spend_skipped(&mut self) -> Result<(), &'static str> {
        take(&mut self.work, 32, REPEATED)
    }
}

/// What costs more than is left takes nothing: the next block's share is for that block.
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
    fn names_are_taken_up_to_the_share_of_the_bytes_that_brought_them() {
        let mut budget = ReadBudget::default();
        let large = function(40 << 20);
        let taken = (0..10).take_while(|_| budget.spend(&large).is_ok()).count();
        assert_eq!(taken, 3);
        assert_eq!(budget.spend(&large), Err(TOO_MUCH_TEXT));
        // A later block has its own share, whatever the one before wanted.
        budget.grant(1 << 20);
        assert_eq!((0..10).take_while(|_| budget.spend(&large).is_ok()).count(), 4);
    }

    #[test]
    fn work_is_bounded_by_the_bytes_and_what_came_before_takes_no_share_of_later_blocks() {
        let mut budget = ReadBudget { work: 1000, definitions: 0 };
        let gap = Record::Gap(RecordingGap { from: Nanos(0), to: Nanos(0), why: String::new() });
        assert_eq!((0..10).take_while(|_| budget.spend(&gap).is_ok()).count(), 3);
        assert_eq!(budget.spend(&gap), Err(REPEATED));
        budget.grant(1);
        assert_eq!(budget.spend(&gap), Ok(()));
    }

    #[test]
    fn the_busiest_recording_spends_a_third_of_its_share() {
        // A thousand threads, a thousand times in a second, two bytes each.
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
