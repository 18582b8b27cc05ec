//! `memspy flame`: a trace as a flamegraph, or as folded stacks.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::analysis::{FoldOptions, Folded, MemoryKind, Moment, Profile};
use crate::model::{AllocatorBackend, CudaIndex, Nanos};
use crate::render::{self, NameStyle, RankMemory, Ranks, RenderError};

use super::args::{ByWord, Flame as Words, FlameFormat, MemoryWord, MomentWord, Stacks};
use super::ranks::{self, Rank};
use super::{charging, output, say};

/// Runs it.
pub(super) fn run(words: &Words) -> Result<()> {
    let extension = match words.format {
        FlameFormat::Flamegraph => "svg",
        FlameFormat::Collapsed => "txt",
    };
    let empty = || {
        charging(&words.stacks)
            .with_least_life(Nanos((words.min_lifetime.unwrap_or(0.0) * 1e9) as u64))
    };
    let mut ranks = ranks::read(&words.traces, &empty)?;
    if words.highest && ranks.len() > 1 {
        let highest = ranks::highest(ranks, words.gpu)?;
        say(&format!("the highest peak is that of {}", highest.label));
        ranks = vec![highest];
    }
    let default = match &ranks[..] {
        [one] => one.trace.with_extension(extension),
        _ => ranks::default_output(&words.traces, extension),
    };
    let start = ranks.first().and_then(|rank| rank.profile.start());
    let path = output::of_report(words.output.as_deref(), start, default)?;
    let is_exact = |rank: &Rank| rank.profile.exact().is_some();
    if words.min_lifetime.is_some() && !ranks.iter().all(is_exact) {
        bail!("how long blocks lived is known only of exact recordings ('memspy record --exact')");
    }
    if words.by == ByWord::Holder {
        return by_holder(words, &ranks, &path);
    }
    let drawing = Drawing {
        format: words.format,
        gpu: words.gpu,
        moment: words.at,
        function: words.function,
        churn: words.churn,
        memory: words.memory,
        stacks: words.stacks.clone(),
    };
    let how = if words.together { Ranks::Together } else { Ranks::Apart };
    match &ranks[..] {
        [one] => drawing.draw(&one.profile, &path, words.force),
        _ => drawing.draw_all(&ranks, how, &path, words.force),
    }
}

/// Draws who held the memory at the recorded look with most of it, or at the last one.
fn by_holder(words: &Words, ranks: &[Rank], path: &Path) -> Result<()> {
    let [Rank { profile, .. }] = ranks else {
        bail!("who held the memory is drawn for one rank: name one trace, or use --highest");
    };
    let device = device(profile, words.gpu)?;
    let moment = words.at.into();
    let Some(stacks) = profile.holders(device, moment) else {
        bail!("the recording has no looks at holders of GPU {}: record with --holders", device.0);
    };
    let style =
        NameStyle { full_filenames: words.stacks.full_filenames, functions_only: words.function };
    output::report(path, words.force, |out: &mut dyn Write| {
        match words.format {
            FlameFormat::Flamegraph => {
                render::holders_flame(out, profile, &stacks, (device, moment), style)
            }
            FlameFormat::Collapsed => render::holders_collapsed(out, profile, &stacks, style),
        }
        .map_err(into_io)
    })
}

/// What to draw of a profile.
pub(super) struct Drawing {
    /// SVG or text.
    pub format: FlameFormat,
    /// The device; `None` for the one with the highest peak.
    pub gpu: Option<u32>,
    /// The moment.
    pub moment: MomentWord,
    /// One frame for each function.
    pub function: bool,
    /// All that was allocated, not what a moment held.
    pub churn: bool,
    /// The kind of memory; `None` for PyTorch's, or what there is.
    pub memory: Option<MemoryWord>,
    /// How stacks are shown.
    pub stacks: Stacks,
}

impl From<MomentWord> for Moment {
    fn from(word: MomentWord) -> Moment {
        match word {
            MomentWord::Peak => Moment::Peak,
            MomentWord::End => Moment::End,
        }
    }
}

