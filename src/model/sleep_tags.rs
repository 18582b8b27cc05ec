//! Tags of memory that vLLM's sleep mode unmaps.

use super::gpu::CudaIndex;

/// State of such an allocator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SleepTags {
    /// Not loaded.
    #[default]
    NotLoaded,
    /// Unreadable, with the reason.
    Unknown(String),
    /// By device and tag.
    Known(Vec<TaggedMemory>),
}

/// A tag's memory on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaggedMemory {
    /// The device.
    pub device: CudaIndex,
    /// `weights`, `kv_cache`, or the program's own.
    pub tag: String,
    /// Its bytes, mapped or not.
    pub bytes: u64,
    /// Of these, copied to the host and unmapped on the device.
    pub on_host: u64,
}
