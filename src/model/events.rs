//! Exact events: allocations and frees seen by probes.

use std::sync::Arc;

use super::gpu::CudaIndex;
use super::record::Nanos;
use super::stack::{StackId, ThreadId};

/// Number of an [`AllocationSite`] in a [`StackTable`](super::StackTable), from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(pub u32);

/// Source of an [`AllocationSite`]'s Python stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackSource {
    /// The thread's own frames, read in the probe: exact.
    Own,
    /// For an autograd thread without Python: the stack that called `backward()`. Exact.
    Backward,
    /// For a thread without Python: the main thread's stack. It usually waits in `backward()`, but
    /// may have moved during the read.
    Borrowed,
    /// The thread runs no Python, and its caller is unknown.
    NoPython,
    /// Left out by an option (small, or not sampled).
    NotTaken,
    /// Unreadable or unnamed: a page was not in memory, a code object died, or its name was lost.
    Unknown,
    /// The thread's last sampled stack, for events without one.
    Sampled,
}

/// What equal allocations share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AllocationSite {
    /// The allocating thread.
    pub thread: ThreadId,
    /// Python stack; `source` says why it is `None`.
    pub stack: Option<StackId>,
    /// Source of `stack`.
    pub source: StackSource,
    /// Outer frames are missing: the stack is deeper than the probe's walk.
    pub truncated: bool,
    /// Class of the evaluated autograd node (`AddmmBackward0`); `None` outside backward.
    pub node: Option<Arc<str>>,
    /// The forward call that created the node; `None`: not recorded, or before the recording.
    pub forward: Option<StackId>,
    /// C and C++ frames.
    pub native: NativeFrames,
}

/// The native frames of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NativeFrames {
    /// Left out by an option, or too small.
    #[default]
    NotTaken,
    /// The ring was full, or unwinding was late.
    Lost,
    /// A stack with them. For [`StackSource::Own`] it includes [`AllocationSite::stack`]; else it
    /// is only the allocating thread's.
    Stack(StackId),
}

impl NativeFrames {
    /// The stack, if any.
    pub fn stack(self) -> Option<StackId> {
        match self {
            NativeFrames::Stack(stack) => Some(stack),
            NativeFrames::NotTaken | NativeFrames::Lost => None,
        }
    }
}

/// An event's kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// PyTorch's blocks, in requested bytes.
    Torch(CudaIndex),
    /// Driver memory by address (`cuMemAlloc`, `cuMemAllocPitch`, `cuMemAllocAsync`); `None`:
    /// unknown device.
    Driver(Option<CudaIndex>),
    /// Physical memory by handle (`cuMemCreate`), for expandable segments.
    Physical(Option<CudaIndex>),
    /// Address ranges (`cuMemMap`), without memory of their own.
    Mapping,
    /// Managed memory (`cuMemAllocManaged`).
    Managed,
    /// Page-locked host memory (`cuMemHostAlloc`, `cuMemAllocHost`, `cuMemHostRegister`).
    PinnedHost,
}

/// Driver calls that take unknown amounts of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DriverEvent {
    /// A context was created, or a primary one retained.
    ContextCreated,
    /// `cuModuleLoad*`.
    ModuleLoaded,
    /// `cuLibraryLoad*`.
    LibraryLoaded,
}

/// The device's counters right after an allocation, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CounterSnapshot {
    /// `allocated_bytes.all.current`.
    pub allocated: i64,
    /// `allocated_bytes.all.peak`.
    pub peak: i64,
    /// `reserved_bytes.all.current`.
    pub reserved: i64,
    /// `active_bytes.all.current`.
    pub active: i64,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// An allocation.
    Allocated {
        /// Its kind of memory.
        memory_kind: MemoryKind,
        /// Address, or handle of [`MemoryKind::Physical`].
        address: u64,
        /// Requested bytes.
        size: u64,
        /// PyTorch's counters right after, if available.
        levels: Option<CounterSnapshot>,
        /// Bytes of PyTorch's block, if read.
        block: Option<u64>,
    },
    /// A free begins: the allocator has not taken the memory back yet.
    Freed {
        /// Its address space.
        memory_kind: AddressSpace,
        /// Address, or handle.
        address: u64,
        /// An autograd thread freed it while evaluating a node (only for PyTorch, with
        /// [`ExactSettings::knows_backward`]).
        in_backward: bool,
    },
    /// The driver refused.
    Failed {
        /// Its kind of memory.
        memory_kind: MemoryKind,
        /// Requested bytes.
        size: u64,
        /// `CUresult`; 2 is out of memory.
        code: u32,
    },
    /// A call took memory of unknown size.
    Marked(DriverEvent),
}

