//! Takes owner snapshots of a job while lines are recorded. What is known is in an [`ObservedJob`]
//! at every moment; what is wanted first comes first: the process, owners, growth, lines.

mod job;
mod lines;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::analysis::{ProcessSnapshot, in_no_tensor, owner_groups};
use crate::model::{OwnershipSnapshot, ReachedLimit};
use crate::sampler::{
    CommonOptions, MANY_PROCESSORS, OwnerError, RecordOptions, Recorder, SnapshotOptions,
    TargetIdentity, TargetReaders, Worker, processors, read_host, read_neighbours, read_owners,
    read_sleep_tags, read_threads, sleep_unless, with_raised_priority,
};

pub(super) use job::{JobObservation, ObservedJob};
use lines::LineRecording;

use super::{hints, output};

const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum number of snapshots after the first.
const MIN_ROUNDS: u32 = 3;
/// The first snapshot also finds the pages: the next takes about this part of its time.
const AFTER_FIRST: f64 = 0.6;
/// To see growth, this many snapshots are worth more than lines.
const MORE: u32 = 2;
/// For a reading that began right before the deadline.
const MIN_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
pub(super) struct ObserveOptions {
    pub(super) duration: Duration,
    /// Minimum time between two ownership snapshots.
    pub(super) every: Duration,
    pub(super) limits: SnapshotOptions,
    /// When the observation ends, however little it has; `None`: slow snapshots prolong it.
    pub(super) deadline: Option<Instant>,
}

impl ObserveOptions {
    /// The limits of a snapshot that begins now.
    fn limits(&self) -> SnapshotOptions {
        let max_time = match self.left() {
            Some(left) => self.limits.max_time.min(in_tenths(left)),
            None => self.limits.max_time,
        };
        SnapshotOptions { max_time, ..self.limits }
    }

    fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// On busy processors, waiting for them would use up the time: such work goes ahead of all.
    fn hurry<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.deadline.is_some() { with_raised_priority(work) } else { work() }
    }

    fn has_time_for(&self, snapshot: Duration) -> bool {
        self.left().is_none_or(|left| left > snapshot)
    }

    fn waits_for_lines_until(&self, snapshot: Duration) -> Instant {
        let time = self.left().map_or(ATTACH_TIMEOUT, |left| left.saturating_sub(snapshot * MORE));
        Instant::now() + time
    }
}

/// Texts name the limit.
fn in_tenths(time: Duration) -> Duration {
    let tenths = u32::try_from(time.as_millis() / 100).unwrap_or(u32::MAX);
    Duration::from_millis(100) * tenths.max(1)
}

/// Fills in `job` until the time is over, `stop` is set or the process has ended.
pub(super) fn observe(
    mut readers: TargetReaders,
    options: ObserveOptions,
    stop: &AtomicBool,
    job: &Arc<ObservedJob>,
) -> Result<TargetReaders> {
    let (identity, pid) = (readers.identity(), readers.pid());
    job.begin("reading the process");
    // Each attaching takes as long as a snapshot: all at the same time, if there are processors.
    let at_begin = ProcessReading::begin(identity.clone(), job)?;
    let mut recording = match processors() >= MANY_PROCESSORS {
        true => Some(LineRecording::begin(identity.clone(), pid, options)?),
        false => None,
    };
    // Its thread inherits the priority.
    let mut snapshots = options.hurry(|| Snapshots::begin(job))?;
    job.begin("reading owners");
    let first = snapshots.take(&mut readers, &options);
    // The reading at the end is the one that counts.
    let _ = at_begin.wait(&options);
    let mut recording = match recording.take() {
        Some(recording) => recording,
        None => LineRecording::begin(identity.clone(), pid, options)?,
    };
    job.begin("placing probes");
    let begun = recording.began(options.waits_for_lines_until(snapshots.next_takes), stop)?;
    if begun.is_none() && options.deadline.is_none() && !stop.load(Ordering::Relaxed) {
        return Err(anyhow!("cannot record process {pid}: the recording did not begin"));
    }
    // The observation began while the first snapshot was analysed.
    let began = begun.map_or(first, |begun| first.max(begun));
    let mut rounds = Rounds { job, options, stop, recording, snapshots };
    let at_end = rounds.go(&mut readers, began)?;
    rounds.record_on()?;
    job.begin("removing probes");
    let at_end = match at_end {
        Some(begun) => begun,
        None => ProcessReading::begin(identity, job)?,
    };
    rounds.recording.end(job);
    at_end.wait(&options)?;
    // If the last snapshot failed, the one before is used.
    rounds.snapshots.end();
    Ok(readers)
}

