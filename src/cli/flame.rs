//! `memspy flame`: a trace as a flamegraph, or as folded stacks.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::analysis::{FoldOptions, Moment, Profile};
use crate::model::CudaIndex;
use crate::render::{self, NameStyle, RenderError};

use super::args::{Flame as Words, FlameFormat, MomentWord, Stacks};
use super::{charging, output, replay, say};

/// Runs it.
pub(super) fn run(words: &Words) -> Result<()> {
    let mut profile = charging(&words.stacks);
    replay::read(&words.trace, &mut profile)?;
    let start = profile.start();
    let (pid, host) = start.map_or((0, String::new()), |s| (s.pid, s.host.clone()));
    let path = match &words.output {
        Some(path) => output::expand(path, pid, &host)?,
        None => words.trace.with_extension(match words.format {
            FlameFormat::Flamegraph => "svg",
            FlameFormat::Collapsed => "txt",
        }),
    };
    let drawing = Drawing {
        format: words.format,
        gpu: words.gpu,
        moment: words.at,
        function: words.function,
        stacks: words.stacks.clone(),
    };
    for warning in profile.warnings() {
        say(&format!("warning: {warning}"));
    }
    drawing.draw(&profile, &path, words.force)
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
    /// How stacks are shown.
    pub stacks: Stacks,
}

impl Drawing {
    /// Draws it into the file at `path`.
    pub(super) fn draw(&self, profile: &Profile, path: &Path, force: bool) -> Result<()> {
        let device = device(profile, self.gpu)?;
        let moment = match self.moment {
            MomentWord::Peak => Moment::Peak,
            MomentWord::End => Moment::End,
        };
        let folded =
            profile.fold(device, moment, FoldOptions { by_thread: self.stacks.threads })?;
        let style =
            NameStyle { full_filenames: self.stacks.full_filenames, functions_only: self.function };
        output::write(path, force, |out: &mut dyn Write| {
            match self.format {
                FlameFormat::Flamegraph => render::flame(out, profile, &folded, style),
                FlameFormat::Collapsed => render::collapsed(out, profile, &folded, style),
            }
            .map_err(into_io)
        })?;
        if path.as_os_str() != "-" {
            say(&format!("wrote {}", path.display()));
        }
        Ok(())
    }
}

/// The device asked for, else the one with the highest peak.
pub(super) fn device(profile: &Profile, gpu: Option<u32>) -> Result<CudaIndex> {
    gpu.map(CudaIndex).or_else(|| profile.main_gpu()).context(
        "the recording has no GPU memory of PyTorch: was CUDA in use, and could its allocator be read? \
         ('memspy doctor -p PID' says so of a running job)",
    )
}

/// For places that write, which know only I/O errors.
pub(super) fn into_io(error: RenderError) -> io::Error {
    match error {
        RenderError::Write(error) => error,
        other => io::Error::other(other),
    }
}
