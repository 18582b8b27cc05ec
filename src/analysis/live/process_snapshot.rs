//! One process at one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::sleep_shares::{TagShare, tag_shares};
use crate::analysis::blocks::Fragmentation;
use crate::model::{
    AllocatorBackend, AllocatorCounters, AllocatorSnapshot, CoreOrigin, CudaIndex, DeviceUsage,
    GpuDevice, MissReason, MissedObservation, MixedStack, MixedStacks, ProcessUsage, ReaderKind,
    Record, RecordSink, RecordingStart, SinkResult, SleepTags, SnapshotConsistency, StackId,
    StackTable, TargetRuntime, ThreadActivity, ThreadId,
};

/// A thread at that moment; if `asleep`, by its own choice (`time.sleep`).
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadSnapshot {
    pub thread: ThreadId,
    pub stack: StackId,
    pub gil: bool,
    pub activity: ThreadActivity,
    pub asleep: bool,
}

/// Bytes outside PyTorch's allocator: context, kernels, NCCL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutsideTorch {
    /// Bytes.
    Bytes(u64),
    /// Unknown, and why.
    Unknown(String),
}

/// A device's memory in bytes; `None` is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSnapshot {
    /// As numbered in the target.
    pub cuda_index: Option<CudaIndex>,
    /// Its number in NVML.
    pub nvml_index: Option<u32>,
    /// Product name.
    pub name: Option<String>,
    /// Memory of the device.
    pub total: Option<u64>,
    /// In use by all processes.
    pub used: Option<u64>,
    /// Free on the device.
    pub free: Option<u64>,
    /// Kept by driver and firmware.
    pub driver_reserved: Option<u64>,
    /// Allocated through PyTorch.
    pub allocated: Option<u64>,
    /// By PyTorch, from the driver.
    pub reserved: Option<u64>,
    /// Reserved and not allocated.
    pub cached: Option<u64>,
    /// Fragmentation of the cache, with a snapshot.
    pub fragmentation: Option<Fragmentation>,
    /// The target's bytes outside PyTorch.
    pub outside: OutsideTorch,
    /// Reserved bytes unmapped under the allocator, at least (sleep modes of vLLM,
    /// torch_memory_saver); `None` if unknown.
    pub unmapped: Option<u64>,
    /// vLLM's reserved memory by tag, or why unknown.
    pub tags: Result<Vec<TagShare>, String>,
    /// Used by other processes.
    pub others: Option<u64>,
    /// The allocator's segments and blocks.
    pub snapshot: Option<Arc<AllocatorSnapshot>>,
    /// The allocator's counters.
    pub counters: Option<Box<AllocatorCounters>>,
}

impl DeviceSnapshot {
    /// Whether PyTorch reserved nothing here and the driver does not list the process.
    pub fn is_unused(&self) -> bool {
        let is_outside = match &self.outside {
            OutsideTorch::Bytes(bytes) => *bytes > 0,
            OutsideTorch::Unknown(why) => why != ProcessUsage::NOT_LISTED,
        };
        let has_torch = self.allocated.is_none_or(|bytes| bytes > 0)
            || self.cached.is_none_or(|bytes| bytes > 0)
            || self.unmapped.is_some_and(|bytes| bytes > 0);
        !is_outside && !has_torch
    }
}

/// Collects the records of one moment.
#[derive(Debug, Default)]
pub struct ProcessSnapshot {
    stacks: StackTable,
    start: Option<RecordingStart>,
    runtime: Option<TargetRuntime>,
    threads: Vec<ThreadSnapshot>,
    devices: Vec<GpuDevice>,
    usage: BTreeMap<u32, DeviceUsage>,
    counters: BTreeMap<CudaIndex, Box<AllocatorCounters>>,
    snapshots: BTreeMap<CudaIndex, Arc<AllocatorSnapshot>>,
    missed: Vec<MissedObservation>,
    /// Whether reserved bytes stayed equal while the driver was read.
    reserved_unchanged: BTreeMap<CudaIndex, bool>,
    tags: SleepTags,
    core: Option<CoreOrigin>,
    mixed: Option<Result<MixedStacks, String>>,
}

