//! vLLM's memory by tag, as text: what is mapped and what is asleep.

use super::escape::visible;
use super::label::one_line;
use super::size::bytes;
use crate::analysis::{DeviceSnapshot, SleepState, TagShare};

/// A name and a value for each tag; nothing for a process without vLLM's allocator.
pub(super) fn tag_rows(device: &DeviceSnapshot) -> Vec<(String, String)> {
    let row = |share: &TagShare| {
        let state = match &share.state {
            SleepState::Known { mapped, asleep: 0 } => format!("{} mapped", bytes(*mapped)),
            SleepState::Known { mapped: 0, asleep } => format!("{} asleep", bytes(*asleep)),
            SleepState::Known { mapped, asleep } => {
                format!("{} mapped, {} asleep", bytes(*mapped), bytes(*asleep))
            }
            SleepState::Unknown(why) => {
                format!("{}, mapped or asleep is unknown: {why}", bytes(share.bytes))
            }
        };
        (format!("vLLM's tag '{}'", visible(&share.tag)), state)
    };
    match &device.tags {
        Ok(tags) => tags.iter().map(row).collect(),
        Err(why) => vec![("vLLM's tags".to_owned(), format!("unknown: {}", one_line(why)))],
    }
}
