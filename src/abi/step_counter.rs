//! Counters that the kernel program reads.

/// A counter in the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CounterLocation {
    /// A word whose bits are compared.
    Word {
        /// Its address.
        at: u64,
        /// 8 bytes, not 4.
        wide: bool,
        /// Address of a word that shows whether the counter still exists.
        check_at: u64,
        /// That word's value.
        check: u64,
    },
    /// A Python variable that references an `int`.
    Integer(WatchedInteger),
}

/// A variable that references an `int` from 0 to 2⁶⁰.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WatchedInteger {
    /// Address of the reference.
    pub at: u64,
    /// Address of a word that changes with the reference's owner: code object, cell, or key table.
    pub check_at: u64,
    /// Its value without tag bits.
    pub check: u64,
    /// Address of the class `int`.
    pub class: u64,
    /// `None` for a global variable.
    pub frame: Option<WatchedFrame>,
    /// First bit of the digit count: 0, or 3 with the sign below (CPython 3.12+).
    pub size_bit: u8,
}

/// The frame of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WatchedFrame {
    /// Its `PyThreadState`.
    pub thread: u64,
    /// Its address.
    pub frame: u64,
}

/// Counters of training steps and epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct WatchedSteps {
    pub step: CounterLocation,
    pub epoch: Option<CounterLocation>,
}
