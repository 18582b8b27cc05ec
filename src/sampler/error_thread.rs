//! The words of an out-of-memory error: when the allocator counts one, its exception is looked for in the job's memory, on a thread of
//! its own, until it is found or the job must be done with it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::priority::raise_priority;
use super::worker::{StopSignal, Worker};
use crate::model::{AllocatorCounters, CudaIndex};
use crate::python::{ExceptionFinder, FoundException, PythonReader};
use crate::target::Process;

/// What PyTorch throws (`torch.OutOfMemoryError`, `torch.cuda.OutOfMemoryError` before 2.5).
pub(super) const CLASS: &str = "OutOfMemoryError";
/// How long to search for the exception after the allocator has counted an out-of-memory error.
const SEARCH_TIMEOUT: Duration = Duration::from_millis(400);
/// How long to search after a retry, which may become an error: the allocator frees its cache before it gives up.
const RETRY_SEARCH_TIMEOUT: Duration = Duration::from_millis(30);
/// Up to which age of a search, and how often. Most exceptions are handled at once, so the search is dense at first.
const SEARCH_INTERVALS: [(Duration, Duration); 3] = [
    (Duration::from_millis(20), Duration::from_micros(200)),
    (Duration::from_millis(100), Duration::from_millis(1)),
    (Duration::MAX, Duration::from_millis(4)),
];
/// After each search the thread rests for at least this many times as long as the search took.
const MIN_REST_FACTOR: u32 = 4;
/// How often known exceptions are checked for being gone.
const KNOWN_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The longest wait for a result of this thread.
const RESULT_TIMEOUT: Duration = Duration::from_secs(2);

/// What makes it look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SearchRequest {
    /// The allocator had to free its cache.
    Retry,
    /// It counted an error.
    Error,
}

impl SearchRequest {
    fn timeout(self) -> Duration {
        match self {
            SearchRequest::Retry => RETRY_SEARCH_TIMEOUT,
            SearchRequest::Error => SEARCH_TIMEOUT,
        }
    }
}

/// The errors found for one request that waited for one; empty when there was none to be found.
pub(super) type FoundErrors = Vec<FoundException>;

/// The thread.
pub(super) struct ErrorThread {
    requests: Sender<SearchRequest>,
    found: Receiver<FoundErrors>,
    /// Requests that have no answer yet.
    waits: usize,
    /// Errors and retries of all devices, as last seen.
    counts: Option<(i64, i64)>,
    _thread: Worker,
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
            ErrorWatcher { exceptions, known: Vec::new(), early: (began, Vec::new()), to_recorder };
        let thread = Worker::spawn("errors", move |stop| watcher.run(from_recorder, stop));
        let made =
            |thread| ErrorThread { requests, found, waits: 0, counts: None, _thread: thread };
        Some(thread.map(made))
    }

    /// Takes the counters just read.
    pub(super) fn observe(&mut self, counters: &[(CudaIndex, AllocatorCounters)]) {
        let now = counts(counters);
        let Some(before) = self.counts.replace(now) else { return };
        if now.0 > before.0 {
            // One that is gone has nobody to tell, which is no loss.
            self.waits += usize::from(self.requests.send(SearchRequest::Error).is_ok());
        } else if now.1 > before.1 {
            let _ = self.requests.send(SearchRequest::Retry);
        }
    }

    /// What was found, if a search has ended.
    pub(super) fn poll(&mut self) -> Option<FoundErrors> {
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
    pub(super) fn wait(&mut self) -> Option<FoundErrors> {
        if self.waits == 0 {
            return None;
        }
        self.waits -= 1;
        Some(self.found.recv_timeout(RESULT_TIMEOUT).unwrap_or_default())
    }
}

/// Errors and retries of all devices.
pub(super) fn counts(counters: &[(CudaIndex, AllocatorCounters)]) -> (i64, i64) {
    let sum = |of: fn(&AllocatorCounters) -> i64| counters.iter().map(|(_, c)| of(c)).sum();
    (sum(|c| c.num_ooms), sum(|c| c.num_alloc_retries))
}

/// What runs on the thread.
struct ErrorWatcher {
    exceptions: ExceptionFinder,
    /// Errors that were told, or are older than the recording, and are still there.
    known: Vec<FoundException>,
    /// Those seen before the allocator's count of them was, and when.
    early: (Instant, Vec<FoundException>),
    to_recorder: Sender<FoundErrors>,
}

impl ErrorWatcher {
    fn run(mut self, requests: Receiver<SearchRequest>, stop: &StopSignal) {
        // It sleeps for days, and has to be there in a moment then.
        raise_priority();
        self.known = self.exceptions.find(true);
        loop {
            let request = match self.known.is_empty() {
                true => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => requests.recv_timeout(KNOWN_CHECK_INTERVAL),
            };
            match request {
                Ok(request) => {
                    for found in self.search(request, &requests, stop) {
                        if self.to_recorder.send(found).is_err() {
                            return;
                        }
                    }
                }
                // The next error may lie where one lay that is gone by then.
                Err(RecvTimeoutError::Timeout) => {
                    let now = self.exceptions.find(true);
                    self.known.retain(|known| now.iter().any(|other| is_same(known, other)));
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Looks until every request for an error that came until then can be answered; gives the answers.
    fn search(
        &mut self,
        first: SearchRequest,
        requests: &Receiver<SearchRequest>,
        stop: &StopSignal,
    ) -> Vec<FoundErrors> {
        let began = Instant::now();
        let mut wanted = usize::from(first == SearchRequest::Error);
        let mut until = began + first.timeout();
        let (since, early) = std::mem::replace(&mut self.early, (began, Vec::new()));
        let mut found = if began - since < SEARCH_TIMEOUT { early } else { Vec::new() };
        // Seen while it had no traceback yet.
        let mut bare: Vec<FoundException> = Vec::new();
        loop {
            while let Ok(request) = requests.try_recv() {
                wanted += usize::from(request == SearchRequest::Error);
                until = until.max(Instant::now() + request.timeout());
            }
            let looked = Instant::now();
            for raised in self.exceptions.find(true) {
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
            if wanted > 0 && found.len() >= wanted || Instant::now() >= until || stop.is_set() {
                break;
            }
            let pace = SEARCH_INTERVALS.iter().find(|(age, _)| began.elapsed() < *age);
            let pace = pace.map_or(SEARCH_TIMEOUT, |(_, pace)| *pace);
            std::thread::sleep(pace.max(cost * MIN_REST_FACTOR));
        }
        found.append(&mut bare);
        if wanted == 0 {
            self.early = (Instant::now(), found);
            return Vec::new();
        }
        // One answer for each request; the last one has the rest.
        let mut answers: Vec<FoundErrors> = Vec::new();
        for left in (1..=wanted).rev() {
            let take = if left == 1 { found.len() } else { found.len().min(1) };
            answers.push(found.drain(..take).collect());
        }
        answers
    }
}

/// Whether two looks saw the same error.
fn is_same(one: &FoundException, other: &FoundException) -> bool {
    one.at == other.at && one.text == other.text
}
