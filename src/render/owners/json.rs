//! The document of `memspy tensors`, `graph` and `why`. Bytes; unknown is `null`.

use std::collections::BTreeMap;
use std::io::Write;

use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::frees::{FreesJson, KeptWayJson};
use super::groups::OwnerGroupJson;
use super::tensors_json::{GraphNodeJson, SavedJson, TensorJson, node, saved_sums, tensor};
use crate::analysis::{PrivatePool, owner_groups, private_pools, saved};
use crate::model::{
    CopiedTensors, DeviceOwnership, GarbageCycle, IncompleteSnapshot, OwnershipSnapshot, PoolUser,
    ReachedLimit, StopTotals, TensorCategory, TensorReferrers, UncertainSnapshot,
};
use crate::ownership::breakdown;
use crate::render::shared::{JsonDocument, JsonFormat, OutputError};

/// `memspy tensors --json`, `memspy graph --json` and `memspy why --json`: every tensor and every
/// autograd node of a process at one moment. Sizes in bytes; with `--every` one line a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnershipJson {
    /// With `--every`: when, in local time; else `null`.
    pub timestamp: Option<String>,
    /// With `--every`: the line that the main thread was at; `null` where it was at none.
    pub place: Option<String>,
    /// With `memspy why`: what refers to the tensors that were asked about.
    pub referrers: Vec<TensorReferrersJson>,
    /// What references would free, of those with the most memory behind them: on all GPUs, or
    /// without any on the CPU. Empty where that is not known.
    pub retained: Vec<FreesJson>,
    /// With `memspy why`: how variables lead to them, and what each step would free; empty where
    /// that is not known.
    pub ways: Vec<KeptWayJson>,
    /// The owners in groups, the largest first.
    pub groups: Vec<OwnerGroupJson>,
    /// For how long the job was stopped while its memory was copied, in seconds; `null` if it ran
    /// on: then parts of this may be of different moments.
    pub pause_seconds: Option<f64>,
    /// All stops of the job.
    pub stops: StopsJson,
    /// Which limit ended the snapshot early; `null` if it is complete.
    pub incomplete: Option<IncompleteJson>,
    /// What changed while it was read; `null` if all is of one moment, or the job ran on.
    pub uncertain: Option<UncertainJson>,
    /// Of a process that was forked after CUDA had begun: the tensors on GPUs that are another
    /// process's, and not listed; else `null`.
    pub copied: Option<CopiedTensorsJson>,
    /// The cycles of Python objects that keep garbage alive, by class.
    pub garbage_cycles: Vec<GarbageCycleJson>,
    /// The private pools of the allocator, the largest first, and the CUDA graphs that they belong
    /// to.
    pub private_pools: Vec<OwnedPoolJson>,
    /// Python objects that the garbage collector tracks.
    pub objects: u64,
    /// Objects that could not be read.
    pub unreadable: u64,
    /// Tensors whose fields contradict each other: their figures may be wrong.
    pub misfits: u64,
    /// What each device's memory is for, by device: `cuda:0`.
    pub devices: BTreeMap<String, DeviceOwnersJson>,
    /// The tensors, those with Python objects first.
    pub tensors: Vec<TensorJson>,
    /// The nodes of the autograd graph.
    pub nodes: Vec<GraphNodeJson>,
    /// What the autograd graph keeps for the backward pass.
    pub saved_for_backward: SavedJson,
}

impl JsonFormat for OwnershipJson {
    const FORMAT: &'static str = "memspy-tensors";
    const VERSION: u32 = 1;
}

/// How often a job was stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct StopsJson {
    /// How often.
    pub count: u32,
    /// For how long in all, in seconds.
    pub total_seconds: f64,
    /// The longest stop, in seconds.
    pub longest_seconds: f64,
}

/// Tensors on GPUs that a forked process only has copies of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CopiedTensorsJson {
    /// The process that they belong to; `null` where it has ended.
    pub of_process: Option<u32>,
    /// How many storages.
    pub storages: u64,
    /// Their bytes in that process.
    pub bytes: u64,
}

