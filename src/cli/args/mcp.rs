//! The words of `memspy mcp`.

use clap::Args;

/// `memspy mcp`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  memspy mcp                        what an MCP client starts: requests on standard input, answers on standard output
  memspy mcp --no-stop              no tool may stop a job, not even for the milliseconds of a look at tensors
  claude mcp add memspy -- sudo -n memspy mcp")]
pub struct McpArgs {
    /// Never stop a job, whatever a client asks for: what it changes meanwhile may be torn
    #[arg(long, visible_aliases = ["no-pause", "nonblocking"])]
    pub no_stop: bool,
}
