//! Keeps compressing and writing away from sampling: records go to a sink on a thread of its own.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::model::{Record, RecordSink};

/// Records are handed over this many at a time, or when the first of them is this old: what is not
/// handed over is lost when memspy is killed.
const BATCH: usize = 64;
const OLDEST: Duration = Duration::from_millis(200);
/// Batches that may wait. When the disk is slower than that for long, sampling waits (and its missed
/// instants are counted) rather than lose a record or take ever more memory.
const WAITING: usize = 256;

/// A sink that passes records to another sink on its own thread.
pub struct BackgroundSink<S> {
    batch: Vec<Record>,
    since: Instant,
    to_thread: Option<SyncSender<Vec<Record>>>,
    thread: Option<JoinHandle<(S, io::Result<()>)>>,
}

impl<S: RecordSink + Send + 'static> BackgroundSink<S> {
    /// Starts the thread.
    pub fn new(sink: S) -> io::Result<Self> {
        let (to_thread, batches) = sync_channel(WAITING);
        let thread = std::thread::Builder::new()
            .name("memspy-writer".to_owned())
            .spawn(move || drain(sink, batches))?;
        Ok(BackgroundSink {
            batch: Vec::with_capacity(BATCH),
            since: Instant::now(),
            to_thread: Some(to_thread),
            thread: Some(thread),
        })
    }

    /// Passes on what is left, waits for the thread and gives the sink back, with its first error.
    pub fn finish(mut self) -> (Option<S>, io::Result<()>) {
        let last = self.hand_over();
        self.to_thread = None;
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok((sink, written))) => (Some(sink), written.and(last)),
            _ => (None, Err(io::Error::other("the writing thread ended unexpectedly"))),
        }
    }

    fn hand_over(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        let gone =
            || io::Error::new(io::ErrorKind::BrokenPipe, "the trace can no longer be written");
        let Some(to_thread) = &self.to_thread else { return Err(gone()) };
        match to_thread.try_send(batch) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(batch)) => to_thread.send(batch).map_err(|_| gone()),
            Err(TrySendError::Disconnected(_)) => Err(gone()),
        }
    }
}

impl<S: RecordSink + Send + 'static> RecordSink for BackgroundSink<S> {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        if self.batch.is_empty() {
            self.since = Instant::now();
        }
        self.batch.push(record.clone());
        if self.batch.len() >= BATCH || self.since.elapsed() >= OLDEST {
            self.hand_over()
        } else {
            Ok(())
        }
    }
}

fn drain<S: RecordSink>(mut sink: S, batches: Receiver<Vec<Record>>) -> (S, io::Result<()>) {
    for batch in batches {
        for record in &batch {
            if let Err(error) = sink.record(record) {
                // Dropping the receiver tells the sampler at its next batch.
                return (sink, Err(error));
            }
        }
    }
    (sink, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Nanos, Sample};

    fn sample(n: u64) -> Record {
        Record::Sample(Sample { time: Nanos(n), threads: Vec::new() })
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
    fn an_error_of_the_sink_comes_back() {
        struct Full;
        impl RecordSink for Full {
            fn record(&mut self, _: &Record) -> io::Result<()> {
                Err(io::Error::new(io::ErrorKind::StorageFull, "disk full"))
            }
        }
        let mut sink = BackgroundSink::new(Full).unwrap();
        let refused = (0..1_000_000).any(|n| sink.record(&sample(n)).is_err());
        assert!(refused);
        let (_, result) = sink.finish();
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
