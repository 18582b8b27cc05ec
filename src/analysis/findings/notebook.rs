//! A notebook keeps what cells returned, and the traceback of its last error.

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::analysis::owners::OwnerKind;
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
    outputs(facts, snapshot).into_iter().chain(last_error(facts, snapshot)).collect()
}

fn outputs(facts: &FindingFacts<'_>, snapshot: &OwnershipSnapshot) -> Option<Finding> {
    let kept = only_named(snapshot, &is_session_output);
    let retained = RetainedReference::SESSION_OUTPUTS;
    let (frees, size) = freed(facts, retained, &kept, &is_session_output);
    let count = number(kept.rows.len() as u64, "tensor");
    let what = match frees > kept.bytes {
        true => format!("{count} of earlier cells and what their graphs saved"),
        false => format!("{count} of earlier cells"),
    };
    let problem = format!("the notebook's Out keeps {what}, {size}");
    let found = Finding::new("notebook outputs", frees, problem)
        // %reset leaves the last three in names that IPython hides.
        .change(
            "%reset -f out, then get_ipython().user_ns_hidden.update(_=0, __=0, ___=0) free them; \
             end a cell with ; to keep nothing",
        )
        .frees(frees);
    (frees >= MIN_BYTES && !kept.rows.is_empty()).then_some(found)
}

fn last_error(facts: &FindingFacts<'_>, snapshot: &OwnershipSnapshot) -> Option<Finding> {
    let kept = only_named(snapshot, &is_of_last_error);
    let (frees, size) = freed(facts, RetainedReference::LAST_ERROR, &kept, &is_of_last_error);
    let name = kept.rows.first().and_then(|row| row.names.first());
    let variable = name.and_then(|name| name.rsplit_once("<locals>.")).map(|(_, name)| name);
    let of = variable.map_or(String::new(), |variable| format!(", such as {variable}"));
    let problem = format!(
        "the traceback of the notebook's last error keeps the local variables of the functions \
         that it passed{of}: {size}"
    );
    let found = Finding::new("last error", frees, problem)
        .change("run 1/0 in a cell (its traceback takes the place), then gc.collect()")
        .frees(frees);
    (frees >= MIN_BYTES).then_some(found)
}

/// What goes with these names, and its text. Where references are not all known, such as those of
/// garbage, it is what the tensors and their graphs hold.
fn freed(
    facts: &FindingFacts<'_>,
    retained: &str,
    kept: &OnlyNamed<'_>,
    is_such: &dyn Fn(&str) -> bool,
) -> (u64, String) {
    let known = facts.snapshot.and_then(|snapshot| snapshot.retained_by(retained));
    let exact = known.filter(|known| !known.is_least).map(RetainedReference::on_gpus);
    if let Some(exact) = exact.filter(|exact| *exact >= kept.bytes) {
        return (exact, bytes(exact));
    }
    let graphs = facts.groups.iter().filter(|group| {
        group.kind == OwnerKind::Graph && group.device.is_cuda() && is_such(&group.owner)
    });
    let graphs: u64 = graphs.map(|group| group.size.bytes).sum();
    let size = kept.bytes + graphs;
    match graphs {
        0 => (size, bytes(size)),
        _ => (size, format!("about {}", bytes(size))),
    }
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
