//! `memspy top`: a job's memory, live.

use std::env;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Error, Result, anyhow, bail};

use crate::analysis::ThreadChoice;
use crate::model::CudaIndex;
use crate::render::{in_sentence, suggestion_on};
use crate::sampler::{
    AttachedRecorder, CommonOptions, ExactOptions, ExactRecorder, ProcessTree, RankProcess,
    RecordOptions, Recorder, TargetReaders, attach,
};
use crate::tui::{self, AttachFn, BoxError, FindRanks, NewRank, Palette, TopError, TopOptions};

use super::args::TopArgs;
use super::following::FollowChoice;
use super::signals::StopSignals;
use super::{hints, output};

/// Five snapshots per redraw show short-lived blocks at a fraction of a recording's cost.
const MIN_SNAPSHOT_INTERVAL: Duration = Duration::from_millis(50);

pub(super) fn run(args: &TopArgs) -> Result<()> {
    let command = |name: &str| in_sentence(&suggestion_on(args.pid, name, &[]));
    let without = format!(
        "{} prints the state once, {} records into a file",
        command("dump"),
        command("record")
    );
    if !io::stdout().is_terminal() {
        bail!("top draws on a terminal, and standard output is none: {without}");
    }
    if env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        bail!("top cannot draw on this terminal (TERM is unset or dumb): {without}");
    }
    let options = TopOptions {
        pid: args.pid,
        owners: args.cost.options(),
        gpu: args.gpu.map(CudaIndex),
        interval: args.refresh,
        full_filenames: args.full_filenames,
        choice: ThreadChoice { gil_only: args.gil, idle_too: args.idle },
        palette: Palette { color: output::wants_colors(), unicode: is_utf8() },
        host: output::host(),
    };
    let stop = StopSignals::watch()?.stop;
    let shown = match args.subprocesses {
        true => tui::run_all(members(args, &stop)?, &options, &stop),
        false => {
            let attaching =
                attaching(AttachOptions::from_args(args), args.pid, None, Arc::clone(&stop));
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

#[derive(Clone)]
struct AttachOptions {
    follow: FollowChoice,
    exact: bool,
}

impl AttachOptions {
    fn from_args(args: &TopArgs) -> AttachOptions {
        AttachOptions { follow: FollowChoice::for_top(args), exact: args.exact }
    }
}

/// Attaches, and advises on failure; the first time with `readers`, if given.
fn attaching(
    how: AttachOptions,
    pid: u32,
    mut readers: Option<TargetReaders>,
    stop: Arc<AtomicBool>,
) -> AttachFn {
    Box::new(move || {
        let advised = |error| BoxError::from(hints::attach(error, pid));
        if how.exact {
            let readers = match readers.take() {
                Some(readers) => readers,
                None => TargetReaders::attach_any(pid).map_err(advised)?,
            };
            let mut recorder = ExactRecorder::new(readers, ExactOptions::default());
            recorder.attach_probes().map_err(|error| BoxError::from(hints::probe(error, pid)))?;
            return Ok(AttachedRecorder::Exact(Box::new(recorder)));
        }
        let readers = match readers.take() {
            Some(readers) => readers,
            None => attach(pid, &stop).map_err(advised)?,
        };
        let wanted = RecordOptions {
            rate: how.follow.rate,
            duration: None,
            follow: how.follow.budget.clone(),
            common: CommonOptions::default(),
        };
        let recorder = Recorder::new(readers, wanted).with_snapshot_interval(MIN_SNAPSHOT_INTERVAL);
        Ok(AttachedRecorder::Samples(Box::new(recorder)))
    })
}

fn members(args: &TopArgs, stop: &Arc<AtomicBool>) -> Result<FindRanks> {
    let (how, pid) = (AttachOptions::from_args(args), args.pid);
    let mut family = ProcessTree::new(pid, how.exact).map_err(|error| hints::attach(error, pid))?;
    let stop = Arc::clone(stop);
    Ok(Box::new(move || {
        // Checked first: later descendants come from known processes.
        let alive = family.root_is_alive();
        let joining: Vec<NewRank> = family
            .poll()
            .into_iter()
            .map(|RankProcess { readers, rank }| {
                let pid = readers.pid();
                let attach = attaching(how.clone(), pid, Some(readers), Arc::clone(&stop));
                NewRank { rank, pid, attach }
            })
            .collect();
        (alive || !joining.is_empty()).then_some(joining)
    }))
}

/// Whether the user chose UTF-8: the first of these that is set decides.
fn is_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(env::var_os);
    let first = set.map(|value| value.to_string_lossy().to_lowercase()).find(|v| !v.is_empty());
    first.is_some_and(|locale| locale.contains("utf-8") || locale.contains("utf8"))
}
