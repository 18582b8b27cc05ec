//! One sample of one target by the own reader and by the py-spy crate, neither stopping it.
//!
//! The target's thread is 24 frames deep and spins; its main thread waits. `cargo bench --bench stacks`
//! prints both, on the newest CPython that py-spy knows too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]
#![allow(unreachable_pub, missing_docs, reason = "support is a module of each test binary")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::process::{Command, Stdio};

use criterion::{Criterion, criterion_group, criterion_main};
use memspy::model::StackTable;
use memspy::python::PythonReader;
use memspy::target::Process;
use py_spy::config::LockingStrategy;
use support::pythons;
use support::target::Target;

fn target(python: &pythons::Python) -> Target {
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

        let mut reader = PythonReader::attach_own(&process).unwrap();
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

criterion_group!(benches, one_sample);
criterion_main!(benches);
