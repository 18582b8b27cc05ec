//! The CPython interpreters to test against.
