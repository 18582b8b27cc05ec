//! `memspy dump --json`. Bytes; unknown is `null`.

use std::collections::BTreeMap;
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::native::{MixedStackJson, NativeJson, native_json, stack_json};
use super::text::{DumpOptions, OwnersResult, activity_text, labels, mixed_labels};
use crate::analysis::{DeviceSnapshot, OutsideTorch, ProcessSnapshot, ThreadSnapshot};
use crate::model::{
    AllocatorCounters, AllocatorSnapshot, Block, BlockState, OwnershipSnapshot, Segment,
    SnapshotConsistency, StatKey,
};
use crate::render::devices::MissedJson;
use crate::render::owners::{
    CopiedTensorsJson, DeviceOwnersJson, IncompleteJson, UncertainJson, copied_json as copied,
    incomplete_json as incomplete, owners_by_device as devices, uncertain_json as uncertain,
};
use crate::render::shared::{
    FragmentationJson, JsonDocument, JsonFormat, OutputError, SleepTagJson, allocator_text,
};

/// `memspy dump --json`: a process at one moment: its stacks, and where its GPU memory is. Sizes in
/// bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DumpJson {
    /// The process.
    pub pid: Option<u32>,
    /// The host that it runs on; `null` for a core file.
    pub host: Option<String>,
    /// The core file that all this is from; `null` for a process that runs.
    pub core: Option<CoreJson>,
    /// Its command line.
    pub command: Option<Vec<String>>,
    /// Its version of CPython; `null` if it is not Python.
    pub python: Option<String>,
    /// Its version of PyTorch; `null` if that is not loaded.
    pub torch: Option<String>,
    /// The CUDA allocator of PyTorch, in words.
    pub allocator: Option<String>,
    /// Its Python threads.
    pub threads: Vec<ThreadJson>,
    /// The GPUs that it can use.
    pub devices: Vec<DumpDeviceJson>,
    /// What the memory is for; `null` where that is not known.
    pub owners: Option<DumpOwnersJson>,
    /// Why that is not known; `null` where it is.
    pub owners_unknown_because: Option<String>,
    /// What `--native` adds; `null` without it.
    pub native: Option<NativeJson>,
    /// What could not be read.
    pub not_read: Vec<MissedJson>,
}

impl JsonFormat for DumpJson {
    const FORMAT: &'static str = "memspy-dump";
    const VERSION: u32 = 1;
}

/// The core file that was read instead of a process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CoreJson {
    /// Its path.
    pub file: String,
    /// The signal that ended the process, `SIGABRT`; `null` where there was none.
    pub signal: Option<String>,
    /// The id of the thread that received it.
    pub thread: Option<u32>,
    /// What is missing in it, a sentence each.
    pub missing: Vec<String>,
}

/// A Python thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ThreadJson {
    /// Its thread id in the operating system; `null` where it is not known.
    pub os_id: Option<u64>,
    /// Its name in Python; `null` where it is not known.
    pub name: Option<String>,
    /// Whether it is the main thread; `null` where that is not known.
    pub main: Option<bool>,
    /// Whether it holds the GIL.
    pub gil: bool,
    /// `active`, `idle`, `asleep` (in `time.sleep`) or `activity unknown`.
    pub activity: String,
    /// Its frames, from the innermost to the outermost.
    pub frames: Vec<DumpFrameJson>,
    /// With `--native`: its stack with frames of compiled code, of a moment of its own; `null`
    /// where that is not known.
    pub mixed: Option<MixedStackJson>,
}

/// A frame of a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DumpFrameJson {
    /// The function; `null` where it is not known.
    pub function: Option<String>,
    /// The path of its file; `null` where it is not known.
    pub file: Option<String>,
    /// The line; `null` where it is not known.
    pub line: Option<u32>,
}