struct Rounds<'a> {
    job: &'a Arc<ObservedJob>,
    options: ObserveOptions,
    stop: &'a AtomicBool,
    recording: LineRecording,
    snapshots: Snapshots<'a>,
}

impl Rounds<'_> {
    /// Takes snapshots. Returns the reading of the process that began with the last one.
    fn go(
        &mut self,
        readers: &mut TargetReaders,
        began: Instant,
    ) -> Result<Option<ProcessReading>> {
        let Rounds { job, options, stop, recording, snapshots } = self;
        let mut next = began;
        let until = began + options.duration;
        for round in 1.. {
            // Counts from start to start, with a rest for the machine.
            let rest = Instant::now() + options.every / 8;
            let latest = options.deadline.map_or(until, |end| snapshots.latest(end).min(until));
            next = (next + options.every).max(rest).min(latest);
            job.begin("watching what grows");
            let wait = next.saturating_duration_since(Instant::now());
            sleep_unless(wait, || stop.load(Ordering::Relaxed) || recording.is_over());
            recording.began(Instant::now(), stop)?;
            if recording.is_over() {
                return Ok(None);
            }
            recording.show(snapshots.began.elapsed(), job);
            if stop.load(Ordering::Relaxed) || !options.has_time_for(snapshots.next_takes) {
                return Ok(None);
            }
            // Growth needs several snapshots, however slow.
            let may_end = round >= MIN_ROUNDS || latest < until;
            let at_end = match may_end && next >= latest {
                true => Some(ProcessReading::begin(readers.identity(), job)?),
                false => None,
            };
            job.begin("reading owners");
            snapshots.take(readers, options);
            if may_end && Instant::now() >= latest || stop.load(Ordering::Relaxed) {
                return Ok(at_end);
            }
        }
        Ok(None)
    }

    /// Time that is too short for a snapshot is enough for lines that began late, or anew.
    fn record_on(&mut self) -> Result<()> {
        let Rounds { job, options, stop, recording, .. } = self;
        let Some(deadline) = options.deadline else { return Ok(()) };
        job.begin("recording lines");
        if recording.began(deadline, stop)?.is_some() {
            let is_over = || {
                let has_all = recording.is_over() || recording.has_recorded(options.duration);
                has_all || stop.load(Ordering::Relaxed)
            };
            sleep_unless(deadline.saturating_duration_since(Instant::now()), is_over);
        }
        Ok(())
    }
}

/// Ownership snapshots; a thread groups their owners: for a large job this takes as long as the
/// next snapshot.
struct Snapshots<'a> {
    job: &'a ObservedJob,
    began: Instant,
    /// What the next one probably takes.
    next_takes: Duration,
    to_group: Option<Sender<(Duration, OwnershipSnapshot)>>,
    grouping: Option<Worker<()>>,
}

