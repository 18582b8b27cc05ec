//! `memspy record`: attach, record, say what came of it.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::ProgressBar;

use crate::analysis::{Verdicts, Watch};
use crate::model::{AllocatorBackend, ExactWay, Frees, RecordSink};
use crate::render;
use crate::sampler::{
    AlsoWanted, BackgroundSink, ExactRecorder, ExactWanted, Progress, Readers, Recorder, Torch,
    Wanted, WithSources, attach, attach_when_python, rank_of,
};
use crate::trace::{self, Bound, Keep};

use super::args::{FlameFormat, FreesWord, MomentWord, ProbesWord, Record as Words, RecordFormat};
use super::flight::{Flight, Printer, verdict_path, write_verdict};
use super::launch::Launched;
use super::output::Naming;
use super::signals::Signals;
use super::sinks::{Reading, Sinks, To, Waiting};
use super::{charging, choice, family, flame, hints, in_one_line, output, privileges, say};

/// Stacks after which a recording that goes on for days begins to number them anew: some 30 MiB of them.
const MOST_NUMBERS: usize = 1 << 18;

/// Runs it.
pub(super) fn run(words: &Words) -> Result<ExitCode> {
    if words.subprocesses {
        family::check(words)?;
    }
    // The name with %p in it cannot be checked before the program runs; all others are, before it starts.
    let host = output::host();
    let named = |pid: u32| -> Result<PathBuf> {
        let rank = rank_of(pid);
        let default = Path::new(words.format.default_name());
        let path = words.output.as_deref().unwrap_or(default);
        output::expand(path, Naming { pid, host: &host, rank })
    };
    let first = named(words.pid.unwrap_or(0))?;
    if !words.subprocesses {
        output::check(&first, words.force)?;
    }
    if words.format == RecordFormat::Trace
        && words.output.as_ref().is_some_and(|o| o.as_os_str() == "-")
    {
        bail!("a trace cannot be written to standard output: name a file with -o");
    }
    let streams = words.output.as_ref().is_some_and(|o| o.as_os_str() == "-");
    if words.print_every.is_some() && streams {
        bail!("--print-every prints to standard output, too: name a file with -o");
    }
    if words.until.kept().is_some() && words.format != RecordFormat::Trace {
        bail!("--keep writes traces: leave --format out, and draw the trace with 'memspy flame'");
    }

    let (Signals { stop }, mut launched) = match words.pid {
        Some(_) => (Signals::watch()?, None),
        None => {
            let (signals, passed_on) = Signals::watch_for_program()?;
            (signals, Some(Launched::start(&words.program, passed_on)?))
        }
    };
    privileges::give_up_for(words);
    let pid = launched.as_ref().map(Launched::pid).or(words.pid).unwrap_or_default();
    if words.subprocesses {
        let recorded = family::record(&Arc::new(words.clone()), pid, &mut launched, &host, &stop);
        return ended(launched, recorded);
    }
    let attached = match &launched {
        Some(_) => attach_when_python(pid, &stop),
        // Exact events need no Python: a C program has them too.
        None if words.exact => Readers::attach_any(pid),
        None => attach(pid, &stop),
    };
    let recorded = match attached {
        Ok(readers) => record(words, readers, named(pid)?, host, &stop),
        Err(_) if launched.as_mut().is_some_and(Launched::has_ended) => {
            Err(anyhow!("the program ended before memspy found a Python in it"))
        }
        Err(error) => Err(hints::attach(error, pid)),
    };
    ended(launched, recorded)
}

/// Waits for a program that memspy started, and passes on its exit code.
fn ended(launched: Option<Launched>, recorded: Result<()>) -> Result<ExitCode> {
    match launched {
        None => recorded.map(|()| ExitCode::SUCCESS),
        Some(program) => {
            // A recording that failed never ends the program: it goes on, and memspy waits with it.
            if let Err(error) = &recorded {
                say(&format!("error: {}", in_one_line(error)));
            }
            let code = program.wait()?;
            // A program's own failure says more than memspy's.
            Ok(if recorded.is_err() && code == 0 { ExitCode::FAILURE } else { code.into() })
        }
    }
}

