//! Words of a target that count something, for a program in the kernel that reads them: addresses and encodings only.

/// A count in the memory of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepCounterLocation {
    /// A word whose bits are compared.
    Word {
        /// Its address.
        at: u64,
        /// Whether it has 8 bytes, not 4.
        wide: bool,
        /// Address of a word that tells that it is still there,
        check_at: u64,
        /// and what that has to be.
        check: u64,
    },
    /// A variable of Python that refers to an `int`.
    Integer(WatchedInteger),
}

/// A variable of Python that refers to an `int` of 0 to 2⁶⁰, whose value is given as a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WatchedInteger {
    /// Address of the reference.
    pub at: u64,
    /// Address of a word that tells that the reference is still the variable's: the frame's code object, its cell, or the
    /// key table of a dictionary,
    pub check_at: u64,
    /// and what it has to be; tag bits do not count.
    pub check: u64,
    /// Address of the class `int`.
    pub class: u64,
    /// The variable's frame and the `PyThreadState` of its thread; `None` for a global variable.
    pub frame: Option<WatchedFrame>,
    /// Where in the word for it the number of digits begins: 0, or 3 with the sign below (CPython 3.12+).
    pub size_bit: u8,
}

/// A frame that a variable is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WatchedFrame {
    /// `PyThreadState` of its thread.
    pub thread: u64,
    /// Its own address.
    pub frame: u64,
}

/// What counts the steps of training, and what counts its epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WatchedSteps {
    /// The steps.
    pub step: StepCounterLocation,
    /// The epochs.
    pub epoch: Option<StepCounterLocation>,
}
