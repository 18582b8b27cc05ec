//! The words of an out-of-memory error: when the allocator counts one, its exception is looked for in the job's memory, on a thread of
//! its own, until it is found or the job must be done with it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::priority::serve_early;
use crate::model::{AllocatorCounters, CudaIndex};
use crate::python::{Exceptions, PythonReader, Raised};
use crate::target::Process;

/// What PyTorch throws (`torch.OutOfMemoryError`, `torch.cuda.OutOfMemoryError` before 2.5).
pub(super) const CLASS: &str = "OutOfMemoryError";
/// For so long an error that was counted is looked for.
const PATIENCE: Duration = Duration::from_millis(400);
/// For so long one that may come: the allocator frees its cache before it gives up.
const PATIENCE_AFTER_RETRY: Duration = Duration::from_millis(30);
/// Most are handled at once: at first it is looked for as often as the first of these says, later as the last.
const PACES: [(Duration, Duration); 3] = [
    (Duration::from_millis(20), Duration::from_micros(200)),
    (Duration::from_millis(100), Duration::from_millis(1)),
    (Duration::MAX, Duration::from_millis(4)),
];
/// Never more of the time than one part in so many.
const LEAST_REST: u32 = 4;
/// So often it is looked whether errors known are gone.
const KNOWN_EVERY: Duration = Duration::from_millis(50);
/// Nobody waits longer for the thread than this.
const AT_MOST: Duration = Duration::from_secs(2);

/// What makes it look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    /// The allocator had to free its cache.
    Retry,
    /// It counted an error.
    Error,
}

impl Request {
    fn patience(self) -> Duration {
        match self {
            Request::Retry => PATIENCE_AFTER_RETRY,
            Request::Error => PATIENCE,
        }
    }
}

/// The errors found for one request that waited for one; empty when there was none to be found.
pub(super) type Found = Vec<Raised>;

/// The thread. It ends when this is dropped.
pub(super) struct ErrorThread {
    requests: Sender<Request>,
    found: Receiver<Found>,
    /// Requests that have no answer yet.
    waits: usize,
    /// Errors and retries of all devices, as last seen.
    counts: Option<(i64, i64)>,
}

impl ErrorThread {
    /// Starts it; `None` where exceptions cannot be read.
    pub(super) fn start(
        python: &PythonReader,
        process: &Process,
    ) -> Option<std::io::Result<ErrorThread>> {
        let exceptions = python.exceptions(process, CLASS)?;
        let (requests, from_recorder) = channel();
        let (to_recorder, found) = channel();
        let began = Instant::now();
        let watcher =
            Watcher { exceptions, known: Vec::new(), early: (began, Vec::new()), to_recorder };
        let thread = std::thread::Builder::new().name("memspy-errors".to_owned());
        let spawned = thread.spawn(move || watcher.run(from_recorder));
        Some(spawned.map(|_| ErrorThread { requests, found, waits: 0, counts: None }))
    }

    /// Takes the counters just read.
    pub(super) fn see(&mut self, counters: &[(CudaIndex, AllocatorCounters)]) {
        let now = counts(counters);
        let Some(before) = self.counts.replace(now) else { return };
        if now.0 > before.0 {
            // One that is gone has nobody to tell, which is no loss.
            self.waits += usize::from(self.requests.send(Request::Error).is_ok());
        } else if now.1 > before.1 {
            let _ = self.requests.send(Request::Retry);
        }
    }

    /// What was found, if a search has ended.
    pub(super) fn take(&mut self) -> Option<Found> {
        match self.found.try_recv() {
            Ok(found) => {
                self.waits = self.waits.saturating_sub(1);
                Some(found)
            }
            Err(TryRecvError::Disconnected) if self.waits > 0 => {
                self.waits -= 1;
                Some(Vec::new())
            }
            Err(_) => None,
        }
    }

    /// The same, waiting for it; `None` when no search is under way.
    pub(super) fn wait(&mut self) -> Option<Found> {
        if self.waits == 0 {
            return None;
        }
        self.waits -= 1;
        Some(self.found.recv_timeout(AT_MOST).unwrap_or_default())
    }
}

/// Errors and retries of all devices.
pub(super) fn counts(counters: &[(CudaIndex, AllocatorCounters)]) -> (i64, i64) {
    let sum = |of: fn(&AllocatorCounters) -> i64| counters.iter().map(|(_, c)| of(c)).sum();
    (sum(|c| c.num_ooms), sum(|c| c.num_alloc_retries))
}

/// What runs on the thread.
struct Watcher {
    exceptions: Exceptions,
    /// Errors that were told, or are older than the recording, and are still there.
    known: Vec<Raised>,
    /// Those seen before the allocator's count of them was, and when.
    early: (Instant, Vec<Raised>),
    to_recorder: Sender<Found>,
}

impl Watcher {
    fn run(mut self, requests: Receiver<Request>) {
        // It sleeps for days, and has to be there in a moment then.
        serve_early();
        self.known = self.exceptions.look(true);
        loop {
            let request = match self.known.is_empty() {
                true => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => requests.recv_timeout(KNOWN_EVERY),
            };
            match request {
                Ok(request) => {
                    for found in self.search(request, &requests) {
                        if self.to_recorder.send(found).is_err() {
                            return;
                        }
                    }
                }
                // The next error may lie where one lay that is gone by then.
                Err(RecvTimeoutError::Timeout) => {
                    let now = self.exceptions.look(true);
                    self.known.retain(|known| now.iter().any(|other| is_same(known, other)));
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Looks until every request for an error that came until then can be answered; gives the answers.
    fn search(&mut self, first: Request, requests: &Receiver<Request>) -> Vec<Found> {
        let began = Instant::now();
        let mut wanted = usize::from(first == Request::Error);
        let mut until = began + first.patience();
        let (since, early) = std::mem::replace(&mut self.early, (began, Vec::new()));
        let mut found = if began - since < PATIENCE { early } else { Vec::new() };
        // Seen while it had no traceback yet.
        let mut bare: Vec<Raised> = Vec::new();
        loop {
            while let Ok(request) = requests.try_recv() {
                wanted += usize::from(request == Request::Error);
                until = until.max(Instant::now() + request.patience());
            }
            let looked = Instant::now();
            for raised in self.exceptions.look(true) {
                if self.known.iter().any(|known| is_same(known, &raised)) {
                    continue;
                }
                if raised.frames.is_empty() {
                    bare.retain(|other| other.at != raised.at);
                    bare.push(raised);
                } else {
                    bare.retain(|other| !is_same(other, &raised));
                    self.known.push(raised.clone());
                    found.push(raised);
                }
            }
            let cost = looked.elapsed();
            if wanted > 0 && found.len() >= wanted || Instant::now() >= until {
                break;
            }
            let pace = PACES.iter().find(|(age, _)| began.elapsed() < *age);
            let pace = pace.map_or(PATIENCE, |(_, pace)| *pace);
            std::thread::sleep(pace.max(cost * LEAST_REST));
        }
        found.append(&mut bare);
        if wanted == 0 {
            self.early = (Instant::now(), found);
            return Vec::new();
        }
        // One answer for each request; the last one has the rest.
        let mut answers: Vec<Found> = Vec::new();
        for left in (1..=wanted).rev() {
            let take = if left == 1 { found.len() } else { found.len().min(1) };
            answers.push(found.drain(..take).collect());
        }
        answers
    }
}

/// Whether two looks saw the same error.
fn is_same(one: &Raised, other: &Raised) -> bool {
    one.at == other.at && one.text == other.text
}
