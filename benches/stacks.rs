//! One sample of one target by the own reader, by the py-spy crate and by Python 3.15's own
//! `profiling.sampling`: how long it takes, and how many of the stacks never were.
//!
//! `cargo bench --bench stacks` does both with each CPython that is there. For the time the
//! target's thread is 24 frames deep and spins; its main thread waits. For the truth (`--
//! known_stacks` does that alone) targets never hold still, and each stack that they can have is
//! known; the samplers take `MEMSPY_BENCH_SAMPLES` samples one right after the other. Prints a
//! table in Markdown.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]
#![allow(unreachable_pub, missing_docs, reason = "support is a module of each test binary")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use memspy::model::StackTable;
use memspy::python::InterpreterReader;
use memspy::target::Process;
use py_spy::config::LockingStrategy;
use serde_json::Value;
use support::pythons::{self, Python};
use support::stack_oracle::{KnownStacks, NamedStack, last_part, named, poll};
use support::target::Target;

fn target(python: &Python) -> Target {
    let mut command: Command = python.target("busy_stacks.py");
    command.args(["--threads", "1", "--depth", "20", "--steady"]).stderr(Stdio::inherit());
    Target::start(command)
}

fn one_sample(criterion: &mut Criterion) {
    for python in pythons::one_per_version() {
        let target = target(&python);
        let process = Process::open(target.pid()).unwrap();
        let mut group = criterion.benchmark_group(format!("3.{}", python.minor));
        group.sample_size(30);

        let mut reader = InterpreterReader::attach_own(&process).unwrap();
        let (mut table, mut out) = (StackTable::new(), Vec::new());
        reader.sample(&mut table, &mut out).unwrap();
        group.bench_function("memspy", |bencher| {
            bencher.iter(|| reader.sample(&mut table, &mut out).unwrap());
        });
        let deepest = out.iter().map(|s| table.frames(s.stack).count()).max().unwrap();
        assert!(deepest >= 20, "{deepest} frames");

        let config =
            py_spy::Config { blocking: LockingStrategy::NonBlocking, ..py_spy::Config::default() };
        // py-spy does not know every version.
        if let Ok(mut spy) = py_spy::PythonSpy::new(target.pid() as py_spy::Pid, &config)
            && spy.get_stack_traces().is_ok()
        {
            group.bench_function("py-spy", |bencher| bencher.iter(|| spy.get_stack_traces()));
        }
        group.finish();
    }
}

/// What one sampler saw of one target.
struct SampledStacks {
    sampler: &'static str,
    took: Duration,
    /// How often each stack was seen; samples or stacks of which the sampler itself said that it
    /// could not read them.
    stacks: HashMap<NamedStack, u64>,
    failed: u64,
}

fn by_poll(target: &Target, samples: u32) -> SampledStacks {
    let polled = poll(target, samples as usize);
    let failed = polled.doubted + polled.unnamed;
    SampledStacks { sampler: "memspy, polling", took: polled.took, stacks: polled.stacks, failed }
}

fn by_reader(target: &Target, samples: u32) -> SampledStacks {
    let mut reader = InterpreterReader::attach_own(&Process::open(target.pid()).unwrap()).unwrap();
    let (mut table, mut out) = (StackTable::new(), Vec::new());
    let mut seen = SampledStacks {
        sampler: "memspy, `-r`",
        took: Duration::ZERO,
        stacks: HashMap::new(),
        failed: 0,
    };
    for _ in 0..samples {
        let began = Instant::now();
        let stats = reader.sample(&mut table, &mut out).unwrap();
        seen.took += began.elapsed();
        seen.failed += u64::from(stats.torn);
        for sample in &out {
            *seen.stacks.entry(named(&table, sample.stack)).or_default() += 1;
        }
    }
    seen
}

