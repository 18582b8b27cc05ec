//! What an interactive session keeps for its user, as references that can go.

use rustc_hash::FxHashSet;

use super::held_memory::HeldMemory;
use super::paths::PathSources;
use super::retained::{AskedReference, sharing};
use super::retention_graph::Removed;
use crate::model::{RetainedReference, TensorDevice, TensorRow};
use crate::ownership::is_session_output;
use crate::target::Addr;

/// Of the last error that nobody handled (Python/pythonrun.c); `last_exc` since 3.12.
const LAST_ERRORS: [&str; 2] = ["last_value", "last_exc"];
const LAST_TRACEBACK: &str = "last_traceback";

/// The results of cells, and the last error.
pub(super) fn references(
    sources: PathSources<'_, '_>,
    held: &HeldMemory<'_, '_>,
    rows: &[TensorRow],
) -> Vec<AskedReference> {
    let asked = |name: &str, removed: Vec<Removed>| {
        (!removed.is_empty()).then(|| AskedReference { name: name.into(), removed })
    };
    let outputs = asked(RetainedReference::SESSION_OUTPUTS, to_outputs(held, rows));
    let error = asked(RetainedReference::LAST_ERROR, to_last_traceback(sources, held));
    outputs.into_iter().chain(error).collect()
}

/// All references to tensors that have no other name.
fn to_outputs(held: &HeldMemory<'_, '_>, rows: &[TensorRow]) -> Vec<Removed> {
    let is_output = |row: &&TensorRow| {
        let names = &row.names;
        row.tensor.device.is_some_and(TensorDevice::is_cuda)
            && !names.is_empty()
            && names.iter().all(|name| is_session_output(name))
    };
    let outputs: FxHashSet<u32> =
        rows.iter().filter(is_output).flat_map(|row| sharing(held, rows, row)).collect();
    match outputs.is_empty() {
        true => Vec::new(),
        false => held.references_to(&outputs),
    }
}

/// Another error takes its place everywhere: in `sys`, and in IPython, which has more references.
fn to_last_traceback(sources: PathSources<'_, '_>, held: &HeldMemory<'_, '_>) -> Vec<Removed> {
    let heap = sources.heap;
    let sys = heap.modules().into_iter().find(|(name, _)| name == "sys").map(|(_, dict)| dict);
    let value = |name: &str| sys.and_then(|dict| heap.named_value(dict, name));
    let Some(traceback) = value(LAST_TRACEBACK).and_then(|at| held.number_of(at.0)) else {
        return Vec::new();
    };
    // Objects behind `sys` are not in the graph: its own reference, and that of each error.
    let errors: FxHashSet<Addr> = LAST_ERRORS.into_iter().filter_map(value).collect();
    let is_known = |error: &&Addr| {
        let number = held.number_of(error.0);
        number.is_some_and(|error| held.graph().counted(error).contains(&traceback))
    };
    let unknown = errors.len() - errors.iter().filter(is_known).count() + 1;
    let most = usize::try_from(held.unknown_holders(traceback)).unwrap_or_default();
    let mut removed = held.references_to(&FxHashSet::from_iter([traceback]));
    let by_sys = Removed { from: None, to: traceback };
    removed.extend(std::iter::repeat_n(by_sys, unknown.min(most)));
    removed
}
