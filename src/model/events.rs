//! Exact events: every allocation and free that a probe saw, and the place in the program that made it.

use std::sync::Arc;

use super::gpu::CudaIndex;
use super::record::Nanos;
use super::stack::{StackId, ThreadId};

/// Number of a [`AllocationSite`] in a [`StackTable`](super::StackTable), counted from 0 in order of first sight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SiteId(pub u32);

/// Where the Python stack of an [`AllocationSite`] came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackSource {
    /// The thread's own frames, read while it stood in the probe: exact.
    Own,
    /// The thread has no Python frames and works for a call of `backward()`; the stack is that of the
    /// thread that made just this call: exact.
    Backward,
    /// The thread has no Python frames; the stack is the main thread's at that moment, which as a rule
    /// waits in `backward()`. It may have moved on while it was read.
    Borrowed,
    /// The thread has no Python frames, and nothing says for whom it works.
    NoPython,
    /// Not taken, because the options of the recording say so (small, or not drawn as a sample).
    NotTaken,
    /// It could not be read or named: a page was not in memory, its code object had died, or its
    /// description was lost.
    Unknown,
    /// The kernel let memspy see the event but not the stack: the one that sampling saw last on this thread.
    Sampled,
}

/// A place in the program that allocates: all that events of one kind have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AllocationSite {
    /// The thread that allocated.
    pub thread: ThreadId,
    /// The Python stack; `None` where `source` says why.
    pub stack: Option<StackId>,
    /// Where `stack` came from.
    pub source: StackSource,
    /// Whether `stack` was deeper than the probe follows: its outermost frames are missing.
    pub truncated: bool,
    /// Class of the autograd node being evaluated (`AddmmBackward0`); `None` outside of backward.
    pub node: Option<Arc<str>>,
    /// Python stack of the forward call that created this node; `None` when it was not recorded
    /// (an option, or the node is older than the recording).
    pub forward: Option<StackId>,
    /// The frames of C and C++ code.
    pub native: NativeFrames,
}

/// What is known of the frames of compiled code that an allocation came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NativeFrames {
    /// They were not asked for: by an option of the recording, or the allocation is a small one.
    #[default]
    NotTaken,
    /// They were asked for, and lost: the copy of the thread's stack found no room, or was not unwound in time.
    Lost,
    /// A stack with them. Where [`AllocationSite::source`] is [`StackSource::Own`] they stand between the frames of
    /// [`AllocationSite::stack`], which are all in it too; else it has only those of the thread that allocated.
    Stack(StackId),
}

impl NativeFrames {
    /// The stack with them; `None` where there is none.
    pub fn stack(self) -> Option<StackId> {
        match self {
            NativeFrames::Stack(stack) => Some(stack),
            NativeFrames::NotTaken | NativeFrames::Lost => None,
        }
    }
}

/// What kind of memory an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Blocks of PyTorch's caching allocator on a device; sizes are those asked for.
    Torch(CudaIndex),
    /// Device memory obtained from the driver: `cuMemAlloc`, `cuMemAllocPitch`, `cuMemAllocAsync`, by
    /// address. The device is `None` where the call does not tell it.
    Driver(Option<CudaIndex>),
    /// Physical memory from `cuMemCreate`, by handle: what expandable segments are made of.
    Physical(Option<CudaIndex>),
    /// Address ranges with physical memory mapped in (`cuMemMap`), by address. No memory of its own.
    Mapping,
    /// `cuMemAllocManaged`, by address.
    Managed,
    /// Page-locked host memory: `cuMemHostAlloc`, `cuMemAllocHost`, `cuMemHostRegister`, by address.
    PinnedHost,
}

/// Calls of the driver that take device memory of unknown size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DriverEvent {
    /// A context was created or a primary one retained.
    ContextCreated,
    /// A module was loaded (`cuModuleLoad*`).
    ModuleLoaded,
    /// A library was loaded (`cuLibraryLoad*`).
    LibraryLoaded,
}

