//! The command line: words typed become rooms called, errors become one clear line and an exit code.
//!
//! Turns arguments into calls and results into text on the terminal.
//! May import every room but the readers; alone knows clap, anyhow, printing and exiting.
//! Never reads a target or a trace by itself.
//! Start reading at [`args`] and [`run`].

pub mod args;
pub mod output;
