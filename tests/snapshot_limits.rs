//! What a snapshot of tensors may cost: the job's standstill, time and memory, also where the
//! heap is large, hostile or damaged.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]
#![allow(unreachable_pub, missing_docs, reason = "support is a module of each test binary")]

mod support;

use std::process::Stdio;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memspy::model::{OwnershipSnapshot, ReachedLimit};
use memspy::sampler::{
    OwnerError, OwnerReading, SnapshotOptions, StopPolicy, TargetReaders, attach, read_owners,
};
use memspy::target::{Addr, Memory, MemoryError, PageCache, Process, StoppedProcess};
use serde_json::Value;
use support::memspy::{command, memspy_at, wait_until};
use support::target::Target;
use support::{pythons, sim};

/// All the time that a busy machine may need.
const AMPLE: SnapshotOptions = SnapshotOptions {
    max_pause: Duration::from_secs(600),
    max_time: Duration::from_secs(600),
    // This process keeps memory of earlier tests.
    max_memory: Some(4 << 30),
    ..SnapshotOptions::DEFAULT
};

/// These tests measure the memory of their process: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn status(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(what)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// What `of` gives, and by how many bytes this process grew meanwhile, at most.
fn growth<T>(of: impl FnOnce() -> T) -> (T, u64) {
    // Makes the peak what is in memory now.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    let made = of();
    (made, status("VmHWM").saturating_sub(before))
}

fn readers(target: &Target) -> TargetReaders {
    attach(target.pid(), &AtomicBool::new(false)).unwrap()
}

fn threads(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let state = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('X')
    };
    tasks.map(|task| state(task.unwrap())).collect()
}

#[test]
fn a_job_goes_on_when_its_time_is_up_whatever_memspy_is_doing() {
    let target = Target::start(pythons::newest_here().target("paused.py"));
    let process = Process::open(target.pid()).unwrap();
    let stop = (0..20)
        .find_map(|_| StoppedProcess::for_at_most(&process, Duration::from_millis(300)).ok())
        .expect("it stops");
    let mappings = process.mappings().unwrap();
    let mut readable = mappings.iter().filter(|m| m.readable && m.writable && m.path.is_none());
    let (early, late) = (readable.next().unwrap().start, readable.next().unwrap().start);
    let cache = PageCache::new(Box::new(process.memory()));
    cache.close_with(stop.resumed());
    let memory: &dyn Memory = &cache;
    let known = memory.u64(early);
    // As a look that computes, and never lets go.
    wait_until("the job to go on", || stop.resumed().is_set());
    wait_until("all threads to run", || !threads(target.pid()).contains(['t', 'T']));
    // What was read stays; what comes later is not mixed in.
    assert_eq!(memory.u64(early), known);
    assert_eq!(memory.u64(late), Err(MemoryError::Closed(Addr(late.0))));
    let stopped_for = stop.end();
    assert!(stopped_for >= Duration::from_millis(300), "{stopped_for:?}");
}

#[test]
fn a_job_of_many_objects_goes_on_before_they_are_looked_into() {
    let _alone = alone();
    let target = sim::start("large_heap.py", &["--objects", "150000"]);
    let mut readers = readers(&target);
    let (mut pauses, mut ages) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let map = read_owners(&mut readers, AMPLE).unwrap().snapshot;
        assert!(map.objects > 150_000 && map.incomplete.is_none());
        assert!(map.stops.count >= 1 && map.stops.longest >= map.pause.unwrap());
        pauses.push(map.pause.unwrap());
        ages.push(map.age);
    }
    // It was copied while it stood still, and understood after that, which takes much longer.
    assert!(2 * *pauses.iter().min().unwrap() < *ages.iter().max().unwrap(), "{pauses:?} {ages:?}");
}

