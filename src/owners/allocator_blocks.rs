//! The allocator's blocks for a snapshot.

use std::time::Duration;

use super::error::OwnerError;
use super::options::StopPolicy;
use crate::model::{AllocatorBackend, AllocatorSnapshot, Nanos, SnapshotConsistency};
use crate::target::PageCache;
use crate::torch::AllocatorReader;

/// Time to read blocks again that a running process changes.
const RUNNING_TIMEOUT: Duration = Duration::from_millis(20);

pub(super) fn blocks(
    torch: &mut AllocatorReader,
    stop_policy: StopPolicy,
) -> Result<Vec<AllocatorSnapshot>, OwnerError> {
    // A process without CUDA, or with another allocator, has tensors too.
    torch.refresh()?;
    torch.set_timeout(match stop_policy {
        StopPolicy::Stop => Duration::ZERO,
        StopPolicy::Never => RUNNING_TIMEOUT,
    });
    blocks_of(torch, None, stop_policy)
}

/// From `copy`, or the process's memory.
pub(super) fn blocks_of(
    torch: &mut AllocatorReader,
    copy: Option<&PageCache>,
    stop_policy: StopPolicy,
) -> Result<Vec<AllocatorSnapshot>, OwnerError> {
    if *torch.backend() != AllocatorBackend::Native {
        return Ok(Vec::new());
    }
    let mut snapshots = Vec::new();
    for device in torch.devices() {
        let snapshot = match copy {
            Some(copy) => torch.blocks_in(copy, device)?,
            None => torch.blocks(device, &|| Nanos(0))?,
        };
        if stop_policy == StopPolicy::Stop
            && snapshot.consistency != SnapshotConsistency::Consistent
        {
            // It was stopped while it changed its lists.
            return Err(OwnerError::Allocating);
        }
        snapshots.push(snapshot);
    }
    Ok(snapshots)
}
