//! `memspy diff`: two traces, or two moments of one.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::analysis::{ComparedMoment, FoldedProfile, Moment, OwnerStacks, Profile};
use crate::model::{CudaIndex, Nanos};
use crate::render::{self, ComparedOwners, DiffRows, DiffStyle};

use super::args::{CompareArg, DiffArgs, FlameMoment, MomentArg};
use super::device_choice::device;
use super::export::moment;
use super::flame::{inside, oom_time, read_part};
use super::output;
use super::output::into_io;
use super::replay::StoredRecording;

struct DiffSide<'a> {
    label: String,
    /// The profile up to the moment, or of the whole recording.
    profile: &'a Profile,
    device: CudaIndex,
    moment: Moment,
    /// `None`: peak or end.
    until: Option<Nanos>,
}

impl DiffSide<'_> {
    fn which_owners(&self) -> String {
        match (self.until, self.moment) {
            (Some(time), _) => format!("the last up to {:.3} s", time.seconds()),
            (None, Moment::Peak) => "the one with most".to_owned(),
            (None, Moment::End) => "the last".to_owned(),
        }
    }
}

pub(super) fn run(args: &DiffArgs) -> Result<()> {
    output::check_requested(args.output.as_deref(), args.force)?;
    match (&args.after, args.from) {
        (Some(after), None) => two_traces(args, after),
        (None, Some(from)) => two_moments(args, from),
        (Some(_), Some(_)) => bail!(
            "--from and --to compare two moments of one trace: name one trace, or leave them out to compare two traces at \
             --at peak or --at end"
        ),
        (None, None) => bail!(
            "one trace is compared with itself at another moment: add --from TIME --to TIME (such as --from 10s --to 60s), \
             or name a second trace"
        ),
    }
}

fn empty() -> Profile {
    Profile::new().without_line_statistics()
}

fn two_traces(args: &DiffArgs, after: &Path) -> Result<()> {
    let read = |trace: &Path| -> Result<(Profile, CudaIndex)> {
        let profile = StoredRecording::trace(trace)?.profile(empty())?;
        let device = device(&profile, args.gpu).with_context(|| trace.display().to_string())?;
        Ok((profile, device))
    };
    let (profile_before, device_before) = read(&args.before)?;
    let (profile_after, device_after) = read(after)?;
    let side = |path: &Path, profile, device| DiffSide {
        label: path.display().to_string(),
        profile,
        device,
        moment: args.at.into(),
        until: None,
    };
    let before = side(&args.before, &profile_before, device_before);
    let after = side(after, &profile_after, device_after);
    let moments = match args.at {
        MomentArg::Peak => "at the peak",
        MomentArg::End => "at the end",
    };
    write(args, &before, &after, moments)
}

fn two_moments(args: &DiffArgs, from: FlameMoment) -> Result<()> {
    let trace = &args.before;
    let name = || trace.display().to_string();
    let recording = StoredRecording::trace(trace)?;
    let whole = recording.profile(empty())?;
    let device = device(&whole, args.gpu).with_context(name)?;
    let to = args.to.unwrap_or(FlameMoment::End);
    let read = |of, option| read_moment(&recording, trace, &whole, device, of, option);
    let before = read(from, "--from").with_context(name)?;
    let after = read(to, "--to").with_context(name)?;
    if after.time < before.time {
        bail!("--from {:.3} s is after --to {:.3} s", before.time.seconds(), after.time.seconds());
    }
    let moments = format!("{} (A) and {} (B)", before.name, after.name);
    write(args, &before.side(name(), &whole, device), &after.side(name(), &whole, device), &moments)
}

struct ReadMoment {
    /// `None`: the whole recording.
    cut: Option<Profile>,
    moment: Moment,
    time: Nanos,
    name: String,
}

impl ReadMoment {
    fn side<'a>(&'a self, label: String, whole: &'a Profile, device: CudaIndex) -> DiffSide<'a> {
        let profile = self.cut.as_ref().unwrap_or(whole);
        let until = self.cut.as_ref().map(|_| self.time);
        DiffSide { label, profile, device, moment: self.moment, until }
    }
}