#[test]
fn a_snapshot_that_may_not_take_long_ends_with_a_word() {
    let _alone = alone();
    let target = sim::start("large_heap.py", &["--objects", "60000"]);
    for words in [&["tensors"][..], &["tensors", "--no-stop"], &["graph"], &["tensors", "--json"]] {
        let words = [words, &["--max-time", "1ms"]].concat();
        memspy_at(target.pid(), &words)
            .refused(&["the limit of 1ms for the snapshot", "--max-time"]);
    }
    let dump = memspy_at(target.pid(), &["dump", "--max-time", "1ms"]).ok();
    assert!(dump.out.contains("the limit of 1ms for the snapshot"), "{}", dump.out);
    // What comes by then is used: the time is enough for some of it.
    let mut readers = readers(&target);
    let took = {
        let began = Instant::now();
        read_owners(&mut readers, AMPLE).unwrap();
        began.elapsed()
    };
    let mut ends = Vec::new();
    for part in 1..10 {
        let options = SnapshotOptions { max_time: took * part / 12, ..AMPLE };
        let began = Instant::now();
        let limit = |limit: ReachedLimit| match limit {
            // It gives up earlier where what is left is not enough: then it does not say that the
            // time is up.
            ReachedLimit::Time(most) => {
                let took = began.elapsed();
                assert!(took >= most, "{most:?} was not reached, but {took:?}");
            }
            ReachedLimit::Finding { .. } | ReachedLimit::Repeating(_) => {}
            other => panic!("{other}"),
        };
        match read_owners(&mut readers, options) {
            Ok(OwnerReading { snapshot: map, .. }) => {
                map.incomplete.iter().for_each(|incomplete| limit(incomplete.limit));
                let missing = map.incomplete.map(|incomplete| incomplete.missing);
                assert!(!map.tensors.is_empty());
                ends.push(format!("{missing:?}"));
            }
            Err(OwnerError::Cut { limit: came_to, .. }) => {
                limit(came_to);
                ends.push(format!("{came_to}"));
            }
            Err(error) => panic!("{error}"),
        }
    }
    eprintln!("{ends:?}");
    assert!(read_owners(&mut readers, AMPLE).unwrap().snapshot.incomplete.is_none());
}

#[test]
fn a_stop_copies_no_more_of_a_large_heap() {
    let _alone = alone();
    let mut target = sim::start("large_heap.py", &["--objects", "1000000"]);
    let options = SnapshotOptions { max_pause: SnapshotOptions::DEFAULT.max_pause, ..AMPLE };
    let mut readers = readers(&target);
    let quiet = read_owners(&mut readers, options).unwrap().snapshot;
    assert!(quiet.uncertain.is_none() && quiet.incomplete.is_none(), "{:?}", quiet.uncertain);
    assert!(quiet.objects > 1_000_000, "{}", quiet.objects);
    target.say("train");
    let busy: Vec<_> =
        (0..5).map(|_| read_owners(&mut readers, options).unwrap().snapshot).collect();
    target.say("stop");
    target.line();
    for map in busy.iter().chain([&quiet]) {
        assert!(map.copied_in_stop < 128 << 20, "{} MiB", map.copied_in_stop >> 20);
        assert!(map.incomplete.is_none(), "{:?}", map.incomplete);
        // What changes is a small part, and is said.
        let changed = map.uncertain.as_ref().map_or(0, |uncertain| uncertain.bytes);
        assert!(changed < 16 << 20, "{:?}", map.uncertain);
    }
    let names = |map: &OwnershipSnapshot| {
        let names = map.tensors.iter().filter_map(|row| row.names.first().cloned());
        names.filter(|name| name.contains("head")).count()
    };
    assert!(busy.iter().all(|map| names(map) >= names(&quiet)), "{:?}", busy.iter().map(names));
    // Within its own limit of memory the names are there, too.
    let (text, peak) = peak_of(target.pid(), &["tensors", "--max-time", "10min"]);
    assert!(text.contains("head"), "{text}");
    assert!(peak <= 1200 << 20, "{} MiB: {text}", peak >> 20);
}

/// What memspy prints, and its peak memory.
fn peak_of(pid: u32, words: &[&str]) -> (String, u64) {
    let mut command = command(Some(pid));
    command.args(words).args(["-p", &pid.to_string()]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
        let status = status.unwrap_or_default();
        let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = kib.and_then(|kib| kib.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) << 10);
        std::thread::sleep(Duration::from_millis(5));
    }
    let out = child.wait_with_output().unwrap().stdout;
    (String::from_utf8(out).unwrap(), peak)
}

#[test]
fn a_job_that_may_not_stand_still_for_long_goes_on_at_once() {
    let _alone = alone();
    let target = sim::start("large_heap.py", &["--objects", "60000"]);
    let done = memspy_at(target.pid(), &["tensors", "--json", "--max-stop", "3ms"]);
    if done.status.success() {
        let snapshot: Value = serde_json::from_str(&done.out).unwrap();
        assert!(
            snapshot["stops"]["longest_seconds"].as_f64().unwrap() < 1.0,
            "{}",
            snapshot["stops"]
        );
        // It changes nothing, so all is of one moment.
        assert!(snapshot["uncertain"].is_null(), "{}", snapshot["uncertain"]);
        assert!(snapshot["incomplete"].is_null(), "{}", done.err);
    } else {
        assert!(done.err.contains("did not stop within") && done.err.contains("--no-stop"));
    }
    assert!(!threads(target.pid()).contains(['t', 'T']));
}

