//! The JSON of `memspy graph --like`.

use serde::{Deserialize, Serialize};

use super::{IncompleteJson, JsonFormat};

/// `memspy graph --like trumpy --json`: memory for the backward pass of each loss, by trumpy's
/// rule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TrumpyJson {
    /// Always `trumpy`.
    pub like: String,
    /// Why the graph, or the modules, were not read wholly; `null` where they were. Figures are
    /// `null` then.
    pub incomplete: Option<IncompleteJson>,
    /// The losses.
    pub losses: Vec<LossMemoryJson>,
}

impl JsonFormat for TrumpyJson {
    const FORMAT: &'static str = "memspy-graph-trumpy";
    const VERSION: u32 = 1;
}

/// What one loss keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LossMemoryJson {
    /// Its name.
    pub loss: String,
    /// The address of its Python object, `id(loss)`.
    pub id: Option<u64>,
    /// For each module that its graph leads to.
    pub figures: Vec<BackwardMemoryJson>,
    /// Tensors that hooks packed, which are not in the figures.
    pub packed_by_hooks: u64,
    /// Saved tensors that were changed in place since.
    pub changed_in_place: u64,
    /// Whether nothing is saved any more, as after `backward()`.
    pub nothing_saved: bool,
}

/// Memory for the backward pass of one loss through one module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BackwardMemoryJson {
    /// The module; `null` for tensors of no module.
    pub net: Option<String>,
    /// trumpy's `memory_for_backward(net, loss)` in bytes; `null` where the graph was not read
    /// wholly.
    pub memory_for_backward: Option<u64>,
}

/// `memspy graph --like modelsize --json`: parameters and intermediate variables, in elements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ModelsizeJson {
    /// Always `modelsize`.
    pub like: String,
    /// Why the graph, or the modules, were not read wholly; `null` where they were. Figures are
    /// `null` then.
    pub incomplete: Option<IncompleteJson>,
    /// The models.
    pub models: Vec<ModelSizeJson>,
}

impl JsonFormat for ModelsizeJson {
    const FORMAT: &'static str = "memspy-graph-modelsize";
    const VERSION: u32 = 1;
}

/// One model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ModelSizeJson {
    /// Its name.
    pub model: String,
    /// Its class.
    pub class: Option<String>,
    /// Elements of all its parameters; `null` where the modules were not read wholly.
    pub parameter_elements: Option<u64>,
    /// Elements that its modules return; `null` where that is not known.
    pub intermediate_elements: Option<u64>,
    /// Why that is not known.
    pub why_unknown: Option<String>,
}
