//! `memspy flame --at T|oom`, `--from T --to T` and `--by`: live or allocated bytes, and refusals.

use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;

use crate::analysis_script::{MIB, Script};
use crate::exact_script::Probed;
use crate::trace_support;
use memspy::model::{EventKind, MemoryKind, Record};

fn flame(folder: &Path, words: &[&str]) -> (i32, String, String) {
    let mut all = vec!["flame", "run.bin", "-o", "-"];
    all.extend(words);
    let done = Command::new(cargo_bin("memspy")).args(all).current_dir(folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

/// Folded stacks in MiB, without files and lines.
fn folded(folder: &Path, words: &[&str]) -> Vec<(String, u64)> {
    let (code, out, err) = flame(folder, &[words, &["-f", "collapsed", "-F"]].concat());
    assert_eq!(code, 0, "{err}");
    let line = |line: &str| {
        let (stack, bytes) = line.rsplit_once(' ').unwrap();
        let names: Vec<&str> = stack.split(';').map(|f| f.split(" (").next().unwrap()).collect();
        (names.join(";"), bytes.parse::<u64>().unwrap() / MIB)
    };
    let mut stacks: Vec<_> = out.lines().map(line).collect();
    stacks.sort();
    stacks
}

fn refused(folder: &Path, words: &[&str], parts: &[&str]) {
    let (code, _, err) = flame(folder, words);
    assert!(code != 0, "{words:?}");
    for part in parts {
        assert!(err.contains(part), "no '{part}' in: {err}");
    }
}

fn pairs(stacks: &[(&str, u64)]) -> Vec<(String, u64)> {
    stacks.iter().map(|(stack, mib)| ((*stack).to_owned(), *mib)).collect()
}

/// 300 MiB from before; 64 MiB of `forward`, then 32 MiB of `train`, then the 64 MiB are freed and
/// 8 MiB of `train` allocated. Returns the seconds after each step.
pub(crate) fn exact(folder: &Path) -> Vec<f64> {
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.malloc(0, 0, 300 * MIB);
    s.begin();
    let mut times = Vec::new();
    let mut now = |s: &mut Probed| {
        s.now += 500_000_000;
        times.push(s.now as f64 / 1e9);
        s.now += 500_000_000;
    };
    s.enter(0, "forward", 20);
    let activation = s.malloc(0, 0, 64 * MIB);
    s.leave(0);
    now(&mut s);
    s.malloc(0, 0, 32 * MIB);
    now(&mut s);
    s.release(0, activation);
    s.malloc(0, 0, 8 * MIB);
    now(&mut s);
    s.finish();
    std::fs::write(folder.join("run.bin"), trace_support::write(&s.records)).unwrap();
    times
}

pub(crate) fn at(time: f64) -> String {
    format!("{time}s")
}

#[test]
fn a_time_shows_what_was_live_then() {
    let folder = tempfile::tempdir().unwrap();
    let times = exact(folder.path());
    let live = |time: f64| -> u64 {
        folded(folder.path(), &["--at", &at(time)]).iter().map(|(_, mib)| mib).sum()
    };
    assert_eq!(times.iter().map(|time| live(*time)).collect::<Vec<_>>(), [364, 396, 340]);
    let stacks = folded(folder.path(), &["--at", &at(times[0])]);
    assert!(stacks.contains(&("train;forward".to_owned(), 64)), "{stacks:?}");
    let (_, out, _) = flame(folder.path(), &["--at", &at(times[1])]);
    assert!(out.contains(&format!("at {:.3} s: 396", times[1])), "the title says when");
}

#[test]
fn a_stretch_shows_what_was_allocated_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let times = exact(folder.path());
    let window = |from: f64, to: f64, more: &[&str]| {
        folded(folder.path(), &[&["--from", &at(from), "--to", &at(to)], more].concat())
    };
    assert_eq!(window(times[0], times[1], &[]), pairs(&[("train", 32)]));
    assert_eq!(window(times[0], times[2], &[]), pairs(&[("train", 40)]));
    let all = folded(folder.path(), &["--from", "1ms", "--total-allocated"]);
    assert_eq!(all.iter().map(|(_, mib)| mib).sum::<u64>(), 104, "{all:?}");
    refused(folder.path(), &["--from", &at(times[1]), "--to", &at(times[0])], &["is after --to"]);
}

/// The line below the title was an earlier peak's: 'at 1.384 s, 508.97 MiB below the true peak'.
#[test]
fn the_subtitle_of_a_stretch_is_of_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let times = exact(folder.path());
    let (_, out, err) =
        flame(folder.path(), &["--from", &at(times[0]), "--to", &at(times[2]), "--text"]);
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].ends_with("and live then: 40.00 MiB on GPU 0"), "{out}{err}");
    let (moment, known) = lines[1].split_once("; ").unwrap();
    assert_eq!(known, "lines: proven 100 %, probable 0 %, unattributed 0 %");
    let end: f64 =
        moment.strip_prefix("exact, at ").unwrap().strip_suffix(" s").unwrap().parse().unwrap();
    assert!(times[1] < end && end <= times[2], "{}: {times:?}", lines[1]);
}