/// Records one process into the file at `path`.
pub(super) fn record(
    words: &Words,
    readers: Readers,
    path: PathBuf,
    host: String,
    stop: &Arc<AtomicBool>,
) -> Result<()> {
    output::check(&path, words.force)?;
    if waits(words) {
        output::check(&verdict_path(&path), words.force)?;
    }
    let mut attached = attached(&readers);
    if let (false, Err(error)) = (words.no_source, readers.process.check_files()) {
        say(&format!("no source text is read from files: {error}"));
    }
    if let (Err(error), Some(condition)) =
        (&readers.gpu, words.until.until.iter().find(|condition| condition.needs_driver()))
    {
        bail!(
            "cannot wait for '{condition}': {error}; wait for an amount of allocated> or reserved>"
        );
    }
    let duration = words.duration.map(Duration::from_secs_f64);
    let also = AlsoWanted {
        holders: words.holders.map(|percent| percent / 100.0),
        holder_options: words.limits.options(false),
        step_variable: words.iter_var.clone(),
        epoch_variable: words.epoch_var.clone(),
        // What is kept has numbers of its own.
        forget_after: words.until.kept().map(|_| MOST_NUMBERS),
    };
    let wanted = Wanted { rate: words.rate, duration, also };
    let process = readers.process.clone();
    let line_cache = readers.python.as_ref().and_then(|python| python.line_cache(&process));
    // Before the file is made: probes that are refused leave nothing behind.
    let recorder = recorder(words, wanted, readers, &mut attached)?;
    let sink = sinks(words, &path, stop)?;
    let bar = progress_bar(words, duration);
    // Said when the first moments are on the disk: whoever reads it may kill memspy.
    let mut observe = |progress: &Progress| {
        attached.drain(..).for_each(|line| say(&line));
        show(&bar, progress);
    };
    let (sinks, result) = if words.no_source {
        drive(recorder, sink, host, stop, &mut observe, |s| s)?
    } else {
        let sink = WithSources::new(sink, Arc::clone(&process), line_cache);
        drive(recorder, sink, host, stop, &mut observe, WithSources::into_inner)?
    };
    bar.finish_and_clear();
    // The process may have ended before anything was seen of it.
    attached.drain(..).for_each(|line| say(&line));
    let Some(mut sinks) = sinks else {
        return result.with_context(|| format!("the recording into {} failed", path.display()));
    };
    if result.is_ok() {
        sinks.finish().context("cannot print the last table")?;
    }
    match (sinks.to, sinks.reading) {
        (To::Flight(flight), _) => end_flight(words, *flight, result),
        (To::Trace(writer), reading) => end_trace(words, &path, *writer, reading, result),
        (To::Nothing, reading) => {
            result.context("the recording failed")?;
            let drawing = flame::Drawing {
                format: match words.format {
                    RecordFormat::Collapsed => FlameFormat::Collapsed,
                    RecordFormat::Flamegraph | RecordFormat::Trace => FlameFormat::Flamegraph,
                },
                gpu: None,
                moment: MomentWord::Peak,
                function: false,
                churn: false,
                memory: None,
                stacks: words.stacks.clone(),
            };
            if let Some(profile) = reading.profile() {
                drawing.draw(profile, &path, words.force)?;
            }
            end_reading(words, &path, reading)
        }
    }
}

/// Whether a condition is waited for.
fn waits(words: &Words) -> bool {
    !words.until.until.is_empty()
}

/// Where the records are to go.
fn sinks(words: &Words, path: &Path, stop: &Arc<AtomicBool>) -> Result<Sinks> {
    let (until, choice) = (&words.until, choice(&words.stacks));
    let to = match (until.kept(), words.format) {
        (Some(keep), _) => To::Flight(Box::new(Flight::new(path, keep, words.force, choice)?)),
        (None, RecordFormat::Trace) => {
            let writer = trace::Writer::create_as(path, output::creation(words.force));
            To::Trace(Box::new(writer.context("nothing was recorded")?.with_early_blocks()))
        }
        (None, _) => To::Nothing,
    };
    let profile = charging(&words.stacks);
    let reading = match (until.kept(), waits(words)) {
        (Some(_), _) => Reading::Later,
        (None, true) => Reading::Verdicts(Box::new(Verdicts::new(profile))),
        (None, false) => Reading::Profile(Box::new(profile)),
    };
    let full_filenames = words.stacks.full_filenames;
    let printer = words.print_every.map(|every| match until.kept() {
        Some(_) => Printer::of_stretches(every, full_filenames, choice),
        None => Printer::of_all(every, full_filenames),
    });
    let watch = Watch::new(until.until.clone());
    let stop = Arc::clone(stop);
    let waiting = Waiting::new(watch, until.then, until.most, stop, words.force);
    Ok(Sinks { to, reading, waiting, printer })
}

