//! Stacks for a fast poller: raw chains of frames in the same system call as other memory, named later.
//!
//! A sample of the usual reader ([`crate::python::stacks::walk`]) proves each stack by copying the innermost frames twice. A poller comes
//! by every microsecond or two, so the next poll is the second copy: [`StackPoller`] asks for each thread's head and for
//! the places in which its frames lay last time, and tells whether the chain of frames is the one of the poll before. Only
//! chains that two polls in a row agree on are believed, or those whose innermost frames a short second copy shows unchanged. What frames are called is found out by [`ChainNamer`], on another
//! thread and some milliseconds later.

mod chain;
mod naming;
mod pieces;
mod poller;

pub use chain::ChainFrame;
pub use naming::{ChainNamer, NamedChain};
pub use poller::{PollTarget, PolledStack, StackPoller, ThreadKey};
