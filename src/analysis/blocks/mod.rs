//! Blocks and segments of a moment, and the free memory between them.

pub(super) mod fragmentation;
pub(super) mod free_fit;
pub(super) mod idle_streams;
pub(super) mod moment_blocks;
pub(super) mod private_pools;
pub(super) mod stream_blocks;