/// The memory of a GPU that the process can use, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DumpDeviceJson {
    /// The GPU's number in the process; `null` where PyTorch has not used it.
    pub cuda_index: Option<u32>,
    /// The GPU's number in nvidia-smi; `null` where it could not be found.
    pub nvml_index: Option<u32>,
    /// Its model.
    pub name: Option<String>,
    /// All memory of the GPU.
    pub total: Option<u64>,
    /// In use by all processes.
    pub used: Option<u64>,
    /// Free.
    pub free: Option<u64>,
    /// Allocated in PyTorch.
    pub allocated: Option<u64>,
    /// Reserved by PyTorch's allocator.
    pub reserved: Option<u64>,
    /// Reserved and free.
    pub cached_free: Option<u64>,
    /// The largest free block of the cache; `null` without a snapshot.
    pub largest_free_block: Option<u64>,
    /// How the cache is cut up; `null` without a snapshot.
    pub fragmentation: Option<FragmentationJson>,
    /// Of the reserved bytes at least this many have no memory behind them: it was unmapped below
    /// the allocator.
    pub unmapped_at_least: Option<u64>,
    /// The memory that vLLM's allocator can put asleep, by tag; empty without vLLM, `null` where it
    /// could not be read.
    pub vllm_tags: Option<Vec<SleepTagJson>>,
    /// Why it could not; `null` where it could.
    pub vllm_tags_unknown_because: Option<String>,
    /// What the process uses outside PyTorch's allocator: CUDA context, libraries, other
    /// allocators.
    pub outside_pytorch: Option<u64>,
    /// Why that is not known; `null` where it is.
    pub outside_pytorch_unknown_because: Option<String>,
    /// What other processes use.
    pub other_processes: Option<u64>,
    /// `torch.cuda.memory_stats()`: bytes or counts by its keys; a value that this version of
    /// PyTorch lacks is `null`.
    pub memory_stats: Option<BTreeMap<String, Option<i64>>>,
    /// Whether the snapshot below is of one moment; `null` without a snapshot.
    pub block_map: Option<ConsistencyJson>,
    /// The allocator's segments, with the keys of `torch.cuda.memory_snapshot()`; `null` without a
    /// snapshot.
    pub segments: Option<Vec<SegmentJson>>,
}

/// Whether a snapshot of the allocator is of one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ConsistencyJson {
    /// Whether the blocks add up to the allocator's own counter.
    pub consistent: bool,
    /// How often the snapshot was read again because the process changed it meanwhile.
    pub retries: u32,
    /// The bytes of the allocated blocks; absent if consistent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_in_blocks: Option<u64>,
    /// The bytes that the allocator's counter had; absent if consistent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_counter: Option<u64>,
}

/// A segment of the allocator: memory that it has from the driver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SegmentJson {
    /// Its address on the GPU.
    pub address: u64,
    /// Its size, in bytes.
    pub total_size: u64,
    /// Its CUDA stream, as a number; 0 is the default stream.
    pub stream: u64,
    /// `small` (for blocks up to 1 MiB) or `large`.
    pub segment_type: String,
    /// The two numbers of its pool; 0 and 0 for the default pool.
    pub segment_pool_id: [u64; 2],
    /// Whether it is an expandable segment.
    pub is_expandable: bool,
    /// Its blocks, by address.
    pub blocks: Vec<BlockJson>,
}

/// A block of a segment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct BlockJson {
    /// Its address on the GPU.
    pub address: u64,
    /// Its size, in bytes.
    pub size: u64,
    /// The bytes that were asked for; 0 for a free block.
    pub requested_size: u64,
    /// `active_allocated`, `active_pending_free` (freed, while another stream may still use it) or
    /// `inactive` (free).
    pub state: String,
}

/// What the memory is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DumpOwnersJson {
    /// How long before the driver's figures the owners were read, in seconds; `null` where it was
    /// at the same time.
    pub seconds_before_driver: Option<f64>,
    /// For how long the process was stopped for this, in seconds; `null` if it ran on, or is a core
    /// file.
    pub pause_seconds: Option<f64>,
    /// Which limit ended the snapshot early; `null` if it is complete.
    pub incomplete: Option<IncompleteJson>,
    /// What changed while it was read; `null` if all is of one moment, or the process ran on.
    pub uncertain: Option<UncertainJson>,
    /// Of a process that was forked after CUDA had begun: the tensors on GPUs that are another
    /// process's, and not counted; else `null`.
    pub copied: Option<CopiedTensorsJson>,
    /// By device: `cuda:0`.
    pub devices: BTreeMap<String, DeviceOwnersJson>,
}

/// Writes the process as one JSON object.
pub fn dump_json(
    out: &mut dyn Write,
    process: &ProcessSnapshot,
    owners: &OwnersResult,
    options: &DumpOptions,
) -> Result<(), OutputError> {
    let start = process.start();
    let runtime = process.runtime();
    JsonDocument::new(DumpJson {
        pid: start.map(|s| s.pid),
        // A core file may come from any host.
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

fn by_owner(snapshot: &OwnershipSnapshot, options: &DumpOptions) -> DumpOwnersJson {
    DumpOwnersJson {
        seconds_before_driver: options.owners_age.map(|age| age.as_secs_f64()),
        pause_seconds: snapshot.pause.map(|pause| pause.as_secs_f64()),
        incomplete: snapshot.incomplete.as_ref().map(incomplete),
        uncertain: uncertain(snapshot),
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

/// By the keys of `torch.cuda.memory_stats`.
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
