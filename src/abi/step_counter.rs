//! Counters in a target that the kernel program reads: addresses and encodings only.

/// A counter in a target's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepCounterLocation {
    /// A word whose bits are compared.
    Word {
        /// Its address.
        at: u64,
        /// Whether it has 8 bytes instead of 4.
        wide: bool,
        /// Address of a word that shows whether the counter still exists.
        check_at: u64,
        /// The value that `check_at` must have.
        check: u64,
    },
    /// A Python variable that references an `int`.
    Integer(WatchedInteger),
}

/// A Python variable that references an `int` from 0 to 2⁶⁰, read as a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WatchedInteger {
    /// Address of the reference.
    pub at: u64,
    /// Address of a word that shows whether the reference is still the variable's: the frame's code
    /// object, its cell, or a dictionary's key table.
    pub check_at: u64,
    /// The value that `check_at` must have, without tag bits.
    pub check: u64,
    /// Address of the class `int`.
    pub class: u64,
    /// The variable's frame and the `PyThreadState` of its thread; `None` for a global variable.
    pub frame: Option<WatchedFrame>,
    /// First bit of the digit count in its word: 0, or 3 with the sign below (CPython 3.12+).
    pub size_bit: u8,
}

/// The frame that contains a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WatchedFrame {
    /// `PyThreadState` of its thread.
    pub thread: u64,
    /// Its own address.
    pub frame: u64,
}

/// The counters of training steps and epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WatchedSteps {
    /// The steps.
    pub step: StepCounterLocation,
    /// The epochs.
    pub epoch: Option<StepCounterLocation>,
}
