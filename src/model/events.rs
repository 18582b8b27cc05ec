//! Exact events: every allocation and free seen by a probe, with its site.

use std::sync::Arc;

use super::gpu::CudaIndex;
use super::record::Nanos;
use super::stack::{StackId, ThreadId};

/// Number of an [`AllocationSite`] in a [`StackTable`](super::StackTable), from 0 in order of first
/// sight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(pub u32);

/// How the Python stack of an [`AllocationSite`] was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackSource {
    /// The thread's own frames, read inside the probe: exact.
    Own,
    /// The thread has no Python frames and works for a call of `backward()`; the stack is that of
    /// the calling thread: exact.
    Backward,
    /// The thread has no Python frames; the stack is the main thread's, which usually waits in
    /// `backward()`. It may have moved during the read.
    Borrowed,
    /// The thread has no Python frames, and its caller is unknown.
    NoPython,
    /// Not taken, by the recording's options (small, or not sampled).
    NotTaken,
    /// Unreadable or unnamed: a page was not in memory, a code object died, or its description was
    /// lost.
    Unknown,
    /// The kernel showed the event but no stack: the thread's last sampled stack.
    Sampled,
}

/// What equal allocation events have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AllocationSite {
    /// The thread that allocated.
    pub thread: ThreadId,
    /// The Python stack; `source` says why it is `None`.
    pub stack: Option<StackId>,
    /// How `stack` was obtained.
    pub source: StackSource,
    /// Whether the outermost frames of `stack` are missing: it is deeper than the probe's walk.
    pub truncated: bool,
    /// Class of the autograd node being evaluated (`AddmmBackward0`); `None` outside of backward.
    pub node: Option<Arc<str>>,
    /// Python stack of the forward call that created this node; `None`: not recorded (an option, or
    /// the node is older than the recording).
    pub forward: Option<StackId>,
    /// The C and C++ frames.
    pub native: NativeFrames,
}

/// The native frames of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NativeFrames {
    /// Not requested, by an option or because the allocation is small.
    #[default]
    NotTaken,
    /// Requested but lost: the ring was full, or they were not unwound in time.
    Lost,
    /// A stack with them. For [`StackSource::Own`] it also has all frames of
    /// [`AllocationSite::stack`] in place; else only those of the allocating thread.
    Stack(StackId),
}

impl NativeFrames {
    /// The stack with native frames, if there is one.
    pub fn stack(self) -> Option<StackId> {
        match self {
            NativeFrames::Stack(stack) => Some(stack),
            NativeFrames::NotTaken | NativeFrames::Lost => None,
        }
    }
}

/// The kind of memory of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Blocks of PyTorch's caching allocator on a device, in requested sizes.
    Torch(CudaIndex),
    /// Device memory from the driver: `cuMemAlloc`, `cuMemAllocPitch`, `cuMemAllocAsync`, by
    /// address. `None`: the call does not say the device.
    Driver(Option<CudaIndex>),
    /// Physical memory from `cuMemCreate`, by handle: the memory of expandable segments.
    Physical(Option<CudaIndex>),
    /// Mapped address ranges (`cuMemMap`), by address. No memory of its own.
    Mapping,
    /// `cuMemAllocManaged`, by address.
    Managed,
    /// Page-locked host memory: `cuMemHostAlloc`, `cuMemAllocHost`, `cuMemHostRegister`, by
    /// address.
    PinnedHost,
}

/// Driver calls that take an unknown amount of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DriverEvent {
    /// A context was created or a primary one retained.
    ContextCreated,
    /// A module was loaded (`cuModuleLoad*`).
    ModuleLoaded,
    /// A library was loaded (`cuLibraryLoad*`).
    LibraryLoaded,
}

/// The device's allocator counters right after an allocation, in bytes.
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
    /// Memory was allocated.
    Allocated {
        /// The kind of memory.
        memory_kind: MemoryKind,
        /// Address, or handle ([`MemoryKind::Physical`]).
        address: u64,
        /// Requested bytes.
        size: u64,
        /// PyTorch's counters right after; `None`: unavailable.
        levels: Option<CounterSnapshot>,
        /// Bytes of PyTorch's block; `None`: not read.
        block: Option<u64>,
    },
    /// Memory is being freed: its owner gave it up, the allocator has not taken it back yet.
    Freed {
        /// The kind of memory.
        memory_kind: AddressSpace,
        /// Address, or handle.
        address: u64,
        /// Whether an autograd engine thread freed it while evaluating a node; only of PyTorch's
        /// blocks, and if [`ExactSettings::knows_backward`].
        in_backward: bool,
    },
    /// The driver refused an allocation.
    Failed {
        /// The kind of memory.
        memory_kind: MemoryKind,
        /// Requested bytes.
        size: u64,
        /// `CUresult`; 2 is out of memory.
        code: u32,
    },
    /// Something took memory of unknown size.
    Marked(DriverEvent),
}

