//! Stacks for a fast poller: [`StackPoller`] copies frames in the same system call as other memory;
//! [`ChainNamer`] names them later on another thread. A stack counts if two consecutive polls
//! agree, or a short second copy shows the innermost frames unchanged.

mod chain;
mod naming;
mod pieces;
mod poller;

pub use chain::ChainFrame;
pub use naming::{ChainNamer, NamedChain};
pub use poller::{PolledStack, StackPoller};
