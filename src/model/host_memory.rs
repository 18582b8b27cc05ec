//! A job's memory on the host.

/// PyTorch's own recording of allocations (`torch.cuda.memory._record_memory_history`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecorderState {
    /// Stacks are recorded now.
    pub is_on: bool,
    /// Its limit in entries.
    pub max_entries: u64,
    /// Its entries.
    pub entries: u64,
    /// Their bytes, without the stacks.
    pub bytes: u64,
}

/// A buffer of PyTorch's allocator of page-locked memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLockedBlock {
    /// Its address.
    pub address: u64,
    /// Its bytes.
    pub size: u64,
    /// A tensor has it; else it is cached.
    pub is_used: bool,
}

/// The host's memory at one time. Bytes; `None` is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostReading {
    /// Resident (`VmRSS`).
    pub resident: Option<u64>,
    /// Page-locked by PyTorch; `None`: its allocator was not found.
    pub page_locked: Option<Vec<PageLockedBlock>>,
    /// PyTorch's recorder with most entries.
    pub history: Option<RecorderState>,
    /// Whether PyTorch's profiler is on; `None`: not known.
    pub is_profiled: Option<bool>,
}
