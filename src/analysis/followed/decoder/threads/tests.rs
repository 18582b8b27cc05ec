//! Recordings of several threads.
