//! Runs the built memspy: to its end, or recording while a test changes the target.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::everything_is_there;
use super::one_peak::one_peak_if_any;
use super::suggestions;
use memspy::render::json::{JsonDocument, JsonFormat, LinesJson};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The result of a run.
#[derive(Debug)]
pub struct Done {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Done {
    /// Panics unless it succeeded.
    #[track_caller]
    pub fn ok(self) -> Done {
        assert!(self.status.success(), "{}: {}{}", self.status, self.out, self.err);
        self
    }

    /// Panics unless it failed with exit code 1 and one line that contains every part.
    #[track_caller]
    pub fn refused(self, parts: &[&str]) {
        assert_eq!(self.status.code(), Some(1), "{}{}", self.out, self.err);
        // Warnings about a busy machine come before the error.
        let is_error = |line: &&str| !line.starts_with("memspy: warning: ");
        let errors: Vec<&str> = self.err.lines().filter(is_error).collect();
        let [error] = errors[..] else { panic!("one line, not: {}", self.err) };
        for part in parts {
            assert!(error.contains(part), "no '{part}' in: {}", self.err);
        }
    }
}

impl Done {
    /// Panics unless it failed with exit code 1 and its last line contains every part.
    #[track_caller]
    pub fn refused_last(self, parts: &[&str]) {
        assert_eq!(self.status.code(), Some(1), "{}{}", self.out, self.err);
        let last = self.err.lines().last().unwrap_or_default().to_owned();
        for part in parts {
            assert!(last.contains(part), "no '{part}' in: {last}");
        }
    }
}

/// memspy on process `pid`, with the driver of its simulated card if it uses one.
pub fn command(pid: Option<u32>) -> Command {
    let simulated = pid.is_some_and(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|entry| entry.starts_with(b"SIM_CUDA_STATE="))
    });
    let mut command = match (simulated, pid) {
        (true, Some(pid)) => {
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            let mut command = Command::new(root.join("scripts/with-sim"));
            command.args(["--share", &pid.to_string(), env!("CARGO_BIN_EXE_memspy")]);
            command
        }
        _ => Command::new(env!("CARGO_BIN_EXE_memspy")),
    };
    command.stdin(Stdio::null());
    command
}

pub fn run(command: &mut Command) -> Done {
    let done = command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let done = Done { status: done.status, out: text(done.stdout), err: text(done.stderr) };
    // A help page shows patterns, not commands.
    let is_help = done.out.contains("Usage: ") || done.out.starts_with(".ie ");
    for said in [&done.out, &done.err].into_iter().filter(|_| !is_help) {
        suggestions::all_are_understood(said);
    }
    done
}

pub fn memspy(words: &[&str]) -> Done {
    run(command(None).args(words))
}

/// Runs memspy on process `pid`; `words` come before it.
pub fn memspy_at(pid: u32, words: &[&str]) -> Done {
    let mode = if words.first() == Some(&"record") { following(words) } else { &[] };
    run(command(Some(pid))
        .args(words)
        .args(patience(words))
        .args(mode)
        .args(["-p", &pid.to_string()]))
}

/// Gives an owner snapshot enough time for a busy machine, unless the test sets limits.
pub fn patience(words: &[&str]) -> &'static [&'static str] {
    let looks =
        matches!(words.first(), Some(&("tensors" | "graph" | "referrers" | "why" | "dump")))
            || words.iter().any(|word| word.starts_with("--owners"));
    let limited = words.iter().any(|word| word.starts_with("--max-"));
    if looks && !limited { &["--max-time", "10min", "--max-stop", "10min"] } else { &[] }
}

/// Makes `record` follow the allocator, or sample if it cannot, unless the test sets a mode: the
/// automatic mode depends on the machine.
pub fn following(words: &[&str]) -> &'static [&'static str] {
    let modes = ["--exact", "-e", "-r", "--rate", "--follow", "--cpu", "--mode", "--gil", "-g"];
    if words.iter().any(|word| modes.contains(word)) {
        return &[];
    }
    match std::thread::available_parallelism().map_or(1, |n| n.get()) {
        0..=3 => &["--cpu", "10"],
        4..=7 => &["--cpu", "50"],
        _ => &["--cpu", "100"],
    }
}

/// A document printed by memspy, with exactly its struct's fields and its schema in docs/schema.
#[track_caller]
pub fn document<T: JsonFormat + Serialize + DeserializeOwned>(text: &str) -> Value {
    let printed: Value = serde_json::from_str(text).unwrap();
    let typed: JsonDocument<T> = serde_json::from_value(printed.clone()).unwrap();
    assert_eq!((typed.format.as_str(), typed.version), (T::FORMAT, T::VERSION));
    assert_eq!(serde_json::to_value(&typed).unwrap(), printed);
    let path = format!("{}/docs/schema/{}.json", env!("CARGO_MANIFEST_DIR"), T::FORMAT);
    let mut schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    refuse_more_fields(&mut schema);
    let faults: Vec<String> = jsonschema::validator_for(&schema)
        .unwrap()
        .iter_errors(&printed)
        .map(|fault| format!("{}: {fault}", fault.instance_path()))
        .collect();
    assert!(faults.is_empty(), "{faults:#?}");
    printed
}

/// Programs must accept new fields; a test must not.
fn refuse_more_fields(schema: &mut Value) {
    if let Some(fields) = schema.as_object_mut() {
        if fields.contains_key("properties") && !fields.contains_key("additionalProperties") {
            fields.insert("additionalProperties".to_owned(), false.into());
        }
        fields.values_mut().for_each(refuse_more_fields);
    }
    schema.as_array_mut().into_iter().flatten().for_each(refuse_more_fields);
}

