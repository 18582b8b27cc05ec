//! Limits of a profile's memory and work.
//!
//! Some bytes of a compressed trace can become millions of records, and one record can cause much
//! memory (limits for each stack and device) or work (a snapshot of a million blocks). So results
//! are limited, not bytes read.

use super::Profile;
use crate::analysis::profile::bounds::{BoundsTable, StackBounds};
use crate::model::{Record, SinkError, SinkResult};

const DEFINITION: u64 = 320;
/// A device's fixed part: timeline, counters, sums.
const DEVICE: u64 = 128 << 10;
const CHECKED_EVERY: u32 = 256;

#[derive(Debug, Default)]
pub(super) struct ProfileBudget {
    /// In bytes; `None`: unlimited.
    most: Option<u64>,
    records: u32,
    /// `None`: unlimited.
    max_work: Option<u64>,
    /// In units of some nanoseconds.
    work: u64,
    /// Names and source text, in bytes.
    pub(super) text: u64,
}

impl ProfileBudget {
    pub(super) fn add_work(&mut self, steps: usize) {
        self.work = self.work.saturating_add(steps as u64);
    }

    pub(super) fn work_left(&self) -> u64 {
        self.max_work.map_or(u64::MAX, |most| most.saturating_sub(self.work))
    }
}

/// What exceeded a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ProfileLimit {
    #[error(
        "they would take far longer to read than any recording of this size: it is damaged or malicious"
    )]
    Work,
    #[error(
        "they would take more than {mib} MiB of memory, too much for a file of this size: it is damaged or malicious"
    )]
    Memory { mib: u64 },
}

impl Profile {
    /// Refuses records above about `bytes`. Call before adding records.
    pub fn limit_memory(&mut self, bytes: u64) {
        self.memory.most = Some(bytes);
    }

    /// In bytes; `None`: unlimited.
    pub fn memory_limit(&self) -> Option<u64> {
        self.memory.most
    }

    /// Refuses records above about `steps` of work, some nanoseconds each. Call before adding
    /// records.
    pub fn limit_work(&mut self, steps: u64) {
        self.memory.max_work = Some(steps);
    }

    pub(crate) fn add_report(&mut self) -> SinkResult {
        let devices = self.profiles.values().map(|device| DEVICE / 64 + device.memory() / 8);
        let steps = devices.sum::<u64>()
            + self.exact.as_ref().map_or(0, |exact| exact.memory() / 8)
            + self.stacks.definitions();
        self.memory.add_work(steps as usize);
        self.check_work()
    }

    /// Fails above the limit: then nothing in the profile is reliable.
    pub(crate) fn check_work(&self) -> SinkResult {
        let exact = self.exact.as_ref().map_or(0, |exact| exact.work());
        match self.memory.max_work {
            Some(most) if self.memory.work.saturating_add(exact) > most => {
                Err(SinkError::failed(ProfileLimit::Work))
            }
            _ => Ok(()),
        }
    }

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

    /// Bytes that the open tick may add: limits for two stacks of each thread on each device.
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

    fn memory_taken(&self) -> u64 {
        let bounds: u64 = self.bounds.values().map(BoundsTable::memory).sum();
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

fn text(record: &Record) -> u64 {
    match record {
        Record::Source(_) | Record::Definition(_) => record.bytes_held() as u64,
        _ => 0,
    }
}

fn work(record: &Record) -> usize {
    const RECORD: usize = 16;
    RECORD
        + match record {
            // Mostly equal to the previous one.
            Record::Sample(sample) => sample.threads.len() / 4,
            Record::Snapshot(snapshot) => 4 * snapshot.blocks().count(),
            Record::Events(batch) => 16 * batch.events.len(),
            Record::Keyframe(inherited) => {
                8 * inherited.memory.iter().map(|memory| memory.blocks.len()).sum::<usize>()
            }
            _ => 0,
        }
}
