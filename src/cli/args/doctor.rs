//! Arguments of `memspy doctor`.

use std::path::PathBuf;

use clap::Args;

use super::values::pid;

/// `memspy doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, allow_negative_numbers = true, required_unless_present = "report")]
    pub pid: Option<u32>,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
    /// Write what a bug report needs: versions, kernel, driver, GPUs, rights, and with -p what
    /// works with the job; no paths, command lines or names of user and host [default FILE:
    /// standard output]
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", conflicts_with = "json")]
    pub report: Option<PathBuf>,
    /// Overwrite the report
    #[arg(long, requires = "report")]
    pub force: bool,
}
