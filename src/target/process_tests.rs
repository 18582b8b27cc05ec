//! A process's identity by pid and start time.

use std::process::{Command, Stdio};

use super::*;

#[test]
fn a_command_line_that_is_not_utf8_is_readable() {
    assert_eq!(text_of(b"job-\xff\xc3(\xe2\x82.py"), "job-\\xff\\xc3(\\xe2\\x82.py");
    assert_eq!(text_of("größe".as_bytes()), "größe");
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let mut child = Command::new("cat").arg("-").arg(odd).stdin(Stdio::piped()).spawn().unwrap();
    // During exec the process briefly has no arguments.
    let process = Process::open(child.id()).unwrap();
    let command = loop {
        match process.command() {
            Ok(command) if command.is_empty() => std::thread::yield_now(),
            command => break command,
        }
    };
    drop(child.stdin.take());
    let _ = child.wait();
    assert_eq!(command.unwrap().last().map(String::as_str), Some("\\xff\\xfe"));
}

#[test]
fn a_process_knows_itself() {
    let own = Process::open(std::process::id()).unwrap();
    assert!(own.is_alive() && own.same_start());
    assert_eq!(own.pids().first(), Some(&std::process::id()));
    assert!(own.threads().unwrap().iter().any(|t| t.id == std::process::id()));
    assert!(own.thread_state(std::process::id()).is_some_and(|s| "RSD".contains(s)));
    assert_eq!(own.thread_state(1 << 30), None);
    let program = own.program().unwrap();
    let maps = own.mappings().unwrap();
    let object = maps.object_at(&program).unwrap();
    let mut file = own.open_mapped(object).unwrap();
    let mut magic = [0; 4];
    io::Read::read_exact(&mut file, &mut magic).unwrap();
    assert_eq!(&magic, b"\x7fELF");
}

#[test]
fn a_process_has_an_age() {
    let before = std::time::Instant::now();
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let started = std::time::Instant::now();
    std::thread::sleep(Duration::from_millis(300));
    let least = started.elapsed();
    let age = Process::open(child.id()).unwrap().age().unwrap();
    let most = before.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel counts in ticks.
    let tick = Duration::from_millis(20);
    assert!((least.saturating_sub(tick)..most + tick).contains(&age), "{least:?} {age:?}");
}

#[test]
fn a_missing_pid_is_reported() {
    // Same pid, another start: the opened process is gone.
    let own = Process::open(std::process::id()).unwrap();
    assert_eq!(own.reopen().unwrap().start_time(), own.start_time());
    let gone = Process { start_time: own.start_time - 1, ..own };
    assert!(!gone.is_alive() && matches!(gone.reopen(), Err(ProcessError::Exited { .. })));
    assert!(matches!(Process::open(0x3fff_fff0), Err(ProcessError::NotFound { .. })));
    assert!(matches!(Process::open(u32::MAX), Err(ProcessError::NotFound { .. })));
}

#[test]
fn a_zombie_is_not_alive() {
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let process = Process::open(child.id()).unwrap();
    assert!(process.is_alive());
    child.kill().unwrap();
    // Wait for the zombie without reaping it.
    while process.live().unwrap().stat().is_ok_and(|s| s.state != 'Z') {
        std::thread::yield_now();
    }
    assert!(!process.is_alive());
    assert!(matches!(Process::open(child.id()), Err(ProcessError::Exited { .. })));
    child.wait().unwrap();
    assert!(!process.is_alive());
}

#[test]
fn an_exec_of_another_program_is_noticed() {
    let mut child = Command::new("sh")
        .args(["-c", "read line; exec cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let process = Process::open(child.id()).unwrap();
    while process.program().unwrap().file_name().is_some_and(|n| n == "memspy") {
        std::thread::yield_now();
    }
    let process = Process::open(child.id()).unwrap();
    assert!(process.same_start());
    io::Write::write_all(child.stdin.as_mut().unwrap(), b"go\n").unwrap();
    while process.same_start() {
        std::thread::yield_now();
    }
    assert!(process.is_alive(), "an exec keeps the pid and the start time");
    child.kill().unwrap();
    child.wait().unwrap();
}
