//! A process's CUDA allocator.

use std::time::Duration;

use super::address_tables::{self, AddressTables};
use super::backend;
use super::blocks::{BlocksLayout, ReadAttempts, SnapshotReader};
use super::containers::FlatTable;
use super::counters::CounterReader;
use super::discovery::{self, DiscoveredDevices, SearchOutcome};
use super::error::{AllocatorError, reading};
use super::history::{self, HistoryInput, RecordedHistory};
use super::polled::CounterPoller;
use super::version;
use crate::abi::CounterAddresses;
use crate::model::{
    AllocatorBackend, AllocatorCounters, AllocatorSnapshot, CudaIndex, Nanos, RecorderState,
};
use crate::target::{Addr, LoadedObject, Memory, Process};

const SEARCHES: u32 = 32;
const SNAPSHOT_TIMEOUT: Duration = Duration::from_millis(3);

/// Reads PyTorch's CUDA allocator (2.1 to 2.15, later ones of the same shape). Refuses others
/// ([`AllocatorError::UnknownLayout`]).
pub struct AllocatorReader {
    memory: Box<dyn Memory>,
    variable: Addr,
    version: Option<String>,
    timeout: Duration,
    allocator: Addr,
    backend: AllocatorBackend,
    native: Option<NativeAllocator>,
}

struct NativeAllocator {
    devices: DiscoveredDevices,
    counters: CounterReader,
    layout: BlocksLayout,
    blocks: Vec<SnapshotReader>,
    address_tables: Option<Addr>,
}

impl AllocatorReader {
    /// `Ok(None)` without `libc10_cuda`; `NotSupported` for ROCm.
    pub fn attach(process: &Process) -> Result<Option<AllocatorReader>, AllocatorError> {
        let memory = process.memory();
        let mappings = process.mappings()?;
        let of_library = |name: &str, stem: &str| name.starts_with(stem) && name.contains(".so");
        let library = LoadedObject::find(&memory, &mappings, |n| of_library(n, "libc10_cuda"));
        let Some(library) = library.transpose()? else {
            if mappings.object(|n| of_library(n, "libc10_hip")).is_some() {
                return Err(AllocatorError::NotSupported {
                    what: "the allocator",
                    why: "this PyTorch is built for ROCm".to_owned(),
                });
            }
            return Ok(None);
        };
        let version = version::read(process, &library.path());
        let Some(variable) = backend::variable(process, &memory, &mappings, &library)? else {
            return Err(AllocatorError::NoAllocatorVariable {
                library: library.path().display().to_string(),
                version: version.unwrap_or_else(|| "unknown".to_owned()),
                symbol: backend::ALLOCATOR,
            });
        };
        Self::with_memory(Box::new(memory), variable, version).map(Some)
    }

    /// For captured `memory`; `variable`: address of `c10::cuda::CUDACachingAllocator::allocator`.
    pub fn with_memory(
        memory: Box<dyn Memory>,
        variable: Addr,
        version: Option<String>,
    ) -> Result<AllocatorReader, AllocatorError> {
        let mut reader = AllocatorReader {
            memory,
            variable,
            version,
            timeout: SNAPSHOT_TIMEOUT,
            allocator: Addr(0),
            backend: AllocatorBackend::NotInitialized,
            native: None,
        };
        reader.refresh()?;
        Ok(reader)
    }

    /// Returns whether CUDA was initialised or the allocator replaced.
    pub fn refresh(&mut self) -> Result<bool, AllocatorError> {
        let memory = &*self.memory;
        let allocator = memory
            .pointer(self.variable)
            .map_err(reading("the allocator variable", self.variable))?;
        if allocator == self.allocator {
            match &self.native {
                Some(native) if native.is_current(memory)? => return Ok(false),
                None if self.backend != AllocatorBackend::NotInitialized => return Ok(false),
                _ => {}
            }
        }
        let before = (self.backend.clone(), self.devices().count());
        self.native = None;
        self.allocator = Addr(0);
        if allocator.0 == 0 {
            self.backend = AllocatorBackend::NotInitialized;
        } else {
            let name = backend::type_name(memory, allocator)
                .map_err(reading("the type of the allocator", allocator))?;
            self.backend = backend::of_type(&name);
            if self.backend == AllocatorBackend::Native {
                self.native = self.search(allocator)?;
                if self.native.is_none() {
                    self.backend = AllocatorBackend::NotInitialized;
                }
            }
            self.allocator = allocator;
        }
        Ok(before != (self.backend.clone(), self.devices().count()))
    }

    /// As of the last [`Self::refresh`].
    pub fn backend(&self) -> &AllocatorBackend {
        &self.backend
    }

