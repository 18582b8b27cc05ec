//! The rules, with and without evidence.