#[test]
fn objects_far_apart_do_not_take_memory_without_end() {
    let _alone = alone();
    let target = sim::start("far_apart.py", &["--objects", "60000"]);
    for stop_policy in [StopPolicy::Stop, StopPolicy::Never] {
        let options = SnapshotOptions { stop_policy, max_memory: Some(16 << 20), ..AMPLE };
        let mut readers = readers(&target);
        let (snapshot, grown) = growth(|| read_owners(&mut readers, options));
        let ended = match snapshot {
            Ok(snapshot) => snapshot.snapshot.incomplete.map(|incomplete| incomplete.limit),
            Err(OwnerError::Cut { limit, .. }) => Some(limit),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(ended, Some(ReachedLimit::Memory(16 << 20)), "{stop_policy:?}");
        // 1 KiB for each of 130,000 objects or fewer, and what memspy needs for itself; they take
        // 240 MiB.
        assert!(grown < 180 << 20, "{stop_policy:?}: {} MiB", grown >> 20);
    }
}

#[test]
fn a_list_of_a_wild_size_takes_neither_time_nor_memory() {
    let _alone = alone();
    let mut target = sim::start("heap_damage.py", &["--objects", "2000"]);
    target.say("sized");
    target.read_until_ready();
    for stop_policy in [StopPolicy::Stop, StopPolicy::Never] {
        let options = SnapshotOptions { stop_policy, ..AMPLE };
        let mut readers = readers(&target);
        let (snapshot, grown) = growth(|| read_owners(&mut readers, options));
        let map = snapshot.unwrap().snapshot;
        assert!(
            map.unreadable > 0 && map.incomplete.is_none(),
            "{stop_policy:?}: {}",
            map.unreadable
        );
        assert!(grown < 192 << 20, "{stop_policy:?}: {} MiB", grown >> 20);
    }
}

#[test]
fn one_damaged_tensor_does_not_hide_all_others() {
    let _alone = alone();
    let mut target = sim::start("heap_damage.py", &["--objects", "100"]);
    let mut readers = readers(&target);
    let whole = read_owners(&mut readers, AMPLE).unwrap().snapshot;
    assert_eq!(whole.misfits, 0);
    target.say("misfits 5");
    target.read_until_ready();
    let damaged = read_owners(&mut readers, AMPLE).unwrap().snapshot;
    assert_eq!((damaged.tensors.len(), damaged.misfits), (whole.tensors.len(), 5));
    let text = memspy_at(target.pid(), &["tensors"]).ok().out;
    assert!(text.contains("5 tensors have fields that contradict each other"), "{text}");
    // Where so many do not fit, it may be the layout.
    target.say("misfits 60");
    target.read_until_ready();
    memspy_at(target.pid(), &["tensors"])
        .refused(&["no known layout makes tensors of its tensors"]);
    target.say("whole");
    target.read_until_ready();
}

/// Each with other words damaged.
const SEEDS: std::ops::Range<u64> = 1..25;

#[test]
fn damaged_tensors_lists_and_dictionaries_take_neither_time_nor_memory() {
    let _alone = alone();
    let mut target = sim::start("heap_damage.py", &["--objects", "4000"]);
    let mut readers = readers(&target);
    let began = Instant::now();
    let whole = read_owners(&mut readers, AMPLE).unwrap().snapshot;
    let honest = began.elapsed();
    let mut ends = [0; 3];
    for seed in SEEDS {
        target.say(&format!("damage {seed} 40"));
        target.read_until_ready();
        for stop_policy in [StopPolicy::Stop, StopPolicy::Never] {
            // So long that only a walk without end comes to it.
            let max_time = (honest * 40).max(Duration::from_secs(20));
            let options = SnapshotOptions { stop_policy, max_time, ..AMPLE };
            let (snapshot, grown) = growth(|| read_owners(&mut readers, options));
            match snapshot {
                // Damaged counts may contradict the references.
                Ok(OwnerReading { snapshot: map, .. })
                    if map
                        .incomplete
                        .as_ref()
                        .is_none_or(|it| it.limit == ReachedLimit::Counts) =>
                {
                    assert!(map.tensors.len() > whole.tensors.len() / 3, "seed {seed}");
                    ends[0] += 1;
                }
                Ok(OwnerReading { snapshot: map, .. }) => {
                    panic!("seed {seed}, {stop_policy:?}: {:?}", map.incomplete);
                }
                // No layout makes tensors of what is left, or a list does not close.
                Err(OwnerError::Cut { limit, .. }) => {
                    panic!("seed {seed}, {stop_policy:?}: {limit}");
                }
                Err(error) => {
                    eprintln!("seed {seed}, {stop_policy:?}: {error}");
                    ends[1] += 1;
                }
            }
            assert!(grown < 256 << 20, "seed {seed}, {stop_policy:?}: {} MiB", grown >> 20);
            ends[2] += 1;
        }
        target.say("whole");
        target.read_until_ready();
    }
    eprintln!("{} snapshots, {} refused", ends[2], ends[1]);
    assert!(ends[0] > ends[2] / 2, "{ends:?}");
    // Nothing is left of it.
    let after = read_owners(&mut readers, AMPLE).unwrap().snapshot;
    assert_eq!(after.tensors.len(), whole.tensors.len());
}
