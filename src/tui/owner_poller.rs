//! Reads owners on a thread, at a key.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Instant;

use super::view_model::{LastOwners, OwnersView};
use crate::model::{IncompleteSnapshot, Nanos, OwnershipBreakdown, StopTotals};
use crate::ownership::summarize;
use crate::sampler::{SnapshotOptions, TargetIdentity, TargetReaders, Worker, read_owners};

type OwnerPoll = Result<(OwnershipBreakdown, StopTotals), String>;

pub(super) struct OwnerPoller {
    /// Opened with the view, not at the key.
    process: Result<TargetIdentity, String>,
    options: SnapshotOptions,
    thread: Option<PollerThread>,
    is_reading: bool,
    last: Option<(OwnerPoll, Instant)>,
}

struct PollerThread {
    requests: Sender<()>,
    polls: Receiver<OwnerPoll>,
    _worker: Worker,
}

impl OwnerPoller {
    pub(super) fn at(pid: u32, options: SnapshotOptions) -> OwnerPoller {
        let process = TargetIdentity::open(pid).map_err(|error| error.to_string());
        OwnerPoller { process, options, thread: None, is_reading: false, last: None }
    }

    pub(super) fn ask(&mut self) {
        if self.is_reading {
            return;
        }
        if self.thread.is_none() {
            match start(self.process.clone(), self.options) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => {
                    self.last = Some((Err(error.to_string()), Instant::now()));
                    return;
                }
            }
        }
        if let Some(thread) = &self.thread {
            self.is_reading = thread.requests.send(()).is_ok();
        }
    }

    /// Returns whether a snapshot has finished.
    pub(super) fn poll(&mut self) -> bool {
        let Some(thread) = self.thread.as_ref().filter(|_| self.is_reading) else { return false };
        let read = match thread.polls.try_recv() {
            Ok(read) => read,
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => {
                self.thread = None;
                Err("the snapshot ended unexpectedly".to_owned())
            }
        };
        self.is_reading = false;
        self.last = Some((read, Instant::now()));
        true
    }

    pub(super) fn owners(&self) -> OwnersView {
        let seen = |(read, at): &(OwnerPoll, Instant)| match read {
            Ok((snapshot, stops)) => {
                Ok(LastOwners { snapshot: snapshot.clone(), age: at.elapsed(), stops: *stops })
            }
            Err(why) => Err(why.clone()),
        };
        OwnersView { looking: self.is_reading, last: self.last.as_ref().map(seen) }
    }
}

fn start(
    process: Result<TargetIdentity, String>,
    options: SnapshotOptions,
) -> std::io::Result<PollerThread> {
    let (requests, asked) = channel::<()>();
    let (results, polls) = channel();
    let worker = Worker::spawn("owners", move |_| {
        let mut readers: Option<TargetReaders> = None;
        for () in asked {
            if results.send(poll_once(&process, options, &mut readers)).is_err() {
                return;
            }
        }
    })?;
    Ok(PollerThread { requests, polls, _worker: worker })
}

fn poll_once(
    process: &Result<TargetIdentity, String>,
    options: SnapshotOptions,
    readers: &mut Option<TargetReaders>,
) -> OwnerPoll {
    let readers = match readers {
        Some(readers) => readers,
        none => {
            let process = process.as_ref().map_err(Clone::clone)?;
            none.insert(process.attach().map_err(|error| error.to_string())?)
        }
    };
    let read = read_owners(readers, options).map_err(|error| error.to_string())?;
    if let Some(IncompleteSnapshot { limit, .. }) = &read.snapshot.incomplete {
        return Err(format!("{limit}: the snapshot is incomplete"));
    }
    Ok((summarize(&read.snapshot, Nanos(0)), read.snapshot.stops))
}
