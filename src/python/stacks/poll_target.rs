//! A thread that the sampler found, for [`StackPoller`](crate::python::StackPoller).

use crate::model::ThreadId;
use crate::python::stacks::thread_list::ThreadEntry;

/// A thread state's address, and a number that differs after reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadKey(u64, u64);

/// A thread that can be polled.
#[derive(Debug, Clone, Copy)]
pub struct PollTarget {
    pub(in crate::python) place: ThreadEntry,
    /// Its id at the last sample.
    pub thread: ThreadId,
    /// Kernel id in the target's pid namespace.
    pub os_id: Option<u64>,
    /// Kernel id in memspy's pid namespace.
    pub id_here: Option<u32>,
}

impl PollTarget {
    /// Identifies the thread.
    pub fn key(&self) -> ThreadKey {
        ThreadKey(self.place.at.0, self.place.identity)
    }
}
