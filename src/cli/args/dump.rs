//! Arguments of `memspy dump`.

use std::path::PathBuf;

use clap::Args;

use super::SnapshotArgs;
use super::values::{gpu, pid};

/// `memspy dump`.
#[derive(Debug, Args)]
#[command(override_usage = "memspy dump [OPTIONS] -p PID\n       memspy dump [OPTIONS] CORE")]
pub struct DumpArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, allow_negative_numbers = true, required_unless_present_any = ["core", "core_option"])]
    pub pid: Option<u32>,
    /// Core file of a job that crashed, instead of a process
    #[arg(value_name = "CORE", conflicts_with = "pid")]
    pub core: Option<PathBuf>,
    /// Same as CORE; py-spy's spelling
    #[arg(long = "core", value_name = "CORE", conflicts_with_all = ["pid", "core"])]
    pub core_option: Option<PathBuf>,
    /// Include every process of the job that uses CUDA: this one and its descendants, one after the
    /// other
    #[arg(short, long, requires = "pid")]
    pub subprocesses: bool,
    /// Print JSON; with --subprocesses one document after the other
    #[arg(short, long)]
    pub json: bool,
    /// Only this device, as the job numbers it
    #[arg(long, value_name = "N", value_parser = gpu)]
    pub gpu: Option<u32>,
    /// Show full file names
    #[arg(long)]
    pub full_filenames: bool,
    /// Also print the full stacks of idle threads
    #[arg(short, long)]
    pub idle: bool,
    /// Also print the frames of C, C++ and Rust between those of Python; stops the job for some
    /// milliseconds
    #[arg(short, long)]
    pub native: bool,
    /// Also print the cached free blocks by size
    #[arg(long)]
    pub cache: bool,
    /// List each storage instead of groups
    #[arg(long, conflicts_with = "json")]
    pub each: bool,
    /// What reading its tensors may cost
    #[command(flatten)]
    pub cost: SnapshotArgs,
}
