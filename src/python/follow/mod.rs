//! Stacks for a fast poller: raw frame chains, copied in the same system call as other memory and
//! named some milliseconds later on another thread.
//!
//! The sampling reader ([`crate::python::stacks::walk`]) copies the innermost frames twice. For a
//! poller, the next poll is the second copy: [`StackPoller`] accepts a chain if two consecutive
//! polls agree, or if a short second copy shows the innermost frames unchanged. [`ChainNamer`]
//! names the frames.

mod chain;
mod naming;
mod pieces;
mod poller;

pub use chain::ChainFrame;
pub use naming::{ChainNamer, NamedChain};
pub use poller::{PollTarget, PolledStack, StackPoller, ThreadKey};