/// Cycles of Python objects of one kind that nothing else refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GarbageCycleJson {
    /// The most telling class in it: one of the program, if there is any.
    pub class: String,
    /// The shortest way round through an object of that class, as it would be written in Python.
    pub way: String,
    /// How many such cycles there are.
    pub cycles: u64,
    /// The addresses of the tensors that they keep alive (`address` of `tensors`).
    pub tensors: Vec<u64>,
}

/// A private pool of the allocator: what is free in it serves only the CUDA graphs, or the
/// `MemPool`, that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnedPoolJson {
    /// The device: `cuda:0`.
    pub device: String,
    /// Its id.
    pub pool: [u64; 2],
    /// Bytes of its segments.
    pub bytes: u64,
    /// Bytes that the allocator's counters count as free.
    pub free: u64,
    /// Names of the graphs, or of the `MemPool`, that it belongs to; their classes where no
    /// variable leads to them.
    pub users: Vec<String>,
}

/// Why a snapshot is incomplete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct IncompleteJson {
    /// The limit that was reached: `pause` (how long the job may be stopped), `time`, `copies` or
    /// `memory`.
    pub limit: String,
    /// The limit itself: seconds of `pause` and `time`, a number of `copies`, bytes of `memory`.
    pub most: serde_json::Number,
    /// What was not read, or only in part.
    pub missing: Vec<String>,
}

/// What changed while it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct UncertainJson {
    /// Bytes of the job's memory that changed.
    pub bytes: u64,
    /// Of so many that were read.
    pub of_bytes: u64,
    /// The parts whose rows may be torn.
    pub parts: Vec<String>,
    /// Torn tensors that contradict the allocator's blocks: they are not listed.
    pub left_out: u64,
}

/// What refers to one tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct TensorReferrersJson {
    /// The address of its Python object.
    pub object: u64,
    /// Its reference count; negative if it is immortal, `null` where it is not known.
    pub reference_count: Option<i32>,
    /// The references that were found; C and C++ may hold more.
    pub referrers: Vec<ReferrerJson>,
}

/// A reference to a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReferrerJson {
    /// The address of the object that refers; `null` for a variable of a running function.
    pub address: Option<u64>,
    /// Its class.
    pub class: String,
    /// The path from a variable of the program to it; `null` where none was found.
    pub name: Option<String>,
    /// The last step from it to the tensor: `[0]`, `.inputs`.
    pub step: String,
}

/// What the memory of a device is for, in bytes. A storage counts once, in the first of its
/// categories.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceOwnersJson {
    /// Allocated by PyTorch, by the allocator's blocks; `null` for devices without PyTorch's native
    /// CUDA allocator.
    pub allocated: Option<u64>,
    /// Parameters.
    pub parameters: u64,
    /// Buffers of modules.
    pub buffers: u64,
    /// Gradients.
    pub gradients: u64,
    /// State of optimizers.
    pub optimizer_state: u64,
    /// Saved for the backward pass by autograd nodes.
    pub saved_for_backward: u64,
    /// Other tensors.
    pub other_tensors: u64,
    /// Of all these, tensors that no variable leads to and no autograd node keeps.
    pub unnamed: u64,
    /// What the allocator added by rounding sizes up.
    pub rounding: u64,
    /// Allocated and in no tensor that was found: work spaces, tensors that only C++ holds.
    pub in_no_tensor: u64,
    /// Allocated and in no tensor, but in a structure of PyTorch's C++: by `autocast_cache`,
    /// `ddp_buckets`, `cublas_workspaces`, `graph_pools` and `other_pools`; those with any.
    pub in_cpp: BTreeMap<String, u64>,
    /// Freed by the program, while another stream may still use it.
    pub pending_free: u64,
    /// Tensors in private pools whose block is free: what CUDA graphs write to when they are
    /// replayed.
    pub in_graph_pools: u64,
    /// Tensors in no block of the allocator: memory of other libraries, or of another process.
    pub elsewhere: u64,
    /// Tensors that only reference cycles keep alive: `gc.collect()` would free them.
    pub garbage: u64,
    /// What `torch.cuda.empty_cache()` would return to the driver.
    pub releasable: u64,
    /// How many storages there are.
    pub storages: u64,
    /// The tensors that Python has objects of.
    pub python_tensors: PythonTensorsJson,
}

