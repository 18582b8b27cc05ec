//! `memspy flame`: a flamegraph or folded stacks.

mod moment;
mod streams;

pub(in crate::cli) use moment::{inside, oom_time, read_part};

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::analysis::{
    ComparedMoment, Evidence, FoldOptions, FoldedProfile, MemoryGroup, Moment, Profile,
    PseudoFrame, StackLabel, flame, peak,
};
use crate::model::{CudaIndex, Nanos};
use crate::render::{self, FlamePicture, NameStyle, RankMemory, RankMode};

use super::args::{FlameArgs, FlameFormat, FlameMoment, GroupArg, MemoryArg, MomentArg};
use super::device_choice::{DRIVER_MEMORY_ADVICE, device};
use super::output::into_io;
use super::ranks::{self, RankTrace};
use super::replay::StoredRecording;
use super::{browser, eprint_line, filtered_profile, modules, output};

pub(super) fn run(args: &FlameArgs) -> Result<()> {
    let path = write(args)?;
    match args.picture.open {
        true => browser::open(&path),
        false => Ok(()),
    }
}

/// Returns the written file.
fn write(args: &FlameArgs) -> Result<PathBuf> {
    check_options(args)?;
    let extension = match args.format {
        FlameFormat::Flamegraph => "svg",
        FlameFormat::Collapsed => "txt",
    };
    let empty = || {
        filtered_profile(&args.stacks)
            .without_line_statistics()
            .with_min_lifetime(Nanos(args.min_lifetime.unwrap_or_default().as_nanos() as u64))
    };
    output::check_requested(args.output.as_deref(), args.force)?;
    let mut ranks = ranks::read(&args.traces, &empty)?;
    if args.max_peak && ranks.len() > 1 {
        let highest = ranks::highest(ranks, args.gpu)?;
        eprint_line(&format!("the highest peak is that of {}", highest.label));
        ranks = vec![highest];
    }
    let default = match &ranks[..] {
        _ if args.picture.text => "-".into(),
        [one] => one.trace.with_extension(extension),
        _ => ranks::default_output(&args.traces, extension),
    };
    let start = ranks.first().and_then(|rank| rank.profile.start());
    let path = output::of_report(args.output.as_deref(), start, default)?;
    let cut = moment::cut(args, &mut ranks, &empty)?;
    let is_exact = |rank: &RankTrace| rank.profile.exact().is_some();
    if args.min_lifetime.is_some() && !ranks.iter().all(is_exact) {
        bail!("how long blocks lived is known only in exact recordings (record with --exact)");
    }
    if args.from.is_some() && !args.total_allocated && args.threads {
        // An empty picture would look like an answer.
        bail!(
            "live memory allocated since a moment is drawn for all threads together: leave out --threads, or add \
             --total-allocated"
        );
    }
    draw(args, &ranks, cut, &path)?;
    Ok(path)
}

fn draw(args: &FlameArgs, ranks: &[RankTrace], cut: Option<String>, path: &Path) -> Result<()> {
    if let Some(other) = &args.picture.diff {
        return flame_of_difference(args, ranks, other, path);
    }
    if args.by.is_of_owners() {
        return flame_by_owner(args, ranks, path);
    }
    if args.by == GroupArg::Module {
        return flame_by_module(args, ranks, path);
    }
    let drawing = flame_options(args, cut);
    if args.by == GroupArg::Stream {
        return streams::draw(args, &drawing, ranks, path);
    }
    let how = if args.merge { RankMode::Merged } else { RankMode::Separate };
    match ranks {
        _ if args.by == GroupArg::Device => drawing.draw_devices(ranks, path, args.force),
        [one] if args.by != GroupArg::Rank => drawing.draw(&one.profile, path, args.force),
        _ => drawing.draw_all(ranks, how, path, args.force),
    }
}

fn check_options(args: &FlameArgs) -> Result<()> {
    let draws = args.format == FlameFormat::Flamegraph;
    let of_pictures = [
        (args.picture.inverted, "--inverted"),
        (args.picture.min_width.is_some(), "--min-width"),
        (args.picture.title.is_some(), "--title"),
        (args.picture.all_frames, "--all-frames"),
    ];
    if let Some((_, option)) = of_pictures.iter().find(|(given, _)| *given && !draws) {
        bail!("{option} is for pictures and --text: folded stacks are written as they are");
    }
    if args.picture.open && args.output.as_deref() == Some(Path::new("-")) {
        bail!("--open opens a file: leave out -o -");
    }
    if args.depth.is_some() && args.by != GroupArg::Module {
        bail!("--depth is for --by module");
    }
    let of_torch = args.memory.is_none_or(|it| MemoryGroup::from(it) == MemoryGroup::Torch);
    let of_devices = [(args.gpu.is_some(), "--gpu"), (args.by == GroupArg::Device, "--by device")];
    if let Some((_, option)) = of_devices.iter().find(|(given, _)| *given && !of_torch) {
        bail!("memory outside PyTorch is drawn for all GPUs together: leave out {option}");
    }
    Ok(())
}

