//! Arguments of `memspy lines`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{StackArgs, TableArgs};
use crate::model::StatKey;

/// `memspy lines`.
#[derive(Debug, Args)]
pub struct LinesArgs {
    /// Trace to read; each of several gets its own table
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// With several traces: one table with the greatest and the smallest value of each line, which
    /// ranks have them, and the sum
    #[arg(long, conflicts_with = "max_peak", help_heading = "Several traces")]
    pub merge: bool,
    /// With several traces: only the one with the highest peak
    #[arg(long, help_heading = "Several traces")]
    pub max_peak: bool,
    /// What is printed, and where
    #[command(flatten)]
    pub table: TableArgs,
    /// What the rows are
    #[arg(long, value_enum, default_value_t = LinesBy::Line, help_heading = "Rows and columns")]
    pub by: LinesBy,
    /// With --by module: the first N steps of each module's path, as they are [default: whole
    /// paths, with * for the numbers of alike layers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..), help_heading = "Rows and columns")]
    pub depth: Option<u8>,
    /// List only functions whose name contains this (repeat for more)
    #[arg(long = "only", value_name = "NAME", help_heading = "Rows and columns")]
    pub functions: Vec<String>,
    /// List function by function, with the source text around the lines
    #[arg(long, help_heading = "Rows and columns")]
    pub source: bool,
    /// List library lines on their own [default: they count for the line of the program that called
    /// them]
    #[arg(long, conflicts_with = "source", help_heading = "Rows and columns")]
    pub all: bool,
    /// List at most this many rows of the ranking, or functions of the listing; 0 lists all
    /// [default: 25 rows, all functions]
    #[arg(long, value_name = "N", help_heading = "Rows and columns")]
    pub limit: Option<usize>,
    /// How to sort the ranking
    #[arg(long, value_enum, default_value_t = SortArg::Live, conflicts_with = "source", help_heading = "Rows and columns")]
    pub sort: SortArg,
    /// Columns to show: keys of torch.cuda.memory_stats, such as active_bytes.all.peak; in text
    /// only with --source
    #[arg(
        short,
        long,
        value_delimiter = ',',
        value_name = "KEY,KEY",
        help_heading = "Rows and columns"
    )]
    pub columns: Vec<StatKey>,
    /// List every line of a function's source, also lines without memory; in text only with
    /// --source
    #[arg(long, conflicts_with = "merge", help_heading = "Rows and columns")]
    pub all_lines: bool,
    /// How stacks are shown
    #[command(flatten)]
    pub stacks: StackArgs,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
}

/// What the rows of `lines` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinesBy {
    /// Lines of the program
    Line,
    /// Modules of the model (exact traces, or recorded with --owners)
    Module,
}

/// What the ranking of lines is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortArg {
    /// Live at the peak
    Live,
    /// The most that was allocated while the line ran
    Peak,
    /// Allocated while recording
    Allocated,
    /// Samples on the line; in exact traces its allocations
    Samples,
}

/// What `lines` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinesFormat {
    /// A table with the source text
    Text,
    /// Comma-separated values, in bytes
    Csv,
    /// JSON, in bytes
    Json,
}