/// The end of a recording that was written as it went.
fn end_trace(
    words: &Words,
    path: &Path,
    writer: trace::Writer<std::fs::File>,
    reading: Reading,
    result: io::Result<()>,
) -> Result<()> {
    let finished = result.and_then(|()| writer.finish());
    let (_, written) = finished.map_err(|error| {
        anyhow!(
            "the recording into {0} ended early: {error}; what was written before is whole, \
             try 'memspy flame {0}'",
            path.display()
        )
    })?;
    if let Some(profile) = reading.profile() {
        let mut err = io::stderr().lock();
        render::summary(&mut err, profile, &path.display().to_string(), written.bytes)?;
    }
    end_reading(words, path, reading)
}

/// Writes the verdict, if one is wanted.
fn end_reading(words: &Words, path: &Path, reading: Reading) -> Result<()> {
    if let Reading::Verdicts(mut verdicts) = reading {
        let verdict = verdict_path(path);
        write_verdict(&mut verdicts, &verdict, words.force)?;
        say(&format!("wrote the verdict to {}", verdict.display()));
    }
    Ok(())
}

/// The end of a recording of which the last part was kept: that is written now.
fn end_flight(words: &Words, mut flight: Flight, result: io::Result<()>) -> Result<()> {
    let folder = flight.folder().to_owned();
    let (most, segments) = flight.size();
    let reported = result.map_err(anyhow::Error::new).and_then(|()| flight.write(None));
    let mut reported = reported.map_err(|error| {
        anyhow!(
            "the recording ended early: {error:#}; what was kept is in {0}, try 'memspy join {0} -o FILE'",
            folder.display()
        )
    })?;
    let path = reported.path.display().to_string();
    {
        let mut err = io::stderr().lock();
        render::summary(&mut err, reported.verdicts.profile(), &path, reported.bytes)?;
    }
    if waits(words) {
        let verdict = reported.write_verdict(words.force)?;
        say(&format!("wrote the verdict to {}", verdict.display()));
    }
    let first = match (words.until.kept(), flight.bound()) {
        (None | Some(Keep::Time(_) | Keep::Bytes(_)), _) | (_, None) => "",
        (_, Some(Bound::Time)) => "; of the bounds of --keep, the time was reached first",
        (_, Some(Bound::Bytes)) => {
            "; of the bounds of --keep, the size was reached first: less than the time is kept"
        }
    };
    say(&format!(
        "{segments} segments were begun; at most {} were kept{first}",
        render::bytes(most)
    ));
    flight.finish()
}

/// What records, by samples or exactly.
enum Any {
    Samples(Box<Recorder>),
    Exact(Box<ExactRecorder>),
}

/// The recorder asked for; an exact one has placed its probes, and adds to `said` which these are.
fn recorder(
    words: &Words,
    wanted: Wanted,
    readers: Readers,
    said: &mut Vec<String>,
) -> Result<Any> {
    if !words.exact {
        return Ok(Any::Samples(Box::new(Recorder::new(readers, wanted))));
    }
    let pid = readers.process.pid();
    let wanted = ExactWanted {
        duration: wanted.duration,
        way: words.probes.map(|word| match word {
            ProbesWord::Multi => ExactWay::UprobeMulti,
            ProbesWord::Perf => ExactWay::PerfUprobes,
            ProbesWord::Samples => ExactWay::PerfSamples,
        }),
        frees: match words.frees {
            FreesWord::Events => Frees::Events,
            FreesWord::Stacks => Frees::Stacks,
            FreesWord::Maps => Frees::Maps,
        },
        stacks_from: words.stacks_from,
        stacks_every: words.stacks_every,
        backward_lines: words.backward_lines,
        also: wanted.also,
    };
    let mut recorder = ExactRecorder::new(readers, wanted);
    let began = Instant::now();
    recorder.place().map_err(|error| hints::probe(error, pid))?;
    match recorder.probe() {
        Some(probe) => {
            said.push(format!(
                "probes are in place after {:.0} ms ({}): {}",
                began.elapsed().as_secs_f64() * 1e3,
                render::way(probe.way()),
                probe.probes().join(", ")
            ));
            said.extend(probe.uncovered().iter().map(|what| what.to_string()));
        }
        None => said.push(
            "nothing to probe is loaded in it yet; waiting for PyTorch's CUDA part or the CUDA driver"
                .to_owned(),
        ),
    }
    Ok(Any::Exact(Box::new(recorder)))
}

