//! `record -- PROGRAM`: the program runs as it would without memspy, and its exit code is passed on.

#![allow(unreachable_pub, reason = "support is a module of each test binary")]

mod support;

use std::path::PathBuf;

use support::memspy::{Done, command, memspy, run};

struct Ran {
    done: Done,
    trace: PathBuf,
    folder: tempfile::TempDir,
}

/// Runs `memspy record WORDS -- PROGRAM` with `$DONE` a file that the program may leave behind.
fn record(words: &[&str], program: &[&str]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.bin");
    let mut command = command(None);
    command.arg("record").arg("-o").arg(&trace).args(words).arg("--").args(program);
    command.env("DONE", folder.path().join("done"));
    Ran { done: run(&mut command), trace, folder }
}

const RUN: &str = "import time, sys; time.sleep(0.5); print('said by it'); sys.exit(5)";

#[test]
fn its_exit_code_and_its_output_are_passed_on() {
    let ran = record(&[], &["python3", "-c", RUN]);
    assert_eq!(ran.done.status.code(), Some(5), "{}", ran.done.err);
    assert_eq!(ran.done.out, "said by it\n");
    assert!(ran.done.err.contains("the process exited"), "{}", ran.done.err);
    assert!(ran.trace.exists());
}

#[test]
fn a_signal_that_ends_it_becomes_the_code_that_shells_give() {
    let kill = "import time, os, signal; time.sleep(0.5); os.kill(os.getpid(), signal.SIGTERM)";
    let ran = record(&[], &["python3", "-c", kill]);
    assert_eq!(ran.done.status.code(), Some(128 + 15), "{}", ran.done.err);
}

#[test]
fn a_shell_script_that_becomes_python_is_waited_for() {
    let script = format!("sleep 0.3; exec python3 -c \"{RUN}\"");
    let ran = record(&[], &["sh", "-c", &script]);
    assert_eq!(ran.done.status.code(), Some(5), "{}", ran.done.err);
    assert!(ran.done.err.contains("attached to process"), "{}", ran.done.err);
    let trace = ran.trace.to_str().unwrap();
    assert!(memspy(&["lines", trace]).err.contains("no GPU memory"), "the trace is readable");
}

#[test]
fn a_program_that_is_no_python_runs_to_its_end_all_the_same() {
    for (script, code) in [("touch $DONE", 1), ("touch $DONE; exit 9", 9)] {
        let ran = record(&[], &["sh", "-c", script]);
        assert_eq!(ran.done.status.code(), Some(code), "{}", ran.done.err);
        assert!(ran.done.err.contains("before memspy found a Python"), "{}", ran.done.err);
        assert!(ran.folder.path().join("done").exists());
        assert!(!ran.trace.exists());
    }
    record(&[], &["/no/such/program"]).done.refused(&["cannot start /no/such/program"]);
}

#[test]
fn a_recording_that_is_over_leaves_the_program_running_to_its_own_end() {
    // It goes on until memspy has said that the recording is over.
    let script = "import os, time, pathlib\n\
                  while not pathlib.Path(os.environ['DONE']).exists(): time.sleep(0.01)\n\
                  raise SystemExit(6)";
    let folder = tempfile::tempdir().unwrap();
    let done = folder.path().join("done");
    let mut command = command(None);
    command.args(["record", "-d", "0.5"]).env("DONE", &done);
    let mut program = command.arg("-o").arg(folder.path().join("t.bin"));
    program = program.args(["--", "python3", "-c", script]);
    program.stderr(std::process::Stdio::piped());
    let mut memspy = program.spawn().unwrap();
    let errors = std::io::BufReader::new(memspy.stderr.take().unwrap());
    let mut lines = std::io::BufRead::lines(errors).map(Result::unwrap);
    assert!(lines.any(|line| line.contains("the time asked for was over")));
    assert!(memspy.try_wait().unwrap().is_none(), "memspy waits for the program");
    std::fs::write(done, "").unwrap();
    assert_eq!(memspy.wait().unwrap().code(), Some(6));
    lines.for_each(drop);
}
