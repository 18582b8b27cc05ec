//! How much memory a profile takes, and the most that it may: a small trace can tell of very much.
//!
//! A few bytes of a compressed trace can stand for millions of records, and some of what is kept is for each of several
//! things that a record names: limits for every stack on every device, an iteration's levels on every device. So it is
//! what is kept that is counted, and not what was read.

use std::io;

use super::Profile;
use crate::analysis::lines::bounds::{BoundsByStack, StackBounds};
use crate::model::Record;

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
    /// Bytes of names and source text.
    pub(super) text: u64,
}

impl Profile {
    /// Lets it refuse records once it takes more than about `bytes` of memory; before the records.
    pub fn limit_memory(&mut self, bytes: u64) {
        self.memory.most = Some(bytes);
    }

    /// Whether a record may be taken.
    pub(super) fn check_memory(&mut self, record: &Record) -> io::Result<()> {
        let Some(most) = self.memory.most else { return Ok(()) };
        self.memory.records += 1;
        let is_large = match record {
            Record::Snapshot(_)
            | Record::Keyframe(_)
            | Record::Events(_)
            | Record::Ownership(_) => true,
            Record::Source(source) if source.text.len() > 64 << 10 => true,
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
        Err(io::Error::other(format!(
            "what they tell would take more than {} MiB of memory, too much for a file of this size: it is damaged, or was \
             made to do so",
            most >> 20
        )))
    }

    /// What the tick being collected may take with this record: each of its threads may be seen on a stack, and at a border
    /// of two, of which no device has limits yet.
    fn coming(&self, record: &Record) -> u64 {
        let threads = match record {
            Record::Sample(sample) => self.open.threads.len() + sample.threads.len(),
            Record::Counters { .. } => self.open.threads.len(),
            _ => return 0,
        };
        let devices = self.profiles.len() + self.open_counters.len();
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
