//! How much memory and work a profile takes, and the most that it may: a small trace can tell of very much.
//!
//! A few bytes of a compressed trace can stand for millions of records, and some of what is kept is for each of several
//! things that a record names: limits for every stack on every device, an iteration's levels on every device. So it is
//! what is kept that is counted, and not what was read. Likewise one record can stand for very much work: a snapshot that keeps a
//! million blocks, a stack of a hundred thousand frames that is left and come to with every event.

use super::Profile;
use crate::analysis::lines::bounds::{BoundsByStack, StackBounds};
use crate::model::{Record, SinkError, SinkResult};

/// What one definition takes.
const DEFINITION: u64 = 320;
/// What one device takes besides what is counted: its timeline, counters, sums.
const DEVICE: u64 = 128 << 10;
/// Records after which the count is made at the latest.
const CHECKED_EVERY: u32 = 256;

/// The most memory that may be taken, and when it was looked at.
#[derive(Debug, Default)]
pub(super) struct ProfileMemoryLimit {
    /// In bytes; `None`: without limit.
    most: Option<u64>,
    records: u32,
    /// The most steps that taking in the records may need; `None`: without limit.
    max_work: Option<u64>,
    /// Steps so far, each of some nanoseconds.
    work: u64,
    /// Bytes of names and source text.
    pub(super) text: u64,
}

impl ProfileMemoryLimit {
    /// Counts the steps of something that a record caused.
    pub(super) fn add_work(&mut self, steps: usize) {
        self.work = self.work.saturating_add(steps as u64);
    }

    /// Steps that are left.
    pub(super) fn work_left(&self) -> u64 {
        self.max_work.map_or(u64::MAX, |most| most.saturating_sub(self.work))
    }
}

/// What the records of a file may not cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProfileLimit {
    /// More steps than any recording takes.
    #[error(
        "what they tell would take far longer to read than any recording of this size: it is damaged, or was made to do so"
    )]
    Work,
    /// More memory than any recording takes.
    #[error(
        "what they tell would take more than {mib} MiB of memory, too much for a file of this size: it is damaged, or was \
         made to do so"
    )]
    Memory {
        /// How much it may take.
        mib: u64,
    },
}

impl Profile {
    /// Lets it refuse records once it takes more than about `bytes` of memory; before the records.
    pub fn limit_memory(&mut self, bytes: u64) {
        self.memory.most = Some(bytes);
    }

    /// The most memory that it may take; `None`: without limit.
    pub fn memory_limit(&self) -> Option<u64> {
        self.memory.most
    }

    /// Lets it refuse records once they have cost more than about `steps` of some nanoseconds each; before the records.
    pub fn limit_work(&mut self, steps: u64) {
        self.memory.max_work = Some(steps);
    }

    /// Counts the steps that a report on this moment takes.
    ///
    /// # Errors
    /// They are more than it may take in all.
    pub(crate) fn add_report(&mut self) -> SinkResult {
        let devices = self.profiles.values().map(|device| DEVICE / 64 + device.memory() / 8);
        let steps = devices.sum::<u64>()
            + self.exact.as_ref().map_or(0, |exact| exact.memory() / 8)
            + self.stacks.definitions();
        self.memory.add_work(steps as usize);
        self.check_work()
    }

    /// Whether what it was given has cost no more than it may.
    ///
    /// # Errors
    /// It has cost more: nothing of it is to be believed.
    pub(crate) fn check_work(&self) -> SinkResult {
        let exact = self.exact.as_ref().map_or(0, |exact| exact.work());
        match self.memory.max_work {
            Some(most) if self.memory.work.saturating_add(exact) > most => {
                Err(SinkError::failed(ProfileLimit::Work))
            }
            _ => Ok(()),
        }
    }

    /// Whether a record may be taken.
    pub(super) fn check_limits(&mut self, record: &Record) -> SinkResult {
        self.memory.add_work(work(record));
        self.check_work()?;
        let Some(most) = self.memory.most else { return Ok(()) };
        self.memory.records += 1;
        let is_large = match record {
            Record::Snapshot(_)
            | Record::Keyframe(_)
            | Record::Events(_)
            | Record::Ownership(_) => true,
            Record::Source(_) | Record::Definition(_) if text(record) > 64 << 10 => true,
            _ => self.memory.records >= CHECKED_EVERY,
        };
        let coming = self.coming(record);
        if !is_large && coming < most / 1024 {
            return Ok(());
        }
        self.memory.records = 0;
        let taken = self.memory_taken();
        if taken.saturating_add(coming) <= most {
            return Ok(());
        }
        Err(SinkError::failed(ProfileLimit::Memory { mib: most >> 20 }))
    }

    /// What the tick being collected may take with this record: each of its threads may be seen on a stack, and at a border
    /// of two, of which no device has limits yet.
    fn coming(&self, record: &Record) -> u64 {
        let threads = match record {
            Record::Sample(sample) => self.open.threads.len() + sample.threads.len(),
            Record::Counters { .. } => self.open.threads.len(),
            _ => return text(record),
        };
        let devices = match self.skips_lines {
            true => 0,
            false => self.profiles.len() + self.open_counters.len(),
        };
        (threads * (128 + 2 * size_of::<StackBounds>() * devices)) as u64
    }

    /// About how many bytes it takes.
    fn memory_taken(&self) -> u64 {
        let bounds: u64 = self.bounds.values().map(BoundsByStack::memory).sum();
        let devices: u64 = self.profiles.values().map(|device| DEVICE + device.memory()).sum();
        let definitions = (self.stacks.definitions() + self.sources.len() as u64) * DEFINITION;
        let devices_known = (self.devices.len() + self.usage.len()) as u64 * DEFINITION;
        definitions
            + devices_known
            + self.memory.text
            + bounds
            + devices
            + self.exact.as_ref().map_or(0, |exact| exact.memory())
            + self.iterations.memory()
            + self.owners.memory()
    }
}

/// Bytes of the text that a record brings.
fn text(record: &Record) -> u64 {
    match record {
        Record::Source(_) | Record::Definition(_) => record.bytes_held() as u64,
        _ => 0,
    }
}

/// The steps that it takes to decode and to take in a record.
fn work(record: &Record) -> usize {
    const RECORD: usize = 16;
    RECORD
        + match record {
            // Mostly the same as the one before.
            Record::Sample(sample) => sample.threads.len() / 4,
            Record::Snapshot(snapshot) => 4 * snapshot.blocks().count(),
            Record::Events(batch) => 16 * batch.events.len(),
            Record::Keyframe(inherited) => {
                8 * inherited.memory.iter().map(|memory| memory.blocks.len()).sum::<usize>()
            }
            _ => 0,
        }
}
