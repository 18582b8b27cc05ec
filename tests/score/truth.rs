//! PyTorch's own history of a recorded run: `NAME.truth.json.gz` beside `NAME.bin`.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use flate2::read::GzDecoder;
use serde::Deserialize;

/// A frame: file and line.
pub type Place = (String, u32);

/// A stack as both sides know it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stack {
    /// Python frames, innermost first.
    Frames(Vec<Place>),
    /// Outer Python frames, innermost first, and inner ones that are not known.
    Below(Vec<Place>),
    /// Without a Python stack: `[autograd thread]`, `[before recording]`, or a mark of memspy's.
    Mark(String),
}

/// Bytes by stack.
pub type Bytes = HashMap<Stack, u64>;

/// The file.
#[derive(Debug, Deserialize)]
struct TruthFile {
    #[serde(flatten)]
    conditions: Conditions,
    frames: Vec<Place>,
    live: Rows,
    every: Rows,
    peaks: Vec<Rows>,
}

/// Frames by number, the mark of what has none, bytes.
type Rows = Vec<(Vec<usize>, Option<String>, u64)>;

/// The conditions of a recording.
#[derive(Debug, Clone, Deserialize)]
pub struct Conditions {
    /// `h200` or `simulated`.
    pub machine: String,
    /// Processors that the job and memspy shared.
    pub processors: u32,
    /// `quiet`, or `loaded`: as many busy processes as processors.
    pub load: String,
    /// `root`, or `user`: may only trace its own processes.
    pub user: String,
    /// `attached` to the running job, or from its `start`.
    pub start: String,
    /// `one`, or the kind of job whose threads allocate at the same time.
    pub threads: String,
    /// Options of `memspy record`.
    pub words: Vec<String>,
}

impl Conditions {
    /// How it was recorded.
    pub fn mode(&self) -> &'static str {
        match self.words.first().map(String::as_str) {
            Some("--exact") => "exact",
            Some("-r") => "sampled",
            _ => "followed",
        }
    }

    /// How many threads allocate.
    pub fn threads(&self) -> &'static str {
        if self.threads == "one" { "one thread" } else { "several threads" }
    }
}

/// The truth of one recording.
pub struct Truth {
    /// How it was made.
    pub conditions: Conditions,
    /// Live bytes at its end.
    pub live: Bytes,
    /// All bytes allocated.
    pub every: Bytes,
    /// Live bytes at each of the equally high peaks.
    pub peaks: Vec<Bytes>,
}

impl Truth {
    /// Reads it.
    pub fn read(path: &Path) -> Result<Truth> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let file: TruthFile = serde_json::from_reader(GzDecoder::new(file))
            .with_context(|| format!("{} is no truth", path.display()))?;
        let stacks = |rows: Rows| -> Bytes {
            let mut bytes = Bytes::new();
            for (numbers, mark, size) in rows {
                let stack = match mark {
                    Some(mark) => Stack::Mark(mark),
                    None => {
                        Stack::Frames(numbers.iter().map(|&n| file.frames[n].clone()).collect())
                    }
                };
                *bytes.entry(stack).or_default() += size;
            }
            bytes
        };
        Ok(Truth {
            conditions: file.conditions,
            live: stacks(file.live),
            every: stacks(file.every),
            peaks: file.peaks.into_iter().map(stacks).collect(),
        })
    }
}
