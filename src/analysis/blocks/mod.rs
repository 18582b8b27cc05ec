//! Blocks of a moment, and the free memory between them.

mod cache_reasons;
mod fragmentation;
mod free_fit;
mod idle_streams;
mod moment_blocks;
mod private_pools;
mod stream_blocks;

pub use cache_reasons::{CacheReason, cache_reasons};
pub use fragmentation::{Fragmentation, FreeBlocks, SegmentSum, SizeClass};
pub use free_fit::{FreeFit, UnusableBlocks, UnusableReason};
pub use idle_streams::IdleStreams;
pub(in crate::analysis) use moment_blocks::tile;
pub use moment_blocks::{BlockEvent, BlocksBuilder, DeviceBlocks, MomentBlocks};
pub use private_pools::{PrivatePool, private_pools, users_label};
pub use stream_blocks::StreamMemory;
