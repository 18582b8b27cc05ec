//! What is printed besides an answer, and in which colours.

use clap::{Args, ValueEnum};

/// Options of every command about what the user sees.
#[derive(Debug, Clone, Copy, Args)]
pub struct ConsoleArgs {
    /// Colours in text: auto has them on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = ColorArg::Auto, help_heading = "Messages")]
    pub color: ColorArg,
    /// Print results and errors only
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Messages")]
    pub quiet: bool,
    /// Also say what memspy does, and how long it takes
    #[arg(short, long, global = true, help_heading = "Messages")]
    pub verbose: bool,
}

/// When text has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorArg {
    /// On a terminal, by the rule of no-color.org
    Auto,
    /// Also in files and pipes
    Always,
    /// Nowhere
    Never,
}
