//! Who holds the memory, as JSON: sizes in bytes, unknown is `null`, with the addresses that tell things apart.

use std::io::Write;

use serde_json::{Value, json};

use super::RenderError;
use super::interchange::{json_line, pretty_json};
use super::owner_groups::GroupJson;
use crate::analysis::{owner_groups, saved};
use crate::model::{
    DeviceOwnership, Incomplete, LookLimit, OwnershipSnapshot, SavedIn, Stops, TensorCategory,
    TensorReferrers, TensorRow,
};
use crate::ownership::breakdown;

/// Writes every tensor and every node of a look, and what they add up to.
pub fn ownership_json(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
) -> Result<(), RenderError> {
    pretty_json(out, &value(snapshot))
}

/// The same in one line, for looks one after the other: when it was, and where the program stood.
pub fn ownership_json_line(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
    timestamp: &str,
    place: Option<&str>,
) -> Result<(), RenderError> {
    let mut value = value(snapshot);
    value["timestamp"] = json!(timestamp);
    value["place"] = json!(place);
    json_line(out, &value)
}

fn value(snapshot: &OwnershipSnapshot) -> Value {
    let devices: serde_json::Map<String, Value> = breakdown(snapshot)
        .iter()
        .map(|(device, sums)| (device.to_string(), device_sums(sums)))
        .collect();
    let nodes: Vec<Value> = snapshot
        .nodes
        .iter()
        .map(|node| {
            json!({
                "address": node.at,
                "class": node.class,
                "next": node.next,
                "packed_by_hooks": node.packed,
                "variable": node.variable,
            })
        })
        .collect();
    let summary = saved(snapshot);
    let classes: Vec<Value> = summary
        .classes
        .iter()
        .map(|(class, held)| {
            json!({
                "class": class,
                "nodes": held.nodes,
                "bytes": held.bytes,
                "storages": held.storages,
                "packed_by_hooks": held.packed,
            })
        })
        .collect();
    let groups = owner_groups(snapshot);
    let referrers: Vec<Value> = snapshot.referrers.iter().map(referrers).collect();
    json!({
        "referrers": referrers,
        "groups": groups.iter().map(GroupJson::new).collect::<Vec<_>>(),
        "pause_seconds": snapshot.pause.map(|pause| pause.as_secs_f64()),
        "stops": stops(snapshot.stops),
        "incomplete": snapshot.incomplete.as_ref().map(incomplete),
        "objects": snapshot.objects,
        "unreadable": snapshot.unreadable,
        "misfits": snapshot.misfits,
        "devices": devices,
        "tensors": snapshot.tensors.iter().map(|row| tensor(snapshot, row)).collect::<Vec<_>>(),
        "nodes": nodes,
        "saved_for_backward": {
            "all": summary.all,
            "activations": summary.activations,
            "inputs": summary.inputs,
            "parameters": summary.parameters,
            "buffers": summary.buffers,
            "classes": classes,
        },
    })
}

/// How often the process was stopped.
fn stops(stops: Stops) -> Value {
    json!({
        "count": stops.count,
        "total_seconds": stops.total.as_secs_f64(),
        "longest_seconds": stops.longest.as_secs_f64(),
    })
}

/// Why a look is not all.
pub(super) fn incomplete(incomplete: &Incomplete) -> Value {
    let (limit, most) = match incomplete.limit {
        LookLimit::Pause(most) => ("pause", json!(most.as_secs_f64())),
        LookLimit::Time(most)
        | LookLimit::Repeating(most)
        | LookLimit::Finding { of: most, .. } => ("time", json!(most.as_secs_f64())),
        LookLimit::Copies(most) => ("copies", json!(most)),
        LookLimit::Memory(most) => ("memory", json!(most)),
    };
    json!({"limit": limit, "most": most, "missing": incomplete.missing})
}

fn referrers(referrers: &TensorReferrers) -> Value {
    let all = referrers.referrers.iter().map(|referrer| {
        json!({
            "address": referrer.at,
            "class": referrer.class,
            "name": referrer.name,
            "step": referrer.step,
        })
    });
    json!({
        "object": referrers.object,
        "reference_count": referrers.count,
        "referrers": all.collect::<Vec<_>>(),
    })
}

/// The sums of a device.
pub(super) fn device_sums(sums: &DeviceOwnership) -> Value {
    let category =
        |category: TensorCategory| sums.by_category.get(&category).map_or(0, |h| h.bytes);
    json!({
        "allocated": sums.allocated,
        "parameters": category(TensorCategory::Parameter),
        "buffers": category(TensorCategory::Buffer),
        "gradients": category(TensorCategory::Gradient),
        "optimizer_state": category(TensorCategory::OptimizerState),
        "saved_for_backward": category(TensorCategory::Saved),
        "other_tensors": category(TensorCategory::Other),
        "unnamed": sums.unnamed.bytes,
        "rounding": sums.rounding,
        "in_no_tensor": sums.without_tensor.bytes,
        "pending_free": sums.pending_free.bytes,
        "in_graph_pools": sums.in_pools.bytes,
        "elsewhere": sums.elsewhere.bytes,
        "garbage": sums.garbage.bytes,
        "releasable": sums.releasable,
        "storages": sums.storages(),
        "python_tensors": {
            "tensors": sums.in_python.tensors,
            "elements": sums.in_python.elements,
            "bytes": sums.in_python.bytes,
            "of_unknown_size": sums.in_python.unknown,
        },
    })
}

fn tensor(snapshot: &OwnershipSnapshot, row: &TensorRow) -> Value {
    let tensor = &row.tensor;
    let saved: Vec<Value> = row
        .saved
        .iter()
        .map(|saved| {
            let node = &snapshot.nodes[saved.node];
            let by = match saved.by {
                SavedIn::Field => "field",
                SavedIn::Vector => "vector",
                SavedIn::Function => "function",
            };
            json!({"node": node.at, "class": node.class, "by": by, "is_output": saved.is_output})
        })
        .collect();
    json!({
        "names": row.names,
        "category": row.category.name(),
        "id": row.object,
        "class": row.python_class,
        "impl": tensor.at,
        "impl_class": tensor.class,
        "shape": tensor.shape,
        "stride": tensor.strides,
        "nested_sizes": tensor.nested,
        "numel": tensor.numel,
        "dtype": tensor.dtype.to_string(),
        "device": tensor.device.map(|device| device.to_string()),
        "bytes": tensor.logical_bytes(),
        "storage": tensor.storage.map(|s| s.at),
        "data_ptr": tensor.storage.map(|s| s.data),
        "storage_bytes": tensor.storage.and_then(|s| s.bytes),
        "storage_offset": tensor.offset,
        "version": tensor.version,
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.grad_fn.is_none(),
        "grad_fn": tensor.grad_fn,
        "made_by": row.made_by,
        "garbage": row.garbage,
        "grad": tensor.grad,
        "parts": tensor.parts,
        "saved_by": saved,
    })
}
