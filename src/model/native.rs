//! Stacks that mix native and Python frames.

use std::time::Duration;

use super::stack::{Frame, StackTable};

/// A native frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NativeFrame {
    /// Function; `None`: no symbol covers the address.
    pub function: Option<String>,
    /// File name of its program or library.
    pub module: Option<String>,
    /// Address in the file, else in memory.
    pub address: u64,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MixedFrame {
    /// A Python frame.
    Python(Frame),
    /// A C, C++ or Rust frame.
    Native(NativeFrame),
}

/// A thread's stack, innermost frame first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixedStack {
    /// The thread's OS id, in the process's namespace.
    pub os_id: u64,
    /// The thread's name in the kernel.
    pub name: Option<String>,
    /// It runs Python.
    pub has_python: bool,
    /// Native frames come first if Python's have no place between them.
    pub frames: Vec<MixedFrame>,
    /// Why Python's frames are apart; `None`: in place.
    pub apart_because: Option<String>,
    /// Why outer native frames are missing; `None`: complete.
    pub incomplete: Option<String>,
}

/// The stacks of all threads.
#[derive(Debug)]
pub struct MixedStacks {
    /// Table of the Python frames.
    pub table: StackTable,
    /// By thread id.
    pub threads: Vec<MixedStack>,
    /// How long the process was stopped; `None`: a core file.
    pub stopped_for: Option<Duration>,
}