fn flame_options(args: &FlameArgs, cut: Option<String>) -> FlameOptions {
    FlameOptions {
        format: args.format,
        gpu: args.gpu,
        moment: args.at.into(),
        with_older: cut.is_some() && args.from.is_none(),
        since: args
            .from
            .filter(|_| !args.total_allocated)
            .map(|from| Nanos(u64::try_from(from.as_nanos()).unwrap_or(u64::MAX))),
        innermost: matches!(args.by, GroupArg::Line | GroupArg::Function),
        churn: args.total_allocated,
        memory: args.memory,
        by_thread: args.threads,
        style: name_style(args, args.function || args.by == GroupArg::Function),
        certain: args.proven,
        picture: FlamePicture { moment: cut, ..picture(args) },
    }
}

fn flame_by_owner(args: &FlameArgs, ranks: &[RankTrace], path: &Path) -> Result<()> {
    // Ignoring these would look like an answer.
    let of_stacks = [
        (args.threads, "--threads"),
        (args.total_allocated, "--total-allocated"),
        (args.min_lifetime.is_some(), "--min-lifetime"),
        (args.memory.is_some(), "--memory"),
        (args.stacks.gil, "--gil"),
        (args.stacks.idle, "--idle"),
    ];
    if let Some((_, option)) = of_stacks.iter().find(|(given, _)| *given) {
        bail!("{option} is for Python stacks: leave it out with --by {}", args.by.word());
    }
    let [RankTrace { profile, .. }] = ranks else {
        bail!("owners are drawn for one rank: name one trace, or use --max-peak");
    };
    let device = device(profile, args.gpu)?;
    if matches!(args.at, FlameMoment::Time(_) | FlameMoment::Oom) || args.from.is_some() {
        bail!(
            "--by {} draws a recorded snapshot of the owners: --at peak (the one with most) or --at end (the last)",
            args.by.word()
        );
    }
    let moment = MomentArg::from(args.at).into();
    let Some(mut stacks) = profile.owners(device, moment) else {
        bail!("the trace has no snapshots of the owners on GPU {}: record with --owners", device.0);
    };
    if args.by == GroupArg::Category {
        stacks.paths.iter_mut().for_each(|(path, _)| path.truncate(1));
    }
    let style = name_style(args, args.function);
    let write = |out: &mut dyn Write| {
        match args.format {
            FlameFormat::Flamegraph => {
                let picture = picture(args);
                render::owners_flame(out, profile, &stacks, (device, moment), style, &picture)
            }
            FlameFormat::Collapsed => render::owners_collapsed(out, profile, &stacks, style),
        }
        .map_err(into_io)
    };
    output::report(path, args.force, output::bounded([profile.memory_limit()], write))
}

fn flame_by_module(args: &FlameArgs, ranks: &[RankTrace], path: &Path) -> Result<()> {
    let of_stacks = [
        (args.threads, "--threads"),
        (args.min_lifetime.is_some(), "--min-lifetime"),
        (args.memory.is_some(), "--memory"),
        (args.from.is_some(), "--from"),
        (args.proven, "--proven"),
        (args.function, "--function"),
    ];
    if let Some((_, option)) = of_stacks.iter().find(|(given, _)| *given) {
        bail!("{option} is for Python stacks: leave it out with --by module");
    }
    let [RankTrace { profile, .. }] = ranks else {
        bail!("modules are drawn for one rank: name one trace, or use --max-peak");
    };
    let gpu = device(profile, args.gpu)?;
    let (memory, when) = match (args.total_allocated, MomentArg::from(args.at)) {
        (true, _) => (modules::allocated(profile, gpu)?, "all that was allocated"),
        (false, MomentArg::Peak) => (modules::live(profile, gpu, Moment::Peak)?, "at its peak"),
        (false, MomentArg::End) => (modules::live(profile, gpu, Moment::End)?, "at the end"),
    };
    let depth = args.depth.map(usize::from);
    let write = |out: &mut dyn Write| {
        match args.format {
            FlameFormat::Flamegraph => {
                render::modules_flame(out, &memory, (gpu, when), depth, &picture(args))
            }
            FlameFormat::Collapsed => render::modules_collapsed(out, &memory, depth),
        }
        .map_err(into_io)
    };
    output::report(path, args.force, output::bounded([profile.memory_limit()], write))
}

