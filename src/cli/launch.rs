//! Starts the program to record, and waits for it.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::low_level::signal_name;

use super::signals::ProgramSignals;

const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct LaunchedProgram {
    child: Arc<Mutex<Child>>,
    pid: u32,
    name: String,
}

impl LaunchedProgram {
    pub(super) fn start(program: &[String], signals: ProgramSignals) -> Result<Self> {
        let (name, arguments) = program.split_first().context("no program to start after --")?;
        let mut command = Command::new(name);
        command.args(arguments);
        LaunchedProgram::start_command(command, name, signals)
    }

    pub(super) fn start_command(
        mut command: Command,
        name: &str,
        signals: ProgramSignals,
    ) -> Result<Self> {
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {name}; is it spelled right and executable?"))?;
        let pid = child.id();
        let child = Arc::new(Mutex::new(child));
        pass_on(signals, Arc::clone(&child)).context("cannot pass signals on")?;
        Ok(LaunchedProgram { child, pid, name: name.to_owned() })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn has_ended(&mut self) -> bool {
        has_exited(&self.child.lock())
    }

    /// How it ended; memspy never ends the program.
    pub(super) fn wait(self) -> Result<ProgramEnd> {
        loop {
            let mut child = self.child.lock();
            if has_exited(&child) {
                let status = child.wait();
                return status
                    .map(ProgramEnd)
                    .with_context(|| format!("cannot wait for {}", self.name));
            }
            drop(child);
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

fn pass_on(mut signals: ProgramSignals, child: Arc<Mutex<Child>>) -> std::io::Result<()> {
    let pass_on = move || {
        for signal in signals.forever() {
            // Locked: after the wait, another program may get its pid.
            let child = child.lock();
            if let (false, Some(signal)) = (has_exited(&child), Signal::from_named_raw(signal)) {
                let _ = kill_process(Pid::from_child(&child), signal);
            }
        }
    };
    std::thread::Builder::new().name("memspy-signals".to_owned()).spawn(pass_on).map(drop)
}

/// `Child::try_wait` would also take the stops of a program that memspy looks into, for its end.
fn has_exited(child: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    match waitid(WaitId::Pid(Pid::from_child(child)), options) {
        Ok(status) => status.is_some(),
        Err(error) => error == Errno::CHILD,
    }
}

/// How a program ended: `ended with exit code 5`, `was ended by SIGKILL (signal 9)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProgramEnd(ExitStatus);

/// A shell adds it to a fatal signal's number.
const SIGNALED: i32 = 128;

impl ProgramEnd {
    /// As in a shell.
    pub(super) fn code(self) -> u8 {
        let signaled = self.0.signal().map(|signal| SIGNALED + signal);
        self.0.code().or(signaled).unwrap_or(1) as u8
    }

    pub(super) fn is_by_signal(self) -> bool {
        self.0.signal().is_some()
    }
}

impl fmt::Display for ProgramEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(signal) = self.0.signal() {
            let core = if self.0.core_dumped() { ", core dumped" } else { "" };
            return match signal_name(signal) {
                Some(name) => write!(f, "was ended by {name} (signal {signal}{core})"),
                None => write!(f, "was ended by signal {signal}{core}"),
            };
        }
        let code = i32::from(self.code());
        // A shell around the program passes its signal on as a code.
        match signal_name(code - SIGNALED).filter(|_| code > SIGNALED) {
            Some(name) => write!(f, "ended with exit code {code} (as after {name})"),
            None => write!(f, "ended with exit code {code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_named() {
        let end = |status| ProgramEnd(ExitStatus::from_raw(status));
        assert_eq!(end(5 << 8).to_string(), "ended with exit code 5");
        assert_eq!((end(5 << 8).code(), end(9).code()), (5, 137));
        assert_eq!(end(9).to_string(), "was ended by SIGKILL (signal 9)");
        assert_eq!(end(11 | 0x80).to_string(), "was ended by SIGSEGV (signal 11, core dumped)");
        assert_eq!(end(143 << 8).to_string(), "ended with exit code 143 (as after SIGTERM)");
        assert_eq!(end(255 << 8).to_string(), "ended with exit code 255");
    }
}
