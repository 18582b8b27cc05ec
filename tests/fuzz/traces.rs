//! Traces and the segments of rings, damaged and forged: the reader, the analysis and every command
//! that reads one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memspy::analysis::{
    IterationClock, Moment, OomBuilder, PeriodFinder, Profile, ThreadChoice, lines,
};
use memspy::files::FileCreation;
use memspy::flight::RingRecorder;
use memspy::model::{Record, RecordSink};
use memspy::trace::{Retention, TraceReader};
use nix::sys::resource::{Resource, UsageWho, getrusage, setrlimit};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::campaign::{self, Random};
use super::edits::{edit_bytes, edit_trace, mix};
use crate::flight_support::{FAST, SLOW, probed};
use crate::hostile_support;
use crate::trace_support::allocations::{Allocations, Likeness};
use crate::trace_support::any_record::recording;
use crate::trace_support::{Loop, blocks_of};

/// The most time of a processor that a command may take, in seconds, in a build without
/// optimization.
const MAX_SECONDS: u64 = 60;
/// The most lines that a command may print on standard error: some warnings for each segment of a
/// ring.
const MAX_LINES: usize = 60;

/// A recording with records of every kind.
fn any_recording(seed: u8) -> Vec<Record> {
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    recording().new_tree(&mut runner).unwrap().current()
}

/// Sound traces to begin with.
fn sound() -> Vec<Vec<u8>> {
    let mut traces = vec![
        blocks_of(&hostile_support::sampled(None), 20),
        blocks_of(&hostile_support::sampled(Some(1)), 1000),
        blocks_of(&hostile_support::exact(), 1000),
        blocks_of(&hostile_support::exact(), 12),
        blocks_of(&Loop::story(3, 60), 30),
        blocks_of(&Allocations::story(Likeness::Training, 4, 6, 60), 8),
        blocks_of(&probed(5, 60, SLOW).records, 40),
    ];
    traces.extend((0..12).map(|seed| blocks_of(&any_recording(seed), 25)));
    traces.extend(ring().into_iter().step_by(3));
    for name in ["trace-v1", "trace-v1-exact", "trace-v1-inherited", "trace-v1-thrown"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
        traces.push(fs::read(path.with_extension("memspy")).unwrap());
    }
    traces
}

