//! The settings to replay.

use super::WhatIfArgs;
use crate::analysis::what_if::RecordedAllocations;
use crate::model::Card;

/// Those known to matter.
const KNOWN: [&str; 5] = [
    "expandable_segments:True",
    "max_split_size_mb:512",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
    "expandable_segments:True,roundup_power2_divisions:8",
];
/// It acts only where memory is short.
const COLLECTING: &str = "garbage_collection_threshold:0.8";
const SHORT: f64 = 0.8;

/// Settings to replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TriedSetting {
    pub(super) settings: String,
    /// What the cache holds of older memory is the recording's own.
    pub(super) is_own: bool,
    pub(super) empties_at_steps: bool,
}

impl TriedSetting {
    /// PyTorch collects only below a limit that the program sets.
    pub(super) fn needs_fraction(&self) -> bool {
        self.settings.contains("garbage_collection_threshold")
    }
}

/// The recording's own settings first, then the others, each once.
pub(super) fn tried(
    args: &WhatIfArgs,
    recorded: &RecordedAllocations,
    card: &Card,
) -> Vec<TriedSetting> {
    let mut all = vec![TriedSetting {
        settings: recorded.settings.clone(),
        is_own: true,
        empties_at_steps: false,
    }];
    let mut add = |settings: &str, empties_at_steps: bool| {
        let is_known =
            |it: &TriedSetting| it.settings == settings && it.empties_at_steps == empties_at_steps;
        if !all.iter().any(is_known) {
            let settings = settings.to_owned();
            all.push(TriedSetting { settings, is_own: false, empties_at_steps });
        }
    };
    for settings in &args.alloc_conf {
        add(settings.trim(), false);
        if args.empty_cache_every_step {
            add(settings.trim(), true);
        }
    }
    if args.empty_cache_every_step {
        add(&recorded.settings, true);
    }
    if args.suggest || (args.alloc_conf.is_empty() && !args.empty_cache_every_step) {
        add("", false);
        KNOWN.iter().for_each(|settings| add(settings, false));
        let outside = recorded.outside.unwrap_or(card.context);
        let room = card.memory.saturating_sub(outside);
        if recorded.reserved_peak as f64 > SHORT * room as f64 {
            add(COLLECTING, false);
        }
        if recorded.steps > 0 {
            add(&recorded.settings, true);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::what_if::{OlderMemory, ReplayGaps};
    use crate::cli::args::{CliArgs, Command};
    use crate::model::CudaIndex;

    #[test]
    fn each_setting_has_a_row_of_its_own() {
        let words =
            "memspy what-if t.bin --alloc-conf max_split_size_mb:128 --empty-cache-every-step";
        let parsed = CliArgs::from_words(words.split(' ')).unwrap().command;
        let Command::WhatIf(args) = parsed else { panic!("{words}") };
        let recorded = RecordedAllocations {
            device: CudaIndex(0),
            torch: None,
            settings: String::new(),
            start: Vec::new(),
            start_with_cache: Vec::new(),
            events: Vec::new(),
            allocations: 0,
            blocks: 0,
            streams: 1,
            segments: Vec::new(),
            steps: 2,
            reserved_peak: 1,
            allocated_peak: 1,
            older: OlderMemory::default(),
            memory: None,
            outside: None,
            gaps: ReplayGaps::default(),
        };
        let rows = tried(&args, &recorded, &Card::with_memory(1 << 30));
        let rows: Vec<(&str, bool)> =
            rows.iter().map(|row| (&*row.settings, row.empties_at_steps)).collect();
        let split = "max_split_size_mb:128";
        assert_eq!(rows, [("", false), (split, false), (split, true), ("", true)]);
    }
}