impl ProcessSnapshot {
    /// An empty snapshot.
    pub fn new() -> ProcessSnapshot {
        ProcessSnapshot::default()
    }

    /// The start of the recording.
    pub fn start(&self) -> Option<&RecordingStart> {
        self.start.as_ref()
    }

    /// What runs in the target.
    pub fn runtime(&self) -> Option<&TargetRuntime> {
        self.runtime.as_ref()
    }

    /// Functions, frames, stacks and threads.
    pub fn stacks(&self) -> &StackTable {
        &self.stacks
    }

    /// The threads, in reading order.
    pub fn threads(&self) -> &[ThreadSnapshot] {
        &self.threads
    }

    /// Marks idle threads for which `is_asleep` holds, by OS thread id.
    pub fn mark_asleep(&mut self, is_asleep: &dyn Fn(u32) -> bool) {
        for thread in &mut self.threads {
            let id = self.stacks.get_thread(thread.thread).and_then(|known| known.os_id);
            let id = id.and_then(|id| u32::try_from(id).ok());
            thread.asleep = thread.activity != ThreadActivity::Active && id.is_some_and(is_asleep);
        }
    }

    /// Sets vLLM's tagged memory.
    pub fn set_tags(&mut self, tags: SleepTags) {
        self.tags = tags;
    }

    /// Sets its core file.
    pub fn set_core(&mut self, core: Option<CoreOrigin>) {
        self.core = core;
    }

    /// Its core file, if any.
    pub fn core(&self) -> Option<&CoreOrigin> {
        self.core.as_ref()
    }

    /// Sets stacks with compiled frames, or why they are missing.
    pub fn set_mixed_stacks(&mut self, stacks: Result<MixedStacks, String>) {
        self.mixed = Some(stacks);
    }

    /// If requested: stacks with compiled frames, or why they are missing.
    pub fn mixed_stacks(&self) -> Option<Result<&MixedStacks, &str>> {
        self.mixed.as_ref().map(|it| it.as_ref().map_err(String::as_str))
    }

    /// A thread's stack with compiled frames.
    pub fn mixed_stack(&self, thread: ThreadId) -> Option<&MixedStack> {
        let id = self.stacks.get_thread(thread)?.os_id?;
        self.mixed_stacks()?.ok()?.threads.iter().find(|it| it.os_id == id)
    }

    /// What could not be read.
    pub fn missed(&self) -> &[MissedObservation] {
        &self.missed
    }

    /// Takes consistent snapshots read together with the owners.
    pub fn use_blocks_of_owners(&mut self, snapshots: &[AllocatorSnapshot]) {
        for snapshot in snapshots {
            let is_whole = snapshot.consistency == SnapshotConsistency::Consistent;
            if is_whole && self.counters.contains_key(&snapshot.device) {
                self.snapshots.insert(snapshot.device, Arc::new(snapshot.clone()));
            }
        }
    }

    /// The target's devices, then others known to NVML.
    pub fn devices(&self) -> Vec<DeviceSnapshot> {
        let mut all: Vec<DeviceSnapshot> = Vec::new();
        for (&cuda, counters) in &self.counters {
            let device = self.devices.iter().find(|d| d.cuda_index == Some(cuda));
            all.push(self.device(Some(cuda), device, Some(counters)));
        }
        for device in &self.devices {
            let has_counters = device.cuda_index.is_some_and(|c| self.counters.contains_key(&c));
            if !has_counters {
                all.push(self.device(device.cuda_index, Some(device), None));
            }
        }
        all
    }

    /// The devices, or only `gpu`.
    pub fn devices_of(&self, gpu: Option<CudaIndex>) -> Vec<DeviceSnapshot> {
        let mut devices = self.devices();
        devices.retain(|d| gpu.is_none() || d.cuda_index == gpu);
        devices
    }

