//! Stacks that mix native and Python frames.

use std::time::Duration;

use super::stack::{Frame, StackTable};

/// A native frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeFrame {
    /// Its function; `None`: no symbol of known size contains the address.
    pub function: Option<String>,
    /// The file name of its program or library; `None`: the code is in no file.
    pub module: Option<String>,
    /// Address in that file; in memory without a file.
    pub address: u64,
}

/// One frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MixedFrame {
    /// A Python frame.
    Python(Frame),
    /// A C, C++ or Rust frame.
    Native(NativeFrame),
}

/// The stack of a thread, innermost frame first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixedStack {
    /// The thread's OS id, as the process sees it.
    pub os_id: u64,
    /// The kernel's name of the thread.
    pub name: Option<String>,
    /// Whether it runs Python.
    pub has_python: bool,
    /// Its frames. If the places of Python's frames are unknown, all native ones come first.
    pub frames: Vec<MixedFrame>,
    /// Why Python's frames could not be placed between the native ones; `None`: they were.
    pub apart_because: Option<String>,
    /// Why the outer native frames are missing; `None`: they are not.
    pub incomplete: Option<String>,
}

/// The stacks of all threads of a process at one moment.
#[derive(Debug)]
pub struct MixedStacks {
    /// The table of the Python frames.
    pub table: StackTable,
    /// One per thread, by id.
    pub threads: Vec<MixedStack>,
    /// How long the process was stopped; `None` for a core file.
    pub stopped_for: Option<Duration>,
}
