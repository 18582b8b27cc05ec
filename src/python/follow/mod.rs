//! Stacks for a fast poller: raw frame chains, copied in the same system call as other memory and
//! named later.
//!
//! The sampling reader ([`crate::python::stacks::walk`]) proves each stack by copying the innermost
//! frames twice. A poller returns every one or two microseconds, so its next poll is the second
//! copy: [`StackPoller`] requests each thread's head and the addresses of its last frames, and
//! compares the chain with the previous poll's. A chain is accepted if two consecutive polls agree,
//! or if a short second copy shows the innermost frames unchanged. [`ChainNamer`] names frames on
//! another thread, some milliseconds later.

mod chain;
mod naming;
mod pieces;
mod poller;

pub use chain::ChainFrame;
pub use naming::{ChainNamer, NamedChain};
pub use poller::{PollTarget, PolledStack, StackPoller, ThreadKey};
