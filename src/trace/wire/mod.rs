//! The frozen encodings of records, one module per format version, each translating to and from the model.

pub(super) mod v1;
