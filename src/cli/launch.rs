//! Starts the program to record, and waits for it.

use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

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

    /// Returns its exit code; memspy never ends the program.
    pub(super) fn wait(self) -> Result<u8> {
        loop {
            let mut child = self.child.lock();
            if has_exited(&child) {
                let status = child.wait();
                return status
                    .map(exit_code)
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

/// As in a shell: 128 plus a fatal signal's number.
fn exit_code(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    code as u8
}