impl EventKind {
    /// `CUDA_ERROR_OUT_OF_MEMORY`, a code of [`EventKind::Failed`].
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
}

/// Address space of a free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressSpace {
    /// PyTorch's caching allocator.
    Torch,
    /// `cuMemFree`, `cuMemFreeAsync`; also [`MemoryKind::Managed`].
    Driver,
    /// `cuMemRelease`.
    Physical,
    /// `cuMemUnmap`.
    Mapping,
    /// `cuMemFreeHost`, `cuMemHostUnregister`.
    PinnedHost,
}

impl MemoryKind {
    /// Where its addresses are unique.
    pub fn freed(self) -> AddressSpace {
        match self {
            MemoryKind::Torch(_) => AddressSpace::Torch,
            MemoryKind::Driver(_) | MemoryKind::Managed => AddressSpace::Driver,
            MemoryKind::Physical(_) => AddressSpace::Physical,
            MemoryKind::Mapping => AddressSpace::Mapping,
            MemoryKind::PinnedHost => AddressSpace::PinnedHost,
        }
    }
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// When the thread was in the probe.
    pub time: Nanos,
    /// What happened.
    pub change: EventKind,
    /// Its site; for frees only if requested.
    pub site: Option<SiteId>,
}

/// How events are obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProbeBackend {
    /// BPF programs at uprobe_multi links.
    #[default]
    UprobeMulti,
    /// BPF programs at perf-event uprobes.
    PerfUprobes,
    /// Perf-event samples, without BPF: exact sizes and addresses, sampled stacks.
    PerfSamples,
}

/// How frees are observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FreeTracking {
    /// By a probe.
    #[default]
    Events,
    /// By a probe with stacks.
    Stacks,
    /// By comparing snapshots.
    Snapshots,
}

/// Settings of exact recording, once before the first [`EventBatch`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExactSettings {
    /// When the probes were set.
    pub time: Nanos,
    /// How events are obtained.
    pub backend: ProbeBackend,
    /// How frees are observed.
    pub frees: FreeTracking,
    /// Minimum bytes for a stack; 0: all.
    pub stacks_from: u64,
    /// Mean bytes between stacks (Poisson); 0: all.
    pub stacks_every: u64,
    /// Backward allocations have forward lines.
    pub backward_lines: bool,
    /// Minimum bytes for native frames; `None`: none.
    pub native_from: Option<u64>,
    /// PyTorch's allocations say if a node was evaluated; frees say so only if steps are
    /// counted.
    pub knows_backward: bool,
    /// No device had a PyTorch allocator yet: then recording is complete and begins at 0
    /// bytes.
    pub starts_empty: bool,
    /// Probed functions: `pytorch:malloc`, `cuMemAlloc_v2`.
    pub probes: Vec<Arc<str>>,
    /// Gaps in coverage, one sentence each.
    pub uncovered: Vec<Arc<str>>,
}

/// Some milliseconds of events, in time order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct EventBatch {
    pub events: Vec<Event>,
}

/// Once a second: growth of the counters since the start, less the events seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterCheck {
    /// When.
    pub time: Nanos,
    /// The device.
    pub device: CudaIndex,
    /// `allocation.all.allocated` less allocations.
    pub allocations: i64,
    /// `allocation.all.freed` less frees (of all devices, if several); `None`: no frees, or without
    /// device.
    pub frees: Option<i64>,
    /// `requested_bytes.all.allocated` less requested bytes.
    pub requested: i64,
}

/// Totals of exact events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventTotals {
    /// Allocations, of every kind.
    pub allocations: u64,
    /// Frees, of every kind.
    pub frees: u64,
    /// Lost in a full ring, by the kernel's count.
    pub lost: u64,
    /// Allocations with deeper stacks than the probe walks.
    pub truncated: u64,
    /// Allocations with the main thread's stack.
    pub borrowed: u64,
    /// Allocations with a stack page not in memory.
    pub faulted: u64,
    /// Allocations with an unnamed code object.
    pub unknown: u64,
    /// Allocations of threads without Python.
    pub no_python: u64,
    /// Allocations with native frames.
    pub native: u64,
    /// Allocations that lost their native frames.
    pub native_lost: u64,
}
