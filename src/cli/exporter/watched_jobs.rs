//! The exporter's processes: their recordings and figures.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::analysis::{
    DeviceSnapshot, LiveLine, LiveProfile, LiveRows, Moment, OutsideTorch, ThreadChoice,
    TimeResolution, recorded_owner_groups,
};
use crate::cli::args::ExporterArgs;
use crate::cli::{hints, output};
use crate::model::{AllocatorCounters, DeviceOwners, Metric, Pool, SnapshotConsistency};
use crate::render::{ExportedGpu, ExportedJob, FrameLabels, NamedBytes, group_label};
use crate::sampler::{
    AttachedRecorder, CommonOptions, RecordOptions, Recorder, SnapshotOptions, TargetReaders,
    attach,
};
use crate::tui::{BoxError, LiveRecording};

const MIN_SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);
/// The page is not rebuilt sooner, however often requested.
const MIN_AGE: Duration = Duration::from_millis(500);
const OTHER: &str = "[other]";

#[derive(Debug, Clone, Copy)]
pub(super) struct WatchOptions {
    rate: u32,
    rows: usize,
    owners: Option<f64>,
    owner_options: SnapshotOptions,
}

impl From<&ExporterArgs> for WatchOptions {
    fn from(args: &ExporterArgs) -> WatchOptions {
        WatchOptions {
            rate: args.rate,
            rows: args.limit as usize,
            owners: args.owners.map(|percent| percent / 100.0),
            owner_options: args.limits.options(false),
        }
    }
}

struct WatchedJob {
    pid: u32,
    rank: Option<u32>,
    recording: LiveRecording,
}

pub(super) struct WatchedJobs {
    options: WatchOptions,
    jobs: Mutex<Vec<WatchedJob>>,
    last: Mutex<Option<(Instant, Vec<ExportedJob>)>>,
}

impl WatchedJobs {
    pub(super) fn new(options: WatchOptions) -> WatchedJobs {
        WatchedJobs { options, jobs: Mutex::default(), last: Mutex::default() }
    }

    pub(super) fn add(
        &self,
        pid: u32,
        rank: Option<u32>,
        mut readers: Option<TargetReaders>,
        stop: &Arc<AtomicBool>,
    ) -> Result<(), BoxError> {
        let (options, stop) = (self.options, Arc::clone(stop));
        let attaching = Box::new(move || {
            let readers = match readers.take() {
                Some(readers) => readers,
                None => {
                    attach(pid, &stop).map_err(|error| BoxError::from(hints::attach(error, pid)))?
                }
            };
            let common = CommonOptions {
                owners: options.owners,
                owner_options: options.owner_options,
                ..CommonOptions::default()
            };
            let wanted = RecordOptions { rate: options.rate, duration: None, follow: None, common };
            let recorder =
                Recorder::new(readers, wanted).with_snapshot_interval(MIN_SNAPSHOT_INTERVAL);
            Ok(AttachedRecorder::Samples(Box::new(recorder)))
        });
        let recording = LiveRecording::start(attaching, ThreadChoice::default(), output::host())?;
        self.jobs.lock().push(WatchedJob { pid, rank, recording });
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.jobs.lock().len()
    }

    pub(super) fn remove_ended(&self) -> Vec<(u32, String)> {
        let mut ended = Vec::new();
        let mut gone = Vec::new();
        let mut jobs = self.jobs.lock();
        let mut index = 0;
        while index < jobs.len() {
            match jobs[index].recording.ended() {
                Some(why) => {
                    ended.push((jobs[index].pid, why));
                    gone.push(jobs.swap_remove(index));
                }
                None => index += 1,
            }
        }
        drop(jobs);
        if !ended.is_empty() {
            *self.last.lock() = None;
        }
        // Joins their threads after releasing the lock.
        drop(gone);
        ended
    }

    pub(super) fn export(&self) -> Vec<ExportedJob> {
        let mut last = self.last.lock();
        if let Some((at, jobs)) = &*last
            && at.elapsed() < MIN_AGE
        {
            return jobs.clone();
        }
        let mut exported: Vec<ExportedJob> =
            self.jobs.lock().iter().map(|job| self.export_one(job)).collect();
        exported.sort_by_key(|job| (job.rank, job.pid));
        *last = Some((Instant::now(), exported.clone()));
        exported
    }

    fn export_one(&self, job: &WatchedJob) -> ExportedJob {
        let live = job.recording.live();
        let counts = live.counts();
        let command = live.profile().start().map(|start| start.command.join(" "));
        let used = |device: &DeviceSnapshot| device.counters.is_some();
        let devices = live.devices();
        // Before the job uses a GPU, this lists all of the machine's.
        let devices = devices.iter().filter(|device| used(device));
        ExportedJob {
            pid: job.pid,
            rank: job.rank,
            command: command.unwrap_or_default(),
            pytorch: live.profile().runtime().and_then(|runtime| runtime.torch.clone()),
            samples: counts.samples,
            failed_reads: counts.failed + counts.torn,
            gpus: devices.map(|device| self.export_gpu(&live, device)).collect(),
        }
    }

