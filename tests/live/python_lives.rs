//! Targets that start, change, replace themselves and end while sampled.

use std::collections::HashSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::pythons;
use crate::support::target::Target;
use memspy::model::{StackTable, ThreadSample};
use memspy::python::{InterpreterError, InterpreterReader};
use memspy::target::Process;

fn attach(pid: u32) -> InterpreterReader {
    InterpreterReader::attach_own(&Process::open(pid).unwrap()).unwrap()
}

/// File and name of each frame, innermost first.
fn frames(table: &StackTable, sample: &ThreadSample) -> Vec<(String, String)> {
    table
        .frames(sample.stack)
        .map(|frame| {
            let function = table.get_function(frame.function).unwrap();
            (function.file.to_string(), function.name.to_string())
        })
        .collect()
}

/// The number of a stack's cell, by function and by module.
fn cell(stack: &[(String, String)]) -> Option<(u64, u64)> {
    let at = stack.iter().position(|(_, name)| name.starts_with("cell_"))?;
    let number = |text: &str| text.trim_matches(|c: char| !c.is_ascii_digit()).parse().ok();
    assert_eq!(stack[at].0, stack[at + 1].0, "file of function and module: {stack:?}");
    Some((number(&stack[at].1)?, number(&stack[at + 1].0)?))
}

#[test]
fn a_reused_code_object_never_keeps_its_old_name() {
    for python in pythons::one_per_version() {
        let mut target = Target::start(python.target("reused_code.py"));
        let mut reader = attach(target.pid());
        let (mut table, mut out) = (StackTable::new(), Vec::new());
        let mut said = target.said.clone();
        let mut addresses = HashSet::new();
        for number in 0..200 {
            addresses.insert(said.pop().unwrap());
            let stats = reader.sample(&mut table, &mut out).unwrap();
            assert_eq!((stats.stacks, stats.torn), (1, 0), "{}: cell {number}", python.label);
            let stack = frames(&table, &out[0]);
            assert_eq!(cell(&stack), Some((number, number)), "{}: {stack:?}", python.label);
            target.say("next");
            said = target.read_until_ready();
        }
        eprintln!("{}: 200 cells at {} addresses", python.label, addresses.len());
        assert!(addresses.len() < 200, "{}: the target reused no addresses", python.label);
    }
}

