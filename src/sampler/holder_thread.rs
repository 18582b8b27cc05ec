//! Looks at holders along a recording, on a thread of their own, within a budget of the time that the process stands still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::holders::{HolderLook, look_for};
use super::readers::Readers;
use super::steps::OptimizerCounter;
use crate::holders::LookOptions;
use crate::model::holdings::snapshot;
use crate::model::{HolderMap, HolderSnapshot, Nanos, Stops};

/// Looks that may wait to be recorded.
const MOST_WAITING: usize = 16;
/// No more often than this, however short the pauses are.
const LEAST_REST: Duration = Duration::from_millis(250);
/// For each part of the time that the job may stand still, memspy itself may work for so many on a core that the job may want;
/// half of the time at most.
const WORK: f64 = 10.0;
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
    pub(super) fn start(
        pid: u32,
        budget: f64,
        options: LookOptions,
        start: Instant,
    ) -> std::io::Result<HolderThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, looks) = sync_channel(MOST_WAITING);
        let stopped = Arc::clone(&stop);
        let thread =
            std::thread::Builder::new().name("memspy-holders".to_owned()).spawn(move || {
                let Ok(mut readers) = Readers::attach(pid) else { return };
                while !stopped.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let (looked, paused) = look(&mut readers, options, start);
                    let took = began.elapsed();
                    let gone = !readers.process.is_alive();
                    if gone || sender.try_send(looked).is_err() {
                        return;
                    }
                    let budget = budget.max(1e-6);
                    let rest = took.div_f64((WORK * budget).min(0.5));
                    let rest = rest.max(paused.div_f64(budget)).max(LEAST_REST);
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

/// One look, and for how long the process stood still in all its attempts, also those of a look that failed.
fn look(readers: &mut Readers, options: LookOptions, start: Instant) -> (Looked, Duration) {
    let mut stops = Stops::default();
    let looked = look_for(readers, options, None, &mut stops);
    let looked = match looked {
        // Its sums would be taken for those of all tensors.
        Ok(HolderLook { map: HolderMap { incomplete: Some(incomplete), .. }, .. }) => {
            Err(format!("{} was reached before the look was complete", incomplete.limit))
        }
        Ok(look) => {
            let pause = look.map.pause.unwrap_or_default();
            // When it was stopped.
            let ago = pause + look.map.age;
            let time = Nanos(start.elapsed().saturating_sub(ago).as_nanos() as u64);
            let clock = OptimizerCounter::find(&look.map);
            Ok((snapshot(&look.map, time), clock))
        }
        Err(error) => Err(error.to_string()),
    };
    (looked, stops.total)
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
