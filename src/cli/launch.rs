//! Starting the program that is to be recorded, and what becomes of it.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

/// Between two looks whether the program has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A program started by memspy.
pub(super) struct Launched {
    child: Child,
    name: String,
}

impl Launched {
    /// Starts `program` (its name and its arguments) on memspy's own terminal.
    pub(super) fn start(program: &[String]) -> Result<Self> {
        let (name, arguments) = program.split_first().context("no program to start after --")?;
        let child = Command::new(name)
            .args(arguments)
            .spawn()
            .with_context(|| format!("cannot start {name}; is it spelled right and executable?"))?;
        Ok(Launched { child, name: name.clone() })
    }

    /// Its pid.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Waits for its end (memspy never ends a program it records) and passes on its exit code. When
    /// `leave` is set, it goes on without memspy.
    pub(super) fn wait(mut self, leave: &AtomicBool) -> Result<u8> {
        loop {
            let status = self.child.try_wait();
            match status.with_context(|| format!("cannot wait for {}", self.name))? {
                Some(status) => return Ok(exit_code(status)),
                None if leave.load(Ordering::Relaxed) => return Ok(0),
                None => std::thread::sleep(LOOK_EVERY),
            }
        }
    }
}

/// The exit code a shell would give: 128 and the signal's number for a program that a signal ended.
fn exit_code(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    code as u8
}
