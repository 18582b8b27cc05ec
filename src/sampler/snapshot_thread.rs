//! Reads snapshots on a thread, as the target changes meanwhile.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use super::quiet_moment::{LastChange, QuietMoments};
use super::worker::Worker;
use crate::model::{AllocatorSnapshot, CudaIndex, MissReason, Nanos, SnapshotConsistency};
use crate::target::Process;
use crate::target::processor_time;
use crate::torch::{AllocatorError, AllocatorReader};

const MAX_QUEUED: usize = 64;

const WAIT_FOR_QUIET: Duration = Duration::from_millis(150);
/// A snapshot of a thousand blocks takes up to a millisecond.
const QUIET_TIMEOUT: Duration = Duration::from_millis(8);

pub(super) struct SnapshotRead {
    pub(super) device: CudaIndex,
    pub(super) snapshot: Result<AllocatorSnapshot, MissReason>,
    /// Processor time.
    pub(super) cost: Duration,
}

pub(super) struct SnapshotThread {
    wanted: SyncSender<CudaIndex>,
    read: Receiver<SnapshotRead>,
    outstanding: usize,
    _thread: Worker,
}

impl SnapshotThread {
    /// Retries for `timeout`; if counters are polled, waits for quiet moments. Times count from
    /// `start`.
    pub(super) fn start(
        process: Arc<Process>,
        start: Instant,
        timeout: Duration,
        last_change: Option<LastChange>,
    ) -> std::io::Result<Self> {
        let (wanted, requests) = sync_channel(MAX_QUEUED);
        let (results, read) = sync_channel(MAX_QUEUED);
        let thread = Worker::spawn("snapshot", move |_| {
            let mut source = SnapshotSource {
                process: &process,
                start,
                timeout,
                last_change,
                takes: Duration::ZERO,
                reader: None,
            };
            super::priority::lower_priority();
            serve(&mut source, &requests, &results);
        })?;
        Ok(SnapshotThread { wanted, read, outstanding: 0, _thread: thread })
    }

    pub(super) fn want(&mut self, device: CudaIndex) -> bool {
        let sent = self.wanted.try_send(device).is_ok();
        self.outstanding += usize::from(sent);
        sent
    }

    pub(super) fn poll(&mut self) -> Option<SnapshotRead> {
        let read = self.read.try_recv();
        match &read {
            Ok(_) => self.outstanding -= 1,
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => self.outstanding = 0,
        }
        read.ok()
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.outstanding > 0
    }

    /// `None` if no snapshot is outstanding or the thread has ended.
    pub(super) fn wait(&mut self) -> Option<SnapshotRead> {
        if self.outstanding == 0 {
            return None;
        }
        let read = self.read.recv().ok();
        self.outstanding = if read.is_some() { self.outstanding - 1 } else { 0 };
        read
    }
}

struct SnapshotSource<'a> {
    process: &'a Process,
    start: Instant,
    timeout: Duration,
    last_change: Option<LastChange>,
    takes: Duration,
    reader: Option<AllocatorReader>,
}

fn serve(
    source: &mut SnapshotSource<'_>,
    requests: &Receiver<CudaIndex>,
    results: &SyncSender<SnapshotRead>,
) {
    for device in requests {
        let before = processor_time();
        let snapshot = source.read(device).map_err(|error| match error {
            AllocatorError::Torn { .. } => MissReason::Torn,
            other => MissReason::Failed(other.to_string()),
        });
        let cost = processor_time().saturating_sub(before);
        if results.send(SnapshotRead { device, snapshot, cost }).is_err() {
            return;
        }
    }
}

impl SnapshotSource<'_> {
    fn read(&mut self, device: CudaIndex) -> Result<AllocatorSnapshot, AllocatorError> {
        let start = self.start;
        let torch = match &mut self.reader {
            Some(torch) => torch,
            none => {
                let torch =
                    AllocatorReader::attach(self.process)?.ok_or(AllocatorError::NotInitialized)?;
                let torch = none.insert(torch);
                let timeout = self.last_change.as_ref().map_or(self.timeout, |_| QUIET_TIMEOUT);
                torch.set_timeout(timeout);
                torch
            }
        };
        let now = || Nanos(start.elapsed().as_nanos() as u64);
        let moments = self.last_change.clone().map(|last_change| QuietMoments {
            last_change,
            start,
            takes: self.takes,
            until: Instant::now() + WAIT_FOR_QUIET,
        });
        let mut attempt_began = Instant::now();
        let mut before_attempt = || {
            moments.as_ref().inspect(|moments| moments.wait());
            attempt_began = Instant::now();
        };
        let read = match torch.blocks_when(device, &now, &mut before_attempt) {
            Err(
                AllocatorError::NotInitialized
                | AllocatorError::NoDevice(_)
                | AllocatorError::NotSupported { .. },
            ) => {
                torch.refresh()?;
                torch.blocks_when(device, &now, &mut before_attempt)
            }
            read => read,
        };
        if read.as_ref().is_ok_and(|s| s.consistency == SnapshotConsistency::Consistent) {
            self.takes = attempt_began.elapsed();
        }
        read
    }
}