    /// `2.11.0+cu130`, from `version.py`; `None` if unreadable.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Every visible device, once CUDA is initialised.
    pub fn devices(&self) -> impl Iterator<Item = CudaIndex> + use<> {
        let count = self.native.as_ref().map_or(0, |n| n.devices.objects.len());
        (0..count as u32).map(CudaIndex)
    }

    /// The devices' counters, for a probe.
    pub fn levels(&self) -> impl Iterator<Item = (CudaIndex, CounterAddresses)> + '_ {
        let native = self.native.iter();
        native
            .flat_map(|native| native.devices.levels(native.address_tables))
            .zip(0..)
            .map(|(at, i)| (CudaIndex(i), at))
    }

    /// A fast poller; `None` without a native allocator.
    pub fn counter_poller(&self) -> Option<CounterPoller> {
        let native = self.native.as_ref()?;
        Some(CounterPoller::new(&native.devices.counters, &native.devices.objects))
    }

    /// Allocated addresses of `device`, the only one in use. `None` before PyTorch 2.3, or without
    /// a block.
    pub fn address_tables(&self, device: CudaIndex) -> Option<AddressTables> {
        let native = self.native.as_ref()?;
        let at = native.address_tables?;
        let object = *native.devices.objects.get(device.0 as usize)?;
        let pools = discovery::pools(&*self.memory, object, &native.devices.counters).ok()?;
        // A wrong layout, found during changes, shows later: each block must have its address.
        let block = discovery::block_layout(&*self.memory, object, device.0, &pools).ok()??;
        let mut counters = self.counter_poller()?;
        counters.retain(|polled| polled == device);
        Some(AddressTables::new(at, block, counters))
    }

    /// How long [`Self::blocks`] waits for an idle target; default: 3 ms.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// `torch.cuda.memory_stats` of all devices (c10/core/CachingDeviceAllocator.h): one system
    /// call of 1 KiB per device, repeated while they change. `Torn` if they changed during every
    /// attempt; `NotInitialized`, `NotSupported` as for [`Self::backend`].
    pub fn counters(
        &mut self,
        out: &mut Vec<(CudaIndex, AllocatorCounters)>,
    ) -> Result<(), AllocatorError> {
        self.read_counters(false, out)
    }

    /// The same while no thread is inside an allocator: memory of a `cudaMalloc` in progress does
    /// not count. `Torn` if one stays for milliseconds.
    pub fn counters_between_calls(
        &mut self,
        out: &mut Vec<(CudaIndex, AllocatorCounters)>,
    ) -> Result<(), AllocatorError> {
        self.read_counters(true, out)
    }

    fn read_counters(
        &mut self,
        between_calls: bool,
        out: &mut Vec<(CudaIndex, AllocatorCounters)>,
    ) -> Result<(), AllocatorError> {
        out.clear();
        let Some(native) = &mut self.native else { return Err(self.unreadable("its counters")) };
        native.counters.read(&*self.memory, &native.devices.counters, between_calls, out)
    }

    /// `torch.cuda.memory_snapshot` of `device`, but inactive blocks have `requested` 0.
    /// `Consistent` if unchanged and equal to the counters; `Degraded` if the target was not idle
    /// within [`Self::set_timeout`]. `UnknownLayout` if it contradicts unchanged counters; `Torn`
    /// without any snapshot. Its time is that of `now` while the target was idle.
    pub fn blocks(
        &mut self,
        device: CudaIndex,
        now: &dyn Fn() -> Nanos,
    ) -> Result<AllocatorSnapshot, AllocatorError> {
        self.blocks_when(device, now, &mut || {})
    }

    /// `before_attempt` may wait until the target is idle.
    pub fn blocks_when(
        &mut self,
        device: CudaIndex,
        now: &dyn Fn() -> Nanos,
        before_attempt: &mut dyn FnMut(),
    ) -> Result<AllocatorSnapshot, AllocatorError> {
        self.blocks_of(None, device, now, before_attempt)
    }

    /// [`Self::blocks`] from a copy of the target's memory.
    pub fn blocks_in(
        &mut self,
        memory: &dyn Memory,
        device: CudaIndex,
    ) -> Result<AllocatorSnapshot, AllocatorError> {
        self.blocks_of(Some(memory), device, &|| Nanos(0), &mut || {})
    }

    /// The pages that the last [`Self::blocks`] needed, by number.
    pub fn pages_of_blocks(&self) -> Vec<u64> {
        let readers = self.native.iter().flat_map(|native| &native.blocks);
        readers.flat_map(SnapshotReader::pages).collect()
    }

    fn blocks_of(
        &mut self,
        memory: Option<&dyn Memory>,
        device: CudaIndex,
        now: &dyn Fn() -> Nanos,
        before_attempt: &mut dyn FnMut(),
    ) -> Result<AllocatorSnapshot, AllocatorError> {
        let version = self.version.as_deref().unwrap_or("unknown");
        let Some(native) = &mut self.native else { return Err(self.unreadable("its blocks")) };
        let reader =
            native.blocks.get_mut(device.0 as usize).ok_or(AllocatorError::NoDevice(device))?;
        let counters = &native.devices.counters;
        let attempts = ReadAttempts { timeout: self.timeout, before_each: before_attempt, now };
        let memory = memory.unwrap_or(&*self.memory);
        reader.read(memory, counters, &mut native.layout, attempts, version)
    }

    /// The target's `torch.cuda.memory._record_memory_history` of `device`, and its snapshot if the
    /// target was idle. `keep`, perhaps called repeatedly, must read what the stacks reference.
    ///
    /// # Errors
    ///
    /// As [`Self::blocks`]; `UnknownLayout` also for ring buffer, entry or clock.
    pub fn history(
        &mut self,
        device: CudaIndex,
        keep: &mut dyn FnMut(&RecordedHistory),
    ) -> Result<(Option<AllocatorSnapshot>, RecordedHistory), AllocatorError> {
        let snapshot = match self.blocks(device, &|| Nanos(0)) {
            // Events can be read while the target allocates.
            Err(AllocatorError::Torn { .. }) => None,
            other => Some(other?),
        };
        let version = self.version.as_deref().unwrap_or("unknown");
        let Some(native) = &self.native else { return Err(self.unreadable("its history")) };
        let reader =
            native.blocks.get(device.0 as usize).ok_or(AllocatorError::NoDevice(device))?;
        let Some(tables) = native.layout.end_of_active() else {
            return Err(AllocatorError::NotInitialized);
        };
        let blocks = if snapshot.is_some() { reader.places() } else { Vec::new() };
        let input = HistoryInput {
            index: device.0,
            device: reader.device(),
            vector: native.devices.vector,
            tables,
            block: native.layout.block(),
            blocks: &blocks,
            version,
        };
        Ok((snapshot, history::read(&*self.memory, input, keep)?))
    }

    /// Whether the target records its own allocations, and how much; `None` if not found.
    pub fn recorder(&self, device: CudaIndex) -> Option<RecorderState> {
        let native = self.native.as_ref()?;
        let object = *native.devices.objects.get(device.0 as usize)?;
        let pools = discovery::pools(&*self.memory, object, &native.devices.counters).ok()?;
        let tables = pools.active + FlatTable::SIZE;
        history::recorder(&*self.memory, object, native.devices.vector, tables, device.0)
    }

    fn unreadable(&self, what: &'static str) -> AllocatorError {
        let why = match &self.backend {
            AllocatorBackend::CudaMallocAsync => {
                "the target uses the driver's pool (backend:cudaMallocAsync), not PyTorch's native allocator".to_owned()
            }
            AllocatorBackend::Pluggable(name) => {
                format!("the target uses its own allocator ({})", name.escape_debug())
            }
            AllocatorBackend::Unknown(name) => {
                format!("the target's allocator {} is unknown", name.escape_debug())
            }
            _ => return AllocatorError::NotInitialized,
        };
        AllocatorError::NotSupported { what, why }
    }

    fn search(&self, allocator: Addr) -> Result<Option<NativeAllocator>, AllocatorError> {
        let mut what = String::new();
        for _ in 0..SEARCHES {
            match discovery::devices(&*self.memory, allocator) {
                SearchOutcome::Found(devices) => {
                    let tables = address_tables::find(&*self.memory, allocator);
                    return Ok(Some(NativeAllocator::new(*devices, tables)));
                }
                SearchOutcome::NotInitialized => what.clear(),
                SearchOutcome::Unknown(why) => what = why,
            }
            self.memory.pointer(allocator).map_err(reading("the allocator", allocator))?;
            if what.is_empty() {
                return Ok(None);
            }
        }
        let version = self.version.clone().unwrap_or_else(|| "unknown".to_owned());
        Err(AllocatorError::UnknownLayout { version, what })
    }
}

impl NativeAllocator {
    fn new(devices: DiscoveredDevices, address_tables: Option<Addr>) -> NativeAllocator {
        let blocks = devices.objects.iter().zip(0..);
        NativeAllocator {
            counters: CounterReader::new(&devices.objects, &devices.counters),
            blocks: blocks
                .map(|(addr, index)| SnapshotReader::new(CudaIndex(index), *addr))
                .collect(),
            layout: BlocksLayout::default(),
            devices,
            address_tables,
        }
    }
    fn is_current(&self, memory: &dyn Memory) -> Result<bool, AllocatorError> {
        let vector = self.devices.vector;
        let range = [memory.u64(vector), memory.u64(vector + 8)];
        let [begin, end] = range.map(|word| word.map_err(reading("the devices", vector)));
        Ok([begin?, end?] == self.devices.range)
    }
}
