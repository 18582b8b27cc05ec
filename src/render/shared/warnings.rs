//! The text of warnings about a recording.

use std::fmt;

use super::label::one_line;
use crate::analysis::{ByteBalance, Profile, RecordingWarning};
use crate::model::number;
use crate::model::{CudaIndex, RecordingGap};

/// A sentence each.
pub fn warnings(profile: &Profile) -> Vec<String> {
    profile.warnings().iter().map(ToString::to_string).collect()
}

fn was(count: u64, noun: &str) -> String {
    format!("{} {}", number(count, noun), if count == 1 { "was" } else { "were" })
}

fn gap_text(gap: &RecordingGap) -> String {
    format!(
        "the recording has a gap: records are missing between {:.3} and {:.3} s ({})",
        gap.from.seconds(),
        gap.to.seconds(),
        gap.why
    )
}

fn failed_owners_text(count: u64, why: &str) -> String {
    match count {
        1 => format!("a snapshot of the owners failed: {}", one_line(why)),
        _ => format!("{count} snapshots of the owners failed: {}", one_line(why)),
    }
}

fn unbalanced_text(device: CudaIndex, balance: ByteBalance) -> String {
    format!(
        "GPU {}: the bytes of blocks are off: the allocator counted {:+} bytes allocated and {:+} freed \
         beyond the sum of the events, so no figure is exact",
        device.0, balance.allocated, balance.freed
    )
}

fn torn_text(device: CudaIndex, torn: u64, all: u64) -> String {
    format!(
        "GPU {}: {torn} of {all} snapshots were read while the job changed them: lines and blocks may be off by what changed \
         meanwhile; totals and the peak are the allocator's own counters",
        device.0
    )
}

impl fmt::Display for RecordingWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordingWarning::File(told) => f.write_str(told),
            RecordingWarning::NoEnd => f.write_str(
                "the recording ended abruptly (or is running): what follows ends at its last whole block",
            ),
            RecordingWarning::Gap(gap) => f.write_str(&gap_text(gap)),
            RecordingWarning::MoreGaps(more) => write!(f, "the recording has {more} more gaps"),
            RecordingWarning::NoGilSeen => f.write_str(
                "no thread was seen holding the GIL (a free-threaded Python has none), so --gil leaves all of them out",
            ),
            RecordingWarning::BadDefinitions(count) => write!(
                f,
                "{count} definitions could not be used; stacks that need them are missing"
            ),
            RecordingWarning::LostEvents(lost) => write!(
                f,
                "{} lost: the recording could not keep up; the figures lack them",
                was(*lost, "event")
            ),
            RecordingWarning::FailedOwners { count, why } => {
                f.write_str(&failed_owners_text(*count, why))
            }
            RecordingWarning::WithoutEvent { device, allocated, freed } => write!(
                f,
                "GPU {}: {} allocated and {freed} freed without an event (seen in snapshots)",
                device.0,
                was(*allocated, "block")
            ),
            RecordingWarning::Excess { device, bytes } => write!(
                f,
                "GPU {}: known blocks exceed what the allocator counts by up to {bytes} bytes: frees were not seen",
                device.0
            ),
            RecordingWarning::Unbalanced { device, balance } => {
                f.write_str(&unbalanced_text(*device, *balance))
            }
            RecordingWarning::NotCompared { device } => write!(
                f,
                "GPU {}: the first blocks came before the allocator's counters could be read, and nothing was compared \
                 with these later: blocks may be larger than shown",
                device.0
            ),
            RecordingWarning::TornSnapshots { device, torn, all } => {
                f.write_str(&torn_text(*device, *torn, *all))
            }
            RecordingWarning::UnknownFrees(count) => {
                write!(f, "{} freed whose allocation was not seen", was(*count, "block"))
            }
            RecordingWarning::CountersDiffer { device, differing, checks, allocations, bytes } => {
                write!(
                    f,
                    "GPU {}: in {differing} of {checks} comparisons the allocator's counters differed from the events, \
                     last by {allocations} allocations and {bytes} bytes",
                    device.0
                )
            }
        }
    }
}
