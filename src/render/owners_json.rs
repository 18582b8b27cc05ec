//! The owners of memory as JSON: sizes in bytes, unknown is `null`, with the addresses that
//! identify things.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::Number;

use super::RenderError;
use super::json::{
    CopiedTensorsJson, DeviceOwnersJson, GarbageCycleJson, GraphNodeJson, IncompleteJson,
    JsonDocument, NodeClassJson, OwnedPoolJson, OwnerGroupJson, OwnershipJson, PythonTensorsJson,
    ReferrerJson, SavedByJson, SavedJson, StopsJson, TensorJson, TensorReferrersJson,
};
use crate::analysis::{PrivatePool, SavedSummary, owner_groups, private_pools, saved};
use crate::model::{
    CopiedTensors, DeviceOwnership, GarbageCycle, GraphNode, IncompleteSnapshot, LookLimit,
    OwnershipSnapshot, PoolUser, SavedBy, SavedIn, StopTotals, TensorCategory, TensorReferrers,
    TensorRow,
};
use crate::ownership::breakdown;

/// Writes every tensor and node of a snapshot, and their sums.
pub fn ownership_json(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
) -> Result<(), RenderError> {
    JsonDocument::new(ownership(snapshot)).write(out, true)
}

/// The same in one line, for one snapshot of several, with its time and the program's line.
pub fn ownership_json_line(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
    timestamp: &str,
    place: Option<&str>,
) -> Result<(), RenderError> {
    let timestamp = Some(timestamp.to_owned());
    let place = place.map(str::to_owned);
    JsonDocument::new(OwnershipJson { timestamp, place, ..ownership(snapshot) }).write(out, false)
}

fn ownership(snapshot: &OwnershipSnapshot) -> OwnershipJson {
    OwnershipJson {
        timestamp: None,
        place: None,
        referrers: snapshot.referrers.iter().map(referrers).collect(),
        groups: owner_groups(snapshot).iter().map(OwnerGroupJson::new).collect(),
        pause_seconds: snapshot.pause.map(|pause| pause.as_secs_f64()),
        stops: stops(snapshot.stops),
        incomplete: snapshot.incomplete.as_ref().map(incomplete),
        copied: copied(snapshot),
        garbage_cycles: snapshot.garbage.iter().map(garbage_cycle).collect(),
        private_pools: private_pools(snapshot).iter().map(owned_pool).collect(),
        objects: snapshot.objects,
        unreadable: snapshot.unreadable,
        misfits: snapshot.misfits,
        devices: devices(snapshot),
        tensors: snapshot.tensors.iter().map(|row| tensor(snapshot, row)).collect(),
        nodes: snapshot.nodes.iter().map(node).collect(),
        saved_for_backward: saved_sums(saved(snapshot)),
    }
}

/// The tensors that a fork left behind.
pub(super) fn copied(snapshot: &OwnershipSnapshot) -> Option<CopiedTensorsJson> {
    let CopiedTensors { of, storages, bytes } = snapshot.copied?;
    Some(CopiedTensorsJson { of_process: of, storages, bytes })
}

fn garbage_cycle(cycle: &GarbageCycle) -> GarbageCycleJson {
    GarbageCycleJson {
        class: cycle.class.to_string(),
        way: cycle.way.clone(),
        cycles: cycle.cycles,
        tensors: cycle.tensors.clone(),
    }
}

fn owned_pool(pool: &PrivatePool) -> OwnedPoolJson {
    let name = |user: &PoolUser| user.name.as_ref().unwrap_or(&user.class).to_string();
    OwnedPoolJson {
        device: format!("cuda:{}", pool.device.0),
        pool: [pool.pool.0, pool.pool.1],
        bytes: pool.sums.bytes,
        free: pool.sums.free,
        users: pool.users.iter().map(name).collect(),
    }
}

fn node(node: &GraphNode) -> GraphNodeJson {
    GraphNodeJson {
        address: node.at,
        class: node.class.to_string(),
        next: node.next.clone(),
        packed_by_hooks: node.packed as u64,
        variable: node.variable,
    }
}

fn saved_sums(summary: SavedSummary) -> SavedJson {
    let classes = summary.classes.iter().map(|(class, held)| NodeClassJson {
        class: class.to_string(),
        nodes: held.nodes,
        bytes: held.bytes,
        storages: held.storages,
        packed_by_hooks: held.packed,
    });
    SavedJson {
        all: summary.all,
        activations: summary.activations,
        inputs: summary.inputs,
        parameters: summary.parameters,
        buffers: summary.buffers,
        classes: classes.collect(),
    }
}

/// How often the process was stopped.
fn stops(stops: StopTotals) -> StopsJson {
    StopsJson {
        count: stops.count,
        total_seconds: stops.total.as_secs_f64(),
        longest_seconds: stops.longest.as_secs_f64(),
    }
}

