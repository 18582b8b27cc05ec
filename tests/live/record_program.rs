//! `record -- PROGRAM`: the program runs as without memspy, and its exit code is passed on.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use crate::support::memspy::{Done, command, following, memspy, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

struct Ran {
    done: Done,
    trace: PathBuf,
    folder: tempfile::TempDir,
}

/// Runs `memspy record WORDS -- PROGRAM`; `$DONE` names a file that the program may create.
fn record(words: &[&str], program: &[&str]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.bin");
    let mut command = command(None);
    command
        .arg("record")
        .args(following(words))
        .arg("-o")
        .arg(&trace)
        .args(words)
        .arg("--")
        .args(program);
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
fn a_fatal_signal_becomes_a_shells_exit_code() {
    let kill = "import time, os, signal; time.sleep(0.5); os.kill(os.getpid(), signal.SIGTERM)";
    let ran = record(&[], &["python3", "-c", kill]);
    assert_eq!(ran.done.status.code(), Some(128 + 15), "{}", ran.done.err);
    let said = "the program was ended by SIGTERM (signal 15)";
    assert!(ran.done.err.contains(said), "{}", ran.done.err);
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
fn a_program_without_python_runs_to_its_end() {
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
fn an_old_oom_report_is_noticed_before_the_program_starts() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("trace.oom-report.txt");
    std::fs::write(&report, "of yesterday").unwrap();
    let record = |words: &[&str]| {
        let mut command = command(None);
        command.arg("record").args(following(words));
        command.arg("-o").arg(folder.path().join("trace.bin")).args(words);
        command.args(["--", "sh", "-c", "touch $DONE"]).env("DONE", folder.path().join("done"));
        run(&mut command)
    };
    for words in [&["--until", "oom"][..], &["--until", "oom", "--keep", "3s"]] {
        record(words).refused(&["trace.oom-report.txt exists already", "--force"]);
        assert!(!folder.path().join("done").exists(), "the program was started");
    }
    assert_eq!(std::fs::read_to_string(&report).unwrap(), "of yesterday");
    record(&["--until", "oom", "--force"]);
    assert!(folder.path().join("done").exists());
}

/// Starts `memspy record -- python3 -c PROGRAM` and waits until the recording has begun.
fn recording(folder: &std::path::Path, program: &str) -> Child {
    let mut command = command(None);
    command
        .args(["record", "--cpu", "10", "-o"])
        .arg(folder.join("t.bin"))
        .args(["--", "python3", "-c", program]);
    command.env("DONE", folder.join("done")).stderr(Stdio::piped());
    let mut memspy = command.spawn().unwrap();
    let errors = std::io::BufReader::new(memspy.stderr.take().unwrap());
    let mut lines = std::io::BufRead::lines(errors).map(Result::unwrap);
    assert!(lines.any(|line| line.contains("attached to process")));
    // The pipe must not close.
    std::thread::spawn(move || lines.for_each(drop));
    memspy
}

#[test]
fn signals_to_memspy_reach_the_program_and_return_its_code() {
    // READY for signals once it has created the file.
    let wait = "open(os.environ['DONE'], 'w').close()\nfor _ in range(600): time.sleep(0.1)";
    let answers = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n\
                   signal.signal(signal.SIGUSR1, lambda *_: sys.exit(8))";
    let program = format!("import os, signal, sys, time\n{answers}\n{wait}");
    for (signal, code) in [(Signal::SIGTERM, 7), (Signal::SIGHUP, 128 + 1), (Signal::SIGUSR1, 8)] {
        let folder = tempfile::tempdir().unwrap();
        let mut memspy = recording(folder.path(), &program);
        crate::support::memspy::wait_until("the program", || folder.path().join("done").exists());
        kill(Pid::from_raw(memspy.id() as i32), signal).unwrap();
        assert_eq!(memspy.wait().unwrap().code(), Some(code), "{signal}");
        let trace = folder.path().join("t.bin");
        let mut reader = ::memspy::trace::TraceReader::open(&trace).unwrap();
        assert!(reader.replay(&mut Vec::new()).unwrap().complete, "{signal}");
    }
}

#[test]
fn a_program_that_continues_after_a_signal_is_awaited() {
    let program = "import os, signal, sys, time\n\
                   asked = []\n\
                   said = lambda name: open(os.environ['DONE'] + name, 'w').close()\n\
                   signal.signal(signal.SIGTERM, lambda *_: (asked.append(1), said('-asked')))\n\
                   said('')\n\
                   for _ in range(600):\n    time.sleep(0.1)\n    if len(asked) == 2: sys.exit(9)";
    let folder = tempfile::tempdir().unwrap();
    let mut memspy = recording(folder.path(), program);
    for there in ["done", "done-asked"] {
        crate::support::memspy::wait_until("the program", || folder.path().join(there).exists());
        kill(Pid::from_raw(memspy.id() as i32), Signal::SIGTERM).unwrap();
    }
    assert_eq!(memspy.wait().unwrap().code(), Some(9));
}

#[test]
fn an_ignored_hangup_stays_ignored_for_memspy_and_program() {
    let folder = tempfile::tempdir().unwrap();
    let program = "import signal, sys, time; time.sleep(0.5)\n\
                   sys.exit(5 if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else 6)";
    let script = "trap '' HUP; exec \"$0\" \"$@\"";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_memspy"), "record", "--cpu", "10", "-o"]);
    command.arg(folder.path().join("t.bin")).args(["--", "python3", "-c", program]);
    let done = run(&mut command);
    assert_eq!(done.status.code(), Some(5), "{}", done.err);
}

#[test]
fn a_finished_recording_leaves_the_program_running() {
    // Until memspy has said that the recording is over.
    let script = "import os, time, pathlib\n\
                  while not pathlib.Path(os.environ['DONE']).exists(): time.sleep(0.01)\n\
                  raise SystemExit(6)";
    let folder = tempfile::tempdir().unwrap();
    let done = folder.path().join("done");
    let mut command = command(None);
    command.args(["record", "--cpu", "10", "-d", "0.5"]).env("DONE", &done);
    let mut program = command.arg("-o").arg(folder.path().join("t.bin"));
    program = program.args(["--", "python3", "-c", script]);
    program.stderr(std::process::Stdio::piped());
    let mut memspy = program.spawn().unwrap();
    let errors = std::io::BufReader::new(memspy.stderr.take().unwrap());
    let mut lines = std::io::BufRead::lines(errors).map(Result::unwrap);
    assert!(lines.any(|line| line.contains("the requested time was over")));
    assert!(memspy.try_wait().unwrap().is_none(), "memspy waits for the program");
    std::fs::write(done, "").unwrap();
    assert_eq!(memspy.wait().unwrap().code(), Some(6));
    lines.for_each(drop);
}