/// `None` where py-spy does not know the version.
fn by_py_spy(target: &Target, samples: u32, is_blocking: bool) -> Option<SampledStacks> {
    let (sampler, blocking) = match is_blocking {
        true => ("py-spy", LockingStrategy::Lock),
        false => ("py-spy, `--nonblocking`", LockingStrategy::NonBlocking),
    };
    let config = py_spy::Config { blocking, ..py_spy::Config::default() };
    let mut spy = py_spy::PythonSpy::new(target.pid() as py_spy::Pid, &config).ok()?;
    (0..10).find(|_| spy.get_stack_traces().is_ok())?;
    let mut seen =
        SampledStacks { sampler, took: Duration::ZERO, stacks: HashMap::new(), failed: 0 };
    for _ in 0..samples {
        let began = Instant::now();
        let traces = spy.get_stack_traces();
        seen.took += began.elapsed();
        seen.failed += u64::from(traces.is_err());
        for trace in traces.iter().flatten() {
            let frames = trace.frames.iter().map(|it| (last_part(&it.name), it.line as u32));
            *seen.stacks.entry(frames.collect()).or_default() += 1;
        }
    }
    Some(seen)
}

/// By the Python of the target itself; `None` where it has no such profiler.
fn by_profiling_sampling(
    python: &Python,
    target: &Target,
    samples: u32,
    is_blocking: bool,
) -> Option<SampledStacks> {
    if python.minor < 15 {
        return None;
    }
    let mut command = python.watcher("remote_unwinder.py");
    command.arg(target.pid().to_string()).arg(samples.to_string());
    command.args(is_blocking.then_some("--blocking")).stderr(Stdio::inherit());
    let said = command.output().unwrap().stdout;
    let said: Value = serde_json::from_slice(&said).expect("what it saw");
    let mut stacks: HashMap<NamedStack, u64> = HashMap::new();
    for stack in said["stacks"].as_array().unwrap() {
        let frame = |frame: &Value| {
            // A line may be negative: that never was, either.
            (last_part(frame[0].as_str().unwrap()), frame[1].as_u64().unwrap_or(0) as u32)
        };
        let frames = stack[1].as_array().unwrap().iter().map(frame).collect();
        *stacks.entry(frames).or_default() += stack[0].as_u64().unwrap();
    }
    Some(SampledStacks {
        sampler: match is_blocking {
            true => "`profiling.sampling`, blocking",
            false => "`profiling.sampling`",
        },
        took: Duration::from_secs_f64(said["seconds"].as_f64().unwrap()),
        stacks,
        failed: said["failed"].as_u64().unwrap(),
    })
}

/// Not a matter of Criterion's, whose samples are times alone.
fn known_stacks(_: &mut Criterion) {
    if !std::env::args().skip(1).all(|word| word.starts_with('-') || word == "known_stacks") {
        return;
    }
    let samples = std::env::var("MEMSPY_BENCH_SAMPLES").ok().and_then(|n| n.parse().ok());
    let samples: u32 = samples.unwrap_or(20_000);
    eprintln!(
        "\n| CPython | target | sampler | a sample | stacks | never were | not read |\n|---|---|---|---|---|---|---|"
    );
    for python in pythons::one_per_version() {
        let targets = [
            ("lines", KnownStacks::pairs(&python, None)),
            ("levels", KnownStacks::levels(&python)),
        ];
        for (name, (target, known)) in targets {
            let all = [
                Some(by_poll(&target, samples)),
                Some(by_reader(&target, samples)),
                // A sample of py-spy's takes a hundred times as long.
                by_py_spy(&target, samples / 10, false),
                by_py_spy(&target, samples / 10, true),
                by_profiling_sampling(&python, &target, samples, false),
                by_profiling_sampling(&python, &target, samples, true),
            ];
            for seen in all.into_iter().flatten() {
                let samples =
                    if seen.sampler.starts_with("py-spy") { samples / 10 } else { samples };
                let stacks: u64 = seen.stacks.values().sum();
                let wrong: u64 =
                    seen.stacks.iter().filter(|(it, _)| !known.can_be(it)).map(|it| it.1).sum();
                let without_gil = if python.free_threaded { "t" } else { "" };
                eprintln!(
                    "| 3.{}{without_gil} | {name} | {} | {:.1} µs | {stacks} | {wrong} ({:.3} %) | {} |",
                    python.minor,
                    seen.sampler,
                    seen.took.as_secs_f64() * 1e6 / f64::from(samples),
                    wrong as f64 * 100.0 / stacks.max(1) as f64,
                    seen.failed,
                );
            }
        }
    }
}

criterion_group!(benches, one_sample, known_stacks);
criterion_main!(benches);
