//! Private pools of CUDA graphs are large.

use super::{Finding, FindingFacts};
use crate::analysis::blocks::{PrivatePool, private_pools, users_label};
use crate::model::{bytes, number};

const MIN_POOLS: u64 = 32 << 20;
const MAX_POOLS: usize = 1;

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let pools: Vec<PrivatePool> =
        private_pools(snapshot).into_iter().filter(PrivatePool::is_of_graphs).collect();
    let size: u64 = pools.iter().map(|pool| pool.sums.bytes).sum();
    // One shared pool is as it should be.
    if size < MIN_POOLS || pools.len() < 2 {
        return Vec::new();
    }
    let shown = pools.iter().take(MAX_POOLS);
    let shown =
        shown.map(|pool| format!("{} {}", users_label(&pool.users), bytes(pool.sums.bytes)));
    let mut by_graph = shown.collect::<Vec<_>>().join(", ");
    if pools.len() > MAX_POOLS {
        by_graph.push_str(&format!(" and {} more", pools.len() - MAX_POOLS));
    }
    let problem = format!(
        "{} in {} of CUDA graphs, not free between replays ({by_graph})",
        bytes(size),
        number(pools.len() as u64, "private pool"),
    );
    let found = Finding::new("graph pools", size, problem)
        .change("capture the largest first, the others with pool=first.pool()")
        .frees(size - pools.first().map_or(0, |pool| pool.sums.bytes));
    vec![found.command("dump", &["--cache"])]
}
