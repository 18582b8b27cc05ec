//! Arguments of `memspy dry-run`.

use std::path::PathBuf;

use clap::Args;

use super::values::size;
use crate::model::Card;

const STEPS: u32 = 3;

/// `memspy dry-run`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  memspy dry-run --card h100 -- python train.py
  memspy dry-run --card 24GiB --gpus 2 -o trace.bin -- torchrun --nproc-per-node 2 train.py
  memspy dry-run --card a100-80g --fit batch=1..512 -- python train.py --batch-size {batch}
  memspy dry-run --card l4 --max-peak 20GiB -- pytest tests/test_step.py

Exit code 0: it fits; 3: it does not, or the peak is above --max-peak; 1: no answer.

The program, its PyTorch and PyTorch's allocator are real; the CUDA libraries below are simulated, so \
kernels compute nothing and every value reads as zero. The libraries are built on first use (this needs \
a C compiler) and kept in $XDG_CACHE_HOME/memspy/dry-run; delete that folder to clear them. \
What the program writes is real: a checkpoint that it saves holds zeros. Let it write elsewhere.")]
pub struct DryRunArgs {
    /// The card: its memory (24GiB), or t4, v100, v100-32g, a10, a100, a100-80g, l4, l40s,
    /// rtx3090, rtx4090, rtx5090, h100, h200, b200
    #[arg(long, value_name = "NAME|SIZE", value_parser = Card::parse, default_value = "h100")]
    pub card: Card,
    /// How many of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub gpus: u32,
    /// End the program after so many steps of an optimizer: later ones repeat the peak. 0 lets it
    /// run to its end [default: 3; 0 with --pass-exit, and for pytest]
    #[arg(long, value_name = "N")]
    pub until_step: Option<u32>,
    /// Exit with code 3 if a process has more allocated at its peak
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_peak: Option<u64>,
    /// Search the largest number of this range that fits: {NAME} in the command stands for it
    #[arg(long, value_name = "NAME=A..B", value_parser = FitRange::parse, conflicts_with_all = ["max_peak", "pass_exit"])]
    pub fit: Option<FitRange>,
    /// Exit with the program's own code if it fits
    #[arg(long)]
    pub pass_exit: bool,
    /// Write the allocations of the process with the highest peak as a trace, for 'memspy flame',
    /// 'lines' and 'report'
    #[arg(short, long, value_name = "TRACE")]
    pub output: Option<PathBuf>,
    /// Overwrite the output file
    #[arg(long)]
    pub force: bool,
    /// Print the answer as JSON; the program's standard output goes to standard error
    #[arg(long)]
    pub json: bool,
    /// Instead of a program: one forward and backward pass of what NAME makes, a class or function
    /// without arguments of FILE.py or of an importable module (torchvision.models:resnet50)
    #[arg(long, value_name = "FILE:NAME", requires = "input", conflicts_with_all = ["until_step", "pass_exit"])]
    pub module: Option<String>,
    /// The shape of an input of the module, with the batch: 8x3x224x224, or 8x512:int64. Once for
    /// each input
    #[arg(long, value_name = "SHAPE", requires = "module")]
    pub input: Vec<String>,
    /// The program, after --; with --module only its Python [default: python]
    #[arg(last = true, required_unless_present = "module", value_name = "COMMAND")]
    pub program: Vec<String>,
}

impl DryRunArgs {
    /// What is started.
    pub fn command(&self) -> Vec<String> {
        let Some(module) = &self.module else { return self.program.clone() };
        let python = self.program.first().map_or("python", String::as_str);
        let words = [python, "-m", "memspy_module", module];
        words.into_iter().map(str::to_owned).chain(self.input.iter().cloned()).collect()
    }

    /// Each test of pytest may need more than the one before.
    pub fn last_step(&self) -> u32 {
        let is_pytest = |word: &String| {
            let name = std::path::Path::new(word).file_name();
            name.is_some_and(|name| name == "pytest" || name == "py.test")
        };
        let runs_whole = self.pass_exit || self.program.iter().any(is_pytest);
        self.until_step.unwrap_or(if runs_whole { 0 } else { STEPS })
    }
}

/// The numbers to search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FitRange {
    /// Its name in the command.
    pub name: String,
    /// The lowest.
    pub low: u64,
    /// The highest.
    pub high: u64,
}

impl FitRange {
    fn parse(text: &str) -> Result<FitRange, String> {
        let parsed = text.split_once('=').and_then(|(name, range)| {
            let (low, high) = range.split_once("..")?;
            let (low, high) = (low.parse().ok()?, high.trim_start_matches('=').parse().ok()?);
            (!name.is_empty() && low <= high).then(|| FitRange { name: name.to_owned(), low, high })
        });
        parsed.ok_or_else(|| "a name and two whole numbers, such as batch=1..512".to_owned())
    }

    /// The command with `value` in place of the name.
    pub fn filled(&self, program: &[String], value: u64) -> Vec<String> {
        let name = format!("{{{}}}", self.name);
        program.iter().map(|word| word.replace(&name, &value.to_string())).collect()
    }

    /// What is wrong with a command that has no place for the number.
    pub fn missing_in(&self, program: &[String]) -> Option<String> {
        let name = format!("{{{}}}", self.name);
        let is_there = program.iter().any(|word| word.contains(&name));
        let why = "to put numbers in: write it where the number belongs";
        (!is_there).then(|| format!("the command has no {name} {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_fills_the_command() {
        let range = FitRange::parse("batch=1..512").unwrap();
        assert_eq!((range.low, range.high), (1, 512));
        let program = ["python", "t.py", "--batch={batch}"].map(str::to_owned);
        assert_eq!(range.missing_in(&program), None);
        assert!(range.missing_in(&program[..2]).unwrap().contains("no {batch} to put"));
        assert_eq!(range.filled(&program, 8), ["python", "t.py", "--batch=8"]);
        for wrong in ["batch", "batch=3", "=1..2", "b=2..1", "b=a..b"] {
            assert!(FitRange::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_help_names_every_card() {
        let mut command = <crate::cli::args::CliArgs as clap::CommandFactory>::command();
        let help = command.find_subcommand_mut("dry-run").unwrap().render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(&Card::names()), "{help}");
    }
}
