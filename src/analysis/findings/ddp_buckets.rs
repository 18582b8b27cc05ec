//! DDP's buckets beside gradients.

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{CppKeeper, OwnershipSnapshot, TensorCategory, bytes};
use crate::ownership::breakdown;

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    facts.snapshot.and_then(of).into_iter().collect()
}

fn of(snapshot: &OwnershipSnapshot) -> Option<Finding> {
    let (mut buckets, mut gradients) = (0, 0);
    for (device, sums) in breakdown(snapshot).iter().filter(|(device, _)| device.is_cuda()) {
        let _ = device;
        buckets += sums.in_cpp.get(&CppKeeper::DdpBuckets).map_or(0, |held| held.bytes);
        gradients += sums.by_category.get(&TensorCategory::Gradient).map_or(0, |held| held.bytes);
    }
    let problem = match gradients {
        0 => format!("DDP's buckets take {}, and gradients as much again", bytes(buckets)),
        _ => "DDP's buckets are a second copy of the gradients".to_owned(),
    };
    let found = Finding::new("ddp buckets", buckets, problem)
        .change("pass gradient_as_bucket_view=True to DistributedDataParallel")
        .frees(buckets);
    (buckets >= MIN_BYTES).then_some(found)
}
