//! `memspy summary` and `memspy growth`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use parking_lot::Mutex;

use crate::analysis::{FindingFacts, HostUse, RankHolding, findings, odd_rank, owner_groups};
use crate::model::OwnershipSnapshot;
use crate::render::{self, FindingText, GrowthKeeper, JobSummary, LinesSource, SummaryStyle};
use crate::sampler::{MANY_PROCESSORS, SnapshotOptions, TargetReaders, processors, read_referrers};

use super::args::{GrowthArgs, ReadArgs, SnapshotArgs, SummaryArgs};
use super::live_screen::{self, Watched};
use super::members::{members, refuse_launcher};
use super::observe::{JobObservation, ObserveOptions, ObservedJob, observe};
use super::output::into_io;
use super::owners::attached;
use super::signals::StopSignals;
use super::{eprint_detail, eprint_error, hints, in_one_line, output};

const SUMMARY_SNAPSHOTS: u32 = 3;
/// With the 2 s that it observes, the answer comes in 3 s, or 8 s where the job needs all
/// processors.
const SPARE: Duration = Duration::from_secs(1);
const SPARE_WITH_FEW: Duration = Duration::from_secs(6);
/// Of it, for removing probes and writing the text.
const MAX_ENDING: Duration = Duration::from_secs(1);
/// Many snapshots, yet few stops.
const GROWTH_INTERVAL: Duration = Duration::from_millis(800);
const MAX_GROWTH_SNAPSHOTS: u32 = 60;
/// Referrers are searched for this many fastest-growing owners.
const KEEPERS: usize = 2;
/// `memspy why` observes as long as `memspy summary` does by default.
const OBSERVED: Duration = Duration::from_secs(2);

pub(super) fn summary(args: &SummaryArgs) -> Result<()> {
    let which = (args.pid, args.subprocesses);
    let (observer, times) = Observer::in_time(which, args.duration, &args.cost)?;
    observer.watch(&mut Partial::of(&observer, true), args.json, times)?;
    let jobs = observer.jobs();
    if args.subprocesses && !args.json {
        let ranks: Vec<RankHolding> = jobs.iter().filter_map(|job| holding(job)).collect();
        if let Some(odd) = odd_rank(&ranks) {
            let text = render::odd_rank_text(&odd, ranks.len());
            output::print(|out| writeln!(out, "{}\n", render::visible(&text)))?;
        }
    }
    show_each(&jobs, &|job| print(args.json, job))
}

/// What observing takes besides the time observed: attaching, the first snapshot, the end.
fn spare_time() -> Duration {
    if processors() >= MANY_PROCESSORS { SPARE } else { SPARE_WITH_FEW }
}

/// Observes a job, or its ranks at the same time.
struct Observer {
    pid: u32,
    has_ranks: bool,
    options: ObserveOptions,
    keepers: Option<SnapshotOptions>,
    jobs: Arc<Mutex<Vec<Arc<ObservedJob>>>>,
    stop: Arc<AtomicBool>,
}

impl Observer {
    fn new(pid: u32, has_ranks: bool, options: ObserveOptions) -> Result<Observer> {
        let (jobs, stop) = (Arc::default(), StopSignals::watch()?.stop);
        Ok(Observer { pid, has_ranks, options, keepers: None, jobs, stop })
    }

    /// One that ends in time, and when it began and has to show what it has.
    fn in_time(
        (pid, has_ranks): (u32, bool),
        duration: Duration,
        cost: &SnapshotArgs,
    ) -> Result<(Observer, (Instant, Option<Instant>))> {
        let began = Instant::now();
        let max_time = cost.limits.max_time;
        let spare = max_time.map_or_else(spare_time, |time| time.max(spare_time()));
        let deadline = began + duration + spare;
        let options = ObserveOptions {
            duration,
            every: duration / SUMMARY_SNAPSHOTS,
            limits: SnapshotOptions {
                max_time: max_time.unwrap_or(Duration::MAX),
                ..cost.options()
            },
            // Then probes are removed, and the text is written.
            deadline: Some(deadline.checked_sub((spare / 3).min(MAX_ENDING)).unwrap_or(began)),
        };
        let times = (began, deadline.checked_sub((spare / 10).min(MAX_ENDING / 3)));
        Ok((Observer::new(pid, has_ranks, options)?, times))
    }

