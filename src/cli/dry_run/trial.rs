//! One run of the program on simulated cards.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::observer::{ObservedProcess, ReportListener};
use crate::cli::launch::{LaunchedProgram, ProgramEnd};
use crate::cli::signals::StopSignals;
use crate::cli::simulated_device::{RunFolder, SimulatedLibraries, before, set_allocator};
use crate::model::Card;

/// How the program is run.
#[derive(Debug, Clone)]
pub(super) struct TrialSetting<'a> {
    pub(super) libraries: &'a SimulatedLibraries,
    pub(super) card: &'a Card,
    pub(super) gpus: u32,
    pub(super) until_step: u32,
    pub(super) program: &'a [String],
    /// Its output goes to a file instead.
    pub(super) is_quiet: bool,
    /// memspy's standard output is its own: the program's goes to standard error.
    pub(super) has_own_output: bool,
    /// Its history and owners are read, not only its counters.
    pub(super) is_read: bool,
    pub(super) wants_trace: bool,
    /// With `expandable_segments:True`.
    pub(super) expandable: bool,
}

/// The result of a run.
pub(super) struct ProgramTrial {
    pub(super) end: ProgramEnd,
    pub(super) took: Duration,
    pub(super) observed: Vec<ObservedProcess>,
    /// The end of its output, if that went to a file.
    pub(super) last_words: String,
}

impl ProgramTrial {
    pub(super) fn run(setting: &TrialSetting<'_>) -> Result<ProgramTrial> {
        let folder = RunFolder::create()?;
        let socket = folder.path.join("reports");
        let listener = ReportListener::start(&socket, setting.is_read, setting.wants_trace)?;
        let began = Instant::now();
        let log = folder.path.join("output");
        let mut command = command(setting, &folder.path, &socket)?;
        if setting.is_quiet {
            let file = File::create(&log).context("cannot write the program's output")?;
            let copy = file.try_clone().context("cannot write the program's output")?;
            command.stdin(Stdio::null()).stdout(Stdio::from(file)).stderr(Stdio::from(copy));
        } else if setting.has_own_output {
            let errors = std::io::stderr().as_fd().try_clone_to_owned();
            command.stdout(Stdio::from(errors.context("cannot share standard error")?));
        }
        let (StopSignals { stop }, passed_on) = StopSignals::watch_for_program()?;
        let program = LaunchedProgram::start_command(command, &setting.program[0], passed_on)?;
        let end = program.wait()?;
        let observed = listener.finish();
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted: no answer");
        }
        let last_words = std::fs::read(&log).unwrap_or_default();
        let last_words = String::from_utf8_lossy(&last_words).trim().to_owned();
        Ok(ProgramTrial { end, took: began.elapsed(), observed, last_words })
    }

    /// The program's exit code.
    pub(super) fn code(&self) -> u8 {
        self.end.code()
    }

    /// What was wrong with the words that name a module.
    pub(super) fn refusal(&self) -> Option<&str> {
        let refused = self.observed.iter().find(|it| it.report.event == "refused")?;
        refused.report.error.as_deref()
    }

    /// The line that most likely says why the program failed.
    pub(super) fn last_line(&self) -> &str {
        self.last_words.lines().last().unwrap_or_default()
    }
}

fn command(setting: &TrialSetting<'_>, folder: &Path, socket: &Path) -> Result<Command> {
    let (name, arguments) =
        setting.program.split_first().context("no program to start after --")?;
    let libraries = setting.libraries;
    let mut command = Command::new(name);
    libraries.set_up(&mut command, setting.card, setting.gpus, folder);
    command
        .args(arguments)
        .env("PYTHONPATH", before("PYTHONPATH", [&libraries.observer]))
        .env("MEMSPY_DRY_RUN", socket)
        .env("MEMSPY_DRY_RUN_STEPS", setting.until_step.to_string());
    if setting.expandable {
        set_allocator(&mut command, "expandable_segments:True");
    }
    Ok(command)
}
