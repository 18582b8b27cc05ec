//! Gives work that may never end (a file system, a driver) a thread and a time limit.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::job_files::FileError;

const LIMIT: Duration = Duration::from_secs(10);

/// Why work on a thread failed.
#[derive(Debug)]
pub enum WorkerError {
    /// Too slow, or earlier work still runs.
    NoAnswer {
        /// The time limit.
        seconds: u64,
    },
    /// The thread died, or could not start.
    Io(io::Error),
}

impl From<WorkerError> for FileError {
    fn from(error: WorkerError) -> FileError {
        match error {
            WorkerError::NoAnswer { seconds } => FileError::NoAnswer { seconds },
            WorkerError::Io(error) => FileError::Io(error),
        }
    }
}

/// Runs one piece of work at a time and abandons what takes too long.
#[derive(Debug, Clone, Default)]
pub struct BoundedWorker {
    /// Alive while an abandoned thread works.
    hanging: Arc<Mutex<Weak<()>>>,
}

impl BoundedWorker {
    /// The new thread ends with `work`, so the rights that `work` gives up are lost nowhere else.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        self.run_within(LIMIT, work)
    }

    fn hangs(&self) -> bool {
        self.hanging.lock().strong_count() > 0
    }

    /// Runs `work` on a new thread for at most `limit`, then abandons it. Refuses at once while an
    /// abandoned thread still runs.
    ///
    /// # Errors
    /// Those of `work`; [`WorkerError`] if it did not end.
    pub fn run_within<T: Send + 'static, E: From<WorkerError> + Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let too_long = WorkerError::NoAnswer { seconds: limit.as_secs() };
        if self.hangs() {
            return Err(too_long.into());
        }
        let (to_here, from_thread) = sync_channel(1);
        let at_work = Arc::new(());
        let mark = Arc::downgrade(&at_work);
        let thread =
            std::thread::Builder::new().name("memspy-bounded".to_owned()).spawn(move || {
                let _ = to_here.send(work());
                drop(at_work);
            });
        let thread = thread.map_err(WorkerError::Io)?;
        match from_thread.recv_timeout(limit) {
            Ok(result) => {
                // The thread's rights must not outlive this call.
                let _ = thread.join();
                result
            }
            Err(RecvTimeoutError::Timeout) => {
                *self.hanging.lock() = mark;
                Err(too_long.into())
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(WorkerError::Io(io::Error::other("its thread ended unexpectedly")).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unresponsive_file_system_is_awaited_once() {
        let bounded = BoundedWorker::default();
        assert_eq!(bounded.run(|| Ok(7)).unwrap(), 7);
        let (go_on, wait) = sync_channel::<()>(1);
        let (ended, end) = sync_channel::<()>(1);
        let hanging = bounded.run_within(Duration::from_millis(10), move || {
            let _ = wait.recv();
            ended.send(()).unwrap();
            Ok::<(), FileError>(())
        });
        assert!(matches!(hanging, Err(FileError::NoAnswer { .. })));
        assert!(matches!(bounded.run(|| Ok(())), Err(FileError::NoAnswer { .. })));
        go_on.send(()).unwrap();
        end.recv().unwrap();
        while bounded.hangs() {
            std::thread::yield_now();
        }
        bounded.run(|| Ok(())).unwrap();
    }
}
