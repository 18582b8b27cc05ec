//! With what every object of a CPython begins.

/// `PyObject`: the counts of references, then the class (Include/object.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectHead {
    /// Its bytes.
    pub len: usize,
    /// Offset of the pointer to the class.
    pub class: usize,
}

impl ObjectHead {
    /// That of builds with a GIL.
    pub const USUAL: ObjectHead = ObjectHead { len: 16, class: 8 };

    /// Offset of a field of an object, given what it is in builds with a GIL: for structures that only begin differently.
    pub const fn past(self, usual: usize) -> usize {
        usual + self.len - Self::USUAL.len
    }
}

impl Default for ObjectHead {
    fn default() -> Self {
        Self::USUAL
    }
}
