//! Stacks in which frames of C and C++ stand between those of Python.

use std::time::Duration;

use super::stack::{Frame, StackTable};

/// A frame of compiled code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeFrame {
    /// Its function; `None` where no symbol of known size holds the address.
    pub function: Option<String>,
    /// The name of the program's or library's file; `None` where the code is in none.
    pub module: Option<String>,
    /// Where in that file's own addresses; where in memory if there is no file.
    pub address: u64,
}

/// One frame of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MixedFrame {
    /// Of Python.
    Python(Frame),
    /// Of C, C++ or Rust.
    Native(NativeFrame),
}

/// The stack of a thread, the innermost frame first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixedStack {
    /// The thread's id in the operating system, as the process sees it.
    pub os_id: u64,
    /// The kernel's name of the thread.
    pub name: Option<String>,
    /// Whether it runs Python.
    pub has_python: bool,
    /// Its frames. Where the places of Python's frames are not known, all native ones come first.
    pub frames: Vec<MixedFrame>,
    /// Why it is not known where Python's frames belong between the native ones; `None` where it is.
    pub apart_because: Option<String>,
    /// Why the outer part of the native frames is missing; `None` where it is not.
    pub incomplete: Option<String>,
}

/// The stacks of all threads of a process at one moment.
#[derive(Debug)]
pub struct MixedStacks {
    /// What the frames of Python refer to.
    pub table: StackTable,
    /// One for each thread, in the order of their ids.
    pub threads: Vec<MixedStack>,
    /// For how long the process was stopped; `None` for a core file.
    pub stopped_for: Option<Duration>,
}
