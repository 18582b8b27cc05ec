//! Writes records on a thread, so that compression and the disk do not delay sampling.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::worker::Worker;
use crate::model::{Record, RecordSink, SinkError, SinkResult};

/// Records of an unfinished batch are lost if memspy is killed.
const BATCH: usize = 64;
const MAX_BATCH_AGE: Duration = Duration::from_millis(200);
const BATCH_BYTES: usize = 1 << 20;
/// Above this, sampling waits; missed samples and lost events are counted.
const MAX_WAITING: usize = 192 << 20;

/// Records that have waited this long hurry the sink.
const MAX_LAG: Duration = Duration::from_secs(10);
/// The same at the end, while the caller waits.
const MAX_LAST: Duration = Duration::from_millis(500);

/// The same during a sync, as at the start of a recording.
const MAX_SYNC: Duration = Duration::from_secs(3);

enum QueueItem {
    Records(Batch),
    Sync(Sender<SinkResult>),
}

/// Passes records to another sink on a thread.
pub struct BackgroundSink<S> {
    batch: Batch,
    since: Instant,
    to_thread: Option<Sender<QueueItem>>,
    queue: Arc<QueueBudget>,
    thread: Option<Worker<(S, SinkResult)>>,
}

#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    bytes: usize,
    handed: Option<Instant>,
}

/// Bytes on their way to the thread; the sender waits while there are too many.
#[derive(Default)]
struct QueueBudget {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    bytes: usize,
    over: bool,
    ends: Option<Instant>,
    /// Since when the caller waits.
    syncs: Option<Instant>,
}

impl QueueBudget {
    /// A batch larger than the queue goes alone.
    fn enter(&self, bytes: usize) {
        let mut state = self.state.lock();
        while state.bytes > 0 && state.bytes + bytes > MAX_WAITING && !state.over {
            self.changed.wait(&mut state);
        }
        state.bytes += bytes;
    }

    fn leave(&self, bytes: usize) {
        self.state.lock().bytes -= bytes;
        self.changed.notify_all();
    }
}

struct QueueReader(Arc<QueueBudget>);

impl QueueReader {
    fn is_late(&self, handed: Option<Instant>) -> bool {
        let (ends, syncs) = {
            let state = self.0.state.lock();
            (state.ends, state.syncs)
        };
        handed.is_some_and(|handed| handed.elapsed() > MAX_LAG)
            || ends.is_some_and(|ends| ends.elapsed() > MAX_LAST)
            || syncs.is_some_and(|syncs| syncs.elapsed() > MAX_SYNC)
    }
}

impl Drop for QueueReader {
    fn drop(&mut self) {
        self.0.state.lock().over = true;
        self.0.changed.notify_all();
    }
}

impl<S: RecordSink + Send + 'static> BackgroundSink<S> {
    /// Starts the thread.
    pub fn new(sink: S) -> io::Result<Self> {
        let (to_thread, batches) = channel();
        let queue = Arc::new(QueueBudget::default());
        let taking = QueueReader(Arc::clone(&queue));
        let thread = Worker::spawn("writer", move |_| drain(sink, batches, &taking))?;
        Ok(BackgroundSink {
            batch: Batch::default(),
            since: Instant::now(),
            to_thread: Some(to_thread),
            queue,
            thread: Some(thread),
        })
    }

    /// Writes the rest; returns the sink with its first error.
    pub fn finish(mut self) -> (Option<S>, SinkResult) {
        let last = self.send_batch();
        self.queue.state.lock().ends = Some(Instant::now());
        self.to_thread = None;
        match self.thread.take().and_then(Worker::join) {
            Some((sink, written)) => (Some(sink), written.and(last)),
            None => (None, Err(SinkError::ThreadFailed)),
        }
    }

    fn send_batch(&mut self) -> SinkResult {
        if self.batch.records.is_empty() {
            return Ok(());
        }
        let mut batch = std::mem::take(&mut self.batch);
        self.queue.enter(batch.bytes);
        batch.handed = Some(Instant::now());
        self.send(QueueItem::Records(batch))
    }

    fn send(&self, handed: QueueItem) -> SinkResult {
        let Some(to_thread) = &self.to_thread else { return Err(SinkError::ThreadEnded) };
        to_thread.send(handed).map_err(|_| SinkError::ThreadEnded)
    }
}

impl<S: RecordSink + Send + 'static> RecordSink for BackgroundSink<S> {
    fn record(&mut self, record: &Record) -> SinkResult {
        if self.batch.records.is_empty() {
            self.since = Instant::now();
        }
        self.batch.bytes += record.bytes_held();
        self.batch.records.push(record.clone());
        let is_full = self.batch.records.len() >= BATCH || self.batch.bytes >= BATCH_BYTES;
        if is_full || self.since.elapsed() >= MAX_BATCH_AGE { self.send_batch() } else { Ok(()) }
    }

    fn sync(&mut self) -> SinkResult {
        self.send_batch()?;
        let (answer, answered) = channel();
        self.queue.state.lock().syncs = Some(Instant::now());
        let synced = self
            .send(QueueItem::Sync(answer))
            .and_then(|()| answered.recv().unwrap_or(Err(SinkError::ThreadEnded)));
        self.queue.state.lock().syncs = None;
        synced
    }
}

