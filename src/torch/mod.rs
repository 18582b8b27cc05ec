//! libtorch in the target: allocator counters, segments and blocks; tensors and autograd nodes.
//!
//! Turns the memory of a process with `libc10_cuda` into
//! [`AllocatorCounters`](crate::model::AllocatorCounters) and
//! [`AllocatorSnapshot`](crate::model::AllocatorSnapshot). May import `model`, `abi`, `target`.
//! Never runs code in the target, stops it, or returns unchecked data as consistent. Start reading
//! at [`AllocatorReader`] and `discovery`, for tensors at [`TensorReader`].

mod address_changes;
mod address_tables;
mod backend;
mod backward;
mod blocks;
mod check;
mod class_names;
mod code_statics;
mod containers;
mod counters;
mod discovery;
mod error;
mod forked;
mod history;
mod host_allocator;
mod layout;
mod objects;
mod polled;
mod private_pools;
mod reader;
mod table_copies;
mod version;
mod walk;
mod working_set;

pub use address_changes::{AddressChanges, AddressDelta, AddressOutcome, MissingChanges};
pub use address_tables::AddressTables;
pub use backward::{BackwardError, autograd_info};
pub use class_names::ClassNames;
pub use error::AllocatorError;
pub use forked::is_in_bad_fork;
pub use history::{RecordedFrame, RecordedHistory, RecordedStack};
pub use host_allocator::page_locked;
pub use objects::{
    AutogradGraph, AutogradNode, SavedTensor, TensorDecoder, TensorReader, TensorTypes,
};
pub use polled::{AllocationTotals, CounterPoller, PolledCounters, PoolCounters};
pub use reader::AllocatorReader;
