//! Reads the traces of all ranks.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::analysis::{Profile, peak};
use crate::render;

use super::device_choice::device;
use super::replay::{self, StoredRecording};

pub(super) struct RankTrace {
    /// `rank 3`, or `process 1234` without a rank.
    pub(super) label: String,
    pub(super) trace: PathBuf,
    pub(super) profile: Profile,
}

/// Sorted by rank; `empty` makes the profile for each.
pub(super) fn read(traces: &[PathBuf], empty: &dyn Fn() -> Profile) -> Result<Vec<RankTrace>> {
    let mut ranks = Vec::new();
    for trace in traces {
        let profile = StoredRecording::trace(trace)?.profile(empty())?;
        let (rank, pid) = profile.start().map_or((None, 0), |start| (start.rank, start.pid));
        let label = match rank {
            Some(rank) => format!("rank {rank}"),
            None => format!("process {pid}"),
        };
        ranks.push((
            rank.unwrap_or(u32::MAX),
            pid,
            RankTrace { label, trace: trace.clone(), profile },
        ));
    }
    ranks.sort_by_key(|(rank, pid, _)| (*rank, *pid));
    let mut ranks: Vec<RankTrace> = ranks.into_iter().map(|(_, _, rank)| rank).collect();
    // Equal names are distinguished by their files.
    let labels: Vec<String> = ranks.iter().map(|rank| rank.label.clone()).collect();
    for rank in &mut ranks {
        if labels.iter().filter(|label| **label == rank.label).count() > 1 {
            let file = match replay::redacts() {
                true => rank.trace.file_name().map(Path::new).unwrap_or(&rank.trace),
                false => &rank.trace,
            };
            let label = format!("{} ({})", rank.label, file.display());
            rank.label = render::visible(&label).into_owned();
        }
    }
    Ok(ranks)
}

pub(super) fn highest(ranks: Vec<RankTrace>, gpu: Option<u32>) -> Result<RankTrace> {
    let peak = |rank: &RankTrace| {
        let device = device(&rank.profile, gpu).ok()?;
        Some(peak::of(&rank.profile, device)?.bytes())
    };
    match ranks.into_iter().max_by_key(peak) {
        Some(rank) if peak(&rank).is_some() => Ok(rank),
        _ => bail!("none of the recordings has GPU memory of PyTorch"),
    }
}

pub(super) fn default_output(traces: &[PathBuf], extension: &str) -> PathBuf {
    let folder = traces.first().and_then(|trace| trace.parent()).unwrap_or(Path::new(""));
    folder.join(format!("ranks.{extension}"))
}
