//! The iterations as JSON: `memspy iterations --json`.

use std::collections::BTreeMap;
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::{below_peak, counted_by, levels, listed};
use crate::analysis::{Iteration, Profile};
use crate::model::{CudaIndex, TensorCategory};
use crate::render::shared::{JsonDocument, JsonFormat, OutputError, warnings};

/// `memspy iterations --json`: the training iterations of a recording. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct IterationsJson {
    /// The GPU, as the job numbers it.
    pub device: u32,
    /// What marks the end of an iteration: `variable`, `trainer`, `scheduler`, `optimizer`, `period
    /// …` or a line.
    pub counted_by: String,
    /// The iterations, in order of time.
    pub iterations: Vec<IterationJson>,
    /// Iterations before these for which there was no room.
    pub left_out: u64,
    /// What makes the figures less certain.
    pub warnings: Vec<String>,
}

impl JsonFormat for IterationsJson {
    const FORMAT: &'static str = "memspy-iterations";
    const VERSION: u32 = 1;
}

/// One iteration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct IterationJson {
    /// The epoch, where it is known.
    pub epoch: Option<u64>,
    /// The step that it ended with.
    pub step: u64,
    /// How many steps it covers: more than one where several fell between two samples.
    pub steps: u64,
    /// Its begin, in seconds since the recording began.
    pub from_seconds: f64,
    /// Its end, in seconds since the recording began.
    pub to_seconds: f64,
    /// The most that was allocated.
    pub peak_allocated: i64,
    /// Whether that is the peak itself, and not only at least that.
    pub peak_is_exact: bool,
    /// What was allocated at its end.
    pub allocated: i64,
    /// Whether that is the value at the very end.
    pub allocated_is_exact: bool,
    /// The most that was reserved.
    pub peak_reserved: i64,
    /// Whether that is the peak itself.
    pub peak_reserved_is_exact: bool,
    /// What was reserved at its end.
    pub reserved: i64,
    /// Whether that is the value at the very end.
    pub reserved_is_exact: bool,
    /// Whether its begin was seen.
    pub begin_is_known: bool,
    /// How its end was found: `counted`, `variable gone` or `not seen`.
    pub end: String,
    /// The most that blocks held at once which the backward pass allocated and freed; `null` where
    /// that is not known.
    pub intermediate_gradients: Option<u64>,
    /// What owned the memory in its snapshot with most allocated, by category; `null` where no
    /// snapshot fell into it.
    pub held: Option<BTreeMap<String, u64>>,
    /// The most saved for the backward pass, and of results of nodes that only Python keeps.
    pub feature_maps: Option<u64>,
    /// What was allocated at that snapshot.
    pub snapshot_allocated: Option<u64>,
    /// By how much that is less than the peak.
    pub snapshot_below_peak: Option<i64>,
    /// With `--parameters`: the bytes of each parameter and of its gradient, by name.
    pub parameters: Option<BTreeMap<String, ParameterJson>>,
}

/// A parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ParameterJson {
    /// Its bytes.
    pub weight: u64,
    /// Those of its gradient.
    pub gradient: u64,
}

/// Writes all iterations, in bytes; figures of a missing snapshot are `null`.
pub fn iterations_json(
    out: &mut dyn Write,
    profile: &Profile,
    device: CudaIndex,
) -> Result<(), OutputError> {
    let iterations = listed(profile);
    let content = IterationsJson {
        device: device.0,
        counted_by: counted_by(profile),
        iterations: iterations.iter().map(|iteration| iteration_json(iteration, device)).collect(),
        left_out: profile.iterations().1,
        warnings: warnings(profile),
    };
    JsonDocument::new(content).write(out, true)
}

fn iteration_json(iteration: &Iteration, device: CudaIndex) -> IterationJson {
    let reached = levels(iteration, device);
    let owners = iteration.owned.get(&device);
    let held = owners.map(|held| {
        let bytes =
            |category: TensorCategory| held.categories.get(&category).copied().unwrap_or_default();
        let categories = TensorCategory::ALL.map(|c| (c.name().to_owned(), bytes(c)));
        let rest = ("in no tensor".to_owned(), held.in_no_tensor);
        categories.into_iter().chain([rest]).collect()
    });
    let parameters = owners.map(|held| {
        let all = held.parameters.iter();
        all.map(|(name, bytes)| {
            (name.to_string(), ParameterJson { weight: bytes.weight, gradient: bytes.gradient })
        })
        .collect()
    });
    IterationJson {
        epoch: iteration.epoch,
        step: iteration.step,
        steps: iteration.steps,
        from_seconds: iteration.from.seconds(),
        to_seconds: iteration.to.seconds(),
        peak_allocated: reached.peak_allocated,
        peak_is_exact: reached.exact,
        allocated: reached.allocated,
        allocated_is_exact: reached.allocated_is_exact,
        peak_reserved: reached.peak_reserved,
        peak_reserved_is_exact: reached.peak_reserved_is_exact,
        reserved: reached.reserved,
        reserved_is_exact: reached.reserved_is_exact,
        begin_is_known: iteration.begin_is_known,
        end: iteration.end.name().to_owned(),
        intermediate_gradients: reached.intermediate,
        held,
        feature_maps: owners.and_then(|held| held.feature_maps),
        snapshot_allocated: owners.map(|held| held.allocated),
        snapshot_below_peak: owners.map(|held| below_peak(held, reached)),
        parameters,
    }
}
