//! `memspy iterations` as text, CSV and JSON.

mod csv;
mod json;
mod text;

use std::borrow::Cow;

use crate::analysis::{Iteration, IterationClock, IterationLevels, IterationOwners, Profile};
use crate::model::{CudaIndex, StepSource};

pub use csv::iterations_csv;
pub use json::{IterationJson, IterationsJson, ParameterJson, iterations_json};
pub use text::iterations_text;

/// All, with the unfinished one.
fn listed(profile: &Profile) -> Vec<Cow<'_, Iteration>> {
    let whole = profile.iterations().0.iter().map(Cow::Borrowed);
    whole.chain(profile.iteration_under_way().map(Cow::Owned)).collect()
}

fn counted_by(profile: &Profile) -> String {
    match (profile.iteration_clock(), profile.step_clock()) {
        (IterationClock::Steps, Some(StepSource::Variable)) => "variable".to_owned(),
        (IterationClock::Steps, Some(StepSource::Trainer)) => "trainer".to_owned(),
        (IterationClock::Steps, Some(StepSource::Scheduler)) => "scheduler".to_owned(),
        (IterationClock::Steps, _) => "optimizer".to_owned(),
        (IterationClock::Marker(marker), _) => format!("marker {}:{}", marker.file, marker.line),
        (IterationClock::Period(_), _) => "period".to_owned(),
    }
}

/// Bytes below the peak; negative where the peak is only a lower limit.
fn below_peak(held: &IterationOwners, reached: IterationLevels) -> i64 {
    reached.peak_allocated - held.allocated as i64
}

fn levels(iteration: &Iteration, device: CudaIndex) -> IterationLevels {
    iteration.levels.get(&device).copied().unwrap_or_default()
}
