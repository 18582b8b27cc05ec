//! Arguments of `memspy man`.

use std::path::PathBuf;

use clap::Args;

/// `memspy man`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  memspy man -o ~/.local/share/man/man1     memspy.1, and a page per command: memspy-record.1")]
pub struct ManArgs {
    /// Folder to write into; created if missing
    #[arg(short, long, value_name = "FOLDER")]
    pub output: PathBuf,
}