/// The address space of a freed address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressSpace {
    /// A block of PyTorch's caching allocator.
    Torch,
    /// [`MemoryKind::Driver`] or [`MemoryKind::Managed`]: `cuMemFree`, `cuMemFreeAsync`.
    Driver,
    /// [`MemoryKind::Physical`]: `cuMemRelease`.
    Physical,
    /// [`MemoryKind::Mapping`]: `cuMemUnmap`.
    Mapping,
    /// [`MemoryKind::PinnedHost`]: `cuMemFreeHost`, `cuMemHostUnregister`.
    PinnedHost,
}

impl MemoryKind {
    /// The address space in which its addresses are unique.
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
    /// When the target's thread was in the probe.
    pub time: Nanos,
    /// What happened.
    pub change: EventKind,
    /// Its site; `None` for frees, unless the recording requested their stacks.
    pub site: Option<SiteId>,
}

/// How exact events are obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ProbeBackend {
    /// BPF programs at uprobe_multi links.
    #[default]
    UprobeMulti,
    /// BPF programs at perf-event uprobes.
    PerfUprobes,
    /// Samples of perf-event uprobes, without BPF: exact sizes and addresses, sampled stacks.
    PerfSamples,
}

/// How frees are observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FreeTracking {
    /// Each by a probe.
    #[default]
    Events,
    /// Each by a probe, with the stack.
    Stacks,
    /// Not probed: found by comparing snapshots.
    Snapshots,
}

/// Settings of exact recording; once, before the first [`EventBatch`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExactSettings {
    /// When the probes were in place.
    pub time: Nanos,
    /// How events are obtained.
    pub backend: ProbeBackend,
    /// How frees are observed.
    pub frees: FreeTracking,
    /// Smaller allocations have no stack; 0: all have one.
    pub stacks_from: u64,
    /// One stack per this many bytes on average (Poisson); 0: all.
    pub stacks_every: u64,
    /// Whether the forward lines of backward allocations are recorded.
    pub backward_lines: bool,
    /// Allocations of at least this many bytes have native frames; `None`: none have.
    pub native_from: Option<u64>,
    /// Whether PyTorch's allocations and frees say if a node was being evaluated; frees do so only
    /// if steps are counted.
    pub knows_backward: bool,
    /// Whether no device had a PyTorch allocator yet when the probes were placed: then everything
    /// is recorded, from a level of 0 on.
    pub starts_empty: bool,
    /// What is probed: `pytorch:malloc`, `cuMemAlloc_v2`, ...
    pub probes: Vec<Arc<str>>,
    /// What is not covered, one sentence each.
    pub uncovered: Vec<Arc<str>>,
}

/// Some milliseconds of events in time order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventBatch {
    /// The events.
    pub events: Vec<Event>,
}

/// The allocator's running counts less the events seen since the recording began, once a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterCheck {
    /// When.
    pub time: Nanos,
    /// The device.
    pub device: CudaIndex,
    /// `allocation.all.allocated`, less allocations seen.
    pub allocations: i64,
    /// `allocation.all.freed`, less frees seen (of all devices if the job uses several); `None`:
    /// frees are not probed or cannot be assigned to a device.
    pub frees: Option<i64>,
    /// `requested_bytes.all.allocated`, less requested bytes seen.
    pub requested: i64,
}

/// Totals of a recording's exact events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventTotals {
    /// Allocations seen, of every kind.
    pub allocations: u64,
    /// Frees seen, of every kind.
    pub frees: u64,
    /// Events lost because the ring was full; the kernel counted them.
    pub lost: u64,
    /// Allocations whose stack is deeper than the probe's walk.
    pub truncated: u64,
    /// Allocations with a stack borrowed from the main thread.
    pub borrowed: u64,
    /// Allocations with a partly unreadable stack: a page was not in memory.
    pub faulted: u64,
    /// Allocations whose stack has an unnamed code object.
    pub unknown: u64,
    /// Allocations of threads without Python.
    pub no_python: u64,
    /// Allocations with native frames.
    pub native: u64,
    /// Allocations whose native frames were lost.
    pub native_lost: u64,
}