    fn device(
        &self,
        cuda_index: Option<CudaIndex>,
        device: Option<&GpuDevice>,
        counters: Option<&AllocatorCounters>,
    ) -> DeviceSnapshot {
        let failed = self.missed.iter().find_map(|m| match (&m.why, m.reader) {
            (MissReason::Failed(why), ReaderKind::Gpu) => Some(why.clone()),
            _ => None,
        });
        KnownDevice {
            cuda_index,
            device,
            counters,
            usage: device.and_then(|d| d.nvml_index).and_then(|n| self.usage.get(&n)),
            snapshot: cuda_index.and_then(|c| self.snapshots.get(&c)),
            // Counters are read right before the driver; the snapshot is older.
            reserved_then: counters.map(|counters| counters.reserved().max(0) as u64),
            moved: counters.is_some()
                && cuda_index.is_some_and(|c| self.reserved_unchanged.get(&c) != Some(&true)),
            allocator: self.runtime.as_ref().map(|r| &r.allocator),
            failed,
            tags: &self.tags,
        }
        .snapshot()
    }
}

pub(crate) struct KnownDevice<'a> {
    pub(crate) cuda_index: Option<CudaIndex>,
    pub(crate) device: Option<&'a GpuDevice>,
    pub(crate) counters: Option<&'a AllocatorCounters>,
    pub(crate) usage: Option<&'a DeviceUsage>,
    pub(crate) snapshot: Option<&'a Arc<AllocatorSnapshot>>,
    /// PyTorch's bytes when the driver was read; `None`: now.
    pub(crate) reserved_then: Option<u64>,
    /// These may have changed meanwhile.
    pub(crate) moved: bool,
    pub(crate) allocator: Option<&'a AllocatorBackend>,
    pub(crate) failed: Option<String>,
    pub(crate) tags: &'a SleepTags,
}

impl KnownDevice<'_> {
    pub(crate) fn snapshot(&self) -> DeviceSnapshot {
        let bytes = |value: i64| value.max(0) as u64;
        // The job runs between counters and snapshot: take all from the snapshot.
        let whole = self.snapshot.filter(|m| m.consistency == SnapshotConsistency::Consistent);
        let (counters, usage) = (self.counters, self.usage);
        let allocated =
            whole.map(|m| m.allocated()).or_else(|| counters.map(|c| bytes(c.allocated())));
        let reserved =
            whole.map(|m| m.reserved()).or_else(|| counters.map(|c| bytes(c.reserved())));
        // A fork's copy of an allocator holds nothing.
        let is_copy = self.allocator.is_some_and(AllocatorBackend::is_copy);
        // Without CUDA and not listed by the driver, it has nothing.
        let is_unlisted = usage.is_some_and(|usage| {
            matches!(&usage.process, ProcessUsage::Unknown(why) if why == ProcessUsage::NOT_LISTED)
        });
        let has_begun = self.allocator != Some(&AllocatorBackend::NotInitialized);
        let (allocated, reserved) = match is_copy || !has_begun && is_unlisted {
            true => (Some(0), Some(0)),
            false => (allocated, reserved),
        };
        let process = usage.and_then(|u| match u.process {
            ProcessUsage::Bytes(bytes) => Some(bytes),
            ProcessUsage::Unknown(_) => None,
        });
        DeviceSnapshot {
            cuda_index: self.cuda_index,
            nvml_index: self.device.and_then(|d| d.nvml_index),
            name: self.device.and_then(|d| d.name.clone()),
            total: usage.map(|u| u.total).or(self.device.and_then(|d| d.total)),
            used: usage.map(|u| u.used),
            free: usage.map(|u| u.free),
            driver_reserved: usage.and_then(|u| u.reserved),
            allocated,
            reserved,
            cached: reserved.zip(allocated).map(|(r, a)| r.saturating_sub(a)),
            fragmentation: self.snapshot.map(|snapshot| Fragmentation::new(snapshot)),
            outside: self.outside(self.reserved_then.or(reserved)),
            unmapped: process
                .filter(|_| !self.moved)
                .zip(self.reserved_then.or(reserved))
                .map(|(process, reserved)| reserved.saturating_sub(process)),
            tags: self.tags(self.reserved_then.or(reserved), process.filter(|_| !self.moved)),
            others: usage.zip(process).map(|(u, process)| u.used.saturating_sub(process)),
            snapshot: self.snapshot.cloned(),
            counters: counters.map(|c| Box::new(*c)),
        }
    }

    fn tags(&self, reserved: Option<u64>, process: Option<u64>) -> Result<Vec<TagShare>, String> {
        match self.tags {
            SleepTags::Unknown(why) if self.cuda_index.is_some() => Err(why.clone()),
            SleepTags::Unknown(_) | SleepTags::NotLoaded => Ok(Vec::new()),
            SleepTags::Known(tags) => {
                let here: Vec<_> =
                    tags.iter().filter(|tag| Some(tag.device) == self.cuda_index).collect();
                Ok(tag_shares(&here, reserved, process))
            }
        }
    }

    fn outside(&self, reserved: Option<u64>) -> OutsideTorch {
        let Some(usage) = self.usage else {
            let unknown = || "NVML reported nothing for this device".to_owned();
            return OutsideTorch::Unknown(self.failed.clone().unwrap_or_else(unknown));
        };
        match &usage.process {
            ProcessUsage::Unknown(why) => OutsideTorch::Unknown(why.clone()),
            ProcessUsage::Bytes(process) => match (reserved, self.allocates_elsewhere()) {
                (None, true) => OutsideTorch::Unknown("PyTorch's allocator cannot be read".into()),
                (Some(_), _) if self.moved => OutsideTorch::Unknown(
                    "the job took or returned driver memory during each query"
                        .into(),
                ),
                (Some(reserved), _) if *process < reserved => OutsideTorch::Unknown(
                    "the process holds less than PyTorch has reserved: memory was unmapped under its allocator"
                        .into(),
                ),
                _ => OutsideTorch::Bytes(process.saturating_sub(reserved.unwrap_or(0))),
            },
        }
    }

    /// Whether PyTorch may hold memory that no counters show.
    fn allocates_elsewhere(&self) -> bool {
        use AllocatorBackend::{CudaMallocAsync, Native, Pluggable, Unknown};
        matches!(self.allocator, Some(CudaMallocAsync | Native | Pluggable(_) | Unknown(_)))
    }
}

