//! Tags of memory that a program's allocator can unmap and map again: vLLM's sleep mode.

use super::gpu::CudaIndex;

/// The state of such an allocator in a process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SleepTags {
    /// None is loaded.
    #[default]
    NotLoaded,
    /// Its state was unreadable, with the reason.
    Unknown(String),
    /// Its memory by device and tag.
    Known(Vec<TaggedMemory>),
}

/// The memory of one tag on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaggedMemory {
    /// The device.
    pub device: CudaIndex,
    /// `weights`, `kv_cache` or the program's own.
    pub tag: String,
    /// All of it, mapped or not.
    pub bytes: u64,
    /// The part with a copy on the host: unmapped on the device.
    pub on_host: u64,
}
