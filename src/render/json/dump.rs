//! The JSON of `memspy dump`.

use std::collections::BTreeMap;

use super::mixed_stacks::{MixedStackJson, NativeJson};
use serde::{Deserialize, Serialize};

use super::{
    CopiedTensorsJson, DeviceOwnersJson, FragmentationJson, IncompleteJson, JsonFormat, MissedJson,
    SleepTagJson,
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
    /// What the process uses beside PyTorch's allocator: CUDA context, libraries, other allocators.
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
    /// Of a process that was forked after CUDA had begun: the tensors on GPUs that are another
    /// process's, and not counted; else `null`.
    pub copied: Option<CopiedTensorsJson>,
    /// By device: `cuda:0`.
    pub devices: BTreeMap<String, DeviceOwnersJson>,
}
