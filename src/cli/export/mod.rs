//! `memspy export`: a moment for other tools.

mod tables;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::analysis::{
    BlocksBuilder, FoldOptions, FoldedProfile, MemoryGroup, Moment, Profile, flame,
};
use crate::model::CudaIndex;
use crate::render::{self, ExportedDevice, OutputError};

use super::args::{ExportArgs, ExportFormat, MomentArg};
use super::device_choice::device;
use super::flame::add_older;
use super::output::into_io;
use super::ranks::{self, RankTrace};
use super::replay::{self, StoredRecording};
use super::{eprint_line, output};

const ONE_TRACE: &str = "a snapshot for memory_viz shows one process: name one trace";

type FormatWriter = fn(&mut dyn Write, &[ExportedDevice<'_>]) -> Result<(), OutputError>;

pub(super) fn run(args: &ExportArgs) -> Result<()> {
    if args.format == ExportFormat::MemoryViz && args.traces.len() > 1 {
        bail!(ONE_TRACE);
    }
    if args.format != ExportFormat::Parquet {
        output::check_requested(args.output.as_deref(), args.force)?;
    }
    if args.redact {
        replay::redact();
    }
    let empty = || match args.format {
        ExportFormat::Perfetto => Profile::new().without_line_statistics().with_event_timelines(),
        _ => Profile::new().without_line_statistics(),
    };
    let ranks = ranks::read(&args.traces, &empty)?;
    let file = || -> Result<PathBuf> {
        let extension = args.format.extension();
        let default = match &ranks[..] {
            [one] => one.trace.with_extension(extension),
            _ => ranks::default_output(&args.traces, extension),
        };
        let start = ranks.first().and_then(|rank| rank.profile.start());
        let path = output::of_report(args.output.as_deref(), start, default)?;
        output::check(&path, args.force)?;
        Ok(path)
    };
    let format: FormatWriter = match args.format {
        ExportFormat::Perfetto => return perfetto(args, &ranks, &file()?),
        ExportFormat::MemoryViz => match &ranks[..] {
            [rank] => return memory_viz(args, rank, &file()?),
            _ => bail!(ONE_TRACE),
        },
        ExportFormat::Parquet => return tables::write(args, &ranks),
        ExportFormat::Speedscope => render::speedscope,
        ExportFormat::Pprof => render::pprof,
        ExportFormat::Csv => render::export_csv,
        ExportFormat::Json => render::export_json,
    };
    let path = file()?;
    let mut devices = Vec::new();
    for rank in &ranks {
        devices.extend(exported(args, rank).with_context(|| rank.label.clone())?);
    }
    let write = |out: &mut dyn Write| format(out, &devices).map_err(into_io);
    let limits = ranks.iter().map(|rank| rank.profile.memory_limit());
    output::report(&path, args.force, output::bounded(limits, write))
}

pub(super) fn wanted(args: &ExportArgs) -> Moment {
    args.at.unwrap_or(MomentArg::Peak).into()
}

fn perfetto(args: &ExportArgs, ranks: &[RankTrace], path: &Path) -> Result<()> {
    if args.at.is_some() {
        bail!("--at is for formats that show one moment: perfetto has the whole recording");
    }
    for rank in ranks {
        device(&rank.profile, args.gpu).with_context(|| rank.label.clone())?;
        let seen = |gpu: CudaIndex| {
            rank.profile.timeline(gpu).is_some_and(|timeline| !timeline.points().is_empty())
        };
        let has_counters = rank.profile.gpus().any(seen);
        if !has_counters && rank.profile.iterations().0.is_empty() {
            bail!("{}: the recording has neither counters nor iterations", rank.label);
        }
        if let Some(gpu) = args.gpu.map(CudaIndex).filter(|gpu| !seen(*gpu)) {
            bail!("{}: GPU {} has no counters in the recording", rank.label, gpu.0);
        }
    }
    let recordings: Vec<(&str, &Profile)> =
        ranks.iter().map(|rank| (&*rank.label, &rank.profile)).collect();
    let write = |out: &mut dyn Write| {
        render::perfetto(out, &recordings, args.gpu.map(CudaIndex)).map_err(into_io)
    };
    let limits = ranks.iter().map(|rank| rank.profile.memory_limit());
    output::report(path, args.force, output::bounded(limits, write))
}

fn exported<'a>(args: &ExportArgs, rank: &'a RankTrace) -> Result<Vec<ExportedDevice<'a>>> {
    let RankTrace { label, profile, .. } = rank;
    let main = device(profile, args.gpu)?;
    let mut devices: Vec<CudaIndex> = match args.gpu {
        Some(_) => vec![main],
        None => profile.gpus().collect(),
    };
    if devices.is_empty() {
        devices.push(main);
    }
    let mut exported = Vec::new();
    for device in devices {
        match moment(profile, device, wanted(args)) {
            Ok(folded) => {
                let is_of_torch = folded.memory.is_none_or(|it| it == MemoryGroup::Torch);
                let allocated = is_of_torch.then(|| flame::allocated(profile, device)).flatten();
                exported.push(ExportedDevice { label, profile, folded, allocated });
            }
            Err(error) if device == main => return Err(error),
            Err(error) => eprint_line(&format!("warning: {label}, GPU {}: {error}", device.0)),
        }
    }
    Ok(exported)
}

