//! Arguments of the commands that list tensors: `tensors`, `why`, `graph`.

use std::time::Duration;

use clap::Args;

use super::SnapshotArgs;
use super::values::{device, pid, time};
use crate::render::DeviceChoice;

/// Options shared by all commands that read tensors.
#[derive(Debug, Clone, Args)]
pub struct ReadArgs {
    /// Process id of the job (decimal or 0x…)
    #[arg(short, long, value_parser = pid, allow_negative_numbers = true)]
    pub pid: u32,
    /// Include every process of the job that uses CUDA: this one and its descendants, one after the
    /// other
    #[arg(short, long)]
    pub subprocesses: bool,
    /// Print JSON: all tensors and nodes with their addresses; with --subprocesses one document
    /// after the other
    #[arg(short, long)]
    pub json: bool,
    /// What a snapshot of the tensors may cost
    #[command(flatten)]
    pub cost: SnapshotArgs,
}

/// `memspy tensors`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  memspy tensors -p 12345               owners in groups: cache[*].layers[*].keys
  memspy tensors -p 12345 --each        the largest storages, with all tensors that share them
  memspy tensors -p 12345 --every 10s   what was added and removed, every 10 seconds
  memspy tensors -p 12345 --json        every field, with addresses")]
pub struct TensorsArgs {
    /// What is read, and how
    #[command(flatten)]
    pub read_args: ReadArgs,
    /// Text only: list only this device: the number of a GPU as the job counts them, or cpu
    #[arg(long, value_name = "DEVICE", conflicts_with = "json", value_parser = device)]
    pub gpu: Option<DeviceChoice>,
    /// Text only: list tensors of the CPU and of other devices too [default: those on GPUs, or all
    /// if there are none at first]
    #[arg(short, long, conflicts_with = "gpu")]
    pub all_devices: bool,
    /// List single storages with their tensors, instead of groups whose names differ only in an
    /// index, key or number
    #[arg(long)]
    pub each: bool,
    /// List at most this many rows; 0 lists all [default: 25, with --each 40]
    #[arg(short, long, value_name = "N")]
    pub limit: Option<usize>,
    /// Repeat at this interval (500ms, 10s) until Ctrl-C, and list what was added (+) and removed
    /// (-) since the last one
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub every: Option<Duration>,
}

/// `memspy why`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  memspy why -p 12345 'train: losses[0]'     a name as 'memspy tensors' prints it
  memspy why -p 12345 'train: losses'        or of an owner: its largest tensor
  memspy why -p 12345 'losses[0]'            without its function, if the name is unique
  memspy why -p 12345 0x7f30c4a01d30         or an address, as in 'memspy tensors --json'
  memspy why -p 12345                        what stands out, each with a command")]
pub struct WhyArgs {
    /// What is read, and how
    #[command(flatten)]
    pub read_args: ReadArgs,
    /// Name of a tensor or owner, or the address of a tensor's Python object, TensorImpl or memory
    /// [default: up to five findings, as in 'memspy summary', the largest first; --json has all]
    pub tensor: Option<String>,
}

/// `memspy graph`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  memspy graph -p 12345                                     what the autograd graph keeps, by class of node
  memspy graph -p 12345 --like trumpy --loss 'main: loss'   trumpy's memory_for_backward
  memspy graph -p 12345 --like modelsize                    modelsize's parameters and variables")]
pub struct GraphArgs {
    /// What is read, and how
    #[command(flatten)]
    pub read_args: ReadArgs,
    /// Print what another tool would say about the same job, by that tool's own rule
    #[arg(long, value_name = "TOOL")]
    pub like: Option<PeerTool>,
    /// With --like trumpy: only this loss, by a name as 'memspy tensors' prints it, or an address
    /// [default: each that is alive]
    #[arg(long, value_name = "NAME", requires = "like")]
    pub loss: Option<String>,
}

/// A tool whose figures memspy can compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PeerTool {
    /// `memory_for_backward` of youkaichao/TRUMPY, of one loss
    Trumpy,
    /// `modelsize` of Oldpan/Pytorch-Memory-Utils, of every model
    Modelsize,
}
