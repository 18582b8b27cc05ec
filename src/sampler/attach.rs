//! Waits until a target can be attached to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::target::ProcessError;

use super::readers::{AttachError, TargetReaders};

const RETRY_INTERVAL: Duration = Duration::from_millis(20);
const INITIALIZATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Attaches once the interpreter has initialised.
pub fn attach(pid: u32, stop: &AtomicBool) -> Result<TargetReaders, AttachError> {
    let start = Instant::now();
    loop {
        match TargetReaders::attach(pid) {
            Err(error)
                if error.is_starting()
                    && start.elapsed() < INITIALIZATION_TIMEOUT
                    && !stop.load(Ordering::Relaxed) =>
            {
                std::thread::sleep(RETRY_INTERVAL);
            }
            other => return other,
        }
    }
}

/// Waits until a started program is Python, or ends. A shell script or shim may `exec` first.
pub fn attach_when_python(pid: u32, stop: &AtomicBool) -> Result<TargetReaders, AttachError> {
    loop {
        match TargetReaders::attach(pid) {
            Err(error) if error.may_become_python() => {
                if stop.load(Ordering::Relaxed) {
                    return Err(error);
                }
                std::thread::sleep(RETRY_INTERVAL);
            }
            Err(AttachError::Process(ProcessError::NotFound { pid })) => {
                return Err(AttachError::Process(ProcessError::Exited { pid }));
            }
            other => return other,
        }
    }
}
