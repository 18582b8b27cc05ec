//! `memspy record`: attach, record, say what came of it.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use indicatif::ProgressBar;

use crate::analysis::Profile;
use crate::model::{AllocatorBackend, ExactWay, Frees, Record, RecordSink};
use crate::render;
use crate::sampler::{
    AlsoWanted, BackgroundSink, ExactRecorder, ExactWanted, Progress, Readers, Recorder, Torch,
    Wanted, WithSources, attach, attach_when_python, rank_of,
};
use crate::trace;

use super::args::{FlameFormat, FreesWord, MomentWord, ProbesWord, Record as Words, RecordFormat};
use super::launch::Launched;
use super::output::Naming;
use super::signals::Signals;
use super::{charging, family, flame, hints, in_one_line, output, say};

/// Runs it.
pub(super) fn run(words: &Words) -> Result<ExitCode> {
    if words.subprocesses {
        family::check(words)?;
    }
    // The name with %p in it cannot be checked before the program runs; all others are, before it starts.
    let host = output::host();
    let named = |pid: u32| -> Result<PathBuf> {
        let default = PathBuf::from(match words.format {
            RecordFormat::Trace => "memspy-%p.bin",
            RecordFormat::Flamegraph => "memspy-%p.svg",
            RecordFormat::Collapsed => "memspy-%p.txt",
        });
        let rank = rank_of(pid);
        let path = words.output.as_ref().unwrap_or(&default);
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

    let Signals { stop, leave } = Signals::watch()?;
    let mut launched = words.pid.is_none().then(|| Launched::start(&words.program)).transpose()?;
    let pid = launched.as_ref().map(Launched::pid).or(words.pid).unwrap_or_default();
    if words.subprocesses {
        let recorded = family::record(&Arc::new(words.clone()), pid, &mut launched, &host, &stop);
        return ended(launched, recorded, &leave);
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
    ended(launched, recorded, &leave)
}

/// Waits for a program that memspy started, and passes on its exit code.
fn ended(launched: Option<Launched>, recorded: Result<()>, leave: &AtomicBool) -> Result<ExitCode> {
    match launched {
        None => recorded.map(|()| ExitCode::SUCCESS),
        Some(program) => {
            // A recording that failed never ends the program: it goes on, and memspy waits with it.
            if let Err(error) = &recorded {
                say(&format!("error: {}", in_one_line(error)));
            }
            let code = program.wait(leave)?;
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
    stop: &AtomicBool,
) -> Result<()> {
    output::check(&path, words.force)?;
    announce(&readers);
    let duration = words.duration.map(Duration::from_secs_f64);
    let also = AlsoWanted {
        holders: words.holders.map(|percent| percent / 100.0),
        step_variable: words.iter_var.clone(),
        epoch_variable: words.epoch_var.clone(),
    };
    let wanted = Wanted { rate: words.rate, duration, also };
    let process = readers.process.clone();
    let line_cache = readers.python.as_ref().and_then(|python| python.line_cache(&process));
    // Before the file is made: probes that are refused leave nothing behind.
    let recorder = recorder(words, wanted, readers)?;
    let to_trace = words.format == RecordFormat::Trace;
    let writer = to_trace
        .then(|| trace::Writer::create(&path, words.force))
        .transpose()
        .context("nothing was recorded")?;
    let sink = Sinks { writer, profile: charging(&words.stacks) };
    let bar = progress_bar(words, duration);
    let mut observe = |progress: &Progress| show(&bar, progress);
    let (sinks, result) = if words.no_source {
        drive(recorder, sink, host, stop, &mut observe, |s| s)?
    } else {
        let sink = WithSources::new(sink, Arc::clone(&process), line_cache);
        drive(recorder, sink, host, stop, &mut observe, WithSources::into_inner)?
    };
    bar.finish_and_clear();
    let Some(Sinks { writer, mut profile }) = sinks else {
        return result.with_context(|| format!("the recording into {} failed", path.display()));
    };
    profile.finish();
    match writer {
        Some(writer) => {
            let finished = result.and_then(|()| writer.finish());
            let (_, written) = finished.map_err(|error| {
                anyhow!(
                    "the recording into {0} ended early: {error}; what was written before is whole, \
                     try 'memspy flame {0}'",
                    path.display()
                )
            })?;
            let mut err = io::stderr().lock();
            render::summary(&mut err, &profile, &path.display().to_string(), written.bytes)?;
        }
        None => {
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
            drawing.draw(&profile, &path, words.force)?;
        }
    }
    Ok(())
}

/// What records, by samples or exactly.
enum Any {
    Samples(Box<Recorder>),
    Exact(Box<ExactRecorder>),
}

/// The recorder asked for; an exact one has placed its probes.
fn recorder(words: &Words, wanted: Wanted, readers: Readers) -> Result<Any> {
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
            say(&format!(
                "probes are in place after {:.0} ms ({}): {}",
                began.elapsed().as_secs_f64() * 1e3,
                render::way(probe.way()),
                probe.probes().join(", ")
            ));
            for uncovered in probe.uncovered() {
                say(uncovered);
            }
        }
        None => say(
            "nothing to probe is loaded in it yet; waiting for PyTorch's CUDA part or the CUDA driver",
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

/// Where the records go: the trace, and a profile of them for the summary.
struct Sinks {
    writer: Option<trace::Writer<std::fs::File>>,
    profile: Profile,
}

impl RecordSink for Sinks {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        if let Some(writer) = &mut self.writer {
            writer.record(record)?;
        }
        self.profile.record(record)
    }
}

/// Says what was attached to, and what cannot be seen of it yet.
fn announce(readers: &Readers) {
    let python = readers.python.as_ref();
    let python = python.map_or("no Python".to_owned(), |p| format!("Python {}", p.version()));
    let torch = readers.torch_version().map_or(String::new(), |v| format!(", PyTorch {v}"));
    say(&format!(
        "attached to process {} ({python}{torch}) in {:.0} ms; Ctrl-C ends the recording",
        readers.process.pid(),
        readers.took.as_secs_f64() * 1e3,
    ));
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
        say(&format!("{limit}; recording stacks and the driver's totals"));
    }
    if let (Err(error), Torch::Attached(_)) = (&readers.gpu, &readers.torch) {
        say(&format!("{error}; memory outside PyTorch will be unknown"));
    }
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
