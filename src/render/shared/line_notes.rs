//! Why a line's figure is unknown or uncertain.

use std::fmt;

use crate::analysis::{LineDoubt, UnknownReason};

/// In place of a value.
pub(crate) fn word(reason: UnknownReason) -> &'static str {
    match reason {
        UnknownReason::NotSeen => "not seen",
        _ => "not told",
    }
}

pub(crate) fn why(reason: UnknownReason) -> &'static str {
    match reason {
        UnknownReason::NotInEvents => "exact recordings do not have it; sampled recordings do",
        UnknownReason::FreesWithoutStacks => "it needs the stacks of frees (record --frees stacks)",
        UnknownReason::FreesOfMaps => "it needs each free (record without --frees snapshots)",
        UnknownReason::Pending => {
            "freed blocks waited for other streams, and no event says for how long"
        }
        UnknownReason::SampledStacks => "only some allocations have a stack",
        UnknownReason::NotSeen => "nothing was seen while the line was executed, if it was",
    }
}

impl fmt::Display for LineDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LineDoubt::LostEvents(lost) => write!(f, "{lost} events were lost"),
            LineDoubt::GuessedStacks => f.write_str("stacks are those that sampling saw last"),
            LineDoubt::CountersDiffer => f.write_str("the events differ from the allocator's counters"),
            LineDoubt::BytesDiffer => {
                f.write_str("the bytes of blocks differ from the allocator's counters")
            }
            LineDoubt::WithoutEvent => f.write_str("some blocks came or went without an event"),
            LineDoubt::NotCompared => f.write_str(
                "the first blocks came without counters, and their sizes could not be compared later",
            ),
        }
    }
}