/// The segments that a recorder kept.
fn ring() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.memspy");
    let keep = Retention::Bytes(60_000);
    let choice = ThreadChoice::default();
    let mut flight = RingRecorder::new(&path, keep, FileCreation::default(), choice).unwrap();
    for record in &probed(6, 300, FAST * 20).records {
        flight.record(record).unwrap();
    }
    flight.write(None, &mut |_| {}).unwrap();
    let mut segments: Vec<PathBuf> =
        fs::read_dir(flight.folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    assert!(segments.len() > 3, "{segments:?}");
    segments.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// What the commands allow for a trace of this size.
fn limited(mut profile: Profile, bytes: usize) -> Profile {
    profile.limit_memory((256 << 20) + 256 * bytes as u64);
    profile.limit_work((1 << 25) + 20_000 * bytes as u64);
    profile
}

fn replay(trace: &[u8], sink: &mut dyn RecordSink) {
    // Refused or read: both are fine.
    if let Ok(mut reader) = TraceReader::from_bytes(trace) {
        let _ = reader.replay_ahead(sink, &mut |_| {});
    }
}

#[test]
fn damaged_and_forged_traces_are_read_by_the_library() {
    let sound = sound();
    campaign::run("traces", 400, &mut |random: &mut Random| {
        let trace = edit_trace(random.pick::<Vec<u8>>(&sound), random);
        let mut finder = PeriodFinder::default();
        replay(&trace, &mut finder);
        let clock = finder.period().map_or(IterationClock::Steps, IterationClock::Period);
        let empty = || limited(Profile::new().with_iterations(clock.clone(), true), trace.len());
        let mut reports = OomBuilder::new(empty());
        replay(&trace, &mut reports);
        let report = reports.report();
        assert!(report.refused.len() <= 64);
        let mut profile = empty();
        replay(&trace, &mut profile);
        profile.finish();
        let _ = (profile.warnings(), profile.duration(), profile.iterations());
        for gpu in profile.gpus().collect::<Vec<_>>() {
            for moment in [Moment::Peak, Moment::End] {
                let _ = (profile.snapshot(gpu, moment), profile.owners(gpu, moment));
            }
            if let Ok(table) = lines::table(&profile, gpu, &lines::default_columns()) {
                let _ = lines::ranking(&profile, &table, true);
            }
        }
        Ok(256 * trace.len() + (64 << 20))
    });
}

/// Blocks of two recordings in one file: none is taken for one of the other, and it is told.
#[test]
fn mixtures_of_two_recordings_are_told() {
    let sampled = hostile_support::sampled(None);
    let stories = [&sampled, &hostile_support::exact(), &Loop::story(3, 200)];
    campaign::run("mixtures", 400, &mut |random: &mut Random| {
        let each = random.few(60);
        // Often the same records: then all numbers fit.
        let (own, other) = (random.below(3), random.below(3));
        let own = blocks_of(stories[own], each);
        let other = blocks_of(stories[other], each);
        let Some(mixed) = mix(&own, &other, random) else { return Ok(64 << 20) };
        let mut records: Vec<Record> = Vec::new();
        let summary = TraceReader::from_bytes(&mixed).unwrap().replay(&mut records).unwrap();
        // What stands behind the end of a recording is left over, and told as well.
        match summary.damaged_places > 0 || summary.unfinished_bytes > 0 {
            true => Ok(64 << 20),
            false => Err("a mixture of two recordings was read without a word".to_owned()),
        }
    });
}

/// Words of a command that reads the trace `IN`, or the folder of segments `RING`, and may write
/// `OUT`.
const COMMANDS: &[&[&str]] = &[
    &["flame", "IN", "-o", "OUT"],
    &["flame", "IN", "-f", "collapsed", "-o", "OUT", "--at", "end"],
    &["flame", "IN", "-f", "collapsed", "-o", "OUT", "--by", "owner"],
    &["flame", "IN", "-f", "collapsed", "-o", "OUT", "--total-allocated", "--from", "0.1"],
    &["flame", "IN", "-f", "collapsed", "-o", "OUT", "--memory", "driver", "-t"],
    &["flame", "IN", "--diff", "SOUND", "-o", "OUT"],
    &["flame", "IN", "SOUND", "--merge", "-f", "collapsed", "-o", "OUT"],
    &["lines", "IN"],
    &["lines", "IN", "--all-lines", "--source"],
    &["lines", "IN", "--json"],
    &["lines", "IN", "SOUND", "--merge"],
    &["iterations", "IN", "--json"],
    &["iterations", "IN", "--period"],
    &["iterations", "IN", "--parameters", "--marker", "job.py:11"],
    &["oom-report", "IN"],
    &["oom-report", "IN", "--until", "allocated>90%"],
    &["oom-report", "RING"],
    &["join", "RING", "-o", "OUT"],
    &["report", "IN", "-o", "OUT"],
    &["report", "IN", "SOUND", "-o", "OUT", "--redact"],
    &["diff", "IN", "SOUND"],
    &["diff", "SOUND", "IN"],
    &["export", "IN", "-f", "memory-viz", "-o", "OUT"],
    &["export", "IN", "-f", "speedscope", "-o", "OUT"],
    &["export", "IN", "-f", "pprof", "-o", "OUT"],
    &["export", "IN", "-f", "perfetto", "-o", "OUT"],
    &["export", "IN", "-f", "csv", "-o", "OUT"],
    &["export", "IN", "-f", "json", "-o", "OUT"],
    &["export", "IN", "-f", "parquet", "-o", "OUT"],
];

/// Runs memspy; says what is wrong with how it ended.
fn run_memspy(words: &[String], most: &mut u64) -> Result<(bool, String), String> {
    let mut memspy = Command::new(env!("CARGO_BIN_EXE_memspy"));
    memspy.args(words).stdin(Stdio::null());
    // SAFETY: setrlimit may be called between fork and exec.
    unsafe {
        use std::os::unix::process::CommandExt;
        memspy.pre_exec(|| Ok(setrlimit(Resource::RLIMIT_CPU, MAX_SECONDS, MAX_SECONDS)?));
    }
    let done = memspy.output().unwrap();
    let err = String::from_utf8_lossy(&done.stderr).into_owned();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let resident = usage.max_rss() as u64 * 1024;
    // The kernel counts what this process held when it forked as the child's, too.
    let own = getrusage(UsageWho::RUSAGE_SELF).unwrap().max_rss() as u64 * 1024;
    let line = |what: &str| format!("{what}: memspy {}: {} {err}", words[0], done.status);
    if let Some(at) = err.find("panicked at") {
        return Err(err[at..].to_owned());
    }
    match done.status.code() {
        Some(0) => {}
        Some(1) if err.lines().last().is_some_and(|last| last.starts_with("memspy: error: ")) => {}
        Some(1) => return Err(line("no error said")),
        _ => return Err(line("died")),
    }
    if err.lines().count() > MAX_LINES {
        return Err(line("too many lines"));
    }
    if resident > *most {
        *most = resident;
        if resident > own.max(450 << 20) {
            return Err(line(&format!("{} MiB", resident >> 20)));
        }
    }
    Ok((done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned()))
}

#[test]
fn damaged_and_forged_traces_are_read_by_every_command() {
    let (sound, segments) = (sound(), ring());
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut most = 0;
    let mut number = 0;
    campaign::run("commands", COMMANDS.len() as u64, &mut |random: &mut Random| {
        // A new name each time: nothing that another case left is in the way.
        number += 1;
        let inner = folder.path().join(format!("{number}"));
        fs::create_dir(&inner).unwrap();
        let words = random.pick(COMMANDS);
        let trace = edit_trace(random.pick::<Vec<u8>>(&sound), random);
        fs::write(at("in"), &trace).unwrap();
        fs::write(at("sound"), random.pick::<Vec<u8>>(&sound)).unwrap();
        let ring = inner.join("kept.ring");
        if words.contains(&"RING") {
            fs::create_dir(&ring).unwrap();
            for (n, segment) in segments.iter().enumerate() {
                let mut segment = segment.clone();
                match random.below(6) {
                    0 => edit_bytes(&mut segment, random),
                    1 => segment = edit_trace(&segment, random),
                    2 => segment = random.pick::<Vec<u8>>(&segments).clone(),
                    _ => {}
                }
                let number = if random.below(10) == 0 { random.below(20) } else { n };
                fs::write(ring.join(format!("{number:06}.memspy")), segment).unwrap();
            }
        }
        let out = inner.join("out");
        let words: Vec<String> = words
            .iter()
            .map(|word| match *word {
                "IN" => at("in"),
                "SOUND" => at("sound"),
                "RING" => ring.to_str().unwrap().to_owned(),
                "OUT" => out.to_str().unwrap().to_owned(),
                word => word.to_owned(),
            })
            .collect();
        let result = run_memspy(&words, &mut most).and_then(|(succeeded, printed)| {
            if succeeded && words.iter().any(|word| word == "--json") {
                let parsed = serde_json::from_str::<serde_json::Value>(&printed);
                parsed.map_err(|error| format!("no JSON: memspy {}: {error}", words[0]))?;
            }
            let out = fs::metadata(&out).map_or(0, |out| out.len());
            if out > (600 << 20) {
                return Err(format!("memspy {} wrote {} MiB", words[0], out >> 20));
            }
            Ok(0)
        });
        if let Err(said) = &result {
            let copy = campaign::folder().join(format!("{}-{}", words[0], number));
            fs::copy(at("in"), &copy).unwrap();
            eprintln!("{}: {words:?}: {said}", copy.display());
        }
        fs::remove_dir_all(&inner).unwrap();
        result
    });
}
