//! Options of a flamegraph's picture.

use std::path::PathBuf;

use clap::Args;

/// The style of a flamegraph, and its comparison.
#[derive(Debug, Clone, Args)]
pub struct PictureArgs {
    /// Print a tree with sizes instead of a picture [default output: standard output]
    #[arg(long, conflicts_with_all = ["format", "title"], help_heading = "Picture")]
    pub text: bool,
    /// Open the written file in a browser (with xdg-open)
    #[arg(long, conflicts_with = "text", help_heading = "Picture")]
    pub open: bool,
    /// Draw also the library functions that only call another one: Module._call_impl, decorators,
    /// what surrounds compiled code
    #[arg(long, help_heading = "Picture")]
    pub all_frames: bool,
    /// Start with the lines that allocate, with their callers below
    #[arg(long, help_heading = "Picture")]
    pub inverted: bool,
    /// Leave out frames with less than this percentage of the total [default: 1 in text, else what
    /// is too narrow to see]
    #[arg(long, value_name = "PERCENT", value_parser = percent, help_heading = "Picture")]
    pub min_width: Option<f64>,
    /// Title of the picture
    #[arg(long, value_name = "TEXT", help_heading = "Picture")]
    pub title: Option<String>,
    /// Compare with this trace, function by function: red grew, blue shrank
    #[arg(
        long,
        value_name = "OTHER",
        conflicts_with_all = ["text", "threads", "merge", "max_peak", "total_allocated", "min_lifetime"],
        help_heading = "Picture"
    )]
    pub diff: Option<PathBuf>,
}

fn percent(text: &str) -> Result<f64, String> {
    let value: f64 = text.trim_end_matches('%').parse().map_err(|_| "not a number".to_owned())?;
    match (0.0..=100.0).contains(&value) {
        true => Ok(value),
        false => Err("a percentage is from 0 to 100".to_owned()),
    }
}
