//! A process at one moment as JSON: sizes in bytes, unknown is `null`.

use std::collections::BTreeMap;
use std::io::Write;

use super::RenderError;
use super::dump::{
    DumpOptions, OwnersOrReason, activity_text, allocator_text, labels, mixed_labels,
};
use super::json::{
    BlockJson, ConsistencyJson, CoreJson, DumpDeviceJson, DumpFrameJson, DumpJson, DumpOwnersJson,
    FragmentationJson, JsonDocument, MissedJson, SegmentJson, SleepTagJson, ThreadJson,
};
use super::mixed_stacks_json::{native_json, stack_json};
use super::owners_json::{copied, devices, incomplete};
use crate::analysis::{DeviceSnapshot, OutsideTorch, ProcessSnapshot, ThreadSnapshot};
use crate::model::{
    AllocatorCounters, AllocatorSnapshot, Block, BlockState, OwnershipSnapshot, Segment,
    SnapshotConsistency, StatKey,
};

/// Writes the process as one JSON object.
pub fn dump_json(
    out: &mut dyn Write,
    process: &ProcessSnapshot,
    owners: &OwnersOrReason,
    options: &DumpOptions,
) -> Result<(), RenderError> {
    let start = process.start();
    let runtime = process.runtime();
    JsonDocument::new(DumpJson {
        pid: start.map(|s| s.pid),
        // A core file may come from anywhere.
        host: start.filter(|_| process.core().is_none()).map(|s| s.host.clone()),
        core: process.core().map(|core| CoreJson {
            file: core.file.clone(),
            signal: core.signal.clone(),
            thread: core.thread,
            missing: core.missing.clone(),
        }),
        command: start.map(|s| s.command.clone()),
        python: runtime.and_then(|r| r.python.clone()),
        torch: runtime.and_then(|r| r.torch.clone()),
        allocator: runtime.map(|r| allocator_text(&r.allocator)),
        threads: process.threads().iter().map(|t| thread(process, t)).collect(),
        devices: process.devices_of(options.gpu).iter().map(device).collect(),
        owners: owners.as_ref().ok().map(|owners| by_owner(owners, options)),
        owners_unknown_because: owners.as_ref().err().cloned(),
        native: native_json(process, &mixed_labels(process, true)),
        not_read: process.missed().iter().map(MissedJson::from).collect(),
    })
    .write(out, true)
}

/// What each device's memory is for, as of the last snapshot.
fn by_owner(snapshot: &OwnershipSnapshot, options: &DumpOptions) -> DumpOwnersJson {
    DumpOwnersJson {
        seconds_before_driver: options.owners_age.map(|age| age.as_secs_f64()),
        pause_seconds: snapshot.pause.map(|pause| pause.as_secs_f64()),
        incomplete: snapshot.incomplete.as_ref().map(incomplete),
        copied: copied(snapshot),
        devices: devices(snapshot),
    }
}

fn thread(process: &ProcessSnapshot, thread: &ThreadSnapshot) -> ThreadJson {
    let known = process.stacks().get_thread(thread.thread);
    let labels = labels(process, true);
    let frames = process.stacks().frames(thread.stack).map(|frame| {
        let function = process.stacks().get_function(frame.function);
        DumpFrameJson {
            function: function.map(|f| f.name.to_string()),
            file: function.map(|f| labels.file(f).to_owned()),
            line: (frame.line > 0).then_some(frame.line),
        }
    });
    ThreadJson {
        os_id: known.and_then(|t| t.os_id),
        name: known.and_then(|t| t.name.as_deref().map(str::to_owned)),
        main: known.map(|t| t.main),
        gil: thread.gil,
        activity: activity_text(thread.activity, thread.asleep).to_owned(),
        frames: frames.collect(),
        mixed: process
            .mixed_stack(thread.thread)
            .map(|stack| stack_json(stack, &mixed_labels(process, true))),
    }
}

