//! Processes whose memory is damaged while they wait: the whole program looks at them, and goes
//! back to its user.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ::memspy::python::InterpreterReader;
use ::memspy::target::{PageCache, Process, StoppedProcess};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::campaign::{self, Random};
use super::memory::{Copied, other};
use crate::support::memspy;
use crate::support::sim;

/// Commands that look into a job, with what they write.
const COMMANDS: &[&[&str]] = &[
    &["tensors", "--json", "--max-time", "5s"],
    &["tensors", "--no-stop", "--max-time", "5s"],
    &["graph", "--max-time", "5s"],
    &["dump"],
    &["dump", "--json"],
    &["doctor"],
    &["history", "-o", "OUT", "--force"],
    &["record", "-d", "1", "-r", "50", "-o", "OUT", "--force"],
    &["record", "--cpu", "10", "-d", "1", "--owners", "-o", "OUT", "--force"],
];
/// The longest that any of them may take beside a job that does not move.
const MAX_TIME: Duration = Duration::from_secs(120);

#[test]
#[ignore = "half a minute and more: cargo test --test fuzz -- --ignored"]
fn commands_beside_a_damaged_process_end_with_an_answer_or_an_error() {
    let target = sim::start("recorded_history.py", &["ring"]);
    let process = Process::open(target.pid()).unwrap();
    let reader = InterpreterReader::attach_own(&process).unwrap();
    let pause = StoppedProcess::stop(&process).unwrap();
    let memory = PageCache::new(Box::new(process.memory()));
    let heap = reader.heap(&memory).unwrap();
    for object in heap.objects() {
        heap.references(object, &mut |_, _| ());
    }
    heap.locals();
    let copied = Copied::of(&process.memory(), &memory.pages());
    let numbers = copied.numbers();
    drop(pause);
    let file = OpenOptions::new().write(true).open(format!("/proc/{}/mem", target.pid())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    campaign::run("damaged-process", 8, &mut |random: &mut Random| {
        let words: Vec<(u64, u64, u64)> = (0..random.few(3000))
            .map(|_| {
                let (at, word) = copied.word(random, &numbers);
                let (_, elsewhere) = copied.word(random, &numbers);
                (at, word, other(word, elsewhere, random))
            })
            .collect();
        // It must not run on what is damaged; the commands look at a stopped process.
        kill(Pid::from_raw(target.pid() as i32), Signal::SIGSTOP).unwrap();
        for (at, _, new) in &words {
            let _ = file.write_at(&new.to_le_bytes(), *at);
        }
        let words_of = random.pick(COMMANDS);
        let mut command: Command = memspy::command(Some(target.pid()));
        command.arg(words_of[0]).args(["-p", &target.pid().to_string()]);
        for word in &words_of[1..] {
            command.arg(if *word == "OUT" { out.to_str().unwrap() } else { word });
        }
        let begun = Instant::now();
        let done = command.stdout(Stdio::piped()).output().unwrap();
        let took = begun.elapsed();
        for (at, old, _) in words.iter().rev() {
            file.write_at(&old.to_le_bytes(), *at).unwrap();
        }
        let err = String::from_utf8_lossy(&done.stderr).into_owned();
        if let Some(at) = err.find("panicked at") {
            return Err(err[at..].to_owned());
        }
        let name = words_of[0];
        match done.status.code() {
            Some(0 | 1) if took < MAX_TIME => {}
            Some(0 | 1) => return Err(format!("{name}: took {took:?}")),
            _ => return Err(format!("{name}: {}: {err}", done.status)),
        }
        if words_of.contains(&"--json")
            && done.status.success()
            && let Err(error) = serde_json::from_slice::<serde_json::Value>(&done.stdout)
        {
            return Err(format!("{name}: no JSON: {error}"));
        }
        Ok(0)
    });
    // Whatever memspy did: it goes on, whole.
    kill(Pid::from_raw(target.pid() as i32), Signal::SIGCONT).unwrap();
    target.finish();
}
