//! The answer as JSON.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::WhatIfAnswer;
use crate::analysis::what_if::ReplayedSetting;
use crate::render::shared::{JsonDocument, JsonFormat, OutputError};

/// `memspy what-if --json`: a recording, replayed under several settings. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WhatIfJson {
    /// The device's number in the job.
    pub device: u32,
    /// Memory of the card that the replays had; `null`: unknown, so they had enough.
    pub memory: Option<u64>,
    /// The PyTorch that replayed.
    pub torch: String,
    /// The PyTorch that was recorded.
    pub recorded_torch: Option<String>,
    /// Allocations replayed.
    pub allocations: u64,
    /// Highest reserved bytes, by the recording.
    pub recorded_reserved_peak: u64,
    /// The same, by the replay of its own settings on a card of its size.
    pub replayed_reserved_peak: u64,
    /// Whether the two agree within 1 %. If not, no setting is certain to help.
    pub agrees: bool,
    /// Live blocks that are older than the recording.
    pub older_live: u64,
    /// Those of them that were live at the peak.
    pub older_live_at_peak: u64,
    /// The cache before the recording.
    pub older_cached: u64,
    /// Events that the recording lost.
    pub lost_events: u64,
    /// Allocations whose stream is unknown: taken to be one of its own.
    pub unplaced: u64,
    /// Index in `settings` of the best; `null`: none is clearly better than the first.
    pub best: Option<u64>,
    /// The replays: the recording's own settings, then the others, best first.
    pub settings: Vec<ReplayedSettingJson>,
}

impl JsonFormat for WhatIfJson {
    const FORMAT: &'static str = "memspy-what-if";
    const VERSION: u32 = 1;
}

/// A replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReplayedSettingJson {
    /// `PYTORCH_ALLOC_CONF`; empty: the default settings.
    pub alloc_conf: String,
    /// Whether the cache was emptied after each step.
    pub empty_cache_every_step: bool,
    /// Highest reserved bytes.
    pub reserved_peak: u64,
    /// Highest allocated bytes.
    pub allocated_peak: u64,
    /// Cached bytes when the recording reserved most.
    pub cached_at_peak: u64,
    /// The largest free block then.
    pub largest_free_at_peak: u64,
    /// Reserved bytes after the last event.
    pub reserved_at_end: u64,
    /// Segments obtained from the driver; a part of an expandable one is not counted.
    pub segments: u64,
    /// Calls of the driver that gave memory.
    pub driver_allocations: Option<u64>,
    /// Calls of the driver that took memory back.
    pub driver_frees: Option<u64>,
    /// Out-of-memory errors.
    pub out_of_memory: u64,
    /// Allocations that succeeded only after the cache was given back.
    pub retries: u64,
    /// How long the replay took.
    pub seconds: f64,
}

/// Writes the answer as JSON.
pub fn what_if_json(out: &mut dyn Write, answer: &WhatIfAnswer) -> Result<(), OutputError> {
    let (recorded, comparison) = (&answer.recorded, &answer.comparison);
    let all = std::iter::once(&comparison.own).chain(&comparison.others);
    let content = WhatIfJson {
        device: recorded.device.0,
        memory: answer.memory,
        torch: comparison.own.outcome.torch.clone(),
        recorded_torch: recorded.torch.clone(),
        allocations: recorded.allocations,
        recorded_reserved_peak: comparison.recorded_peak,
        replayed_reserved_peak: comparison.replayed_peak,
        agrees: comparison.agrees(),
        older_live: recorded.older.live,
        older_live_at_peak: recorded.older.live_at_peak,
        older_cached: recorded.older.cached,
        lost_events: recorded.gaps.lost,
        unplaced: recorded.gaps.unplaced,
        // The best of the others is the first of them.
        best: comparison.best().map(|_| 1),
        settings: all.map(setting_json).collect(),
    };
    JsonDocument::new(content).write(out, true)
}

fn setting_json(setting: &ReplayedSetting) -> ReplayedSettingJson {
    let outcome = &setting.outcome;
    ReplayedSettingJson {
        alloc_conf: setting.settings.clone(),
        empty_cache_every_step: setting.empties_at_steps,
        reserved_peak: outcome.reserved_peak,
        allocated_peak: outcome.allocated_peak,
        cached_at_peak: outcome.at_peak.cached(),
        largest_free_at_peak: outcome.at_peak.largest_free(),
        reserved_at_end: outcome.at_end.reserved,
        segments: outcome.counts.segments,
        driver_allocations: outcome.counts.driver_allocations,
        driver_frees: outcome.counts.driver_frees,
        out_of_memory: outcome.counts.out_of_memory,
        retries: outcome.counts.retries,
        seconds: outcome.seconds,
    }
}
