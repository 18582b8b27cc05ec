//! `memspy top`: where the memory of a job is, live in the terminal.

use std::env;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Error, Result, anyhow, bail};

use crate::analysis::ThreadChoice;
use crate::model::CudaIndex;
use crate::sampler::{
    AlsoWanted, ExactRecorder, ExactWanted, Family, Member, Readers, Recorder, Wanted, attach,
};
use crate::tui::{self, Attach, BoxError, Joining, Members, Options, Palette, Recording, TopError};

use super::args::Top as Words;
use super::signals::Signals;
use super::{hints, output};

/// Between two block maps: five for each picture, so that what lives shortly is seen, at a fraction of a recording's cost.
const MAPS_APART: Duration = Duration::from_millis(50);

/// Runs it.
pub(super) fn run(words: &Words) -> Result<()> {
    let without = "'memspy dump' prints one look, 'memspy record' records into a file";
    if !io::stdout().is_terminal() {
        bail!("'memspy top' draws on a terminal, and standard output is none: {without}");
    }
    if env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        bail!("'memspy top' cannot draw on this terminal (TERM is unset or dumb): {without}");
    }
    let options = Options {
        pid: words.pid,
        holders: words.limits.options(words.no_pause),
        gpu: words.gpu.map(CudaIndex),
        interval: Duration::from_secs_f64(words.refresh),
        full_filenames: words.full_filenames,
        choice: ThreadChoice { gil_only: words.gil, idle_too: words.idle },
        palette: Palette {
            color: env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            unicode: is_utf8(),
        },
        host: output::host(),
    };
    let stop = Signals::watch()?.stop;
    let shown = match words.subprocesses {
        true => tui::run_all(members(words, &stop)?, &options, &stop),
        false => {
            let attaching = attaching(How::of(words), words.pid, None, Arc::clone(&stop));
            tui::run(attaching, &options, &stop)
        }
    };
    match shown {
        Ok(()) => Ok(()),
        Err(TopError::Attach(error)) => Err(Error::from_boxed(error)),
        Err(error @ TopError::Terminal(_)) => Err(anyhow!("{error}; {without}")),
        Err(error) => Err(error.into()),
    }
}

/// What of the words a recording needs.
#[derive(Clone, Copy)]
struct How {
    rate: u32,
    exact: bool,
}

impl How {
    fn of(words: &Words) -> How {
        How { rate: words.rate, exact: words.exact }
    }
}

/// How the recording attaches, with advice when it cannot; the first time by `readers`, if there are some.
fn attaching(how: How, pid: u32, mut readers: Option<Readers>, stop: Arc<AtomicBool>) -> Attach {
    Box::new(move || {
        let advised = |error| BoxError::from(hints::attach(error, pid));
        if how.exact {
            let readers = match readers.take() {
                Some(readers) => readers,
                None => Readers::attach_any(pid).map_err(advised)?,
            };
            let mut recorder = ExactRecorder::new(readers, ExactWanted::default());
            recorder.place().map_err(|error| BoxError::from(hints::probe(error, pid)))?;
            return Ok(Recording::Exact(Box::new(recorder)));
        }
        let readers = match readers.take() {
            Some(readers) => readers,
            None => attach(pid, &stop).map_err(advised)?,
        };
        let wanted = Wanted { rate: how.rate, duration: None, also: AlsoWanted::default() };
        let recorder = Recorder::new(readers, wanted).with_maps_apart(MAPS_APART);
        Ok(Recording::Samples(Box::new(recorder)))
    })
}

/// The members of the family of the process, as they come.
fn members(words: &Words, stop: &Arc<AtomicBool>) -> Result<Members> {
    let (how, pid) = (How::of(words), words.pid);
    let mut family = Family::of(pid, how.exact).map_err(|error| hints::attach(error, pid))?;
    let stop = Arc::clone(stop);
    Ok(Box::new(move || {
        // Asked first: what comes of it after that comes from those that are known.
        let alive = family.root_is_alive();
        let joining: Vec<Joining> = family
            .look()
            .into_iter()
            .map(|Member { readers, rank }| {
                let pid = readers.process.pid();
                let attach = attaching(how, pid, Some(readers), Arc::clone(&stop));
                Joining { rank, pid, attach }
            })
            .collect();
        (alive || !joining.is_empty()).then_some(joining)
    }))
}

/// Whether the terminal's user has asked for UTF-8: the first of these variables that is set decides.
fn is_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(env::var_os);
    let first = set.map(|value| value.to_string_lossy().to_lowercase()).find(|v| !v.is_empty());
    first.is_some_and(|locale| locale.contains("utf-8") || locale.contains("utf8"))
}