#[test]
fn cells_that_run_freely_are_never_mixed_up() {
    for python in pythons::one_per_version() {
        let mut command = python.target("reused_code.py");
        command.arg("--free");
        let target = Target::start(command);
        let mut reader = attach(target.pid());
        let (mut table, mut out) = (StackTable::new(), Vec::new());
        let (mut last, mut seen, mut torn, mut samples) = (0, 0, 0, 0);
        let deadline = Instant::now() + Duration::from_secs(20);
        while seen < 1000 && Instant::now() < deadline {
            let stats = reader.sample(&mut table, &mut out).unwrap();
            (torn, samples) = (torn + stats.torn, samples + 1);
            for sample in &out {
                let stack = frames(&table, sample);
                let Some((function, module)) = cell(&stack) else { continue };
                assert_eq!(function, module, "{}: {stack:?}", python.label);
                assert!(function >= last, "{}: {function} after {last}", python.label);
                (last, seen) = (function, seen + 1);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        eprintln!(
            "{}: {seen} of {samples} samples in cells up to {last}, {torn} torn",
            python.label
        );
        assert!(seen > 100, "{}: {seen} of {samples} samples, {torn} torn", python.label);
    }
}

/// Samples until an error, and returns it.
fn sample_until_error(reader: &mut InterpreterReader) -> InterpreterError {
    let (mut table, mut out) = (StackTable::new(), Vec::new());
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Err(error) = reader.sample(&mut table, &mut out) {
            return error;
        }
        assert!(Instant::now() < deadline, "the target ended unnoticed");
    }
}

#[test]
fn a_killed_target_is_gone() {
    for python in pythons::one_per_version() {
        let mut command = python.target("busy_stacks.py");
        command.args(["--threads", "3"]);
        let target = Target::start(command);
        let mut reader = attach(target.pid());
        let killer = std::thread::spawn(move || {
            let mut target = target;
            std::thread::sleep(Duration::from_millis(30));
            target.kill();
        });
        let error = sample_until_error(&mut reader);
        assert!(matches!(error, InterpreterError::Gone { .. }), "{}: {error}", python.label);
        killer.join().unwrap();
    }
}

#[test]
fn an_interpreter_that_shuts_down_is_not_ready_or_gone() {
    let script = "import threading, time\n\
                  for n in range(4): threading.Thread(target=time.sleep, args=(0.1,)).start()\n\
                  print('READY', flush=True)\n\
                  input()\n\
                  class Slow:\n    def __del__(self): sum(range(10**6))\n\
                  kept = Slow()\n";
    for python in pythons::one_per_version() {
        let mut command = python.command();
        command.args(["-c", script]);
        let mut target = Target::start(command);
        let mut reader = attach(target.pid());
        target.say("end");
        let error = sample_until_error(&mut reader);
        let expected =
            matches!(error, InterpreterError::Gone { .. } | InterpreterError::NotReady { .. });
        assert!(expected, "{}: {error}", python.label);
    }
}

#[test]
fn a_target_that_replaces_itself_is_noticed() {
    for python in pythons::one_per_version() {
        let script = "import os; print('READY', flush=True); input(); \
                      os.execv('/bin/sleep', ['sleep', '60'])";
        let mut command = python.command();
        command.args(["-c", script]);
        let mut target = Target::start(command);
        let mut reader = attach(target.pid());
        target.say("exec");
        let error = sample_until_error(&mut reader);
        assert!(
            !matches!(error, InterpreterError::LayoutMismatch { .. }),
            "{}: {error}",
            python.label
        );
        let again = InterpreterReader::attach(&Process::open(target.pid()).unwrap());
        assert!(matches!(again, Err(InterpreterError::NotPython { .. })), "{}", python.label);
    }
}

#[test]
fn attaching_while_the_interpreter_starts_says_not_ready() {
    for python in pythons::one_per_version() {
        let mut child =
            python.command().args(["-c", "input()"]).stdin(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut early = 0;
        loop {
            match InterpreterReader::attach_own(&Process::open(child.id()).unwrap()) {
                Ok(_) => break,
                Err(error) if error.is_transient() && Instant::now() < deadline => early += 1,
                // `chroot` becomes the interpreter only after it has started itself.
                Err(InterpreterError::NotPython { program, .. })
                    if program.ends_with("/chroot") => {}
                Err(error) => panic!("{}: {error}", python.label),
            }
        }
        eprintln!("{}: not ready {early} times", python.label);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn threads_may_come_and_go() {
    let script = "import threading, sys\n\
                  def work(depth):\n    return depth and work(depth - 1)\n\
                  print('READY', flush=True)\n\
                  while True:\n\
                  \x20   threads = [threading.Thread(target=work, args=(20,)) for _ in range(8)]\n\
                  \x20   [t.start() for t in threads]; [t.join() for t in threads]\n";
    for python in pythons::one_per_version() {
        let mut command = python.command();
        command.args(["-c", script]);
        let target = Target::start(command);
        let mut reader = attach(target.pid());
        let (mut table, mut out) = (StackTable::new(), Vec::new());
        let (mut stacks, mut torn, mut changing) = (0, 0, 0);
        for _ in 0..500 {
            match reader.sample(&mut table, &mut out) {
                Ok(stats) => {
                    stacks += stats.stacks;
                    torn += stats.torn;
                }
                Err(InterpreterError::NotReady { .. }) => changing += 1,
                Err(error) => panic!("{}: {error}", python.label),
            }
            std::thread::sleep(Duration::from_micros(300));
        }
        eprintln!("{}: {stacks} stacks, {torn} torn, {changing} lists given up", python.label);
        assert!(stacks > 400 && changing < 25, "{}", python.label);
    }
}

#[test]
fn what_is_no_python_is_named() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let found = InterpreterReader::attach(&Process::open(child.id()).unwrap());
    match found.map(|reader| reader.version().to_owned()) {
        Err(InterpreterError::NotPython { program, .. }) => assert!(program.ends_with("sleep")),
        // The child may not be `sleep` yet.
        Err(InterpreterError::NotReady { .. }) | Err(InterpreterError::Gone { .. }) => {}
        other => panic!("{other:?}"),
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn threads_of_sub_interpreters_are_read_too() {
    let script = "import threading, time\n\
                  try:\n    import _interpreters as sub\n\
                  except ImportError:\n    import _xxsubinterpreters as sub\n\
                  inner = sub.create()\n\
                  code = 'import time\\ndef asleep(): time.sleep(60)\\nasleep()'\n\
                  threading.Thread(target=lambda: sub.run_string(inner, code), daemon=True).start()\n\
                  time.sleep(0.3)\nprint('READY', flush=True)\ntime.sleep(60)\n";
    for python in pythons::one_per_version() {
        let mut command = python.command();
        command.args(["-c", script]);
        let target = Target::start(command);
        let mut reader = attach(target.pid());
        let (mut table, mut out) = (StackTable::new(), Vec::new());
        reader.sample(&mut table, &mut out).unwrap();
        let asleep = out.iter().any(|s| frames(&table, s)[0].1 == "asleep");
        assert!(asleep, "{}: {} threads", python.label, out.len());
    }
}

/// A target with the Python of PyTorch's environment.
fn started(script: &str, arguments: &[&str]) -> Target {
    let mut command = crate::support::sim::python();
    command.arg(format!("tests/targets/{script}")).args(arguments);
    Target::start(command)
}

#[test]
fn a_very_long_function_is_read_or_has_no_line() {
    // The table of 700,000 lines has some 3 MiB; more than 20 MiB are not read.
    for (more, is_read) in [("3145728", true), ("20971520", false)] {
        let target = started("long_table.py", &[more]);
        let mut reader = attach(target.pid());
        let (mut table, mut out) = (StackTable::new(), Vec::new());
        let stats = reader.sample(&mut table, &mut out).unwrap();
        assert_eq!((stats.stacks, stats.torn), (1, 0), "{more}");
        let names: Vec<String> = frames(&table, &out[0]).into_iter().map(|it| it.1).collect();
        assert_eq!(names, ["waits", "<module>"], "{more}");
        let lines: Vec<u32> = table.frames(out[0].stack).map(|frame| frame.line).collect();
        assert_eq!(lines, [if is_read { 8 } else { 0 }, 14], "{more}");
        target.finish();
    }
}

#[test]
fn a_job_whose_main_thread_has_ended_is_alive() {
    let target = started("main_thread_ended.py", &[]);
    let process = Process::open(target.pid()).unwrap();
    assert!(process.is_alive() && process.same_start());
    assert_eq!(process.thread_state(target.pid()), Some('Z'));
    assert!(process.command().unwrap().iter().any(|word| word.ends_with("main_thread_ended.py")));
    let mut reader = attach(target.pid());
    let (mut table, mut out) = (StackTable::new(), Vec::new());
    reader.sample(&mut table, &mut out).unwrap();
    let stacks: Vec<_> = out.iter().map(|sample| frames(&table, sample)).collect();
    assert!(stacks.iter().any(|stack| stack.iter().any(|it| it.1 == "goes_on")), "{stacks:?}");
    let status = target.finish();
    assert_eq!(status, "");
    assert!(!process.is_alive());
}

#[test]
fn an_interpreter_run_by_another_thread_hides_no_thread() {
    let mut tried = 0;
    for python in pythons::one_per_version() {
        let target = Target::start(python.target("sub_interpreter.py"));
        if target.said.last().is_none_or(|said| said == "false") {
            continue;
        }
        tried += 1;
        let mut reader = attach(target.pid());
        let (mut table, mut out) = (StackTable::new(), Vec::new());
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            reader.sample(&mut table, &mut out).unwrap();
            let runs = |name: &str| {
                let of = |sample: &&ThreadSample| {
                    frames(&table, sample).iter().any(|frame| frame.1 == name)
                };
                out.iter().find(of).map(|sample| sample.thread)
            };
            let both = (runs("main_goes_its_own_way"), runs("inside_other_interpreter"));
            if let (Some(main), Some(other)) = both {
                assert_ne!(main, other, "{}", python.label);
                assert!(!table.get_thread(other).unwrap().main, "{}", python.label);
                // Before CPython 3.11 the main thread is known a little later.
                if table.get_thread(main).unwrap().main {
                    break;
                }
            }
            assert!(Instant::now() < deadline, "{}: not both were seen: {both:?}", python.label);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert!(tried > 0, "no Python here has other interpreters");
}
