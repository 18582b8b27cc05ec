//! Frozen encodings of records, one module per format version.

pub(super) mod v1;