/// Runs the recorder with `sink` on a thread of its own, and takes the sinks out of it again.
fn drive<S: RecordSink + Send + 'static>(
    recorder: Any,
    sink: S,
    host: String,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(&Progress),
    unwrap: impl FnOnce(S) -> Sinks,
) -> Result<(Option<Sinks>, io::Result<()>)> {
    let mut background = BackgroundSink::new(sink).context("cannot start the writing thread")?;
    let sink = &mut background;
    let recorded = match recorder {
        Any::Samples(recorder) => recorder.run(host, sink, stop, observe),
        Any::Exact(recorder) => recorder.run(host, sink, stop, observe),
    };
    let recorded = recorded.map(|_| ());
    let (sink, written) = background.finish();
    // The writing thread's own error says why; the recorder only notices that it is gone.
    Ok((sink.map(unwrap), written.and(recorded)))
}

/// What was attached to, and what cannot be seen of it yet.
fn attached(readers: &Readers) -> Vec<String> {
    let python = readers.python.as_ref();
    let python = python.map_or("no Python".to_owned(), |p| format!("Python {}", p.version()));
    let torch = readers.torch_version().map_or(String::new(), |v| format!(", PyTorch {v}"));
    let mut lines = vec![format!(
        "attached to process {} ({python}{torch}) in {:.0} ms; Ctrl-C ends the recording",
        readers.process.pid(),
        readers.took.as_secs_f64() * 1e3,
    )];
    let limit = match readers.allocator() {
        AllocatorBackend::Native => None,
        AllocatorBackend::NotLoaded => {
            Some("PyTorch's CUDA part is not loaded in it; waiting for it".to_owned())
        }
        AllocatorBackend::NotInitialized => {
            Some("PyTorch has not used CUDA in it yet; waiting for it".to_owned())
        }
        AllocatorBackend::CudaMallocAsync => {
            Some("it uses backend:cudaMallocAsync, which keeps no counters or blocks".to_owned())
        }
        AllocatorBackend::Pluggable(name) => {
            Some(format!("it uses a CUDA allocator of its own ({name})"))
        }
        AllocatorBackend::Unknown(what) => {
            Some(format!("its CUDA allocator cannot be read: {what}"))
        }
    };
    if let Some(limit) = limit {
        lines.push(format!("{limit}; recording stacks and the driver's totals"));
    }
    if let (Err(error), Torch::Attached(_)) = (&readers.gpu, &readers.torch) {
        lines.push(format!("{error}; memory outside PyTorch will be unknown"));
    }
    lines
}

fn progress_bar(words: &Words, duration: Option<Duration>) -> ProgressBar {
    // Several recordings at once would write over each other's.
    if !io::stderr().is_terminal() || words.subprocesses {
        return ProgressBar::hidden();
    }
    match duration {
        Some(duration) => {
            let style =
                indicatif::ProgressStyle::with_template("{bar:24} {elapsed} of {len} s  {msg}");
            let bar = ProgressBar::new(duration.as_secs().max(1));
            style.map_or(bar.clone(), |style| bar.with_style(style))
        }
        None => ProgressBar::new_spinner(),
    }
}

fn show(bar: &ProgressBar, progress: &Progress) {
    let sizes = match (progress.allocated, progress.reserved) {
        (Some(allocated), Some(reserved)) => format!(
            "allocated {}, reserved {}",
            render::bytes(allocated.max(0) as u64),
            render::bytes(reserved.max(0) as u64)
        ),
        _ => "allocator unknown".to_owned(),
    };
    bar.set_position(progress.elapsed.as_secs());
    if let Some(exact) = &progress.totals.exact {
        bar.set_message(format!(
            "{} allocations, {} frees, {} lost; {sizes}",
            exact.allocations, exact.frees, exact.lost
        ));
        return bar.tick();
    }
    bar.set_message(format!(
        "{} samples, {} late, {} torn; {sizes}",
        progress.totals.ticks - progress.totals.late,
        progress.totals.late,
        progress.totals.torn
    ));
    bar.tick();
}
