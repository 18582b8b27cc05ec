//! Finds an out-of-memory error's exception in the job's memory.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use super::priority::raise_priority;
use super::worker::{StopSignal, Worker};
use crate::model::{AllocatorCounters, CudaIndex};
use crate::python::{ExceptionFinder, FoundException, InterpreterReader};
use crate::target::Process;

/// `torch.OutOfMemoryError`; `torch.cuda.OutOfMemoryError` before 2.5.
pub(super) const CLASS: &str = "OutOfMemoryError";
const SEARCH_TIMEOUT: Duration = Duration::from_millis(400);
/// A retry may become an error: the allocator frees its cache first.
const RETRY_SEARCH_TIMEOUT: Duration = Duration::from_millis(30);
/// Search intervals by a search's age: most exceptions are handled at once.
const SEARCH_INTERVALS: [(Duration, Duration); 3] = [
    (Duration::from_millis(20), Duration::from_micros(200)),
    (Duration::from_millis(100), Duration::from_millis(1)),
    (Duration::MAX, Duration::from_millis(4)),
];
/// The thread rests this many times a search's time.
const MIN_REST_FACTOR: u32 = 4;
const KNOWN_CHECK_INTERVAL: Duration = Duration::from_millis(50);
const RESULT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SearchRequest {
    Retry,
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

pub(super) type FoundErrors = Vec<FoundException>;

pub(super) struct ErrorThread {
    requests: Sender<SearchRequest>,
    found: Receiver<FoundErrors>,
    waits: usize,
    counts: Option<(i64, i64)>,
    _thread: Worker,
}

impl ErrorThread {
    pub(super) fn start(
        python: &InterpreterReader,
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

    pub(super) fn observe(&mut self, counters: &[(CudaIndex, AllocatorCounters)]) {
        let now = counts(counters);
        let Some(before) = self.counts.replace(now) else { return };
        if now.0 > before.0 {
            self.waits += usize::from(self.requests.send(SearchRequest::Error).is_ok());
        } else if now.1 > before.1 {
            let _ = self.requests.send(SearchRequest::Retry);
        }
    }

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

    pub(super) fn wait(&mut self) -> Option<FoundErrors> {
        if self.waits == 0 {
            return None;
        }
        self.waits -= 1;
        Some(self.found.recv_timeout(RESULT_TIMEOUT).unwrap_or_default())
    }
}

pub(super) fn counts(counters: &[(CudaIndex, AllocatorCounters)]) -> (i64, i64) {
    let sum = |of: fn(&AllocatorCounters) -> i64| counters.iter().map(|(_, c)| of(c)).sum();
    (sum(|c| c.num_ooms), sum(|c| c.num_alloc_retries))
}

struct ErrorWatcher {
    exceptions: ExceptionFinder,
    /// Errors reported already, or older than the recording.
    known: Vec<FoundException>,
    /// Errors seen before the allocator counted them, and when.
    early: (Instant, Vec<FoundException>),
    to_recorder: Sender<FoundErrors>,
}

impl ErrorWatcher {
    fn run(mut self, requests: Receiver<SearchRequest>, stop: &StopSignal) {
        // The thread sleeps for days and must then react at once.
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
                // Forget those that are gone: the next one may have the same address.
                Err(RecvTimeoutError::Timeout) => {
                    let now = self.exceptions.find(true);
                    self.known.retain(|known| now.iter().any(|other| is_same(known, other)));
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

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
        let mut bare: Vec<FoundException> = Vec::new();
        loop {
            while let Ok(request) = requests.try_recv() {
                wanted += usize::from(request == SearchRequest::Error);
                until = until.max(Instant::now() + request.timeout());
            }
            let began_search = Instant::now();
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
            let cost = began_search.elapsed();
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
        let mut answers: Vec<FoundErrors> = Vec::new();
        for left in (1..=wanted).rev() {
            let take = if left == 1 { found.len() } else { found.len().min(1) };
            answers.push(found.drain(..take).collect());
        }
        answers
    }
}

fn is_same(one: &FoundException, other: &FoundException) -> bool {
    one.at == other.at && one.text == other.text
}
