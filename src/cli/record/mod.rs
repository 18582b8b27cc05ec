//! `memspy record`: attaches, records, reports.

mod attempt;
mod outputs;
mod ranks;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::flight::{PrintInterval, RankContext, oom_report_path};
use crate::sampler::{TargetReaders, attach, attach_when_python, rank_of};

use super::args::{ModeArg, RecordArgs, RecordFormat};
use super::launch::LaunchedProgram;
use super::mode::{ExactOutlook, ModeChoice};
use super::output::NameFields;

use super::signals::StopSignals;
use super::{attached_to, eprint_error, eprint_line, hints, in_one_line, output, privileges};
use attempt::Attempt;
use outputs::RecordedTrace;

const MIN_AFTER_TRIAL: Duration = Duration::from_secs(1);

pub(super) fn run(args: &RecordArgs) -> Result<ExitCode> {
    match args.records_several() {
        true => ranks::check(args)?,
        false => output::check_requested(args.output.as_deref(), args.force)?,
    }
    let modes = ModeChoice::for_record(args)?;
    let is_exact = modes.asked == ModeArg::Exact;
    // A name with %p can be checked once the program runs; check others now.
    let host = output::host();
    let named = |pid: u32| -> Result<PathBuf> {
        let rank = rank_of(pid);
        let default = Path::new(args.format.default_name());
        let path = args.output.as_deref().unwrap_or(default);
        output::expand(path, NameFields { pid, host: &host, rank })
    };
    let first = named(args.pid.unwrap_or(0))?;
    if !args.records_several() {
        check_outputs(args, &first)?;
    }
    check_options(args, is_exact)?;

    let (StopSignals { stop }, mut launched) = match args.program.is_empty() {
        true => (StopSignals::watch()?, None),
        false => {
            let (signals, passed_on) = StopSignals::watch_for_program()?;
            (signals, Some(LaunchedProgram::start(&args.program, passed_on)?))
        }
    };
    privileges::give_up_for(args, modes.asked);
    let pid = launched.as_ref().map(LaunchedProgram::pid).or(args.pid).unwrap_or_default();
    if args.records_several() {
        let recorded =
            ranks::record(&Arc::new(args.clone()), &modes, pid, &mut launched, &host, &stop);
        return ended(launched, recorded);
    }
    let attached = match &launched {
        Some(_) => attach_when_python(pid, &stop),
        // Exact events work without Python, as for a C program.
        None if is_exact => TargetReaders::attach_any(pid),
        None => attach(pid, &stop),
    };
    let recorded = match attached {
        Ok(readers) => {
            record(args, readers, named(pid)?, host, &stop, RankContext::default(), &modes)
                .map(drop)
        }
        Err(_) if launched.as_mut().is_some_and(LaunchedProgram::has_ended) => {
            Err(anyhow!("the program ended before memspy found a Python in it"))
        }
        Err(error) => Err(hints::attach(error, pid)),
    };
    ended(launched, recorded)
}

fn check_options(args: &RecordArgs, is_exact: bool) -> Result<()> {
    if args.format == RecordFormat::Trace
        && args.output.as_ref().is_some_and(|o| o.as_os_str() == "-")
    {
        bail!("a trace cannot be written to standard output: name a file with -o");
    }
    let streams = args.output.as_ref().is_some_and(|o| o.as_os_str() == "-");
    if args.print_every.is_some() && streams {
        bail!("--print-every prints to standard output, too: name a file with -o");
    }
    if let Some(PrintInterval::Calls { function, every }) = &args.print_every {
        if !is_exact {
            bail!(
                "--print-every {function}:{every} counts calls by exact stacks: add --exact, or give a time (--print-every 10s)"
            );
        }
        if args.until.kept().is_some() {
            bail!("--keep prints tables at intervals of time: --print-every 10s");
        }
    }
    if args.threads && args.format == RecordFormat::Trace {
        bail!(
            "--threads is for --format flamegraph or collapsed; a trace has every thread: flame draws them with --threads"
        );
    }
    if args.until.kept().is_some() && args.format != RecordFormat::Trace {
        bail!("--keep writes traces: leave --format out, and draw the trace with flame");
    }
    Ok(())
}

fn ended(launched: Option<LaunchedProgram>, recorded: Result<()>) -> Result<ExitCode> {
    match launched {
        None => recorded.map(|()| ExitCode::SUCCESS),
        Some(program) => {
            // A failed recording never ends the program.
            if let Err(error) = &recorded {
                eprint_error(&format!("error: {}", in_one_line(error)));
            }
            let end = program.wait()?;
            if end.is_by_signal() {
                eprint_line(&format!("the program {end}"));
            }
            let code = end.code();
            // The program's own failure code takes precedence.
            Ok(if recorded.is_err() && code == 0 { ExitCode::FAILURE } else { code.into() })
        }
    }
}