fn flame_of_difference(
    args: &FlameArgs,
    ranks: &[RankTrace],
    other: &Path,
    path: &Path,
) -> Result<()> {
    let [RankTrace { profile, .. }] = ranks else {
        bail!("--diff compares one trace with one other: name one trace before --diff");
    };
    if !matches!(args.by, GroupArg::Stack) {
        bail!("--diff compares Python stacks: leave out --by {}", args.by.word());
    }
    if matches!(args.at, FlameMoment::Time(_) | FlameMoment::Oom) {
        bail!("--diff compares peaks or ends: --at peak or --at end");
    }
    let before = StoredRecording::trace(other)?
        .profile(filtered_profile(&args.stacks).without_line_statistics())?;
    let options =
        FoldOptions { memory: args.memory.map(MemoryGroup::from), ..FoldOptions::default() };
    let fold = |profile: &Profile| -> Result<FoldedProfile> {
        Ok(flame::fold(
            profile,
            device(profile, args.gpu)?,
            MomentArg::from(args.at).into(),
            options,
        )?)
    };
    let folded = fold(profile)?;
    let folded_before = fold(&before).with_context(|| other.display().to_string())?;
    let after = ComparedMoment { profile, folded: &folded };
    let before_of = ComparedMoment { profile: &before, folded: &folded_before };
    let style = name_style(args, true);
    let write = |out: &mut dyn Write| {
        match args.format {
            FlameFormat::Flamegraph => {
                render::flame_diff(out, before_of, after, style, &picture(args))
            }
            FlameFormat::Collapsed => render::collapsed_diff(out, before_of, after, style),
        }
        .map_err(into_io)
    };
    let limits = [profile.memory_limit(), before.memory_limit()];
    output::report(path, args.force, output::bounded(limits, write))
}

fn name_style(args: &FlameArgs, functions_only: bool) -> NameStyle {
    NameStyle {
        full_filenames: args.stacks.full_filenames,
        functions_only,
        all_frames: args.picture.all_frames,
    }
}

fn picture(args: &FlameArgs) -> FlamePicture {
    FlamePicture {
        text: args.picture.text,
        color: is_printed(args) && output::wants_colors(),
        inverted: args.picture.inverted,
        min_width: args.picture.min_width,
        title: args.picture.title.clone(),
        moment: None,
    }
}

fn is_printed(args: &FlameArgs) -> bool {
    args.output.as_deref().is_none_or(|path| path == Path::new("-"))
}

impl From<FlameMoment> for MomentArg {
    /// A moment other than peak and end is the end of a partial read.
    fn from(moment: FlameMoment) -> MomentArg {
        match moment {
            FlameMoment::Peak => MomentArg::Peak,
            FlameMoment::End | FlameMoment::Oom | FlameMoment::Time(_) => MomentArg::End,
        }
    }
}

pub(super) struct FlameOptions {
    pub format: FlameFormat,
    /// `None`: the device with the highest peak.
    pub gpu: Option<u32>,
    pub moment: MomentArg,
    /// At the end, also bytes older than the recording.
    pub with_older: bool,
    /// Only live bytes allocated since this time.
    pub since: Option<Nanos>,
    pub innermost: bool,
    /// All allocations, not live bytes.
    pub churn: bool,
    /// `None`: PyTorch's, or the only kind recorded.
    pub memory: Option<MemoryArg>,
    pub by_thread: bool,
    pub style: NameStyle,
    /// Only proven bytes.
    pub certain: bool,
    pub picture: FlamePicture,
}

impl From<MomentArg> for Moment {
    fn from(word: MomentArg) -> Moment {
        match word {
            MomentArg::Peak => Moment::Peak,
            MomentArg::End => Moment::End,
        }
    }
}

impl From<MemoryArg> for MemoryGroup {
    fn from(word: MemoryArg) -> MemoryGroup {
        match word {
            MemoryArg::Torch => MemoryGroup::Torch,
            MemoryArg::Driver => MemoryGroup::Driver,
            MemoryArg::Physical => MemoryGroup::Physical,
            MemoryArg::Managed => MemoryGroup::Managed,
            MemoryArg::Pinned => MemoryGroup::Pinned,
        }
    }
}

impl FlameOptions {
    pub(super) fn fold(&self, profile: &Profile) -> Result<FoldedProfile> {
        let device = device(profile, self.gpu)?;
        self.fold_device(profile, device, false)
    }

    /// Uses a moment with a snapshot of blocks.
    pub(super) fn fold_with_addresses(&self, profile: &Profile) -> Result<FoldedProfile> {
        self.fold_device(profile, device(profile, self.gpu)?, true)
    }

