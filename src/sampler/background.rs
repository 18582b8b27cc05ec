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

/// What is handed over.
enum Handed {
    Records(Vec<Record>),
    /// The sink is to sync what it has; the answer tells how that went.
    Sync(SyncSender<io::Result<()>>),
}

/// A sink that passes records to another sink on its own thread.
pub struct BackgroundSink<S> {
    batch: Vec<Record>,
    since: Instant,
    to_thread: Option<SyncSender<Handed>>,
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
        self.send(Handed::Records(batch))
    }

    fn send(&self, handed: Handed) -> io::Result<()> {
        let Some(to_thread) = &self.to_thread else { return Err(gone()) };
        match to_thread.try_send(handed) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(handed)) => to_thread.send(handed).map_err(|_| gone()),
            Err(TrySendError::Disconnected(_)) => Err(gone()),
        }
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the trace can no longer be written")
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

    /// Waits for the thread.
    fn sync(&mut self) -> io::Result<()> {
        self.hand_over()?;
        let (answer, answered) = sync_channel(1);
        self.send(Handed::Sync(answer))?;
        answered.recv().unwrap_or_else(|_| Err(gone()))
    }
}

fn drain<S: RecordSink>(mut sink: S, batches: Receiver<Handed>) -> (S, io::Result<()>) {
    for handed in batches {
        let batch = match handed {
            Handed::Records(batch) => batch,
            Handed::Sync(answer) => {
                let synced = sink.sync();
                let told =
                    synced.as_ref().map(drop).map_err(|e| io::Error::new(e.kind(), e.to_string()));
                // Whoever asked has ended meanwhile.
                let _ = answer.send(told);
                if synced.is_err() {
                    return (sink, synced);
                }
                continue;
            }
        };
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
    fn what_is_synced_has_arrived_when_that_returns() {
        struct Shared(std::sync::Arc<std::sync::Mutex<(usize, usize)>>);
        impl RecordSink for Shared {
            fn record(&mut self, _: &Record) -> io::Result<()> {
                self.0.lock().unwrap().0 += 1;
                Ok(())
            }

            fn sync(&mut self) -> io::Result<()> {
                let mut counts = self.0.lock().unwrap();
                counts.1 = counts.0;
                Ok(())
            }
        }
        let counts = std::sync::Arc::default();
        let mut sink = BackgroundSink::new(Shared(std::sync::Arc::clone(&counts))).unwrap();
        for n in 0..100 {
            sink.record(&sample(n)).unwrap();
        }
        sink.sync().unwrap();
        assert_eq!(*counts.lock().unwrap(), (100, 100));
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
