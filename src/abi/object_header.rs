//! The header of every CPython object.

/// `PyObject`: reference counts, then the class (Include/object.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectHeader {
    /// Its bytes.
    pub len: usize,
    /// Offset of the class pointer.
    pub class: usize,
}

impl ObjectHeader {
    /// The header with a GIL.
    pub const USUAL: ObjectHeader = ObjectHeader { len: 16, class: 8 };

    /// For fields displaced only by the header's length.
    pub const fn shift(self, usual: usize) -> usize {
        usual + self.len - Self::USUAL.len
    }
}

impl Default for ObjectHeader {
    fn default() -> Self {
        Self::USUAL
    }
}