impl Snapshots<'_> {
    fn begin(job: &Arc<ObservedJob>) -> Result<Snapshots<'_>> {
        let (to_group, taken) = channel::<(Duration, OwnershipSnapshot)>();
        let of = Arc::clone(job);
        let grouping = Worker::spawn("owners", move |_| {
            for (time, snapshot) in taken {
                let groups = snapshot.has_all_tensors().then(|| {
                    let mut groups = owner_groups(&snapshot);
                    groups.extend(in_no_tensor(&snapshot));
                    groups
                });
                of.change(|state| state.add_snapshot(time, snapshot, groups));
            }
        })?;
        Ok(Snapshots {
            job,
            began: Instant::now(),
            next_takes: Duration::ZERO,
            to_group: Some(to_group),
            grouping: Some(grouping),
        })
    }

    /// Returns the moment that it shows.
    fn take(&mut self, readers: &mut TargetReaders, options: &ObserveOptions) -> Instant {
        let begun = Instant::now();
        let read = options.hurry(|| read_owners(readers, options.limits()));
        let part = if self.next_takes.is_zero() { AFTER_FIRST } else { 1.0 };
        self.next_takes = begun.elapsed().mul_f64(part);
        match read {
            Ok(read) => {
                self.job.change(|state| state.stops.merge(read.snapshot.stops));
                // The time of the stop, not of the analysis's end.
                let time = self.began.elapsed().saturating_sub(read.snapshot.age);
                if let Some(to_group) = &self.to_group {
                    let _ = to_group.send((time, read.snapshot));
                }
                self.began + time
            }
            Err(error) => {
                let is_late = matches!(
                    error,
                    OwnerError::Cut {
                        limit: ReachedLimit::Time(_)
                            | ReachedLimit::Repeating(_)
                            | ReachedLimit::Finding { .. },
                        ..
                    }
                );
                self.job.change(|state| state.failed = Some((error.to_string(), is_late)));
                Instant::now()
            }
        }
    }

    /// The last moment to begin another that ends before `deadline`.
    fn latest(&self, deadline: Instant) -> Instant {
        deadline.checked_sub(self.next_takes).unwrap_or(deadline)
    }

    fn end(mut self) {
        self.to_group = None;
        let _ = self.grouping.take().and_then(Worker::join);
    }
}

/// Reads process and devices on a thread.
struct ProcessReading {
    result: Receiver<Result<()>>,
    thread: Worker<()>,
}

impl ProcessReading {
    fn begin(process: TargetIdentity, job: &Arc<ObservedJob>) -> Result<ProcessReading> {
        let (done, result) = channel();
        let job = Arc::clone(job);
        let thread = Worker::spawn("process", move |_| {
            let read = read_process(&process, &job);
            let _ = done.send(read.map(|read| job.change(|state| state.process = Some(read))));
        })?;
        Ok(ProcessReading { result, thread })
    }

    /// After the deadline, an earlier reading has to do.
    fn wait(self, options: &ObserveOptions) -> Result<()> {
        let result = match options.left() {
            Some(left) => self.result.recv_timeout(left.max(MIN_WAIT)),
            None => self.result.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match result {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                self.thread.leave();
                Ok(())
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(anyhow!("reading the process ended unexpectedly"))
            }
        }
    }
}

fn read_process(process: &TargetIdentity, job: &ObservedJob) -> Result<ProcessSnapshot> {
    let mut snapshot = ProcessSnapshot::new();
    let once =
        RecordOptions { rate: 1, duration: None, follow: None, common: CommonOptions::default() };
    let mut readers = process.attach().map_err(|error| hints::attach(error, job.pid))?;
    let tags = read_sleep_tags(&readers);
    let (at, host) = (job.began.elapsed().as_secs_f64(), read_host(&readers));
    let (threads, neighbours) = (read_threads(&mut readers), read_neighbours(&readers));
    job.change(|state| {
        state.host.push((at, host));
        state.threads = threads;
        state.neighbours = neighbours;
    });
    let recorder = Recorder::new(readers, once);
    // Those of an ownership snapshot are used, and without one, at the end, its own.
    let needs_blocks = {
        let state = job.state();
        state.process.is_some() && state.last.is_none()
    };
    let read = match needs_blocks {
        true => recorder.record_once(output::host(), &mut snapshot),
        false => recorder.record_totals(output::host(), &mut snapshot),
    };
    read.context("cannot read the process")?;
    snapshot.set_tags(tags);
    Ok(snapshot)
}
