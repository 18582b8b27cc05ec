//! Looks at holders along a recording, on a thread of their own, within a budget of the time that the process stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::holders::look_at_holders;
use super::optimizer_counter::OptimizerCounter;
use super::readers::Readers;
use crate::holders::Pausing;
use crate::model::holdings::snapshot;
use crate::model::{HolderSnapshot, Nanos};

/// Looks that may wait to be recorded.
const MOST_WAITING: usize = 16;
/// No more often than this, however short the pauses are.
const LEAST_REST: Duration = Duration::from_millis(250);
const NOTICE_EVERY: Duration = Duration::from_millis(20);

/// A look and where training counts its steps, or why there is none.
pub(super) type Looked = Result<(HolderSnapshot, Option<OptimizerCounter>), String>;

/// The thread.
pub(super) struct HolderThread {
    looks: Receiver<Looked>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HolderThread {
    /// Starts it for process `pid`, with readers of its own. The process stands still for at most `budget` of the time
    /// (0.01 is 1 %), on average; times count from `start`.
    pub(super) fn start(pid: u32, budget: f64, start: Instant) -> std::io::Result<HolderThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, looks) = sync_channel(MOST_WAITING);
        let stopped = Arc::clone(&stop);
        let thread =
            std::thread::Builder::new().name("memspy-holders".to_owned()).spawn(move || {
                let Ok(mut readers) = Readers::attach(pid) else { return };
                while !stopped.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let (looked, paused) = look(&mut readers, start);
                    let gone = !readers.process.is_alive();
                    if gone || sender.try_send(looked).is_err() {
                        return;
                    }
                    // A look that failed may have stopped it as well.
                    let paused = paused.unwrap_or_else(|| began.elapsed());
                    let rest = paused.div_f64(budget.max(1e-6)).max(LEAST_REST);
                    let until = began + rest;
                    while Instant::now() < until && !stopped.load(Ordering::Relaxed) {
                        std::thread::sleep(
                            NOTICE_EVERY.min(until.saturating_duration_since(Instant::now())),
                        );
                    }
                }
            })?;
        Ok(HolderThread { looks, stop, thread: Some(thread) })
    }

    /// A look that has come.
    pub(super) fn take(&self) -> Option<Looked> {
        self.looks.try_recv().ok()
    }
}

/// One look, and for how long the process stood still in all its attempts.
fn look(readers: &mut Readers, start: Instant) -> (Looked, Option<Duration>) {
    match look_at_holders(readers, Pausing::Stop) {
        Ok(look) => {
            let pause = look.map.pause.unwrap_or_default();
            // When it was stopped.
            let ago = pause + look.map.age;
            let time = Nanos(start.elapsed().saturating_sub(ago).as_nanos() as u64);
            let clock = OptimizerCounter::find(&look.map, &readers.process);
            (Ok((snapshot(&look.map, time), clock)), Some(pause * look.attempts))
        }
        // What another process kept it from was only waited for.
        Err(error) => (Err(error.to_string()), error.is_traced().then_some(Duration::ZERO)),
    }
}

impl Drop for HolderThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its only failure is a panic, which has been printed by then.
            let _ = thread.join();
        }
    }
}
