//! A notebook keeps what cells returned, and the traceback of its last error.

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{
    OwnershipSnapshot, RetainedReference, TensorCategory, TensorRow, bytes, number,
};
use crate::ownership::{held_storages, is_garbage, is_of_last_error, is_session_output};

/// Storages that only such names keep.
struct OnlyNamed<'s> {
    bytes: u64,
    /// Of the largest first.
    rows: Vec<&'s TensorRow>,
}

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    outputs(snapshot).into_iter().chain(last_error(snapshot)).collect()
}

fn outputs(snapshot: &OwnershipSnapshot) -> Option<Finding> {
    let kept = only_named(snapshot, &is_session_output);
    let frees = freed(snapshot, RetainedReference::SESSION_OUTPUTS).unwrap_or(0).max(kept.bytes);
    let count = number(kept.rows.len() as u64, "tensor");
    let what = match frees > kept.bytes {
        true => format!("{count} of earlier cells and what their graphs saved"),
        false => format!("{count} of earlier cells"),
    };
    let problem = format!("the notebook's Out keeps {what}, {}", bytes(frees));
    let found = Finding::new("notebook outputs", frees, problem)
        // %reset leaves the last three in names that IPython hides.
        .change(
            "%reset -f out, then get_ipython().user_ns_hidden.update(_=0, __=0, ___=0) free them; \
             end a cell with ; to keep nothing",
        )
        .frees(frees);
    (frees >= MIN_BYTES && !kept.rows.is_empty()).then_some(found)
}

fn last_error(snapshot: &OwnershipSnapshot) -> Option<Finding> {
    let kept = only_named(snapshot, &is_of_last_error);
    let frees = freed(snapshot, RetainedReference::LAST_ERROR).unwrap_or(0).max(kept.bytes);
    let name = kept.rows.first().and_then(|row| row.names.first());
    let variable = name.and_then(|name| name.rsplit_once("<locals>.")).map(|(_, name)| name);
    let of = variable.map_or(String::new(), |variable| format!(", such as {variable}"));
    let problem = format!(
        "the traceback of the notebook's last error keeps the local variables of the functions \
         that it passed{of}: {}",
        bytes(frees)
    );
    let found = Finding::new("last error", frees, problem)
        .change("run a cell that fails at once, such as 1/0: its traceback takes the place")
        .frees(frees);
    (frees >= MIN_BYTES).then_some(found)
}

/// With graphs, models and all else that goes; `None`: not known.
fn freed(snapshot: &OwnershipSnapshot, name: &str) -> Option<u64> {
    let known = snapshot.retained.iter().find(|known| &*known.name == name);
    known.map(RetainedReference::on_gpus)
}

fn only_named<'s>(
    snapshot: &'s OwnershipSnapshot,
    is_such: &dyn Fn(&str) -> bool,
) -> OnlyNamed<'s> {
    let mut rows: Vec<(u64, &TensorRow)> = Vec::new();
    for (group, held) in held_storages(snapshot) {
        let row = &snapshot.tensors[group.tensors[0]];
        let names = group.tensors.iter().flat_map(|&row| &snapshot.tensors[row].names);
        let mut names = names.peekable();
        let is_named = names.peek().is_some() && names.all(|name| is_such(name));
        let is_plain = group.device.is_cuda() && group.category == TensorCategory::Other;
        if is_plain && is_named && !is_garbage(snapshot, &group) {
            rows.push((held, row));
        }
    }
    rows.sort_by_key(|(held, _)| std::cmp::Reverse(*held));
    OnlyNamed {
        bytes: rows.iter().map(|(held, _)| held).sum(),
        rows: rows.into_iter().map(|(_, row)| row).collect(),
    }
}