/// Why a snapshot is incomplete.
pub(super) fn incomplete(incomplete: &IncompleteSnapshot) -> IncompleteJson {
    let seconds = |time: std::time::Duration| {
        // A duration is finite, so JSON has a number for it.
        Number::from_f64(time.as_secs_f64()).unwrap_or_else(|| time.as_secs().into())
    };
    let (limit, most) = match incomplete.limit {
        LookLimit::Pause(most) => ("pause", seconds(most)),
        LookLimit::Time(most)
        | LookLimit::Repeating(most)
        | LookLimit::Finding { of: most, .. } => ("time", seconds(most)),
        LookLimit::Copies(most) => ("copies", most.into()),
        LookLimit::Memory(most) => ("memory", most.into()),
    };
    let missing = incomplete.missing.iter().map(|&what| what.to_owned()).collect();
    IncompleteJson { limit: limit.to_owned(), most, missing }
}

fn referrers(referrers: &TensorReferrers) -> TensorReferrersJson {
    let all = referrers.referrers.iter().map(|referrer| ReferrerJson {
        address: referrer.at,
        class: referrer.class.to_string(),
        name: referrer.name.clone(),
        step: referrer.step.clone(),
    });
    TensorReferrersJson {
        object: referrers.object,
        reference_count: referrers.count,
        referrers: all.collect(),
    }
}

/// What the memory of each device is for.
pub(super) fn devices(snapshot: &OwnershipSnapshot) -> BTreeMap<String, DeviceOwnersJson> {
    let devices = breakdown(snapshot);
    devices.iter().map(|(device, sums)| (device.to_string(), device_sums(sums))).collect()
}

fn device_sums(sums: &DeviceOwnership) -> DeviceOwnersJson {
    let category =
        |category: TensorCategory| sums.by_category.get(&category).map_or(0, |h| h.bytes);
    DeviceOwnersJson {
        allocated: sums.allocated,
        parameters: category(TensorCategory::Parameter),
        buffers: category(TensorCategory::Buffer),
        gradients: category(TensorCategory::Gradient),
        optimizer_state: category(TensorCategory::OptimizerState),
        saved_for_backward: category(TensorCategory::Saved),
        other_tensors: category(TensorCategory::Other),
        unnamed: sums.unnamed.bytes,
        rounding: sums.rounding,
        in_no_tensor: sums.without_tensor.bytes,
        pending_free: sums.pending_free.bytes,
        in_graph_pools: sums.in_pools.bytes,
        elsewhere: sums.elsewhere.bytes,
        garbage: sums.garbage.bytes,
        releasable: sums.releasable,
        storages: sums.storages(),
        python_tensors: PythonTensorsJson {
            tensors: sums.in_python.tensors,
            elements: sums.in_python.elements,
            bytes: sums.in_python.bytes,
            of_unknown_size: sums.in_python.unknown,
        },
    }
}

fn tensor(snapshot: &OwnershipSnapshot, row: &TensorRow) -> TensorJson {
    let tensor = &row.tensor;
    let saved_by = |saved: &SavedBy| {
        let node = &snapshot.nodes[saved.node];
        let by = match saved.by {
            SavedIn::Field => "field",
            SavedIn::Vector => "vector",
            SavedIn::Function => "function",
        };
        SavedByJson {
            node: node.at,
            class: node.class.to_string(),
            by: by.to_owned(),
            is_output: saved.is_output,
        }
    };
    TensorJson {
        names: row.names.iter().map(ToString::to_string).collect(),
        category: row.category.name().to_owned(),
        id: row.object,
        class: row.python_class.as_deref().map(str::to_owned),
        r#impl: tensor.at,
        impl_class: tensor.class.to_string(),
        shape: tensor.shape.clone(),
        stride: tensor.strides.clone(),
        nested_sizes: tensor.nested.clone(),
        numel: tensor.numel,
        dtype: tensor.dtype.to_string(),
        device: tensor.device.map(|device| device.to_string()),
        bytes: tensor.logical_bytes(),
        storage: tensor.storage.map(|s| s.at),
        data_ptr: tensor.storage.map(|s| s.data),
        storage_bytes: tensor.storage.and_then(|s| s.bytes),
        storage_offset: tensor.offset,
        version: tensor.version,
        requires_grad: tensor.requires_grad,
        is_leaf: tensor.grad_fn.is_none(),
        grad_fn: tensor.grad_fn,
        made_by: row.made_by.as_deref().map(str::to_owned),
        garbage: row.garbage,
        grad: tensor.grad,
        parts: tensor.parts.clone(),
        saved_by: row.saved.iter().map(saved_by).collect(),
    }
}
