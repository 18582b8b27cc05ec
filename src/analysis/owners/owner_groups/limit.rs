//! What a group will hold when its deque is full.

use super::{OwnerGroup, OwnerKind};
use crate::model::{LimitedQueue, OwnershipSnapshot};
use crate::ownership::name_pattern;

/// Part of a group's bytes that a deque must have for the group to end where the deque does.
const NEARLY_ALL: f64 = 0.9;

/// `None` if no deque with a limit has nearly all of it.
pub(super) fn full_at(snapshot: &OwnershipSnapshot, group: &OwnerGroup) -> Option<u64> {
    if !matches!(group.kind, OwnerKind::Variable | OwnerKind::Graph) {
        return None;
    }
    let of = |queue: &LimitedQueue| {
        let items = format!("{}[*]", name_pattern(&queue.name));
        let own = group.patterns.iter().filter(|it| it.pattern.starts_with(&items));
        let own: u64 = own.map(|pattern| pattern.size.bytes).sum();
        let has_it = own as f64 >= group.size.bytes as f64 * NEARLY_ALL && queue.items > 0;
        let more = own as f64 / queue.items as f64 * (queue.limit - queue.items) as f64;
        has_it.then_some(group.size.bytes.saturating_add(more as u64))
    };
    snapshot.queues.iter().find_map(of)
}
