//! The figures of older tools, by their rules.

use std::io::Write;

use serde::{Deserialize, Serialize};

use super::json::{IncompleteJson, incomplete_json as incomplete};
use super::text::{graph_footer, name};
use crate::analysis::{LossMemory, ModelSize, memory_for_backward, model_sizes};
use crate::model::OwnershipSnapshot;
use crate::render::shared::{JsonDocument, JsonFormat, OutputError, bytes, count, one_line};

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

const MAX_LISTED: usize = 40;
/// Modelsize counts 4 bytes an element, and divides by a million.
const TYPE_SIZE: f64 = 4.0;

/// Writes trumpy's `memory_for_backward` of these losses.
pub fn like_trumpy_text(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
    losses: &[usize],
) -> Result<(), OutputError> {
    writeln!(out, "trumpy's memory_for_backward(net, loss), by its rule:")?;
    if losses.is_empty() {
        writeln!(out, "    no tensor with an autograd graph is alive")?;
    }
    let listed = &losses[..losses.len().min(MAX_LISTED)];
    for memory in memory_for_backward(snapshot, listed) {
        for figure in &memory.figures {
            let net = match figure.net {
                Some(net) => one_line(&snapshot.models[net].name),
                None => "no module".to_owned(),
            };
            let loss = name(snapshot, &snapshot.tensors[memory.loss]);
            match snapshot.cut_graph() {
                Some(_) => writeln!(out, "    net {net}, loss {loss}: not known, see below")?,
                None => writeln!(
                    out,
                    "    net {net}, loss {loss}: {} ({} B)",
                    bytes(figure.bytes),
                    count(figure.bytes)
                )?,
            }
        }
        for note in notes(&memory) {
            writeln!(out, "        {note}")?;
        }
    }
    if losses.len() > listed.len() {
        let left = count((losses.len() - listed.len()) as u64);
        writeln!(out, "    {left} more losses are alive: --loss NAME picks one")?;
    }
    graph_footer(out, snapshot)
}

/// Where the tool would report something else.
fn notes(memory: &LossMemory) -> Vec<String> {
    let mut notes = Vec::new();
    if memory.nothing_saved {
        notes.push(
            "nothing is saved (any more): trumpy raises an error after backward()".to_owned(),
        );
    }
    if memory.packed > 0 {
        notes.push(format!(
            "{} tensors are packed by hooks (checkpoints, offload) and not in it: trumpy would unpack them",
            count(memory.packed)
        ));
    }
    if memory.changed > 0 {
        notes.push(format!(
            "{} saved tensors were changed in place since: trumpy raises an error",
            count(memory.changed)
        ));
    }
    notes
}

/// Writes the losses as JSON.
pub fn like_trumpy_json(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
    losses: &[usize],
) -> Result<(), OutputError> {
    let loss = |memory: &LossMemory| {
        let row = &snapshot.tensors[memory.loss];
        let figures = memory.figures.iter().map(|figure| BackwardMemoryJson {
            net: figure.net.map(|net| snapshot.models[net].name.to_string()),
            memory_for_backward: if_complete(snapshot, figure.bytes),
        });
        LossMemoryJson {
            loss: name(snapshot, row),
            id: row.object,
            figures: figures.collect(),
            packed_by_hooks: memory.packed,
            changed_in_place: memory.changed,
            nothing_saved: memory.nothing_saved,
        }
    };
    let losses = memory_for_backward(snapshot, losses).iter().map(loss).collect();
    let incomplete = snapshot.cut_graph().map(incomplete);
    JsonDocument::new(TrumpyJson { like: "trumpy".to_owned(), incomplete, losses }).write(out, true)
}

/// A partial figure would look like a total.
fn if_complete(snapshot: &OwnershipSnapshot, figure: u64) -> Option<u64> {
    snapshot.cut_graph().is_none().then_some(figure)
}

fn millions(elements: u64) -> f64 {
    elements as f64 * TYPE_SIZE / 1e6
}

/// Writes modelsize's figures of every model.
pub fn like_modelsize_text(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
) -> Result<(), OutputError> {
    writeln!(out, "modelsize(model, input) at 4 bytes an element, by its rule:")?;
    if snapshot.models.is_empty() {
        writeln!(out, "    no module with tensors is alive")?;
    }
    for ModelSize { model, parameters, intermediates } in model_sizes(snapshot) {
        let model = &snapshot.models[model];
        let class = model.modules.first().map_or("?", |module| &*module.class);
        let parameters = match if_complete(snapshot, parameters) {
            Some(parameters) => format!("{:.6} M", millions(parameters)),
            None => "not known".to_owned(),
        };
        write!(
            out,
            "    {} ({}): parameters {parameters}, intermediate variables ",
            one_line(&model.name),
            one_line(class)
        )?;
        match intermediates {
            Ok(elements) => writeln!(
                out,
                "{:.4} M, with backward {:.4} M",
                millions(elements),
                2.0 * millions(elements)
            )?,
            Err(why) => writeln!(out, "are not known: {}", one_line(&why))?,
        }
    }
    graph_footer(out, snapshot)
}

/// Writes modelsize's figures as JSON, in elements.
pub fn like_modelsize_json(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
) -> Result<(), OutputError> {
    let model = |size: &ModelSize| {
        let model = &snapshot.models[size.model];
        ModelSizeJson {
            model: model.name.to_string(),
            class: model.modules.first().map(|module| module.class.to_string()),
            parameter_elements: if_complete(snapshot, size.parameters),
            intermediate_elements: size.intermediates.as_ref().ok().copied(),
            why_unknown: size.intermediates.as_ref().err().cloned(),
        }
    };
    let models = model_sizes(snapshot).iter().map(model).collect();
    let incomplete = snapshot.cut_graph().map(incomplete);
    JsonDocument::new(ModelsizeJson { like: "modelsize".to_owned(), incomplete, models })
        .write(out, true)
}