    fn fold_device(
        &self,
        profile: &Profile,
        device: CudaIndex,
        with_addresses: bool,
    ) -> Result<FoldedProfile> {
        let options = FoldOptions {
            by_thread: self.by_thread,
            churn: self.churn,
            memory: self.memory.map(MemoryGroup::from),
            native: !self.innermost,
            evidence: self.certain.then_some(Evidence::Proven),
            by_module: false,
            with_addresses,
        };
        // A time range shows what is live at its end.
        let moment = if self.since.is_some() { Moment::End } else { self.moment.into() };
        let mut folded = flame::fold(profile, device, moment, options)?;
        if self.certain && folded.total == 0 && self.format == FlameFormat::Flamegraph {
            let known = render::certainty_in_short(folded.resolution);
            bail!(
                "no byte of this moment is proven to be on its line ({}): leave out --proven to draw it",
                known.as_deref().unwrap_or("none was allocated while recording")
            );
        }
        if self.with_older {
            add_older(&mut folded);
        }
        if let Some(from) = self.since {
            folded.stacks = flame::live_since(profile, device, from).unwrap_or_default();
            folded.total = folded.stacks.iter().map(|stack| stack.bytes).sum();
            folded.resolution =
                flame::exact_resolution(profile, &folded.stacks).unwrap_or_default();
        }
        if self.innermost {
            let older = StackLabel::Pseudo(PseudoFrame::BeforeRecording);
            for stack in folded.stacks.iter_mut().filter(|stack| stack.path.first() != Some(&older))
            {
                let is_frame = |label: &StackLabel| matches!(label, StackLabel::Frame(_));
                let last = stack.path.iter().rposition(is_frame);
                stack.path.drain(..last.unwrap_or(stack.path.len().saturating_sub(1)));
            }
        }
        if folded.unlisted > 0 {
            eprint_line(&format!(
                "warning: {} stacks, the smallest ones, are merged into {}: all of them would be too much \
                 text for a recording of this size",
                folded.unlisted,
                PseudoFrame::LeftOut.text()
            ));
        }
        Ok(folded)
    }

    fn draw_all(&self, ranks: &[RankTrace], how: RankMode, path: &Path, force: bool) -> Result<()> {
        let mut parts = Vec::new();
        for rank in ranks {
            let folded = self.fold(&rank.profile).context(rank.label.clone())?;
            parts.push((rank.label.clone(), rank, folded));
        }
        self.draw_parts(&parts, how, path, force)
    }

    fn draw_devices(&self, ranks: &[RankTrace], path: &Path, force: bool) -> Result<()> {
        let mut parts = Vec::new();
        for rank in ranks {
            device(&rank.profile, self.gpu).context(rank.label.clone())?;
            if peak::main_gpu(&rank.profile).is_none() {
                bail!("{DRIVER_MEMORY_ADVICE} --by device");
            }
            for gpu in rank.profile.gpus() {
                let folded =
                    self.fold_device(&rank.profile, gpu, false).context(rank.label.clone())?;
                parts.push((format!("{}, GPU {}", rank.label, gpu.0), rank, folded));
            }
        }
        self.draw_parts(&parts, RankMode::Devices, path, force)
    }

    pub(super) fn draw_parts(
        &self,
        parts: &[(String, &RankTrace, FoldedProfile)],
        how: RankMode,
        path: &Path,
        force: bool,
    ) -> Result<()> {
        let limits: Vec<_> = parts.iter().map(|(_, rank, _)| rank.profile.memory_limit()).collect();
        let parts: Vec<RankMemory<'_>> = parts
            .iter()
            .map(|(label, rank, folded)| RankMemory { label, profile: &rank.profile, folded })
            .collect();
        let write = |out: &mut dyn Write| {
            match self.format {
                FlameFormat::Flamegraph => {
                    render::flame_of_ranks(out, &parts, how, self.style, &self.picture)
                }
                FlameFormat::Collapsed => render::collapsed_of_ranks(out, &parts, how, self.style),
            }
            .map_err(into_io)
        };
        output::report(path, force, output::bounded(limits, write))
    }

    pub(super) fn draw(&self, profile: &Profile, path: &Path, force: bool) -> Result<()> {
        let folded = self.fold(profile)?;
        let style = self.style;
        let write = |out: &mut dyn Write| {
            match self.format {
                FlameFormat::Flamegraph => {
                    render::flame(out, profile, &folded, style, &self.picture)
                }
                FlameFormat::Collapsed => render::collapsed(out, profile, &folded, style),
            }
            .map_err(into_io)
        };
        output::report(path, force, output::bounded([profile.memory_limit()], write))
    }
}

pub(super) fn add_older(folded: &mut FoldedProfile) {
    let older = std::mem::take(&mut folded.left_out);
    if older > 0 {
        folded.stacks.append(&mut folded.left_out_stacks);
        folded.total += older;
    }
}