fn drain<S: RecordSink>(
    mut sink: S,
    batches: Receiver<QueueItem>,
    taking: &QueueReader,
) -> (S, SinkResult) {
    for handed in batches {
        let Batch { records, bytes, handed } = match handed {
            QueueItem::Records(batch) => batch,
            QueueItem::Sync(answer) => {
                let synced = sink.sync();
                let reply = synced.as_ref().map(drop).map_err(|_| SinkError::ThreadEnded);
                // The requester may have exited.
                let _ = answer.send(reply);
                if synced.is_err() {
                    return (sink, synced);
                }
                continue;
            }
        };
        sink.hurry(taking.is_late(handed));
        for record in &records {
            if let Err(error) = sink.record(record) {
                return (sink, Err(error));
            }
        }
        drop(records);
        taking.0.leave(bytes);
    }
    (sink, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Event, Nanos, StackSample};

    fn sample(n: u64) -> Record {
        Record::Sample(StackSample { time: Nanos(n), threads: Vec::new() })
    }

    #[test]
    fn every_record_arrives_in_order() {
        let mut sink = BackgroundSink::new(Vec::new()).unwrap();
        for n in 0..1000 {
            sink.record(&sample(n)).unwrap();
        }
        let (records, result) = sink.finish();
        result.unwrap();
        assert!(records.unwrap().into_iter().eq((0..1000).map(sample)));
    }

    #[test]
    fn sync_returns_after_all_records_arrived() {
        struct CountingSink(std::sync::Arc<std::sync::Mutex<(usize, usize)>>);
        impl RecordSink for CountingSink {
            fn record(&mut self, _: &Record) -> SinkResult {
                self.0.lock().unwrap().0 += 1;
                Ok(())
            }

            fn sync(&mut self) -> SinkResult {
                let mut counts = self.0.lock().unwrap();
                counts.1 = counts.0;
                Ok(())
            }
        }
        let counts = std::sync::Arc::default();
        let mut sink = BackgroundSink::new(CountingSink(std::sync::Arc::clone(&counts))).unwrap();
        for n in 0..100 {
            sink.record(&sample(n)).unwrap();
        }
        sink.sync().unwrap();
        assert_eq!(*counts.lock().unwrap(), (100, 100));
    }

    #[test]
    fn the_queue_is_bounded_by_bytes_not_records() {
        use crate::model::{DriverEvent, EventBatch, EventKind};

        struct Slow(std::sync::mpsc::Receiver<()>);
        impl RecordSink for Slow {
            fn record(&mut self, _: &Record) -> SinkResult {
                let _ = self.0.recv();
                Ok(())
            }
        }
        let (go, wait) = channel();
        let mut sink = BackgroundSink::new(Slow(wait)).unwrap();
        let queue = Arc::clone(&sink.queue);
        let event = Event {
            time: Nanos(0),
            change: EventKind::Marked(DriverEvent::ModuleLoaded),
            site: None,
        };
        let record = Record::Events(EventBatch { events: vec![event; 1 << 14] });
        let one = record.bytes_held();
        assert!(one > 100_000, "{one}");
        let recording = std::thread::spawn(move || {
            for _ in 0..3 * MAX_WAITING / one {
                sink.record(&record).unwrap();
            }
            sink.finish().1
        });
        while queue.state.lock().bytes + BATCH_BYTES + one < MAX_WAITING {
            std::thread::yield_now();
        }
        let mut most = 0;
        while !recording.is_finished() {
            most = most.max(queue.state.lock().bytes);
            let _ = go.send(());
            std::thread::yield_now();
        }
        drop(go);
        recording.join().unwrap().unwrap();
        assert!(most <= MAX_WAITING, "{most}");
    }

    #[test]
    fn a_hurried_sink_skips_its_additions_at_the_end() {
        #[derive(Default)]
        struct Adding {
            hurries: bool,
            records: u64,
            additions: u64,
        }
        impl RecordSink for Adding {
            fn record(&mut self, _: &Record) -> SinkResult {
                self.records += 1;
                if !self.hurries {
                    std::thread::sleep(Duration::from_millis(1));
                    self.additions += 1;
                }
                Ok(())
            }

            fn hurry(&mut self, hurries: bool) {
                self.hurries = hurries;
            }
        }
        let mut sink = BackgroundSink::new(Adding::default()).unwrap();
        for n in 0..10_000 {
            sink.record(&sample(n)).unwrap();
        }
        let (sink, result) = sink.finish();
        result.unwrap();
        let Adding { records, additions, .. } = sink.unwrap();
        assert_eq!(records, 10_000);
        assert!((1..2_000).contains(&additions), "{additions}");
    }

    #[test]
    fn an_error_of_the_sink_comes_back() {
        struct QueueFull;
        impl RecordSink for QueueFull {
            fn record(&mut self, _: &Record) -> SinkResult {
                Err(io::Error::new(io::ErrorKind::StorageFull, "disk full").into())
            }
        }
        let mut sink = BackgroundSink::new(QueueFull).unwrap();
        let refused = (0..1_000_000).any(|n| sink.record(&sample(n)).is_err());
        assert!(refused);
        let (_, result) = sink.finish();
        let error = result.unwrap_err();
        assert!(error.io().is_some_and(|e| e.kind() == io::ErrorKind::StorageFull), "{error:?}");
    }
}
