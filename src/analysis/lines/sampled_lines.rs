//! Values of lines from samples and snapshots.

use super::node_stats::{LineStats, NodeStat};
use crate::analysis::attribution::AllocationOrigin;
use crate::analysis::flame;
use crate::analysis::peak;
use crate::analysis::profile::{Profile, stat_index};
use crate::model::{CudaIndex, Metric, Pool, StatKey};

/// Each stack's own values: allocated bytes, then the columns.
pub(super) fn nodes(profile: &Profile, device: CudaIndex, columns: &[StatKey]) -> Vec<LineStats> {
    let mut wanted = vec![stat_index(Metric::AllocatedBytes, Pool::All)];
    wanted.extend(columns.iter().map(|k| stat_index(k.metric, k.pool)));
    let bounds = profile.bounds(device);
    let mut nodes: Vec<LineStats> = Vec::new();
    for i in 0..profile.known_stacks() {
        let of_stack = bounds.and_then(|b| b.get(i));
        let stats = wanted
            .iter()
            .map(|&w| {
                of_stack.map_or(NodeStat::NONE, |b| NodeStat {
                    current: b.current[w],
                    lower: b.lower[w],
                    upper: b.upper[w],
                    allocated: b.allocated[w],
                    freed: b.freed[w],
                    ..NodeStat::NONE
                })
            })
            .collect();
        nodes.push(LineStats {
            stats,
            live: 0,
            live_self: 0,
            samples: profile.samples_of_stack(i),
        });
    }
    // Counter deltas are better evidence than samples.
    let totals = profile.followed_totals(device);
    let is_bytes = |(index, _): &(usize, &mut NodeStat)| wanted[*index] == wanted[0];
    let set_allocated = |node: &mut LineStats, set: &dyn Fn(&mut i64)| {
        let stats = node.stats.iter_mut().enumerate().filter(is_bytes);
        stats.for_each(|(_, stat)| set(&mut stat.allocated));
    };
    if totals.is_some() {
        nodes.iter_mut().for_each(|node| set_allocated(node, &|allocated| *allocated = 0));
    }
    let mut add = |origin: AllocationOrigin, add: &mut dyn FnMut(&mut LineStats)| {
        if let AllocationOrigin::Stack(_, stack) | AllocationOrigin::Below(_, stack) = origin
            && let Some(node) = nodes.get_mut(stack.0 as usize)
        {
            add(node);
        }
    };
    if let Some(snapshot) = peak::of(profile, device).and_then(|peak| peak.moment?.snapshot) {
        for (origin, bytes) in flame::by_origin(profile, &snapshot, None) {
            add(origin, &mut |node| node.live += bytes);
        }
    }
    for (&origin, &bytes) in totals.iter().flat_map(|totals| &totals.by_origin) {
        add(origin, &mut |node| set_allocated(node, &|allocated| *allocated += bytes as i64));
    }
    nodes
}
