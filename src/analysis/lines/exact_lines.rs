//! Line values from exact events.

use crate::analysis::exact::{BlockStatistics, ExactProfile, level_index};
use crate::analysis::lines::{LineStats, NodeStat};
use crate::analysis::profile::Profile;
use crate::model::{CudaIndex, Metric, Pool, StackId, StatField, StatKey};

pub(super) fn nodes(
    profile: &Profile,
    exact: &ExactProfile,
    device: CudaIndex,
    columns: &[StatKey],
) -> Vec<LineStats> {
    let first = StatKey { metric: Metric::AllocatedBytes, pool: Pool::All, field: StatField::Peak };
    let wanted: Vec<StatKey> = std::iter::once(first)
        .chain(columns.iter().copied())
        .map(|key| StatKey { metric: ExactProfile::of_blocks(key), ..key })
        .collect();
    let none =
        LineStats { stats: vec![NodeStat::NONE; wanted.len()], live: 0, live_self: 0, samples: 0 };
    let mut nodes = vec![none; profile.known_stacks() as usize];
    for (stack, reached) in exact.line_levels(device) {
        let Some(node) = nodes.get_mut(stack.0 as usize) else { continue };
        for (stat, key) in node.stats.iter_mut().zip(&wanted) {
            if let Some(i) = level_index(key.metric, key.pool) {
                let (lower, upper) = (reached.levels.lower[i], reached.levels.upper[i]);
                (stat.current, stat.lower, stat.upper) = (lower, lower, upper);
            }
            stat.freed = reached.freed.get(key.metric, key.pool);
        }
    }
    let executions = exact.executions(device);
    for (i, node) in nodes.iter_mut().enumerate() {
        let Some(executed) = executions.get(StackId(i as u32)) else { continue };
        for (stat, key) in node.stats.iter_mut().zip(&wanted) {
            if let Some(i) = level_index(key.metric, key.pool) {
                stat.ended = (executed.end.lower[i], executed.end.upper[i]);
                stat.again = executed.again.upper[i];
            }
            let of = |all: &BlockStatistics| all.get(key.metric, key.pool);
            stat.least = [of(&executed.least.allocated), of(&executed.least.freed)];
            stat.most = [of(&executed.most.allocated), of(&executed.most.freed)];
        }
    }
    for held in exact.by_site(device) {
        let stack = profile.stacks().get_site(held.site).and_then(|site| site.stack);
        let Some(node) = stack.and_then(|stack| nodes.get_mut(stack.0 as usize)) else {
            continue;
        };
        node.live += held.at_peak;
        node.samples += held.count;
        for (stat, key) in node.stats.iter_mut().zip(&wanted) {
            stat.allocated += match (key.metric, key.pool) {
                // Sampled stacks share the total.
                (Metric::AllocatedBytes, Pool::All) => held.allocated as i64,
                (metric, pool) => held.statistics.get(metric, pool),
            };
        }
    }
    nodes
}
