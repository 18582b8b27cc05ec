//! `memspy flame --by stream`: a moment's blocks by CUDA stream.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::analysis::{
    BlocksBuilder, FoldedProfile, FoldedStack, MemoryGroup, Profile, PseudoFrame, StackLabel,
    StreamMemory,
};
use crate::model::{CudaIndex, Nanos};
use crate::render::RankMode;

use crate::cli::args::{FlameArgs, FlameMoment};
use crate::cli::flame::FlameOptions;
use crate::cli::ranks::RankTrace;
use crate::cli::replay::{self, StoredRecording};

pub(super) fn draw(
    args: &FlameArgs,
    drawing: &FlameOptions,
    ranks: &[RankTrace],
    path: &Path,
) -> Result<()> {
    let not_of_blocks = [
        (args.total_allocated, "--total-allocated"),
        (args.from.is_some(), "--from"),
        (args.proven, "--proven"),
        (args.min_lifetime.is_some(), "--min-lifetime"),
        (args.threads, "--threads"),
        (args.merge, "--merge"),
        (args.memory.is_some(), "--memory"),
        (args.stacks.gil, "--gil"),
        (args.stacks.idle, "--idle"),
    ];
    if let Some((_, option)) = not_of_blocks.iter().find(|(given, _)| *given) {
        bail!("--by stream draws the blocks of one moment: leave out {option}");
    }
    let mut parts: Vec<(String, &RankTrace, FoldedProfile)> = Vec::new();
    for rank in ranks {
        for (label, folded) in streams(args, drawing, rank).context(rank.label.clone())? {
            let label = match ranks {
                [_] => label,
                _ => format!("{}, {label}", rank.label),
            };
            parts.push((label, rank, folded));
        }
    }
    drawing.draw_parts(&parts, RankMode::Streams, path, args.force)
}

/// A rank's streams; their bytes add up to the picture without `--by`.
fn streams(
    args: &FlameArgs,
    drawing: &FlameOptions,
    rank: &RankTrace,
) -> Result<Vec<(String, FoldedProfile)>> {
    let folded = drawing.fold_with_addresses(&rank.profile)?;
    if folded.memory.is_some_and(|memory| memory != MemoryGroup::Torch) {
        bail!("the recording has no blocks of PyTorch, and only these have streams");
    }
    let until = match args.at {
        FlameMoment::Peak => Some(folded.snapshot.time),
        FlameMoment::End => None,
        // It was read only up to that moment.
        FlameMoment::Oom | FlameMoment::Time(_) => Some(rank.profile.duration()),
    };
    let mut memory = read(rank, folded.device, until)?;
    if memory.iter().all(|memory| memory.stream.is_none()) {
        bail!(
            "the recording has no snapshot of the segments of GPU {}, and only that shows their stream",
            folded.device.0
        );
    }
    let older = [StackLabel::Pseudo(PseudoFrame::BeforeRecording)];
    if folded.left_out > 0 {
        // An exact recording's leak view covers only what was allocated meanwhile.
        memory.iter_mut().for_each(|memory| memory.stacks.retain(|stack| stack.path != older));
    }
    let mut rest = folded.total;
    for stack in memory.iter().flat_map(|memory| &memory.stacks) {
        rest = rest.saturating_sub(stack.bytes);
    }
    if rest > 0 {
        // Bytes in the counter but in no block.
        let frame = match folded.memory {
            Some(_) => PseudoFrame::NoEvent,
            None => PseudoFrame::Unmatched,
        };
        let path = vec![StackLabel::Pseudo(frame)];
        let stack = FoldedStack { path, bytes: rest, evidence: None };
        match memory.iter_mut().find(|memory| memory.stream.is_none()) {
            Some(unknown) => unknown.stacks.push(stack),
            None => memory.push(StreamMemory { stream: None, stacks: vec![stack] }),
        }
    }
    let part = |StreamMemory { stream, stacks }| {
        let name = match stream {
            Some(0) => "default stream".to_owned(),
            Some(number) => format!("stream {number:#x}"),
            None => "[stream not known]".to_owned(),
        };
        let total = stacks.iter().map(|stack: &FoldedStack| stack.bytes).sum();
        (name, FoldedProfile { stacks, total, ..folded.clone() })
    };
    Ok(memory.into_iter().map(part).filter(|(_, folded)| folded.total > 0).collect())
}

fn read(rank: &RankTrace, device: CudaIndex, until: Option<Nanos>) -> Result<Vec<StreamMemory>> {
    let mut empty = Profile::new().without_line_statistics();
    empty.set_first(rank.profile.first());
    let bytes = std::fs::metadata(&rank.trace).map_or(0, |file| file.len());
    replay::limit(&mut empty, bytes);
    let mut builder = BlocksBuilder::new(empty, device, until).without_events();
    StoredRecording::trace(&rank.trace)?.reread(&mut builder)?;
    Ok(builder.by_stream())
}
