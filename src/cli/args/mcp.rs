//! Arguments of `memspy mcp`.

use clap::Args;

/// `memspy mcp`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  memspy mcp                        started by an MCP client, on standard input and output
  memspy mcp --no-stop              no tool may stop a job, not even for milliseconds
  claude mcp add memspy -- sudo -n memspy mcp")]
pub struct McpArgs {
    /// Never stop a job, even if a client asks for it: what the job changes meanwhile may be
    /// inconsistent
    #[arg(long, visible_aliases = ["no-pause", "nonblocking"])]
    pub no_stop: bool,
}