fn read_moment(
    recording: &StoredRecording<'_>,
    trace: &Path,
    whole: &Profile,
    device: CudaIndex,
    wanted: FlameMoment,
    option: &str,
) -> Result<ReadMoment> {
    let (time, name) = match wanted {
        FlameMoment::Peak => {
            let time = moment(whole, device, Moment::Peak)?.snapshot.time;
            let name = "at the peak".to_owned();
            return Ok(ReadMoment { cut: None, moment: Moment::Peak, time, name });
        }
        FlameMoment::End => {
            let (time, name) = (whole.duration(), "at the end".to_owned());
            return Ok(ReadMoment { cut: None, moment: Moment::End, time, name });
        }
        FlameMoment::Oom => {
            let time = oom_time(recording)?.with_context(|| {
                format!("the recording has no out-of-memory error: {option} oom has no moment")
            })?;
            (time, "when the job ran out of memory".to_owned())
        }
        FlameMoment::Time(time) => {
            let time = inside(whole, time).with_context(|| option.to_owned())?;
            (time, format!("at {:.3} s", time.seconds()))
        }
    };
    let cut = read_part(recording, trace, empty(), (None, Some(time)))?;
    if whole.has_gpu(device) && !cut.has_gpu(device) {
        bail!(
            "{option}: at {:.3} s, nothing had been read of the allocator of GPU {} yet",
            time.seconds(),
            device.0
        );
    }
    Ok(ReadMoment { cut: Some(cut), moment: Moment::End, time, name })
}

fn write(
    args: &DiffArgs,
    before: &DiffSide<'_>,
    after: &DiffSide<'_>,
    moments: &str,
) -> Result<()> {
    let path =
        output::of_report(args.output.as_deref(), after.profile.start(), PathBuf::from("-"))?;
    let style = DiffStyle {
        moments,
        limit: Some(args.limit).filter(|limit| *limit > 0),
        full_filenames: args.full_filenames,
        // A terminal has no room for whole stacks.
        whole_stacks: path.as_os_str() != "-" || output::width().is_none(),
    };
    let limits = [before.profile.memory_limit(), after.profile.memory_limit()];
    let rows = match args.by {
        CompareArg::Line => DiffRows::Lines,
        CompareArg::Function => DiffRows::Functions,
        CompareArg::Stack => DiffRows::Stacks { with_lines: args.after.is_none() },
        CompareArg::Owner => {
            let (of_before, of_after) = owners(args, before, after)?;
            let label = |side: &DiffSide<'_>| format!("{}, GPU {}", side.label, side.device.0);
            let (label_before, label_after) = (label(before), label(after));
            let write = |out: &mut dyn Write| {
                let [before, after] = [
                    (&label_before, &of_before, before.which_owners()),
                    (&label_after, &of_after, after.which_owners()),
                ]
                .map(|(label, stacks, which)| ComparedOwners { label, stacks, which });
                render::owner_diff_text(out, &before, &after, style).map_err(into_io)
            };
            return output::report(
                &path,
                args.force,
                output::fitted(&path, true, output::bounded(limits, write)),
            );
        }
    };
    let fold = |side: &DiffSide<'_>| -> Result<FoldedProfile> {
        moment(side.profile, side.device, side.moment).with_context(|| side.label.clone())
    };
    let (folded_before, folded_after) = (fold(before)?, fold(after)?);
    let write = |out: &mut dyn Write| {
        let before_of = ComparedMoment { profile: before.profile, folded: &folded_before };
        let after_of = ComparedMoment { profile: after.profile, folded: &folded_after };
        let (before, after) = ((&*before.label, before_of), (&*after.label, after_of));
        render::diff_text(out, before, after, rows, style).map_err(into_io)
    };
    output::report(&path, args.force, output::fitted(&path, true, output::bounded(limits, write)))
}

fn owners(
    args: &DiffArgs,
    before: &DiffSide<'_>,
    after: &DiffSide<'_>,
) -> Result<(OwnerStacks, OwnerStacks)> {
    let of = |side: &DiffSide<'_>, other: &DiffSide<'_>| {
        if let Some(stacks) = side.profile.owners(side.device, side.moment) {
            return Ok(stacks);
        }
        let (label, gpu) = (&side.label, side.device.0);
        if args.after.is_none() && other.profile.owners(other.device, other.moment).is_some() {
            bail!(
                "{label}: no snapshot of the owners of GPU {gpu} had been recorded by --from: choose a later moment, or \
                 record with --owners=5, which takes them more often"
            );
        }
        bail!("{label} has no snapshots of the owners on GPU {gpu}: record with --owners");
    };
    let (first, second) = (of(before, after)?, of(after, before)?);
    if args.after.is_none() && first.time == second.time {
        bail!(
            "{}: both moments have the same snapshot of the owners, that at {:.3} s: choose moments with one between them \
             (the recording has {} up to --to)",
            before.label,
            first.time.seconds(),
            second.snapshots
        );
    }
    Ok((first, second))
}
