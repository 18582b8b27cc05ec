//! The header that every CPython object starts with.

/// `PyObject`: reference counts, then the class (Include/object.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PyObjectHeader {
    /// Its bytes.
    pub len: usize,
    /// Offset of the pointer to the class.
    pub class: usize,
}

impl PyObjectHeader {
    /// The header in builds with a GIL.
    pub const USUAL: PyObjectHeader = PyObjectHeader { len: 16, class: 8 };

    /// Adjusts a field offset of builds with a GIL, for structures that differ only in the header.
    pub const fn shift(self, usual: usize) -> usize {
        usual + self.len - Self::USUAL.len
    }
}

impl Default for PyObjectHeader {
    fn default() -> Self {
        Self::USUAL
    }
}
