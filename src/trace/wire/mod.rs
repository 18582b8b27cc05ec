//! Frozen encodings of records, by format version.

pub(super) mod v1;
