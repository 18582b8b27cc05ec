//! memspy: py-spy for GPU memory.

use std::process::ExitCode;

fn main() -> ExitCode {
    memspy::cli::run()
}