impl RecordSink for ProcessSnapshot {
    fn record(&mut self, record: &Record) -> SinkResult {
        match record {
            Record::Start(start) => self.start = Some(start.clone()),
            Record::Runtime(runtime) => self.runtime = Some(runtime.clone()),
            Record::Definition(definition) => {
                // Out of order, it leaves its stack unknown; the listing shows that.
                let _ = self.stacks.define(definition.clone());
            }
            Record::Device(device) => device.merge_into(&mut self.devices),
            Record::Sample(sample) => {
                self.threads = sample
                    .threads
                    .iter()
                    .map(|t| ThreadSnapshot {
                        thread: t.thread,
                        stack: t.stack,
                        gil: t.gil,
                        activity: t.activity,
                        asleep: false,
                    })
                    .collect();
            }
            // Counters after the driver's answer only show whether memory changed.
            Record::Counters { device, counters, .. } => match self.counters.get(device) {
                Some(before) if !self.usage.is_empty() => {
                    let same = before.reserved() == counters.reserved();
                    self.reserved_unchanged
                        .entry(*device)
                        .and_modify(|still| *still &= same)
                        .or_insert(same);
                }
                _ => _ = self.counters.insert(*device, counters.clone()),
            },
            Record::Snapshot(snapshot) => {
                self.snapshots.insert(snapshot.device, Arc::new(snapshot.clone()));
            }
            Record::Usage(usage) => {
                self.usage.insert(usage.nvml_index, usage.clone());
            }
            Record::Missed(missed) => self.missed.push(missed.clone()),
            Record::Source(_)
            | Record::ExactSettings(_)
            | Record::Events(_)
            | Record::Followed(_)
            | Record::CounterCheck(_)
            | Record::Ownership(_)
            | Record::Step(_)
            | Record::Keyframe(_)
            | Record::TriggerFired(_)
            | Record::OomException(_)
            | Record::Gap(_)
            | Record::End(_) => {}
        }
        Ok(())
    }
}
