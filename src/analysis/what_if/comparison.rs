//! Replays under several settings, compared.

use crate::model::BlockState;

/// What a replay counts from its first event on; `None`: this PyTorch does not count it.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplayCounts {
    pub segments: u64,
    pub driver_allocations: Option<u64>,
    pub driver_frees: Option<u64>,
    pub out_of_memory: u64,
    pub retries: u64,
}

/// A segment with its blocks, by address.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayedSegment {
    pub size: u64,
    pub stream: u64,
    pub small: bool,
    pub expandable: bool,
    pub private: bool,
    pub blocks: Vec<(BlockState, u64)>,
}

/// The allocator at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplayMoment {
    /// Bytes taken from the driver.
    pub reserved: u64,
    /// Bytes of live blocks.
    pub allocated: u64,
    /// Its segments.
    pub segments: Vec<ReplayedSegment>,
}

impl ReplayMoment {
    /// Bytes that are reserved and not allocated.
    pub fn cached(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated)
    }

    /// Bytes of the largest free block.
    pub fn largest_free(&self) -> u64 {
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        let free = blocks.filter(|(state, _)| *state == BlockState::Inactive);
        free.map(|(_, size)| *size).max().unwrap_or(0)
    }
}

/// What a replay gave.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayOutcome {
    /// Highest reserved bytes.
    pub reserved_peak: u64,
    /// Highest allocated bytes.
    pub allocated_peak: u64,
    /// At the recording's reserved peak.
    pub at_peak: ReplayMoment,
    /// After the last event.
    pub at_end: ReplayMoment,
    /// Its counts.
    pub counts: ReplayCounts,
    /// PyTorch's version.
    pub torch: String,
    /// How long it took.
    pub seconds: f64,
}

/// Settings, and what came of them.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayedSetting {
    /// `PYTORCH_ALLOC_CONF`; empty: the default.
    pub settings: String,
    /// The cache is emptied after each step.
    pub empties_at_steps: bool,
    /// Its replay.
    pub outcome: ReplayOutcome,
}

impl ReplayedSetting {
    /// How many things differ from the default.
    fn changes(&self) -> usize {
        let settings = self.settings.split(',').filter(|setting| !setting.trim().is_empty());
        settings.count() + usize::from(self.empties_at_steps)
    }
}

/// The replays of a recording: under its own settings first.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingComparison {
    /// Highest reserved bytes, by the recording.
    pub recorded_peak: u64,
    /// The same by a replay of its own settings on a card of its size.
    pub replayed_peak: u64,
    /// The recording's own settings.
    pub own: ReplayedSetting,
    /// The others, best first.
    pub others: Vec<ReplayedSetting>,
}

impl SettingComparison {
    /// A replay this close to the recording agrees with it.
    const AGREEMENT: f64 = 0.01;
    /// A smaller part of the peak is no reason to change a setting.
    const WORTH: f64 = 0.02;

    /// Orders the others: by out-of-memory errors, retries, reserved bytes, how much they change,
    /// and calls of the driver.
    pub fn new(
        (recorded_peak, replayed_peak): (u64, u64),
        own: ReplayedSetting,
        mut others: Vec<ReplayedSetting>,
    ) -> SettingComparison {
        others.sort_by_key(|it| {
            let counts = it.outcome.counts;
            let calls = counts.driver_allocations.unwrap_or(counts.segments);
            let peak = it.outcome.reserved_peak;
            (counts.out_of_memory, counts.retries, peak, it.changes(), calls)
        });
        SettingComparison { recorded_peak, replayed_peak, own, others }
    }

    /// How far the replay under its own settings is from the recording, as a part of it.
    pub fn error(&self) -> f64 {
        self.replayed_peak as f64 / self.recorded_peak.max(1) as f64 - 1.0
    }

    /// Whether that is close enough to believe the others.
    pub fn agrees(&self) -> bool {
        self.error().abs() <= SettingComparison::AGREEMENT
    }

    /// The best of the others, if it fits and is worth a change.
    pub fn best(&self) -> Option<&ReplayedSetting> {
        let first = self.others.first()?;
        let (own, best) = (self.own.outcome.counts, first.outcome.counts);
        let least = SettingComparison::WORTH * self.own.outcome.reserved_peak as f64;
        let is_better = own.out_of_memory > 0
            || own.retries > best.retries
            || (own.retries == best.retries && self.saved(first) as f64 >= least);
        (best.out_of_memory == 0 && is_better).then_some(first)
    }

    /// Whether the job runs out of memory under all of them.
    pub fn always_fails(&self) -> bool {
        std::iter::once(&self.own).chain(&self.others).all(|it| it.outcome.counts.out_of_memory > 0)
    }

    /// Bytes of the peak that a setting saves.
    pub fn saved(&self, setting: &ReplayedSetting) -> u64 {
        self.own.outcome.reserved_peak.saturating_sub(setting.outcome.reserved_peak)
    }
}
