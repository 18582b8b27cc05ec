//! One look at a process as JSON: sizes in bytes, unknown is `null`.

use std::io::Write;

use serde_json::{Value, json};

use super::RenderError;
use super::dump::{DumpOptions, OwnersOrReason, activity_text, allocator_text, labels};
use super::interchange::pretty_json;
use super::json::FragmentationJson;
use super::owners_json::{device_sums, incomplete};
use crate::analysis::{DeviceSnapshot, OutsideTorch, ProcessSnapshot, ThreadSnapshot};
use crate::model::{
    AllocatorCounters, AllocatorSnapshot, Block, BlockState, OwnershipSnapshot, Segment,
    SnapshotConsistency, StatKey,
};
use crate::ownership::breakdown;

/// Writes the look as one JSON object.
pub fn dump_json(
    out: &mut dyn Write,
    look: &ProcessSnapshot,
    owners: &OwnersOrReason,
    options: &DumpOptions,
) -> Result<(), RenderError> {
    let start = look.start();
    let runtime = look.runtime();
    let threads: Vec<Value> = look.threads().iter().map(|t| thread(look, t)).collect();
    let devices: Vec<Value> = look.devices_of(options.gpu).iter().map(device).collect();
    let missed: Vec<Value> = look
        .missed()
        .iter()
        .map(|m| json!({"reader": format!("{:?}", m.reader), "why": format!("{:?}", m.why)}))
        .collect();
    let value = json!({
        "pid": start.map(|s| s.pid),
        "host": start.map(|s| &s.host),
        "command": start.map(|s| &s.command),
        "python": runtime.and_then(|r| r.python.as_ref()),
        "torch": runtime.and_then(|r| r.torch.as_ref()),
        "allocator": runtime.map(|r| allocator_text(&r.allocator)),
        "threads": threads,
        "devices": devices,
        "owners": owners.as_ref().ok().map(|owners| by_owner(owners, options)),
        "owners_unknown_because": owners.as_ref().err(),
        "not_read": missed,
    });
    pretty_json(out, &value)
}

/// What each device's memory is for, as it was a moment before.
fn by_owner(snapshot: &OwnershipSnapshot, options: &DumpOptions) -> Value {
    let devices: serde_json::Map<String, Value> = breakdown(snapshot)
        .iter()
        .map(|(device, sums)| (device.to_string(), device_sums(sums)))
        .collect();
    json!({
        "seconds_before_driver": options.owners_age.map(|age| age.as_secs_f64()),
        "pause_seconds": snapshot.pause.map(|pause| pause.as_secs_f64()),
        "incomplete": snapshot.incomplete.as_ref().map(incomplete),
        "devices": devices,
    })
}

fn thread(look: &ProcessSnapshot, thread: &ThreadSnapshot) -> Value {
    let known = look.stacks().get_thread(thread.thread);
    let labels = labels(look, true);
    let frames: Vec<Value> = look
        .stacks()
        .frames(thread.stack)
        .map(|frame| {
            let function = look.stacks().get_function(frame.function);
            json!({
                "function": function.map(|f| &*f.name),
                "file": function.map(|f| labels.file(f)),
                "line": (frame.line > 0).then_some(frame.line),
            })
        })
        .collect();
    json!({
        "os_id": known.and_then(|t| t.os_id),
        "name": known.and_then(|t| t.name.as_deref()),
        "main": known.map(|t| t.main),
        "gil": thread.gil,
        "activity": activity_text(thread.activity, thread.asleep),
        "frames": frames,
    })
}

fn device(device: &DeviceSnapshot) -> Value {
    let (outside, why) = match &device.outside {
        OutsideTorch::Bytes(bytes) => (Some(bytes), None),
        OutsideTorch::Unknown(why) => (None, Some(why)),
    };
    json!({
        "cuda_index": device.cuda_index.map(|c| c.0),
        "nvml_index": device.nvml_index,
        "name": device.name,
        "total": device.total,
        "used": device.used,
        "free": device.free,
        "allocated": device.allocated,
        "reserved": device.reserved,
        "cached_free": device.cached,
        "largest_free_block": device.fragmentation.as_ref().map(|f| f.largest_free),
        "fragmentation": device.fragmentation.as_ref().map(FragmentationJson::from),
        "unmapped_at_least": device.unmapped,
        "outside_pytorch": outside,
        "outside_pytorch_unknown_because": why,
        "other_processes": device.others,
        "memory_stats": device.counters.as_deref().map(memory_stats),
        "block_map": device.snapshot.as_deref().map(consistency),
        "segments": device.snapshot.as_deref().map(segments),
    })
}

/// The keys of `torch.cuda.memory_stats`.
fn memory_stats(counters: &AllocatorCounters) -> Value {
    let mut stats: serde_json::Map<String, Value> =
        StatKey::all().map(|key| (key.to_string(), json!(key.value_in(counters)))).collect();
    let oversize = [
        ("oversize_allocations", counters.oversize_allocations),
        ("oversize_segments", counters.oversize_segments),
    ];
    for (name, stat) in oversize {
        stats.insert(format!("{name}.current"), json!(stat.current));
        stats.insert(format!("{name}.peak"), json!(stat.peak));
        stats.insert(format!("{name}.allocated"), json!(stat.allocated));
        stats.insert(format!("{name}.freed"), json!(stat.freed));
    }
    let numbers = [
        ("num_alloc_retries", Some(counters.num_alloc_retries)),
        ("num_ooms", Some(counters.num_ooms)),
        ("num_sync_all_streams", counters.num_sync_all_streams),
        ("num_device_alloc", counters.num_device_alloc),
        ("num_device_free", counters.num_device_free),
        ("max_split_size", counters.max_split_size),
    ];
    for (name, number) in numbers {
        stats.insert(name.to_owned(), json!(number));
    }
    Value::Object(stats)
}

fn consistency(snapshot: &AllocatorSnapshot) -> Value {
    match snapshot.consistency {
        SnapshotConsistency::Consistent => json!({"consistent": true, "retries": snapshot.retries}),
        SnapshotConsistency::Degraded { allocated_in_blocks, allocated_counter } => json!({
            "consistent": false,
            "retries": snapshot.retries,
            "allocated_in_blocks": allocated_in_blocks,
            "allocated_counter": allocated_counter,
        }),
    }
}

/// The segments with the keys of `torch.cuda.memory_snapshot`.
fn segments(snapshot: &AllocatorSnapshot) -> Value {
    let block = |b: &Block| {
        json!({
            "address": b.address,
            "size": b.size,
            "requested_size": b.requested,
            "state": match b.state {
                BlockState::Allocated => "active_allocated",
                BlockState::PendingFree => "active_pending_free",
                BlockState::Inactive => "inactive",
            },
        })
    };
    let segment = |s: &Segment| {
        json!({
            "address": s.address,
            "total_size": s.size,
            "stream": s.stream,
            "segment_type": if s.small { "small" } else { "large" },
            "segment_pool_id": [s.pool.0, s.pool.1],
            "is_expandable": s.expandable,
            "blocks": s.blocks.iter().map(block).collect::<Vec<_>>(),
        })
    };
    snapshot.segments.iter().map(segment).collect()
}
