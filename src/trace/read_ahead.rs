//! Reads a trace ahead, on its own thread.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::error::ReadError;
use super::reader::TraceReader;
use super::summary::{ReplayProgress, ReplaySummary};
use crate::model::{Record, RecordSink, SinkError, SinkResult};

/// Handed over at once.
const BATCH_BYTES: usize = 1 << 20;
/// Two more are being filled and taken.
const MAX_WAITING: usize = 4;
/// The reading thread waits until such a record is taken: a small part of a hostile file can expand
/// to many.
const MIN_LARGE_RECORD: usize = 4 << 20;

#[derive(Default)]
struct RecordBatch {
    records: Vec<Record>,
    bytes: usize,
    progress: Option<ReplayProgress>,
    /// Dropped when the batch was taken.
    _taken: Option<SyncSender<()>>,
}

struct BatchQueue {
    batch: RefCell<RecordBatch>,
    sender: SyncSender<RecordBatch>,
}

impl BatchQueue {
    fn send(&self) -> SinkResult {
        // The taking thread knows why it stopped.
        self.sender.send(self.batch.take()).map_err(|_| SinkError::ThreadFailed)
    }
}

impl RecordSink for &BatchQueue {
    fn record(&mut self, record: &Record) -> SinkResult {
        let bytes = record.bytes_held();
        let mut batch = self.batch.borrow_mut();
        batch.records.push(record.clone());
        batch.bytes += bytes;
        if batch.bytes < BATCH_BYTES {
            return Ok(());
        }
        let taken = (bytes >= MIN_LARGE_RECORD).then(|| sync_channel(0));
        let (sender, receiver) = taken.unzip();
        batch._taken = sender;
        drop(batch);
        self.send()?;
        // `recv` returns when the batch is dropped; nothing is sent.
        receiver.and_then(|receiver: Receiver<()>| receiver.recv().ok());
        Ok(())
    }
}

impl TraceReader {
    /// [`Self::replay`] with another thread that reads while `sink` works.
    pub fn replay_ahead(
        &mut self,
        sink: &mut dyn RecordSink,
        progress: &mut dyn FnMut(ReplayProgress),
    ) -> Result<ReplaySummary, ReadError> {
        let (sender, batches) = sync_channel(MAX_WAITING);
        thread::scope(|scope| {
            let queue = BatchQueue { batch: RefCell::default(), sender };
            let reader = &mut *self;
            let read = move || {
                let mut note = |now| {
                    queue.batch.borrow_mut().progress = Some(now);
                    ControlFlow::Continue(())
                };
                let outcome = reader.replay_with(&mut &queue, &mut note);
                // Records read before an error still count.
                let _ = queue.send();
                outcome
            };
            let thread =
                match thread::Builder::new().name("reader".into()).spawn_scoped(scope, read) {
                    Ok(thread) => thread,
                    Err(source) => return Err(ReadError::Thread { source }),
                };
            let taken = take(batches, sink, progress);
            let outcome = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // A refused record precedes any later read error.
            taken.map_err(|source| ReadError::Sink { source })?;
            outcome
        })
    }
}

/// Until `sink` refuses one.
fn take(
    batches: Receiver<RecordBatch>,
    sink: &mut dyn RecordSink,
    progress: &mut dyn FnMut(ReplayProgress),
) -> SinkResult {
    for batch in batches {
        batch.records.iter().try_for_each(|record| sink.record(record))?;
        batch.progress.map(&mut *progress);
    }
    Ok(())
}
