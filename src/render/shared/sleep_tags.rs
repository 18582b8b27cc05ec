//! vLLM's memory by tag: mapped and asleep.

use serde::{Deserialize, Serialize};

use super::escape::visible;
use super::label::one_line;
use crate::analysis::{DeviceSnapshot, SleepState, TagShare};
use crate::model::bytes;

/// The memory of one tag of vLLM's allocator that can sleep, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SleepTagJson {
    /// The tag: `weights`, `kv_cache` or what the program chose.
    pub tag: String,
    /// All of it.
    pub bytes: u64,
    /// The mapped part; `null` where that is not known.
    pub mapped: Option<u64>,
    /// The part asleep: reserved in PyTorch, without memory behind it; `null` where that is not
    /// known.
    pub asleep: Option<u64>,
    /// Why that is not known; `null` where it is.
    pub unknown_because: Option<String>,
}

impl SleepTagJson {
    pub(crate) fn list(
        tags: &Result<Vec<TagShare>, String>,
    ) -> (Option<Vec<SleepTagJson>>, Option<String>) {
        let tag = |share: &TagShare| {
            let (mapped, asleep, why) = match &share.state {
                SleepState::Known { mapped, asleep } => (Some(*mapped), Some(*asleep), None),
                SleepState::Unknown(why) => (None, None, Some((*why).to_owned())),
            };
            SleepTagJson {
                tag: share.tag.clone(),
                bytes: share.bytes,
                mapped,
                asleep,
                unknown_because: why,
            }
        };
        match tags {
            Ok(tags) => (Some(tags.iter().map(tag).collect()), None),
            Err(why) => (None, Some(why.clone())),
        }
    }
}

/// Empty without vLLM's allocator.
pub(crate) fn tag_rows(device: &DeviceSnapshot) -> Vec<(String, String)> {
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