    fn export_gpu(&self, live: &LiveProfile, device: &DeviceSnapshot) -> ExportedGpu {
        let count = |value: i64| u64::try_from(value).ok();
        let counters = device.counters.as_deref();
        let of = |read: fn(&AllocatorCounters) -> i64| counters.map(read).and_then(count);
        let gpu = device.cuda_index;
        let map = gpu.and_then(|gpu| live.profile().snapshot(gpu, Moment::End));
        let map = map.filter(|map| map.consistency == SnapshotConsistency::Consistent);
        let held = gpu.and_then(|gpu| live.profile().last_owners(gpu));
        let found = gpu.and_then(|gpu| live.program_lines(gpu).ok());
        let (lines, attribution) = match &found {
            Some(found) => (self.lines(live, found), attribution(found.resolution)),
            None => Default::default(),
        };
        ExportedGpu {
            gpu: gpu.map(|gpu| gpu.0),
            device: device.nvml_index,
            model: device.name.clone(),
            allocated: of(|c| c.allocated()),
            reserved: of(|c| c.reserved()),
            allocated_peak: of(|c| c.max_allocated()),
            reserved_peak: of(|c| c.max_reserved()),
            inactive_split: of(|c| c.stat(Metric::InactiveSplitBytes, Pool::All).current),
            retries: of(|c| c.num_alloc_retries),
            ooms: of(|c| c.num_ooms),
            outside: match device.outside {
                OutsideTorch::Bytes(bytes) => Some(bytes),
                OutsideTorch::Unknown(_) => None,
            },
            others: device.others,
            total: device.total,
            free: device.free,
            full_in: gpu.and_then(|gpu| live.time_to_full(gpu)).map(|full| full.seconds),
            cached_free: map.and_then(|map| map.cached()),
            largest_free: map.map(|map| map.largest_free),
            lines,
            attribution,
            owners: held.map(|(held, _)| self.owners(held)).unwrap_or_default(),
            owner_stop: held.and_then(|(_, stop)| stop).map(|stop| stop.0 as f64 / 1e9),
        }
    }

    fn lines(&self, live: &LiveProfile, found: &LiveRows<LiveLine>) -> Vec<NamedBytes> {
        let labels = FrameLabels::new(live.profile(), false);
        let rows = found.rows.iter().map(|row| NamedBytes {
            name: labels.label(row.place, true),
            category: None,
            bytes: row.own,
        });
        greatest(rows, self.options.rows)
    }

    fn owners(&self, held: &DeviceOwners) -> Vec<NamedBytes> {
        let groups = recorded_owner_groups(held).into_iter().map(|group| NamedBytes {
            name: group_label(&group),
            category: Some(group.category.name().to_owned()),
            bytes: group.size.bytes,
        });
        let row = |name: &str, bytes| NamedBytes { name: name.to_owned(), category: None, bytes };
        let without =
            [row("[in no tensor]", held.without_tensor), row("[rounding]", held.rounding)];
        greatest(groups.chain(without), self.options.rows)
    }
}

fn attribution(resolution: TimeResolution) -> Vec<NamedBytes> {
    let row = |name: &str, bytes| NamedBytes { name: name.to_owned(), category: None, bytes };
    vec![
        row("proven", resolution.proven()),
        row("probable", resolution.probable),
        row("unattributed", resolution.unattributed()),
    ]
}

/// The `most` largest names, and the sum of the others.
fn greatest(rows: impl Iterator<Item = NamedBytes>, most: usize) -> Vec<NamedBytes> {
    let mut sums = std::collections::BTreeMap::<(Option<String>, String), u64>::new();
    for row in rows.filter(|row| row.bytes > 0) {
        *sums.entry((row.category, row.name)).or_default() += row.bytes;
    }
    let mut rows: Vec<NamedBytes> = sums
        .into_iter()
        .map(|((category, name), bytes)| NamedBytes { name, category, bytes })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    let rest: u64 = rows.iter().skip(most).map(|row| row.bytes).sum();
    rows.truncate(most);
    if rest > 0 {
        rows.push(NamedBytes { name: OTHER.to_owned(), category: None, bytes: rest });
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_and_the_remainder_are_summed() {
        let row = |name: &str, bytes| NamedBytes { name: name.to_owned(), category: None, bytes };
        let rows = [row("a", 5), row("b", 9), row("a", 5), row("c", 1), row("d", 2), row("e", 0)];
        let sums = greatest(rows.into_iter(), 2);
        assert_eq!(sums, [row("a", 10), row("b", 9), row(OTHER, 3)]);
        assert_eq!(greatest([row("a", 5)].into_iter(), 0), [row(OTHER, 5)]);
    }
}