/// What the allocator's own counters of the device said right after an allocation, in bytes.
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
        /// Which kind.
        memory_kind: MemoryKind,
        /// Address, or handle ([`MemoryKind::Physical`]).
        address: u64,
        /// Bytes asked for.
        size: u64,
        /// PyTorch's counters right after; `None` where there are none.
        levels: Option<CounterSnapshot>,
        /// Bytes that its block takes, as PyTorch has it; `None` where that was not read.
        block: Option<u64>,
    },
    /// Memory is being freed: its owner gave it up; the allocator has not taken it back yet.
    Freed {
        /// Which kind.
        memory_kind: AddressSpace,
        /// Address, or handle.
        address: u64,
        /// Whether a thread of the autograd engine freed it while it evaluated a node; only of PyTorch's blocks, and where
        /// [`ExactSettings::knows_backward`].
        in_backward: bool,
    },
    /// The driver refused an allocation.
    Failed {
        /// Which kind.
        memory_kind: MemoryKind,
        /// Bytes asked for.
        size: u64,
        /// `CUresult`, 2 is out of memory.
        code: u32,
    },
    /// Something took memory of unknown size.
    Marked(DriverEvent),
}

/// The address space that a freed address belongs to.
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
    /// The address space in which addresses of this arena are unique.
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
    /// When, as the target's thread stood in the probe.
    pub time: Nanos,
    /// What happened.
    pub change: EventKind,
    /// Who did it; `None` for frees, unless the recording was asked for their stacks.
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
    /// Samples of perf-event uprobes, without BPF: sizes and addresses exact, stacks from sampling.
    PerfSamples,
}

/// How frees are learned of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FreeTracking {
    /// Each one, by a probe.
    #[default]
    Events,
    /// Each one, with the stack that freed.
    Stacks,
    /// Not probed: blocks gone are found by comparing with snapshots.
    Snapshots,
}

/// What is recorded exactly, and how: once, before the first [`EventBatch`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExactSettings {
    /// When the probes were in place.
    pub time: Nanos,
    /// How.
    pub backend: ProbeBackend,
    /// How frees are learned of.
    pub frees: FreeTracking,
    /// Allocations of fewer bytes have no stack; 0 for none.
    pub stacks_from: u64,
    /// One stack for this many bytes on average (Poisson); 0 for all.
    pub stacks_every: u64,
    /// Whether the forward lines of backward allocations are recorded.
    pub backward_lines: bool,
    /// Allocations of at least so many bytes have frames of C and C++ code; `None`: none have.
    pub native_from: Option<u64>,
    /// Whether each allocation and each free of PyTorch tells that it was made while a node was evaluated: frees do so only
    /// where steps are counted.
    pub knows_backward: bool,
    /// Whether no device had an allocator of PyTorch yet when the probes stood at it: then all that it ever does is
    /// recorded, from a level of 0 on.
    pub starts_empty: bool,
    /// What is probed: `pytorch:malloc`, `cuMemAlloc_v2`, ...
    pub probes: Vec<Arc<str>>,
    /// What is not covered, one sentence each.
    pub uncovered: Vec<Arc<str>>,
}

/// Events in time order, some milliseconds of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventBatch {
    /// The events.
    pub events: Vec<Event>,
}

/// The events so far against the allocator's own running counts, once a second: what the counter has
/// more (or, negative, fewer) than the probes saw since the recording began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterCheck {
    /// When.
    pub time: Nanos,
    /// The device.
    pub device: CudaIndex,
    /// `allocation.all.allocated`, less allocations seen.
    pub allocations: i64,
    /// `allocation.all.freed`, less frees seen (of all devices in a job that uses several); `None`
    /// where frees are not probed or cannot be told apart by device.
    pub frees: Option<i64>,
    /// `requested_bytes.all.allocated`, less bytes seen asked for.
    pub requested: i64,
}

/// Sums of the exact events of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventTotals {
    /// Allocations seen, of every kind.
    pub allocations: u64,
    /// Frees seen, of every kind.
    pub frees: u64,
    /// Events that found no room in the ring: seen and counted by the kernel, their content is lost.
    pub lost: u64,
    /// Allocations whose stack is deeper than the probe follows.
    pub truncated: u64,
    /// Allocations with a stack borrowed from the main thread.
    pub borrowed: u64,
    /// Allocations whose stack could not be read to its end: a page was not in memory.
    pub faulted: u64,
    /// Allocations whose stack has a code object that could not be named.
    pub unknown: u64,
    /// Allocations of threads without Python.
    pub no_python: u64,
    /// Allocations with frames of C and C++ code.
    pub native: u64,
    /// Allocations large enough for them that have none: the copy of the thread's stack was lost.
    pub native_lost: u64,
}
