//! Looks at holders along a recording, on a thread of their own, within a budget of the time that the process stands still.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::holders::{look_with, prepare};
use super::optimizer_counter::OptimizerCounter;
use super::readers::Readers;
use crate::holders::{HolderReader, Pausing};
use crate::model::holdings::snapshot;
use crate::model::{CountingObject, HolderSnapshot, Nanos};

/// Looks that may wait to be recorded.
const MOST_WAITING: usize = 16;
/// No more often than this, however short the pauses are.
const LEAST_REST: Duration = Duration::from_millis(250);
/// A look that is due waits for its moment as long as it rested, within these: then the job stands still half as often.
const LEAST_PATIENCE: Duration = Duration::from_millis(500);
const MOST_PATIENCE: Duration = Duration::from_secs(10);
/// Whoever tells of the moment may come so late.
const LATE: Duration = Duration::from_millis(500);
const NOTICE_EVERY: Duration = Duration::from_millis(20);

/// A look and where training counts its steps, or why there is none.
pub(super) type Looked =
    Result<(HolderSnapshot, Option<OptimizerCounter>, Vec<CountingObject>), String>;

/// The thread.
pub(super) struct HolderThread {
    looks: Receiver<Looked>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and whoever started it tell each other.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Since when a look is due, and for how long its moment is worth waiting for.
    due: Mutex<Option<(Instant, Duration)>>,
    /// The moment has come.
    go: AtomicBool,
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn set_due(&self, due: Option<(Instant, Duration)>) {
        *self.due.lock().unwrap_or_else(PoisonError::into_inner) = due;
    }

    /// Waits until the moment has come, but not much longer than it is worth.
    fn wait_for_moment(&self, patience: Duration) {
        let since = Instant::now();
        self.go.store(false, Ordering::Relaxed);
        self.set_due(Some((since, patience)));
        while !self.is_stopped() && !self.go.load(Ordering::Relaxed) {
            let left = (patience + LATE).saturating_sub(since.elapsed());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left.min(NOTICE_EVERY));
        }
        self.set_due(None);
    }
}

impl HolderThread {
    /// Starts it for process `pid`, with readers of its own. The process stands still for at most `budget` of the time
    /// (0.01 is 1 %), on average; times count from `start`. But for the first, a look that is [due](Self::due) waits for
    /// [its moment](Self::go) for a while.
    pub(super) fn start(pid: u32, budget: f64, start: Instant) -> std::io::Result<HolderThread> {
        let shared = Arc::new(Shared::default());
        let (sender, looks) = sync_channel(MOST_WAITING);
        let told = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("memspy-holders".to_owned()).spawn(move || {
                let Ok(mut readers) = Readers::attach(pid) else { return };
                let mut patience = None;
                while !told.is_stopped() {
                    let prepared = prepare(&mut readers);
                    if let Some(patience) = patience {
                        told.wait_for_moment(patience);
                    }
                    let began = Instant::now();
                    let (looked, paused) = match prepared {
                        Ok(reader) => look(&reader, &mut readers, start),
                        Err(error) => (Err(error.to_string()), None),
                    };
                    let gone = !readers.process.is_alive();
                    if gone || sender.try_send(looked).is_err() {
                        return;
                    }
                    // A look that failed may have stopped it as well.
                    let paused = paused.unwrap_or_else(|| began.elapsed());
                    let rest = paused.div_f64(budget.max(1e-6)).max(LEAST_REST);
                    patience = Some(rest.clamp(LEAST_PATIENCE, MOST_PATIENCE));
                    let until = began + rest;
                    while Instant::now() < until && !told.is_stopped() {
                        std::thread::sleep(
                            NOTICE_EVERY.min(until.saturating_duration_since(Instant::now())),
                        );
                    }
                }
            })?;
        Ok(HolderThread { looks, shared, thread: Some(thread) })
    }

    /// A look that has come.
    pub(super) fn take(&self) -> Option<Looked> {
        self.looks.try_recv().ok()
    }

    /// For how long a look has been due, and how long it is worth to wait for its moment; `None` while none is.
    pub(super) fn due(&self) -> Option<(Duration, Duration)> {
        let due = *self.shared.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.map(|(since, patience)| (since.elapsed(), patience))
    }

    /// Lets the look that is due be made now.
    pub(super) fn go(&self) {
        self.shared.set_due(None);
        self.shared.go.store(true, Ordering::Relaxed);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

/// One look, and for how long the process stood still in all its attempts.
fn look(
    reader: &HolderReader,
    readers: &mut Readers,
    start: Instant,
) -> (Looked, Option<Duration>) {
    match look_with(reader, readers, Pausing::Stop, None) {
        Ok(look) => {
            let pause = look.map.pause.unwrap_or_default();
            // When it was stopped.
            let ago = pause + look.map.age;
            let time = Nanos(start.elapsed().saturating_sub(ago).as_nanos() as u64);
            let clock = OptimizerCounter::find(&look.map, &readers.process);
            let paused = pause * look.attempts;
            (Ok((snapshot(&look.map, time), clock, look.map.counting)), Some(paused))
        }
        // What another process kept it from was only waited for.
        Err(error) => (Err(error.to_string()), error.is_traced().then_some(Duration::ZERO)),
    }
}

impl Drop for HolderThread {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its only failure is a panic, which has been printed by then.
            let _ = thread.join();
        }
    }
}
