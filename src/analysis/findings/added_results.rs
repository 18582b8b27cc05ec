//! A variable adds up results with their autograd graphs: `total += loss`.

use rustc_hash::FxHashMap;

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::analysis::owners::{OwnerFrees, OwnerGroup, OwnerKind};
use crate::model::{GraphNode, OwnershipSnapshot, TensorRow, count};

/// Fewer are the parts of one loss.
const MIN_ADDED: u64 = 8;
const ADDS: &str = "AddBackward";
/// `0.9 * mean + 0.1 * loss`
const PASSES: [&str; 4] = ["MulBackward", "DivBackward", "SubBackward", "NegBackward"];

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some((snapshot, watch)) = facts.snapshot.zip(facts.watch) else { return Vec::new() };
    // The sum of one step ends with it.
    let kept = facts.groups.iter().filter(|group| {
        let is_kept = group.kind == OwnerKind::Graph && group.members <= 1;
        is_kept && group.size.bytes >= MIN_BYTES && watch.lasts(group)
    });
    let mut chains: Option<AddChains<'_>> = None;
    let sums = kept.filter_map(|group| {
        let is_it = |row: &&TensorRow| row.names.iter().any(|name| **name == *group.owner);
        let root = snapshot.tensors.iter().find(is_it).filter(|row| row.tensor.numel == Some(1));
        let chains = chains.get_or_insert_with(|| AddChains::new(snapshot));
        let added = chains.length(root?.tensor.grad_fn?) + 1;
        (added > MIN_ADDED).then(|| finding(group, added))
    });
    sums.collect()
}

fn finding(group: &OwnerGroup, added: u64) -> Finding {
    let problem =
        format!("{} adds up {} results and keeps their autograd graphs", group.owner, count(added));
    let frees = group.frees.as_ref().map_or(group.size.bytes, OwnerFrees::all);
    Finding::new("results added up", group.size.bytes, problem)
        .change("add .item() or .detach() of each, if it is for a log")
        .frees(frees)
        .command("why", &[&group.owner])
        .of(&group.owner)
}

/// Additions of single numbers, one behind the other.
struct AddChains<'s> {
    nodes: FxHashMap<u64, &'s GraphNode>,
    known: FxHashMap<u64, u64>,
}

impl<'s> AddChains<'s> {
    fn new(snapshot: &'s OwnershipSnapshot) -> AddChains<'s> {
        let nodes = snapshot.nodes.iter().map(|node| (node.at, node)).collect();
        AddChains { nodes, known: FxHashMap::default() }
    }

    /// The longest from here, without recursion: it may have a million.
    fn length(&mut self, from: u64) -> u64 {
        let mut waiting = vec![from];
        while let Some(&at) = waiting.last() {
            let node = self.nodes.get(&at).copied().filter(|node| node.outputs == [Some(1)]);
            let adds = node.is_some_and(|node| node.class.starts_with(ADDS));
            let passes =
                node.is_some_and(|node| PASSES.iter().any(|it| node.class.starts_with(it)));
            let next = node.filter(|_| adds || passes).map_or(&[][..], |node| node.next.as_slice());
            let open: Vec<u64> =
                next.iter().copied().filter(|next| !self.known.contains_key(next)).collect();
            // A damaged graph may have circles.
            if open.is_empty() || waiting.len() > self.nodes.len() {
                let longest = next.iter().filter_map(|next| self.known.get(next)).max();
                // `0.0 + loss` adds nothing yet.
                let more = u64::from(adds && next.len() > 1);
                self.known.insert(at, longest.copied().unwrap_or(0) + more);
                waiting.pop();
            } else {
                waiting.extend(open);
            }
        }
        self.known.get(&from).copied().unwrap_or(0)
    }
}