    fn jobs(&self) -> Vec<Arc<ObservedJob>> {
        self.jobs.lock().clone()
    }

    /// Whether it is complete, see [`live_screen::watch`].
    fn watch(
        &self,
        partial: &mut Partial,
        is_json: bool,
        times: (Instant, Option<Instant>),
    ) -> Result<bool> {
        let (pid, options, keepers) = (self.pid, self.options, self.keepers);
        let (jobs, stop) = (Arc::clone(&self.jobs), Arc::clone(&self.stop));
        let has_ranks = self.has_ranks;
        let work = move || {
            if has_ranks {
                return of_ranks(pid, options, keepers, &jobs, &stop);
            }
            let job = Arc::new(ObservedJob::new(pid, None));
            jobs.lock().push(Arc::clone(&job));
            let readers = attached(pid, &stop)?;
            refuse_launcher(&readers)?;
            let readers = observe(readers, options, &stop, &job)?;
            find_keepers(keepers, readers, &job);
            Ok(())
        };
        live_screen::watch(work, partial, times, is_json, &self.stop)
    }
}

/// A failed rank hides no other.
fn of_ranks(
    pid: u32,
    options: ObserveOptions,
    keepers: Option<SnapshotOptions>,
    jobs: &Mutex<Vec<Arc<ObservedJob>>>,
    stop: &AtomicBool,
) -> Result<()> {
    let members = members(pid)?;
    std::thread::scope(|scope| {
        for member in members {
            let job = Arc::new(ObservedJob::new(member.readers.pid(), Some(member.label())));
            jobs.lock().push(Arc::clone(&job));
            scope.spawn(move || match observe(member.readers, options, stop, &job) {
                Ok(readers) => find_keepers(keepers, readers, &job),
                Err(error) => job.change(|state| state.error = Some(error)),
            });
        }
    });
    Ok(())
}

/// Shows each rank; one that failed is an error at the end.
fn show_each(jobs: &[Arc<ObservedJob>], show: &dyn Fn(&ObservedJob) -> Result<()>) -> Result<()> {
    let mut failed = Vec::new();
    for job in jobs {
        let error = job.state().error.take();
        let shown = error.map_or_else(|| show(job), Err);
        match (&job.label, shown) {
            (Some(label), Err(error)) => {
                eprint_error(&format!("{label}: {}", in_one_line(&error)));
                failed.push(label.as_str());
            }
            (_, shown) => shown?,
        }
    }
    match (jobs, failed.is_empty()) {
        ([], _) => bail!("the job could not be read in this time: --for 60s gives more"),
        (_, false) => bail!("{} could not be observed: see above", failed.join(", ")),
        (_, true) => Ok(()),
    }
}

fn holding(job: &ObservedJob) -> Option<RankHolding> {
    let (label, state) = (job.label.clone()?, job.state());
    if state.error.is_some() {
        return None;
    }
    let least = |gpu: u32| state.devices.iter().find(|seen| seen.gpu == gpu)?.least;
    let gpus = state.gpus();
    let levels = gpus.iter().filter_map(|gpu| {
        let now = gpu.allocated?;
        Some(least(gpu.gpu).map_or(now, |least| least.min(now)))
    });
    let allocated = levels.sum();
    let mut owners = BTreeMap::new();
    for group in state.growth.last().iter().filter(|group| group.device.is_cuda()) {
        // The number of members differs between ranks.
        let label = render::group_label(group);
        let label = label.split(" (").next().unwrap_or(&label).to_owned();
        *owners.entry(label).or_default() += group.size.bytes;
    }
    Some(RankHolding { label, allocated, owners })
}

