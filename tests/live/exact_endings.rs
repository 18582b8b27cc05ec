//! Exact recordings end well in every way, and the job continues unharmed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, UNIX_EPOCH};

use crate::support::everything_is_there;
use crate::support::exact::Exact;
use crate::support::memspy::{Recording, wait_until};
use crate::support::sim;
use crate::support::target::Target;
use memspy::model::{EndReason, EventKind, Nanos, Record};
use memspy::target::Process;
use memspy::target::usdt;
use memspy::trace::TraceReader;
use nix::sys::signal::Signal;

/// The counters in the target's memory that switch its probes on.
fn semaphores(target: &Target) -> Vec<u16> {
    let process = Process::open(target.pid()).unwrap();
    let mappings = process.mappings().unwrap();
    let library = mappings.object(|name| name.starts_with("libc10_cuda.so")).unwrap().clone();
    let sites = usdt::notes(&process.open_mapped(&library).unwrap()).unwrap();
    let memory = File::open(format!("/proc/{}/mem", target.pid())).unwrap();
    sites
        .iter()
        .filter(|site| site.provider == "pytorch")
        .map(|site| {
            let offset = site.semaphore.unwrap();
            let mapped = mappings
                .iter()
                .filter(|m| m.path == library.path)
                .find(|m| {
                    (m.offset..m.offset + (m.end.0 - m.start.0)).contains(&offset) && m.writable
                })
                .unwrap();
            let mut word = [0; 2];
            memory.read_exact_at(&mut word, mapped.start.0 + offset - mapped.offset).unwrap();
            u16::from_le_bytes(word)
        })
        .collect()
}

fn train(target: &mut Target) -> u64 {
    target.say("train 3");
    let truth: serde_json::Value = serde_json::from_str(&target.line()).unwrap();
    let count = |when: &str| truth[when]["allocation.all.allocated"].as_u64().unwrap();
    count("after") - count("before")
}

#[test]
#[ignore = "takes long: scripts/test.sh --all runs it"]
fn two_recordings_see_the_same_and_leave_nothing_behind() {
    let mut target = sim::start("exact_torch.py", &[]);
    assert!(semaphores(&target).iter().all(|&s| s == 0));
    let mut first = Recording::start_exact(target.pid(), &[]);
    assert!(semaphores(&target).iter().all(|&s| s > 0));
    let mut second = Recording::start_exact(target.pid(), &[]);
    let made = train(&mut target);
    let _ = first.interrupt();
    let more = train(&mut target);
    let _ = second.interrupt();
    assert_eq!(Exact::read(first.trace()).allocated().count() as u64, made);
    assert_eq!(Exact::read(second.trace()).allocated().count() as u64, made + more);
    assert!(semaphores(&target).iter().all(|&s| s == 0));
    train(&mut target);
}

#[test]
fn a_killed_memspy_leaves_the_job_unprobed() {
    let mut target = sim::start("exact_torch.py", &[]);
    for _ in 0..3 {
        let mut recording = Recording::start_exact(target.pid(), &[]);
        train(&mut target);
        recording.signal(Signal::SIGKILL);
        let _ = recording.wait();
        wait_until("the probes are gone", || semaphores(&target).iter().all(|&s| s == 0));
        train(&mut target);
    }
}

#[test]
#[ignore = "takes long, and a_killed_memspy_leaves_the_job_unprobed sees endings: scripts/test.sh --all runs it"]
fn attached_and_detached_again_and_again_under_load() {
    let mut target =
        sim::start("transformer12.py", &["--layers", "2", "--width", "64", "--heads", "4"]);
    // It trains all the while: more windows than attaching can need on this machine.
    for _ in 0..200 {
        target.say("window 3");
    }
    let times = if everything_is_there() { 10 } else { 3 };
    for _ in 0..times {
        let mut recording = Recording::start_exact(target.pid(), &["-d", "1"]);
        let done = recording.wait().ok();
        let exact = Exact::read(recording.trace());
        assert!(exact.allocated().count() > 100, "{}", done.err);
        assert!(done.err.contains(" 0 lost"), "{}", done.err);
    }
    let answer: serde_json::Value = serde_json::from_str(&target.line()).unwrap();
    assert!(answer["iterations"].as_u64().unwrap() > 0);
    assert!(semaphores(&target).iter().all(|&s| s == 0));
}

#[test]
fn a_target_that_ends_ends_its_recording() {
    let mut target = sim::start("exact_torch.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &[]);
    let made = train(&mut target);
    target.kill();
    let done = recording.wait().ok();
    assert!(done.err.contains("the process exited"), "{}", done.err);
    assert!(Exact::read(recording.trace()).allocated().count() as u64 >= made);
}

#[test]
fn a_target_that_forks_and_executes_goes_on() {
    let mut target = sim::start("exact_forks.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &[]);
    target.say("fork");
    assert_eq!(target.line(), "3");
    assert_eq!(target.line(), "ALLOCATED");
    target.say("execute");
    let done = recording.wait().ok();
    assert!(done.err.contains("became another program"), "{}", done.err);
    assert!(target.wait().success());
    assert_eq!(Exact::read(recording.trace()).allocated().count(), 100);
}

#[test]
fn code_created_faster_than_readable_does_not_delay_the_end() {
    let target = sim::start("new_code.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &["-d", "1"]);
    let done = recording.wait();
    let trace = recording.trace();
    assert!(done.status.success(), "{}", done.err);
    assert!(semaphores(&target).iter().all(|&s| s == 0));
    let read = Exact::read(trace);
    let totals = read.totals.unwrap();
    let told = read.events.iter().filter(|it| matches!(it.change, EventKind::Allocated { .. }));
    assert_eq!(totals.allocations, told.count() as u64);
    // The end record counts up to the last event read.
    let mut records: Vec<Record> = Vec::new();
    TraceReader::open(trace).unwrap().replay(&mut records).unwrap();
    let Some(Record::End(end)) = records.last() else { panic!("it has no end") };
    assert_eq!(end.reason, EndReason::Duration);
    assert!(end.time < Nanos(20_000_000_000), "{:?}: it went on", end.time);
    // Writing it does not take long either: it does not wait for the source text of so many
    // functions.
    let Some(Record::Start(start)) = records.first() else { panic!("it has no start") };
    let written = trace.metadata().unwrap().modified().unwrap();
    let ended = UNIX_EPOCH + Duration::from_nanos(start.unix_nanos + end.time.0);
    let later = written.duration_since(ended).unwrap_or_default();
    assert!(later < Duration::from_secs(10), "{later:?}");
}
