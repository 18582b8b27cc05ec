//! IPython's `Out` keeps what a cell returned.

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{TensorCategory, bytes, number};
use crate::ownership::{held_storages, is_garbage};

/// `Out[6]`, and its other name in IPython's `user_ns`.
const NAMES: [&str; 2] = ["Out[", "_oh["];

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let (mut size, mut outputs) = (0, 0);
    for (group, held) in held_storages(snapshot) {
        let names = &snapshot.tensors[group.tensors[0]].names;
        let is_output = |name: &str| {
            let name = name.strip_prefix("__main__.").unwrap_or(name);
            // `_6`, `_`, `__` are the same outputs.
            let variable = name.split(['.', '[']).next().unwrap_or(name);
            let is_last = variable.strip_prefix('_').is_some_and(|rest| {
                rest.bytes().all(|b| b.is_ascii_digit()) || rest.bytes().all(|b| b == b'_')
            });
            is_last || NAMES.iter().any(|of| name.starts_with(of))
        };
        // Another name keeps it as well.
        let only_output = !names.is_empty() && names.iter().all(|name| is_output(name));
        let is_plain = group.device.is_cuda() && group.category == TensorCategory::Other;
        if is_plain && only_output && !is_garbage(snapshot, &group) {
            size += held;
            outputs += 1;
        }
    }
    if size < MIN_BYTES {
        return Vec::new();
    }
    let problem = format!(
        "the notebook's Out keeps {} of earlier cells, {}",
        number(outputs, "tensor"),
        bytes(size)
    );
    let found = Finding::new("notebook outputs", size, problem)
        // %reset leaves the last three in names that IPython hides.
        .change(
            "%reset -f out, then get_ipython().user_ns_hidden.update(_=0, __=0, ___=0) free them; \
             end a cell with ; to keep nothing",
        )
        .frees(size);
    vec![found]
}
