//! memspy's own threads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::sleep::sleep_unless;

/// Asks a worker to stop.
#[derive(Debug, Clone, Default)]
pub struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// Whether the worker should stop.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag, for code that watches one.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }

    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Sleeps for `time`, or until the worker should stop.
    pub fn sleep(&self, time: Duration) {
        sleep_unless(time, || self.is_set());
    }
}

/// A thread; dropping it stops and joins it.
///
/// If it waits on a channel, declare the other end first: dropping that end stops the wait.
#[derive(Debug)]
pub struct Worker<T = ()> {
    stop: StopSignal,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts a thread named `memspy-NAME`.
    pub fn spawn(
        name: &str,
        work: impl FnOnce(&StopSignal) -> T + Send + 'static,
    ) -> io::Result<Worker<T>> {
        let stop = StopSignal::default();
        let signal = stop.clone();
        let thread = std::thread::Builder::new()
            .name(format!("memspy-{name}"))
            .spawn(move || work(&signal))?;
        Ok(Worker { stop, thread: Some(thread) })
    }

    /// Joins it without stopping it; `None` after a panic.
    pub fn join(mut self) -> Option<T> {
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl<T> Worker<T> {
    /// Wakes it if it is parked.
    pub fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Whether its work is done.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.stop.set();
        self.wake();
        if let Some(thread) = self.thread.take() {
            // Fails only after a panic, which was printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_worker_is_stopped_and_joined() {
        let done = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&done);
        let worker = Worker::spawn("test", move |stop| {
            stop.sleep(Duration::from_secs(3600));
            std::thread::park_timeout(Duration::from_secs(3600 * u64::from(!stop.is_set())));
            flag.store(true, Ordering::Relaxed);
        });
        drop(worker.unwrap());
        assert!(done.load(Ordering::Relaxed));
        assert_eq!(Worker::spawn("test", |stop| stop.is_set()).unwrap().join(), Some(false));
    }
}