/// The tensors that Python has objects of, each counted for itself: a view counts again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PythonTensorsJson {
    /// How many.
    pub tensors: u64,
    /// Their elements.
    pub elements: u64,
    /// The bytes of these elements.
    pub bytes: u64,
    /// How many have an unknown (symbolic) size, and are in neither sum.
    pub of_unknown_size: u64,
}

/// Writes every tensor and node of a snapshot, and the sums.
pub fn ownership_json(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
) -> Result<(), OutputError> {
    JsonDocument::new(ownership(snapshot)).write(out, true)
}

/// One line of several, with its time and the program's line.
pub fn ownership_json_line(
    out: &mut dyn Write,
    snapshot: &OwnershipSnapshot,
    timestamp: &str,
    place: Option<&str>,
) -> Result<(), OutputError> {
    let timestamp = Some(timestamp.to_owned());
    let place = place.map(str::to_owned);
    JsonDocument::new(OwnershipJson { timestamp, place, ..ownership(snapshot) }).write(out, false)
}

fn ownership(snapshot: &OwnershipSnapshot) -> OwnershipJson {
    OwnershipJson {
        timestamp: None,
        place: None,
        referrers: snapshot.referrers.iter().map(referrers).collect(),
        retained: snapshot.retained.iter().map(FreesJson::of).collect(),
        ways: snapshot.ways.iter().map(KeptWayJson::new).collect(),
        groups: owner_groups(snapshot).iter().map(OwnerGroupJson::new).collect(),
        pause_seconds: snapshot.pause.map(|pause| pause.as_secs_f64()),
        stops: stops(snapshot.stops),
        incomplete: snapshot.incomplete.as_ref().map(incomplete_json),
        uncertain: uncertain_json(snapshot),
        copied: copied_json(snapshot),
        garbage_cycles: snapshot.garbage.iter().map(garbage_cycle).collect(),
        private_pools: private_pools(snapshot).iter().map(owned_pool).collect(),
        objects: snapshot.objects,
        unreadable: snapshot.unreadable,
        misfits: snapshot.misfits,
        devices: owners_by_device(snapshot),
        tensors: snapshot.tensors.iter().map(|row| tensor(snapshot, row)).collect(),
        nodes: snapshot.nodes.iter().map(node).collect(),
        saved_for_backward: saved_sums(saved(snapshot)),
    }
}

/// Tensors that a fork left behind.
pub(crate) fn copied_json(snapshot: &OwnershipSnapshot) -> Option<CopiedTensorsJson> {
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

fn stops(stops: StopTotals) -> StopsJson {
    StopsJson {
        count: stops.count,
        total_seconds: stops.total.as_secs_f64(),
        longest_seconds: stops.longest.as_secs_f64(),
    }
}

pub(crate) fn uncertain_json(snapshot: &OwnershipSnapshot) -> Option<UncertainJson> {
    let UncertainSnapshot { bytes, of, parts, left_out } = snapshot.uncertain.as_ref()?;
    let parts = parts.iter().map(|&part| part.to_owned()).collect();
    Some(UncertainJson { bytes: *bytes, of_bytes: *of, parts, left_out: *left_out })
}

pub(crate) fn incomplete_json(incomplete: &IncompleteSnapshot) -> IncompleteJson {
    let seconds = |time: std::time::Duration| {
        // A duration is finite, so JSON has a number for it.
        Number::from_f64(time.as_secs_f64()).unwrap_or_else(|| time.as_secs().into())
    };
    let (limit, most) = match incomplete.limit {
        ReachedLimit::Pause(most) => ("pause", seconds(most)),
        ReachedLimit::Time(most)
        | ReachedLimit::Repeating(most)
        | ReachedLimit::Finding { of: most, .. } => ("time", seconds(most)),
        ReachedLimit::Copies(most) => ("copies", most.into()),
        ReachedLimit::Memory(most) => ("memory", most.into()),
        ReachedLimit::Counts => ("counts", 0.into()),
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

pub(crate) fn owners_by_device(snapshot: &OwnershipSnapshot) -> BTreeMap<String, DeviceOwnersJson> {
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
        in_cpp: sums
            .in_cpp
            .iter()
            .map(|(keeper, held)| (keeper.key().to_owned(), held.bytes))
            .collect(),
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