/// `memspy lines --json` of a trace.
pub fn lines(trace: &Path, words: &[&str]) -> Value {
    let done = memspy(&[&["lines", "--json", trace.to_str().unwrap()], words].concat()).ok();
    document::<LinesJson>(&done.out)
}

/// A line's row in the output of [`lines`].
pub fn row<'a>(report: &'a Value, function: &str, line: u64) -> Option<&'a Value> {
    let functions = report["functions"].as_array().unwrap();
    let function = functions.iter().find(|f| f["function"] == function)?;
    function["lines"].as_array().unwrap().iter().find(|row| row["line"] == line)
}

/// Without warnings about snapshots read while the job changed them, as in any busy job.
pub fn warnings(said: &str) -> Vec<&str> {
    let is_torn_map = |line: &str| line.contains("were read while the job changed them");
    said.lines().filter(|line| line.contains("warning") && !is_torn_map(line)).collect()
}

/// `memspy flame -f collapsed` of a trace: stacks with their bytes.
pub fn collapsed(trace: &Path, words: &[&str]) -> Vec<(String, u64)> {
    let trace = trace.to_str().unwrap();
    let all = [&["flame", trace, "-f", "collapsed", "-o", "-"], words].concat();
    stacks_of(&memspy(&all).ok().out)
}

/// Parses collapsed text.
pub fn stacks_of(text: &str) -> Vec<(String, u64)> {
    let split = |line: &str| {
        let (stack, bytes) = line.rsplit_once(' ').unwrap();
        (stack.to_owned(), bytes.parse().unwrap())
    };
    text.lines().map(split).collect()
}

/// The sum in bytes.
pub fn total(stacks: &[(String, u64)]) -> u64 {
    stacks.iter().map(|s| s.1).sum()
}

/// Waits for `condition`; panics with `what` after a generous timeout.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let began = Instant::now();
        if condition() {
            return;
        }
        assert!(Instant::now() < end, "waited in vain for this: {what}");
        // A condition that starts a program or reads a trace must leave processors to the job.
        std::thread::sleep(
            (began.elapsed() * 2).clamp(Duration::from_millis(20), Duration::from_secs(1)),
        );
    }
}

/// Whether a growing trace has more than its first second.
fn has_a_second(trace: &Path) -> bool {
    let mut records: Vec<memspy::model::Record> = Vec::new();
    let _ = memspy::trace::TraceReader::open(trace).map(|mut reader| reader.replay(&mut records));
    let last = records.iter().filter_map(|record| record.time()).max();
    last.is_some_and(|time| time.0 >= 1_000_000_000)
}

/// A recording memspy; killed when dropped.
pub struct Recording {
    child: Child,
    errors: BufReader<ChildStderr>,
    said: String,
    trace: PathBuf,
    _folder: tempfile::TempDir,
}

impl Recording {
    /// Follows process `pid`, unless `words` set a mode. Waits until memspy is attached.
    pub fn start(pid: u32, words: &[&str]) -> Recording {
        let mut command = command(Some(pid));
        command.args(["record", "-p", &pid.to_string()]).args(words);
        Recording::run({
            command.args(patience(words)).args(following(words));
            command
        })
    }

    /// Starts an exact recording of process `pid` and waits for its probes.
    pub fn start_exact(pid: u32, words: &[&str]) -> Recording {
        let mut recording = Recording::start(pid, &[&["--exact"], words].concat());
        recording.wait_for("probes are in place");
        recording
    }

    /// Waits until memspy has printed `text`.
    pub fn wait_for(&mut self, text: &str) {
        while !self.said.contains(text) {
            let read = self.errors.read_line(&mut self.said).unwrap();
            assert!(read > 0, "memspy ended without '{text}': {}", self.said);
        }
    }

    /// With the test's own command; the trace's name is appended.
    pub fn run(mut command: Command) -> Recording {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace.bin");
        command.arg("-o").arg(&trace).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let said = String::new();
        let mut recording = Recording { child, errors, said, trace, _folder: folder };
        recording.wait_for("attached to process");
        recording
    }

    /// The trace's path.
    pub fn trace(&self) -> &Path {
        &self.trace
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until a second of the recording is on disk.
    pub fn wait_for_block(&self) {
        wait_until("a second of the trace", || has_a_second(&self.trace));
    }

    /// For a kept segment.
    pub fn wait_for_segment(&self) {
        let ring = self.trace.with_extension("ring");
        wait_until("a second in the segments", || {
            let segments = memspy::trace::segments(&ring).unwrap_or_default();
            segments.last().is_some_and(|last| has_a_second(last))
        });
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits until it ends by itself. The trace lives as long as the recording.
    pub fn wait(&mut self) -> Done {
        let mut err = std::mem::take(&mut self.said);
        self.errors.read_to_string(&mut err).unwrap();
        suggestions::all_are_understood(&err);
        Done { status: self.child.wait().unwrap(), out: String::new(), err }
    }

    /// Ends it like Ctrl-C and expects success.
    #[track_caller]
    pub fn interrupt(&mut self) -> Done {
        self.signal(Signal::SIGINT);
        let done = self.wait().ok();
        // Takes some seconds, so only in full runs.
        if everything_is_there() {
            one_peak_if_any(&self.trace);
        }
        done
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
