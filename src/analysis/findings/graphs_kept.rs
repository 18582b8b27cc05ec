//! Several results keep their autograd graphs.

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::analysis::owners::OwnerKind;
use crate::model::count;

/// Two or more results of one container with their graphs.
pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let kept = facts.groups.iter().filter(|group| {
        group.kind == OwnerKind::Graph && group.members >= 2 && group.size.bytes >= MIN_BYTES
    });
    // A cut snapshot has not read all of them.
    let least = if facts.snapshot.is_none() { "at least " } else { "" };
    let found = kept.map(|group| {
        let problem = format!(
            "{least}{} results in {} keep their autograd graphs",
            count(group.members),
            group.owner
        );
        Finding::new("graphs kept", group.size.bytes, problem)
            .change("store .item() or .detach()")
            .frees(group.size.bytes)
            .of(&group.owner)
            .command("graph", &[])
    });
    found.collect()
}
