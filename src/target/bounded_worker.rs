//! Work that may never end, because a file system or a driver does not answer: done on a thread, waited for in vain at most once.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::job_files::FileError;

/// How long a file may take to be opened and read.
const LIMIT: Duration = Duration::from_secs(10);

/// Why work on a thread came to nothing.
#[derive(Debug)]
pub enum WorkerError {
    /// It took too long, or work before it still does.
    NoAnswer {
        /// How long was waited.
        seconds: u64,
    },
    /// There is no such thread, or it broke off.
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

/// Does work on threads, one at a time, and goes on without them when they take too long.
#[derive(Debug, Clone, Default)]
pub struct BoundedWorker {
    /// What a thread that nobody waits for any more holds while it is at work.
    hanging: Arc<Mutex<Weak<()>>>,
}

impl BoundedWorker {
    /// What `work` comes to. The thread is made for it and ends with it: rights that it gives up stay given up nowhere else.
    ///
    /// # Errors
    /// It took too long, or work before it still does.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        self.run_within(LIMIT, work)
    }

    /// Whether a thread is still at work that was waited for in vain.
    fn hangs(&self) -> bool {
        self.hanging.lock().strong_count() > 0
    }

    /// The same of other work, for which `limit` is waited.
    ///
    /// # Errors
    /// Those of the work, and a [`WorkerError`] where it did not end.
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
                // It has nothing more to do, and its rights must not outlive this call.
                let _ = thread.join();
                result
            }
            Err(RecvTimeoutError::Timeout) => {
                *self.hanging.lock() = mark;
                Err(too_long.into())
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(WorkerError::Io(io::Error::other("the thread for it broke off")).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_does_not_answer_is_waited_for_once() {
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