/// The option was accepted, and all threads were drawn as one.
#[test]
fn a_stretch_by_thread_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let from = at(exact(folder.path())[0]);
    let words = ["--from", &*from, "-t"];
    refused(folder.path(), &words, &["leave out --threads, or add --total-allocated"]);
}

#[test]
fn memory_is_divided_by_line_function_device_and_rank() {
    let folder = tempfile::tempdir().unwrap();
    let times = exact(folder.path());
    let by = |what: &str| folded(folder.path(), &["--at", &at(times[1]), "--by", what]);
    for what in ["line", "function"] {
        let stacks = by(what);
        assert!(stacks.contains(&("forward".to_owned(), 64)), "{stacks:?}");
        assert!(stacks.contains(&("train".to_owned(), 32)), "{stacks:?}");
    }
    assert!(by("device").iter().all(|(stack, _)| stack.contains("GPU 0;")));
    assert!(by("rank").iter().all(|(stack, _)| stack.starts_with("process ")));
}

#[test]
fn moments_that_are_not_there_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    exact(folder.path());
    refused(
        folder.path(),
        &["--at", "500s"],
        &["500.000 s is outside of the recording", "from 0.0"],
    );
    refused(folder.path(), &["--gpu", "5"], &["GPU 5 is not in the recording; it has GPU 0"]);
    refused(folder.path(), &["--at", "oom"], &["no out-of-memory error"]);
    refused(folder.path(), &["--at", "noon"], &["peak, end, oom", "12.5s"]);
    refused(folder.path(), &["-f", "png"], &["flamegraph, collapsed"]);
}

#[test]
fn a_moment_without_any_snapshot_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut s = Script::new(100);
    s.thread("MainThread", true);
    s.enter(0, "train", 10);
    s.start();
    s.tick();
    let before = s.records.len();
    let time = at(s.now as f64 / 1e9 + 0.001);
    s.gpus.entry(0).or_default();
    for _ in 0..3 {
        s.tick();
        s.alloc(0, 0, 40 * MIB);
        s.map(0);
    }
    s.end();
    let write = |records: &[Record]| {
        std::fs::write(folder.path().join("run.bin"), trace_support::write(records)).unwrap();
    };
    write(&s.records);
    refused(folder.path(), &["--at", &time], &["nothing had been read of the allocator yet"]);
    write(&s.records[..before]);
    refused(folder.path(), &[], &["it ends before the allocator's counters were first read"]);
}

#[test]
fn a_sampled_recording_has_moments_and_no_stretches() {
    let folder = tempfile::tempdir().unwrap();
    let mut s = Script::with_first_allocation();
    let between = at(s.now as f64 / 1e9 + 0.001);
    s.tick();
    s.alloc(0, 0, 20 * MIB);
    s.tick();
    s.map(0);
    s.tick();
    s.end();
    std::fs::write(folder.path().join("run.bin"), trace_support::write(&s.records)).unwrap();
    let sum = |words: &[&str]| -> u64 { folded(folder.path(), words).iter().map(|(_, m)| m).sum() };
    assert_eq!((sum(&["--at", &between]), sum(&["--at", "end"])), (40, 60));
    refused(folder.path(), &["--from", &between], &["exact recordings"]);
}

/// `flame --gpu 3` drew the driver's figure of the process, though no such GPU is in the recording.
#[test]
fn driver_memory_is_not_drawn_as_a_requested_gpus() {
    let folder = tempfile::tempdir().unwrap();
    let taken = |s: &mut Probed| {
        let memory_kind = MemoryKind::Driver(None);
        s.tell(
            0,
            EventKind::Allocated {
                memory_kind,
                address: 0x1000,
                size: MIB,
                levels: None,
                block: None,
            },
        );
        s.finish();
        std::fs::write(folder.path().join("run.bin"), trace_support::write(&s.records)).unwrap();
    };
    let mut alone = Probed::new();
    alone.gpus.clear();
    alone.enter(0, "main", 1);
    alone.begin();
    taken(&mut alone);
    for gpu in ["0", "3"] {
        refused(folder.path(), &["--gpu", gpu], &[&format!("memory of GPU {gpu} is unknown")]);
    }
    refused(folder.path(), &["--by", "device"], &["draw it without --by device"]);
    assert_eq!(folded(folder.path(), &[]), pairs(&[("main", 1)]));

    let mut beside = Probed::new();
    beside.enter(0, "main", 1);
    beside.begin();
    beside.malloc(0, 0, 2 * MIB);
    taken(&mut beside);
    assert_eq!(folded(folder.path(), &["--gpu", "0"]), pairs(&[("main", 2)]));
    assert_eq!(folded(folder.path(), &["--memory", "driver"]), pairs(&[("main", 1)]));
    for words in [&["--gpu", "0"][..], &["--by", "device"]] {
        let words = [&["--memory", "driver"], words].concat();
        refused(folder.path(), &words, &["for all GPUs together: leave out --"]);
    }
}
