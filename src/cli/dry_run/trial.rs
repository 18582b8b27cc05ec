//! One run of the program on simulated cards.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::libraries::SimulatedLibraries;
use super::observer::{ObservedProcess, ReportListener};
use crate::cli::launch::LaunchedProgram;
use crate::cli::signals::StopSignals;
use crate::files::create_folder;
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
    /// `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
    pub(super) expandable: bool,
}

/// The result of a run.
pub(super) struct ProgramTrial {
    /// The program's exit code.
    pub(super) code: u8,
    pub(super) took: Duration,
    pub(super) observed: Vec<ObservedProcess>,
    /// The end of its output, if that went to a file.
    pub(super) last_words: String,
}

impl ProgramTrial {
    pub(super) fn run(setting: &TrialSetting<'_>) -> Result<ProgramTrial> {
        let folder = TrialFolder::create()?;
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
        let code = program.wait()?;
        let observed = listener.finish();
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted: no answer");
        }
        let last_words = std::fs::read(&log).unwrap_or_default();
        let last_words = String::from_utf8_lossy(&last_words).trim().to_owned();
        Ok(ProgramTrial { code, took: began.elapsed(), observed, last_words })
    }

    /// The line that most likely says why the program failed.
    pub(super) fn last_line(&self) -> &str {
        self.last_words.lines().last().unwrap_or_default()
    }
}

fn command(setting: &TrialSetting<'_>, folder: &Path, socket: &Path) -> Result<Command> {
    let (name, arguments) =
        setting.program.split_first().context("no program to start after --")?;
    let (libraries, card) = (setting.libraries, setting.card);
    let mut command = Command::new(name);
    command
        .args(arguments)
        // The cards are simulated: which real ones are visible means nothing.
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", [&libraries.folder]))
        .env("PYTHONPATH", before("PYTHONPATH", [&libraries.observer]))
        .env("MEMSPY_DRY_RUN", socket)
        .env("MEMSPY_DRY_RUN_STEPS", setting.until_step.to_string())
        .env("SIM_CUDA_STATE", folder.join("cards"))
        .env("SIM_CUDA_DEVICES", setting.gpus.to_string())
        .env("SIM_CUDA_TOTAL_BYTES", card.memory.to_string())
        .env("SIM_CUDA_CC", card.capability)
        .env("SIM_CUDA_SMS", card.processors.to_string())
        .env("SIM_CUDA_CTX_BYTES", card.context.to_string())
        .env("SIM_CUDA_NAME", format!("{} (simulated)", card.title));
    if !libraries.preloaded.is_empty() {
        command.env("LD_PRELOAD", before("LD_PRELOAD", &libraries.preloaded));
    }
    if setting.expandable {
        command.env("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True");
    }
    Ok(command)
}

/// The variable with `paths` first.
fn before<'a>(name: &str, paths: impl IntoIterator<Item = &'a PathBuf>) -> OsString {
    let mut joined = OsString::new();
    for path in paths {
        joined.push(path);
        joined.push(":");
    }
    if let Some(old) = std::env::var_os(name) {
        joined.push(old);
    }
    // An empty entry would be the working directory.
    let text = joined.to_string_lossy();
    OsString::from(text.trim_end_matches(':'))
}

/// The run's own folder, deleted with it.
struct TrialFolder {
    path: PathBuf,
}

impl TrialFolder {
    fn create() -> Result<TrialFolder> {
        let root = std::env::temp_dir();
        for number in 0..1000 {
            let path = root.join(format!("memspy-dry-run-{}-{number}", std::process::id()));
            if !path.exists() {
                create_folder(&path)?;
                return Ok(TrialFolder { path });
            }
        }
        bail!("cannot create a folder in {}", root.display())
    }
}

impl Drop for TrialFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