/// What the screen shows meanwhile.
struct Partial {
    jobs: Arc<Mutex<Vec<Arc<ObservedJob>>>>,
    /// A summary's text so far, not only the progress.
    has_text: bool,
    changes: u64,
}

impl Partial {
    fn of(observer: &Observer, has_text: bool) -> Partial {
        Partial { jobs: Arc::clone(&observer.jobs), has_text, changes: 0 }
    }
}

impl Watched for Partial {
    fn lines(&mut self, size: (usize, usize)) -> Option<Vec<String>> {
        let jobs = self.jobs.lock().clone();
        let changes = jobs.iter().map(|job| job.state().changes).sum();
        if !self.has_text || changes == std::mem::replace(&mut self.changes, changes) {
            return None;
        }
        let mut text = Vec::new();
        for job in &jobs {
            // It fails at the end, if it does.
            let _ = write_job(&mut text, false, job, Some(size), true);
        }
        Some(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
    }

    fn doing(&self) -> String {
        let jobs = self.jobs.lock();
        let doing = jobs.iter().map(|job| job.state().doing).min();
        doing.unwrap_or("attaching").to_owned()
    }
}

fn print(is_json: bool, job: &ObservedJob) -> Result<()> {
    if job.state().process.is_none() {
        bail!("process {} could not be read in this time: --for 60s gives more", job.pid);
    }
    if let LinesSource::Sampled { why, .. } = &job.state().lines.source {
        eprint_detail(|| format!("process {}: lines by {why}", job.pid));
    }
    output::write(Path::new("-"), false, |out| write_job(out, is_json, job, output::size(), false))
}

/// `memspy why` without a name: what stands out, the largest first.
pub(super) fn largest_findings(args: &ReadArgs) -> Result<()> {
    let which = (args.pid, args.subprocesses);
    let (observer, times) = Observer::in_time(which, OBSERVED, &args.cost)?;
    observer.watch(&mut Partial::of(&observer, false), args.json, times)?;
    show_each(&observer.jobs(), &|job| {
        let state = job.state();
        let texts = finding_texts(&state, job.pid);
        let unchecked = render::unchecked(state.last.as_ref(), &state.growth);
        if args.json {
            return output::print(|out| {
                render::findings_json(out, job.pid, &texts, unchecked).map_err(into_io)
            });
        }
        output::print(|out| {
            if let Some(label) = &job.label {
                writeln!(out, "== {} ==", render::visible(label))?;
            }
            render::findings_text(out, job.pid, &texts, &unchecked, output::width())
                .map_err(into_io)
        })
    })
}

fn finding_texts(state: &JobObservation, pid: u32) -> Vec<FindingText> {
    let gpus = state.gpus();
    let growth = state.growth.owners();
    let host = HostUse::new(&state.host, state.last.as_ref());
    let snapshot = state.last.as_ref().filter(|snapshot| snapshot.has_all_tensors());
    let cut = || state.last.as_ref().map(owner_groups).unwrap_or_default();
    let of_cut = if snapshot.is_none() { cut() } else { Vec::new() };
    let found = findings(&FindingFacts {
        gpus: &gpus,
        snapshot,
        groups: snapshot.map_or(&of_cut, |_| state.growth.last()),
        growth: &growth,
        watch: Some(&state.growth),
        devices: &state.devices,
        lasting: Some(&state.lasting),
        gradients: Some(&state.gradients),
        host: Some(&host),
        threads: Some(&state.threads),
        neighbours: &state.neighbours,
    });
    found.iter().map(|finding| render::finding_text(finding, pid)).collect()
}

fn write_job(
    out: &mut dyn Write,
    is_json: bool,
    job: &ObservedJob,
    size: Option<(usize, usize)>,
    is_partial: bool,
) -> io::Result<()> {
    let state = job.state();
    let Some(process) = &state.process else { return Ok(()) };
    let gpus = state.gpus();
    let host = HostUse::new(&state.host, state.last.as_ref());
    let texts = finding_texts(&state, job.pid);
    let why = state.failed.as_ref().map_or("they were not read in time", |(why, _)| why);
    let summary = JobSummary {
        pid: job.pid,
        process,
        gpus: &gpus,
        growth: &state.growth,
        snapshot: state.last.as_ref().ok_or(why),
        stops: state.stops,
        lines: &state.lines,
        devices: &state.devices,
        findings: &texts,
        host: &host,
        is_partial,
        needs_time: state.failed.as_ref().is_none_or(|(_, needs_time)| *needs_time),
    };
    if is_json {
        return render::job_summary_json(out, &summary).map_err(into_io);
    }
    if let Some(label) = &job.label {
        writeln!(out, "== {} ==", render::visible(label))?;
    }
    let (width, height) = size.unzip();
    let style = SummaryStyle { width, height, color: output::wants_colors() };
    render::job_summary_text(out, &summary, job.label.is_some(), style).map_err(into_io)?;
    if job.label.is_some() { writeln!(out) } else { Ok(()) }
}

pub(super) fn growth(args: &GrowthArgs) -> Result<()> {
    let options = ObserveOptions {
        duration: args.duration,
        every: GROWTH_INTERVAL
            .min(args.duration / SUMMARY_SNAPSHOTS)
            .max(args.duration / MAX_GROWTH_SNAPSHOTS),
        limits: args.cost.options(),
        deadline: None,
    };
    let mut observer = Observer::new(args.pid, args.subprocesses, options)?;
    observer.keepers = Some(args.cost.options());
    observer.watch(&mut Partial::of(&observer, false), args.json, (Instant::now(), None))?;
    show_each(&observer.jobs(), &|job| print_growth(args, job))
}

fn print_growth(args: &GrowthArgs, job: &ObservedJob) -> Result<()> {
    let (state, pid) = (job.state(), job.pid);
    if state.growth.snapshots() == 0 {
        bail!("cannot tell what grows in process {pid}: {}", why_unknown(&state));
    }
    let JobObservation { growth, lines, stops, keepers, .. } = &*state;
    let full: Vec<_> =
        state.devices.iter().filter_map(|device| Some((device.gpu, device.full?))).collect();
    if args.json {
        return output::write(Path::new("-"), false, |out| {
            render::growth_json(out, pid, growth, keepers, &full).map_err(into_io)
        });
    }
    output::print(|out| {
        if let Some(label) = &job.label {
            writeln!(out, "== {} ==", render::visible(label))?;
        }
        render::growth_text(out, pid, growth, lines, keepers, &full, *stops).map_err(into_io)?;
        if job.label.is_some() { writeln!(out) } else { Ok(()) }
    })
}

fn why_unknown(state: &JobObservation) -> String {
    match (&state.last, &state.failed) {
        (None, Some((why, _))) => why.clone(),
        (Some(OwnershipSnapshot { incomplete: Some(incomplete), .. }), _) => {
            let limit = incomplete.limit;
            format!("no snapshot was complete: {limit}; {}", hints::limit(limit))
        }
        _ => "no snapshot was read in the time; --for 60s gives it more".to_owned(),
    }
}

/// Searches what keeps the fastest-growing owners.
fn find_keepers(limits: Option<SnapshotOptions>, mut readers: TargetReaders, job: &ObservedJob) {
    let Some(limits) = limits else { return };
    job.begin("searching what keeps it");
    let grown = job.state().growth.owners();
    let mut examples: Vec<String> =
        grown.iter().filter_map(|growth| growth.group.example.clone()).take(KEEPERS).collect();
    // A loss keeps itself and its graph.
    examples.dedup();
    for example in examples {
        let Ok(read) = read_referrers(&mut readers, limits, &example) else { continue };
        let referrers = read.snapshot.referrers;
        if !referrers.is_empty() {
            job.change(|state| state.keepers.push(GrowthKeeper { example, referrers }));
        }
    }
}