/// All live bytes, also those older than an exact recording.
pub(super) fn moment(
    profile: &Profile,
    device: CudaIndex,
    moment: Moment,
) -> Result<FoldedProfile> {
    with_older(profile, device, moment, FoldOptions::default())
}

/// The same; the peak is the highest moment with a snapshot of blocks.
pub(super) fn moment_with_addresses(
    profile: &Profile,
    device: CudaIndex,
    moment: Moment,
) -> Result<FoldedProfile> {
    let options = FoldOptions { with_addresses: true, ..FoldOptions::default() };
    with_older(profile, device, moment, options)
}

fn with_older(
    profile: &Profile,
    device: CudaIndex,
    moment: Moment,
    options: FoldOptions,
) -> Result<FoldedProfile> {
    let mut folded = flame::fold(profile, device, moment, options)?;
    add_older(&mut folded);
    Ok(folded)
}

fn memory_viz(args: &ExportArgs, rank: &RankTrace, path: &Path) -> Result<()> {
    let profile = &rank.profile;
    let device = device(profile, args.gpu)?;
    let wanted = wanted(args);
    let folded = moment_with_addresses(profile, device, wanted)?;
    if folded.memory.is_some_and(|memory| memory != MemoryGroup::Torch) {
        bail!("the recording has no blocks of PyTorch, and a snapshot for memory_viz shows these");
    }
    let until = match wanted {
        Moment::Peak => Some(folded.snapshot.time),
        Moment::End => None,
    };
    let mut empty = Profile::new().without_line_statistics();
    empty.set_first(profile.first());
    let bytes = std::fs::metadata(&rank.trace).map_or(0, |file| file.len());
    replay::limit(&mut empty, bytes);
    let mut builder = BlocksBuilder::new(empty, device, until);
    StoredRecording::trace(&rank.trace)?.reread(&mut builder)?;
    let blocks = builder.build();
    if profile.exact().is_none() {
        eprint_line(
            "a sampled recording has no events: the file has the segments and blocks of the moment, each block with its \
             most probable stack, and an empty trace (a recording with --exact has the events)",
        );
    }
    let of_device = blocks.devices.get(&device);
    let in_blocks = of_device.map_or(0, |device| device.allocated());
    if in_blocks != folded.total {
        eprint_line(&format!(
            "warning: the blocks in the file come to {}, and the allocator had {}: memspy did not see the others",
            render::bytes(in_blocks),
            render::bytes(folded.total)
        ));
    }
    if let Some(unplaced) = of_device.map(|device| device.unplaced).filter(|count| *count > 0) {
        eprint_line(&format!(
            "warning: {unplaced} blocks lie in segments that no snapshot shows: each is a segment of its own in the file"
        ));
    }
    let write = |out: &mut dyn Write| render::memory_viz(out, profile, &blocks).map_err(into_io);
    output::report(path, args.force, output::bounded([profile.memory_limit()], write))
}