impl From<MemoryWord> for MemoryKind {
    fn from(word: MemoryWord) -> MemoryKind {
        match word {
            MemoryWord::Torch => MemoryKind::Torch,
            MemoryWord::Driver => MemoryKind::Driver,
            MemoryWord::Physical => MemoryKind::Physical,
            MemoryWord::Managed => MemoryKind::Managed,
            MemoryWord::Pinned => MemoryKind::Pinned,
        }
    }
}

impl Drawing {
    fn fold(&self, profile: &Profile) -> Result<Folded> {
        let device = device(profile, self.gpu)?;
        let options = FoldOptions {
            by_thread: self.stacks.threads,
            churn: self.churn,
            memory: self.memory.map(MemoryKind::from),
        };
        Ok(profile.fold(device, self.moment.into(), options)?)
    }

    fn style(&self) -> NameStyle {
        NameStyle { full_filenames: self.stacks.full_filenames, functions_only: self.function }
    }

    /// Draws several profiles.
    fn draw_all(&self, ranks: &[Rank], how: Ranks, path: &Path, force: bool) -> Result<()> {
        let folded = ranks.iter().map(|rank| self.fold(&rank.profile).context(rank.label.clone()));
        let folded: Vec<Folded> = folded.collect::<Result<_>>()?;
        let parts: Vec<RankMemory<'_>> = ranks
            .iter()
            .zip(&folded)
            .map(|(rank, folded)| RankMemory { label: &rank.label, profile: &rank.profile, folded })
            .collect();
        output::report(path, force, |out: &mut dyn Write| {
            match self.format {
                FlameFormat::Flamegraph => render::flame_of_ranks(out, &parts, how, self.style()),
                FlameFormat::Collapsed => {
                    render::collapsed_of_ranks(out, &parts, how, self.style())
                }
            }
            .map_err(into_io)
        })
    }

    /// Draws it into the file at `path`.
    pub(super) fn draw(&self, profile: &Profile, path: &Path, force: bool) -> Result<()> {
        let folded = self.fold(profile)?;
        let style = self.style();
        output::report(path, force, |out: &mut dyn Write| {
            match self.format {
                FlameFormat::Flamegraph => render::flame(out, profile, &folded, style),
                FlameFormat::Collapsed => render::collapsed(out, profile, &folded, style),
            }
            .map_err(into_io)
        })
    }
}

/// The device asked for, else the one with the highest peak.
pub(super) fn device(profile: &Profile, gpu: Option<u32>) -> Result<CudaIndex> {
    let driver_only = || profile.exact().filter(|exact| exact.events() > 0).map(|_| CudaIndex(0));
    match profile.main_gpu().or_else(driver_only) {
        Some(main) => Ok(gpu.map_or(main, CudaIndex)),
        None => bail!("the recording has no GPU memory of PyTorch: {}", why_none(profile)),
    }
}

fn why_none(profile: &Profile) -> String {
    match profile.runtime().map(|r| &r.allocator) {
        None | Some(AllocatorBackend::NotLoaded) => {
            "PyTorch's CUDA part was not loaded in the process".to_owned()
        }
        Some(AllocatorBackend::NotInitialized) => {
            "the process had loaded PyTorch and not used CUDA".to_owned()
        }
        Some(AllocatorBackend::Native) => {
            "the allocator's counters could not be read ('memspy doctor -p PID' says why of a running job)"
                .to_owned()
        }
        Some(AllocatorBackend::CudaMallocAsync) => {
            "its allocator was backend:cudaMallocAsync, which keeps no counters or blocks; run the job without it"
                .to_owned()
        }
        Some(AllocatorBackend::Pluggable(name)) => {
            format!("its allocator was the program's own ({name}), which keeps no counters or blocks")
        }
        Some(AllocatorBackend::Unknown(what)) => {
            format!("its allocator could not be read: {what}")
        }
    }
}

/// For places that write, which know only I/O errors.
pub(super) fn into_io(error: RenderError) -> io::Error {
    match error {
        RenderError::Write(error) => error,
        other => io::Error::other(other),
    }
}