fn device(device: &DeviceSnapshot) -> DumpDeviceJson {
    let (outside, why) = match &device.outside {
        OutsideTorch::Bytes(bytes) => (Some(*bytes), None),
        OutsideTorch::Unknown(why) => (None, Some(why.clone())),
    };
    let (tags, tags_unknown) = SleepTagJson::list(&device.tags);
    DumpDeviceJson {
        cuda_index: device.cuda_index.map(|c| c.0),
        nvml_index: device.nvml_index,
        name: device.name.clone(),
        total: device.total,
        used: device.used,
        free: device.free,
        allocated: device.allocated,
        reserved: device.reserved,
        cached_free: device.cached,
        largest_free_block: device.fragmentation.as_ref().map(|f| f.largest_free),
        fragmentation: device.fragmentation.as_ref().map(FragmentationJson::from),
        unmapped_at_least: device.unmapped,
        vllm_tags: tags,
        vllm_tags_unknown_because: tags_unknown,
        outside_pytorch: outside,
        outside_pytorch_unknown_because: why,
        other_processes: device.others,
        memory_stats: device.counters.as_deref().map(memory_stats),
        block_map: device.snapshot.as_deref().map(consistency),
        segments: device.snapshot.as_deref().map(|s| s.segments.iter().map(segment).collect()),
    }
}

/// The keys of `torch.cuda.memory_stats`.
fn memory_stats(counters: &AllocatorCounters) -> BTreeMap<String, Option<i64>> {
    let mut stats: BTreeMap<String, Option<i64>> =
        StatKey::all().map(|key| (key.to_string(), Some(key.value_in(counters)))).collect();
    let oversize = [
        ("oversize_allocations", counters.oversize_allocations),
        ("oversize_segments", counters.oversize_segments),
    ];
    for (name, stat) in oversize {
        stats.insert(format!("{name}.current"), Some(stat.current));
        stats.insert(format!("{name}.peak"), Some(stat.peak));
        stats.insert(format!("{name}.allocated"), Some(stat.allocated));
        stats.insert(format!("{name}.freed"), Some(stat.freed));
    }
    let numbers = [
        ("num_alloc_retries", Some(counters.num_alloc_retries)),
        ("num_ooms", Some(counters.num_ooms)),
        ("num_sync_all_streams", counters.num_sync_all_streams),
        ("num_device_alloc", counters.num_device_alloc),
        ("num_device_free", counters.num_device_free),
        ("max_split_size", counters.max_split_size),
    ];
    stats.extend(numbers.map(|(name, number)| (name.to_owned(), number)));
    stats
}

fn consistency(snapshot: &AllocatorSnapshot) -> ConsistencyJson {
    let (allocated_in_blocks, allocated_counter) = match snapshot.consistency {
        SnapshotConsistency::Consistent => (None, None),
        SnapshotConsistency::Degraded { allocated_in_blocks, allocated_counter } => {
            (Some(allocated_in_blocks), Some(allocated_counter))
        }
    };
    ConsistencyJson {
        consistent: allocated_in_blocks.is_none(),
        retries: snapshot.retries,
        allocated_in_blocks,
        allocated_counter,
    }
}

fn segment(segment: &Segment) -> SegmentJson {
    SegmentJson {
        address: segment.address,
        total_size: segment.size,
        stream: segment.stream,
        segment_type: if segment.small { "small" } else { "large" }.to_owned(),
        segment_pool_id: [segment.pool.0, segment.pool.1],
        is_expandable: segment.expandable,
        blocks: segment.blocks.iter().map(block).collect(),
    }
}

fn block(block: &Block) -> BlockJson {
    let state = match block.state {
        BlockState::Allocated => "active_allocated",
        BlockState::PendingFree => "active_pending_free",
        BlockState::Inactive => "inactive",
    };
    BlockJson {
        address: block.address,
        size: block.size,
        requested_size: block.requested,
        state: state.to_owned(),
    }
}