fn check_outputs(args: &RecordArgs, path: &Path) -> Result<()> {
    output::check(path, args.force)?;
    if outputs::has_triggers(args) {
        output::check(&oom_report_path(path), args.force)?;
    }
    Ok(())
}

fn record(
    args: &RecordArgs,
    readers: TargetReaders,
    path: PathBuf,
    host: String,
    stop: &Arc<AtomicBool>,
    rank: RankContext,
    modes: &ModeChoice,
) -> Result<Option<RecordedTrace>> {
    check_outputs(args, &path)?;
    let identity = readers.identity();
    let attached = format!("{}; Ctrl-C ends the recording", attached_to(&readers));
    if let (false, Some(error)) = (args.no_source || args.redact, readers.source_refusal()) {
        eprint_line(&format!("no source text is read from files: {error}"));
    }
    if let (Some(error), Some(condition)) = (
        readers.driver_refusal(),
        args.until.until.iter().find(|condition| condition.needs_driver()),
    ) {
        bail!(
            "cannot wait for '{condition}': {error}; wait for an amount of allocated> or reserved>"
        );
    }
    let mut attempt = first_attempt(args, readers, &path, modes)?;
    attempt.lines.insert(0, attached);
    let (mut follow, cost) = (attempt.follow.clone(), attempt.cost.clone());
    let context = || (host.clone(), stop, rank.clone());
    let mut recorded = attempt.run(args, &path, context(), false)?;
    let failure = cost.and_then(|cost| cost.failure());
    // A recording that was ending is kept, as is an ended job's.
    if let (Some(failure), false) = (failure, stop.load(Ordering::Relaxed))
        && let Ok(readers) = identity.attach()
    {
        recorded.sinks.map_or(Ok(()), outputs::discard)?;
        privileges::give_up_probes();
        let (chosen, line) = modes.without_exact(ExactOutlook::from(&failure), &readers);
        let trial = recorded.began.elapsed();
        let left = args.duration.map(|whole| left_after(trial, whole));
        let mut attempt = Attempt::of_samples(args, left, readers, &chosen)?;
        attempt.lines.insert(0, line);
        follow = chosen;
        recorded = attempt.run(args, &path, context(), true)?;
    }
    let Some(sinks) = recorded.sinks else {
        return recorded
            .result
            .with_context(|| format!("the recording into {} failed", path.display()))
            .map(|()| None);
    };
    let trace = outputs::finish(args, &path, sinks, recorded.result)?;
    follow.unfollowed(recorded.followed.as_ref())?;
    Ok(trace)
}

/// The time left after a trial; at least something, even if removing probes took nearly all.
fn left_after(trial: Duration, whole: Duration) -> Duration {
    whole.saturating_sub(trial).max(MIN_AFTER_TRIAL.min(whole))
}

fn first_attempt(
    args: &RecordArgs,
    mut readers: TargetReaders,
    path: &Path,
    modes: &ModeChoice,
) -> Result<Attempt> {
    let pid = readers.pid();
    let (outlook, readers) = match modes.asked {
        ModeArg::Follow => {
            return Attempt::of_samples(args, args.duration, readers, modes.followed());
        }
        ModeArg::Sample => {
            return Attempt::of_samples(args, args.duration, readers, modes.unfollowed());
        }
        ModeArg::Auto
            if let Some(why) =
                modes.why_not_exact((args.format == RecordFormat::Trace).then_some(path)) =>
        {
            (ExactOutlook::No(why.to_owned()), readers)
        }
        ModeArg::Auto if let Some(outlook) = modes.too_costly(&mut readers) => (outlook, readers),
        ModeArg::Auto | ModeArg::Exact => {
            let (follow, cost) = (modes.unfollowed(), modes.cost_watch());
            match Attempt::of_events(args, readers, follow, cost)? {
                Ok(attempt) => return Ok(attempt),
                Err((error, _)) if modes.asked == ModeArg::Exact => {
                    return Err(hints::probe(error, pid));
                }
                Err((error, readers)) => (ExactOutlook::No(hints::no_exact(&error)), readers),
            }
        }
    };
    privileges::give_up_probes();
    let (follow, line) = modes.without_exact(outlook, &readers);
    let mut attempt = Attempt::of_samples(args, args.duration, readers, &follow)?;
    attempt.lines.insert(0, line);
    Ok(attempt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_leaves_at_least_one_second() {
        let left = |trial, whole| {
            left_after(Duration::from_millis(trial), Duration::from_millis(whole)).as_millis()
        };
        assert_eq!(left(300, 20_000), 19_700);
        assert_eq!(left(3_900, 4_000), 1_000);
        assert_eq!(left(900, 500), 500, "no longer than was asked for");
    }
}
