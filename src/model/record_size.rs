//! A record's memory, to bound queues.

use super::blocks::{Block, Segment};
use super::events::Event;
use super::followed::{FollowedChange, FollowedThread};
use super::keyframe::{AllocationSource, AttributionShare, KeyframeBlock, KeyframeMemory};
use super::ownership::{OwnedBlock, OwnedStorages, OwnershipBreakdown, UnnamedBlock};
use super::record::{Record, ThreadSample};
use super::stack::Definition;

/// A record without its lists.
const RECORD_BYTES: usize = 256;

impl Record {
    /// Approximate bytes, shared text in full.
    pub fn bytes_held(&self) -> usize {
        let held = match self {
            Record::Events(batch) => batch.events.len() * size_of::<Event>(),
            Record::Sample(sample) => sample.threads.len() * size_of::<ThreadSample>(),
            Record::Counters { counters, .. } => size_of_val(&**counters),
            Record::Snapshot(snapshot) => {
                let blocks = |segment: &Segment| segment.blocks.len() * size_of::<Block>();
                let segments = snapshot.segments.iter();
                segments.map(|segment| size_of::<Segment>() + blocks(segment)).sum()
            }
            Record::Followed(batch) => {
                let threads =
                    |change: &FollowedChange| change.threads.len() * size_of::<FollowedThread>();
                let changes = batch.changes.iter();
                changes.map(|change| size_of::<FollowedChange>() + threads(change)).sum()
            }
            Record::Ownership(snapshot) => ownership(snapshot),
            Record::Keyframe(keyframe) => {
                let memory = keyframe.memory.iter();
                let blocks = memory.map(|memory| {
                    size_of::<KeyframeMemory>() + memory.blocks.len() * size_of::<KeyframeBlock>()
                });
                let sources = keyframe.allocation_sources.iter();
                blocks.sum::<usize>() + sources.map(source).sum::<usize>()
            }
            Record::Source(source) => source.text.len(),
            Record::Definition(definition) => text(definition),
            Record::OomException(exception) => {
                exception.error.as_ref().map_or(0, |error| error.text.len())
            }
            _ => 0,
        };
        RECORD_BYTES + held
    }
}

fn ownership(snapshot: &OwnershipBreakdown) -> usize {
    let storages = |held: &OwnedStorages| size_of::<OwnedStorages>() + held.owner.len();
    let held = snapshot.devices.iter().flat_map(|device| &device.held).map(storages);
    let blocks = snapshot
        .blocks
        .iter()
        .map(|block| size_of::<OwnedBlock>() + block.shares.len() * size_of::<(u32, u64)>());
    held.sum::<usize>()
        + snapshot.unnamed_blocks.len() * size_of::<UnnamedBlock>()
        + blocks.sum::<usize>()
}

fn source(source: &AllocationSource) -> usize {
    let held = match source {
        AllocationSource::BeforeOwned(owners) => {
            let steps = owners.iter().flat_map(|(path, _)| path.iter());
            owners.len() * 32 + steps.map(|step| 16 + step.len()).sum::<usize>()
        }
        AllocationSource::Observed { shares, .. } => shares.len() * size_of::<AttributionShare>(),
        _ => 0,
    };
    size_of::<AllocationSource>() + held
}

fn text(definition: &Definition) -> usize {
    let length = |text: &Option<std::sync::Arc<str>>| text.as_ref().map_or(0, |text| text.len());
    match definition {
        Definition::Function(_, function) => function.name.len() + function.file.len(),
        Definition::Thread(_, thread) => length(&thread.name),
        Definition::Site(_, site) => length(&site.node),
        Definition::Frame(..) | Definition::Stack(..) | Definition::Reset => 0,
    }
}
