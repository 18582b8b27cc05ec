//! One look at all owners: a short stop for a copy of what is needed, and the walk over the copy.
//!
//! What is needed is learned by a first walk while the process runs: the pages that it touches are copied while it stands
//! still, in some milliseconds, and it goes on before anything is computed. A page that the walk over the copy misses, as the
//! process has made or moved objects meanwhile, is read late, so that the walk learns what lies behind it too: then what it
//! found is not of one moment, and the next round copies these pages as well. A process that changes faster than that is at last
//! walked over while it stands still, if that is short enough. Whatever happens, it goes on when it has stood still for as long as it may, and all ends
//! when the time or the memory for the look is used up.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

use super::error::OwnerError;
use super::options::{LookRequest, StopEstimate, StopPolicy};
use super::walk::{OwnerWalkInput, WalkResult};
use crate::model::{
    AllocatorBackend, AllocatorSnapshot, IncompleteSnapshot, LookLimit, Nanos, OwnershipSnapshot,
    SnapshotConsistency, StopTotals,
};
use crate::python::{HeapError, HeapListing, PythonReader};
use crate::target::{
    GoneOn, MemoryError, PAGE, PageCache, Process, ProcessError, StopError, StoppedProcess,
};
use crate::torch::{TensorReader, TorchReader};

/// How long the blocks are read again when a process that runs on changes them.
const RUNNING_TIMEOUT: Duration = Duration::from_millis(20);
/// Copies, the last of which is walked over while the process stands still. To copy once more is short for the process; to stand
/// still for a walk is not.
const MAX_ROUNDS: u32 = 8;
/// Pages that are copied together where one was missing: 64 KiB. Each round that was not enough takes twice as many: a job that
/// trains makes its objects in the memory that it just freed nearby.
const NEIGHBOURS: u64 = 16;
/// At most so many: an arena of CPython.
const MAX_NEIGHBOURS: u64 = 256;
/// By so much the pages to copy may grow after one round, by neighbours; those that were missing themselves always come.
const MAX_GROWTH: f64 = 0.5;
/// For so long the newest objects are followed while the process stands still: about what the copying beside it takes in a large
/// job. A round more costs more than that, so each round may take longer, up to this many times as long.
const MAX_FOLLOWING: Duration = Duration::from_millis(25);
const MAX_FOLLOWING_FACTOR: u32 = 4;
/// For so long they are looked for before it is stopped.
const MAX_SEARCH_OF_RECENT: Duration = Duration::from_millis(200);
/// Part of the time for a look that learning which pages matter may take.
const LEARNING: f64 = 0.45;

/// Reads the owners of one process.
pub struct OwnerReader {
    tensors: TensorReader,
    /// Numbers of the pages that the last walk needed.
    pages: Vec<u64>,
}

impl OwnerReader {
    /// Attaches to `process`; `Ok(None)` when PyTorch is not loaded in it.
    pub fn attach(process: &Process) -> Result<Option<OwnerReader>, OwnerError> {
        let tensors = TensorReader::attach(process)?;
        Ok(tensors.map(|tensors| OwnerReader { tensors, pages: Vec::new() }))
    }

    /// What a look can do before it stops the process: the first time, learn which memory matters.
    pub fn learn(
        &mut self,
        process: &Process,
        python: &PythonReader,
        torch: Option<&mut TorchReader>,
        request: &LookRequest<'_>,
    ) {
        let may_stop = request.options.stop_policy == StopPolicy::Stop && !process.is_core();
        if self.pages.is_empty() && may_stop {
            let memory = PageCache::within(Box::new(process.memory()), request.budget);
            let (tensors, stops) = (&self.tensors, &mut StopTotals::default());
            let refused_by = LookLimit::Time(request.options.max_time);
            let mut look = OwnerSnapshot {
                tensors,
                process,
                python,
                torch,
                request,
                memory,
                stops,
                refused_by,
            };
            look.learn(&mut self.pages);
        }
    }

    /// One look. The process goes on before this returns, in whatever way it returns; `stops` counts how often and for how
    /// long it stood still, also where there is an error.
    ///
    /// # Errors
    /// Those for which [`OwnerError::is_transient`] holds are worth another attempt, which costs less than the first.
    pub fn read(
        &mut self,
        process: &Process,
        python: &PythonReader,
        torch: Option<&mut TorchReader>,
        request: &LookRequest<'_>,
        stops: &mut StopTotals,
    ) -> Result<OwnershipSnapshot, OwnerError> {
        let memory = PageCache::within(Box::new(process.memory()), request.budget);
        let tensors = &self.tensors;
        let refused_by = LookLimit::Time(request.options.max_time);
        let mut look =
            OwnerSnapshot { tensors, process, python, torch, request, memory, stops, refused_by };
        match request.options.stop_policy {
            // It stands still as it is.
            _ if process.is_core() => look.running(),
            StopPolicy::Never => look.running(),
            StopPolicy::Stop => look.stopping(&mut self.pages),
        }
    }
}

/// One look under way.
struct OwnerSnapshot<'a> {
    tensors: &'a TensorReader,
    process: &'a Process,
    python: &'a PythonReader,
    torch: Option<&'a mut TorchReader>,
    request: &'a LookRequest<'a>,
    memory: PageCache,
    stops: &'a mut StopTotals,
    /// Why a page that is not in the copy is not read.
    refused_by: LookLimit,
}

impl OwnerSnapshot<'_> {
    /// A look at a process that runs on.
    fn running(&mut self) -> Result<OwnershipSnapshot, OwnerError> {
        let blocks = self.blocks()?;
        let walked = self.walk(&blocks, HeapListing::Whole, &mut || {});
        let walked = walked.map_err(|error| match self.told(error) {
            // They are known by where they lead, and that changes while the process runs.
            OwnerError::Heap(HeapError::NoLists { .. }) if !self.process.is_core() => {
                HeapError::Changing.into()
            }
            other => other,
        })?;
        self.map(walked, blocks)
    }

    /// A look at one that is stopped for it, with the pages that the last look needed, if there was one.
    fn stopping(&mut self, pages: &mut Vec<u64>) -> Result<OwnershipSnapshot, OwnerError> {
        let began = Instant::now();
        let max_pause = self.request.options.max_pause;
        let mut unknown = None;
        if pages.is_empty() {
            unknown = self.learn(pages);
        }
        let knows_all = unknown.is_none();
        let mut walk_took = began.elapsed();
        if let Some(announce) = self.request.announce
            && let Some(estimate) = StopEstimate::of(pages.len() as u64 * PAGE as u64, max_pause)
        {
            announce(estimate);
        }
        for round in 1.. {
            // A round that may come to nothing has to leave the time for another one.
            let has_time = self.request.budget.left() > walk_took.mul_f64(2.5);
            let options = &self.request.options;
            let missing = match round < MAX_ROUNDS && has_time && knows_all {
                true => MissingPage::ReadLate,
                false if knows_all && round > 1 && walk_took < max_pause => {
                    MissingPage::ReadStanding
                }
                false => MissingPage::Refused,
            };
            self.refused_by = match (unknown, has_time) {
                (Some(limit), _) => limit,
                (None, false) => LookLimit::Repeating(options.max_time),
                (None, true) => LookLimit::Copies(round),
            };
            let began = Instant::now();
            if let Some(snapshot) = self.round(pages, missing, round)? {
                return Ok(snapshot);
            }
            if !self.request.may_stop_again {
                return Err(OwnerError::Moved);
            }
            walk_took = began.elapsed();
        }
        Err(self.cut(LookLimit::Time(self.request.options.max_time)))
    }

    /// Walks over the running process, only to learn which pages matter. The limit that this came to, if it did.
    fn learn(&mut self, pages: &mut Vec<u64>) -> Option<LookLimit> {
        let blocks = self.running_blocks();
        let time = self.request.options.max_time.mul_f64(LEARNING);
        self.memory.keep_within(self.request.budget.but_at_most(time));
        // Whatever fails here may be met whole when the process stands still.
        let _ = self.walk(&blocks, HeapListing::Rough, &mut || {});
        *pages = self.memory.pages();
        let of = self.request.options.max_time;
        Some(match self.memory.exceeded()? {
            MemoryError::TimeUp if self.request.budget.left() > Duration::ZERO => {
                LookLimit::Finding { part: time, of }
            }
            exceeded => self.limit(exceeded),
        })
    }

    /// Stops the process, copies `pages`, and walks over the copy. `None` when it needed other pages, which are added to
    /// `pages`.
    fn round(
        &mut self,
        pages: &mut Vec<u64>,
        missing: MissingPage,
        round: u32,
    ) -> Result<Option<OwnershipSnapshot>, OwnerError> {
        let max_pause = self.request.options.max_pause;
        // A job at work makes objects all the time: where they lie now is asked once more, while it runs.
        let recent = self.recent_pages();
        let is_recent: FxHashSet<u64> = recent.iter().copied().collect();
        pages.retain(|page| !is_recent.contains(page));
        let plan = self.memory.plan(pages);
        let newest = PageCache::within(Box::new(self.process.memory()), self.request.budget);
        let recent_plan = newest.plan(&recent);
        pages.extend(&recent);
        self.memory.keep_within(self.request.budget);
        let mut stop = StoppedForCopy::of(self.process, max_pause, self.stops)?;
        let blocks = match self.blocks() {
            // They were not read while it stood still.
            _ if stop.gone_on.is_set() => Err(self.cut(LookLimit::Pause(max_pause))),
            blocks => blocks,
        };
        let blocks = match blocks {
            Ok(blocks) => blocks,
            Err(error) => {
                self.stops.add(stop.end());
                return Err(error);
            }
        };
        // The newest objects are followed beside the copying, for no longer than that takes anyway in a large job: what lies
        // beyond is missing in the copy, and the walk after the stop finds that out.
        let (memory, gone_on) = (&self.memory, &stop.gone_on);
        newest.close_with(gone_on.clone());
        let ground = OwnerWalkInput { memory: &newest, ..self.ground(&blocks) };
        let whole = memory.copy_beside(&plan, gone_on, || {
            let follow = MAX_FOLLOWING * round.min(MAX_FOLLOWING_FACTOR);
            newest.copy_until(Instant::now() + follow);
            let whole = newest.copy(&recent_plan, gone_on);
            // What fails here is met again by the walk.
            let _ = ground.read_newest();
            whole
        });
        if missing != MissingPage::ReadStanding || !whole {
            stop.end();
            self.memory.adopt(&newest);
            self.memory.end_copy();
        } else {
            self.memory.adopt(&newest);
            self.memory.close_with(stop.gone_on.clone());
        }
        drop(newest);
        if !whole || missing == MissingPage::Refused {
            self.memory.close();
        }
        let walked = self.walk(&blocks, HeapListing::Whole, &mut || _ = stop.end());
        self.stops.add(stop.end());
        let is_mixed = missing == MissingPage::ReadLate && self.memory.late_pages() > 0;
        let is_all = walked.as_ref().is_ok_and(|walked| walked.missing.is_empty());
        remember(pages, &self.memory, is_all && !is_mixed, round);
        if is_mixed {
            return match self.memory.exceeded() {
                // What was found is not of one moment, and there is no time for more.
                Some(error) => Err(self.cut(self.limit(error))),
                None => Ok(None),
            };
        }
        let walked = walked.map_err(|error| self.told(error))?;
        let snapshot = self.map(walked, blocks)?;
        let age = stop.age();
        Ok(Some(OwnershipSnapshot { pause: Some(stop.stopped_for), age, ..snapshot }))
    }

    /// The pages in which the objects lie that the process, which runs, has made last.
    fn recent_pages(&self) -> Vec<u64> {
        let budget = self.request.budget.but_at_most(MAX_SEARCH_OF_RECENT);
        let memory = PageCache::within(Box::new(self.process.memory()), budget);
        // It changes meanwhile: what fails here is met again when it stands still.
        let _ = OwnerWalkInput { memory: &memory, ..self.ground(&[]) }.read_newest();
        memory.pages()
    }

    fn walk(
        &self,
        blocks: &[AllocatorSnapshot],
        listing: HeapListing,
        read_all: &mut dyn FnMut(),
    ) -> Result<WalkResult, OwnerError> {
        self.ground(blocks).walk(listing, read_all)
    }

    fn ground<'g>(&'g self, blocks: &'g [AllocatorSnapshot]) -> OwnerWalkInput<'g> {
        let OwnerSnapshot { tensors, python, memory, request, .. } = self;
        OwnerWalkInput { tensors, python, memory, blocks, asked: request.asked }
    }

    /// An error of a walk; if that came to a limit, this says so.
    fn told(&self, error: OwnerError) -> OwnerError {
        match self.memory.exceeded() {
            Some(error) => self.cut(self.limit(error)),
            // It did not come to what it could not do without.
            None if self.memory.refused() > 0 => self.cut(self.limit_of_copy()),
            None => error,
        }
    }

    /// Why something is not in the copy, where the look itself has time left.
    fn limit_of_copy(&self) -> LookLimit {
        let options = &self.request.options;
        match self.stops.longest < options.max_pause {
            true => self.refused_by,
            false => LookLimit::Pause(options.max_pause),
        }
    }

    fn limit(&self, exceeded: MemoryError) -> LookLimit {
        match exceeded {
            MemoryError::TimeUp => LookLimit::Time(self.request.options.max_time),
            MemoryError::OutOfRoom => LookLimit::Memory(self.request.options.max_memory),
            _ => LookLimit::Pause(self.request.options.max_pause),
        }
    }

    fn cut(&self, limit: LookLimit) -> OwnerError {
        OwnerError::Cut { limit, copied: self.memory.copied() }
    }

    /// What is told of a walk.
    fn map(
        &self,
        walked: WalkResult,
        blocks: Vec<AllocatorSnapshot>,
    ) -> Result<OwnershipSnapshot, OwnerError> {
        let WalkResult { tensors, nodes, referrers, counting, models, optimizers, .. } = walked;
        let WalkResult { objects, unreadable, misfits, missing, .. } = walked;
        let limit = self.memory.exceeded().map(|error| self.limit(error));
        let limit = limit.unwrap_or_else(|| self.limit_of_copy());
        if tensors.is_empty() && !missing.is_empty() {
            return Err(self.cut(limit));
        }
        let incomplete = (!missing.is_empty()).then_some(IncompleteSnapshot { limit, missing });
        let (pause, age, stops) = (None, Duration::ZERO, *self.stops);
        Ok(OwnershipSnapshot {
            tensors,
            nodes,
            blocks,
            pause,
            stops,
            incomplete,
            age,
            objects,
            unreadable,
            misfits,
            referrers,
            counting,
            models,
            optimizers,
        })
    }

    /// The blocks of all devices, while the process stands still or else as nobody changed them.
    fn blocks(&mut self) -> Result<Vec<AllocatorSnapshot>, OwnerError> {
        let stop_policy = match self.process.is_core() {
            // What was half changed when the process ended stays so: it is told as such.
            true => StopPolicy::Never,
            false => self.request.options.stop_policy,
        };
        self.torch.as_deref_mut().map_or(Ok(Vec::new()), |torch| blocks(torch, stop_policy))
    }

    fn running_blocks(&mut self) -> Vec<AllocatorSnapshot> {
        let torch = self.torch.as_deref_mut();
        torch.and_then(|torch| blocks(torch, StopPolicy::Never).ok()).unwrap_or_default()
    }
}

/// What a walk does where a page is not in the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissingPage {
    /// It is read all the same, though the process goes on: to know what else is needed.
    ReadLate,
    /// It is read while the process still stands.
    ReadStanding,
    /// It is left out.
    Refused,
}

/// Adds to `pages` those that were missing, with their neighbours, in which the process makes its next objects. What was not
/// needed stays for a while: it may be the next time. `is_all`: a whole walk needed no more than it copied.
fn remember(pages: &mut Vec<u64>, memory: &PageCache, is_all: bool, round: u32) {
    let (used, more) = (memory.pages(), memory.unplanned_pages());
    if is_all && pages.len() > 2 * used.len() {
        *pages = used;
        return;
    }
    add_missing(pages, &more, round);
}

/// Adds the pages `missing` in a round and, as far as there is room, those around them.
fn add_missing(pages: &mut Vec<u64>, missing: &[u64], round: u32) {
    let mut known: FxHashSet<u64> = pages.iter().copied().collect();
    let room = pages.len() + (pages.len() as f64 * MAX_GROWTH) as usize;
    pages.extend(missing.iter().filter(|page| known.insert(**page)));
    let most = MAX_NEIGHBOURS.min(NEIGHBOURS << round.saturating_sub(1).min(8));
    let mut wide = NEIGHBOURS;
    // The nearest first: they are the likeliest.
    while wide <= most {
        let around: BTreeSet<u64> = missing.iter().map(|page| page / wide * wide).collect();
        let around = around.into_iter().flat_map(|first| first..first + wide);
        for page in around {
            if pages.len() >= room && wide > NEIGHBOURS {
                return;
            }
            if known.insert(page) {
                pages.push(page);
            }
        }
        wide *= 2;
    }
}

/// A process that stands still, and what is known of that when it is over.
struct StoppedForCopy {
    stop: Option<StoppedProcess>,
    gone_on: GoneOn,
    since: Instant,
    stopped_for: Duration,
}

impl StoppedForCopy {
    fn of(
        process: &Process,
        max_pause: Duration,
        stops: &mut StopTotals,
    ) -> Result<StoppedForCopy, OwnerError> {
        let since = Instant::now();
        match StoppedProcess::for_at_most(process, max_pause) {
            Ok(stop) => {
                let gone_on = stop.gone_on();
                Ok(StoppedForCopy { stop: Some(stop), gone_on, since, stopped_for: Duration::ZERO })
            }
            Err(error) => {
                // All other threads stood still while this one was waited for.
                if let StopError::Stubborn { .. } = error {
                    stops.add(since.elapsed());
                }
                Err(error.into())
            }
        }
    }

    /// Lets the process go on, if it does not yet; for how long it was stopped.
    fn end(&mut self) -> Duration {
        if let Some(stop) = self.stop.take() {
            self.stopped_for = stop.end();
        }
        self.stopped_for
    }

    /// How long ago it went on.
    fn age(&self) -> Duration {
        self.since.elapsed().saturating_sub(self.stopped_for)
    }
}

/// The blocks of all devices.
fn blocks(
    torch: &mut TorchReader,
    stop_policy: StopPolicy,
) -> Result<Vec<AllocatorSnapshot>, OwnerError> {
    // A process that uses no CUDA yet, or another allocator, has tensors all the same.
    torch.refresh()?;
    if *torch.backend() != AllocatorBackend::Native {
        return Ok(Vec::new());
    }
    torch.set_timeout(match stop_policy {
        StopPolicy::Stop => Duration::ZERO,
        StopPolicy::Never => RUNNING_TIMEOUT,
    });
    let mut snapshots = Vec::new();
    for device in torch.devices() {
        let snapshot = torch.blocks(device, Nanos(0))?;
        if stop_policy == StopPolicy::Stop
            && snapshot.consistency != SnapshotConsistency::Consistent
        {
            // It was stopped while it changed its lists.
            return Err(OwnerError::Allocating);
        }
        snapshots.push(snapshot);
    }
    Ok(snapshots)
}

impl From<ProcessError> for OwnerError {
    fn from(error: ProcessError) -> OwnerError {
        OwnerError::Torch(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_makes_objects_elsewhere_each_time_is_copied_wider_before_it_stands_still_for_a_walk()
     {
        let known: Vec<u64> = (0..10_000).collect();
        let added = |round| {
            let mut pages = known.clone();
            add_missing(&mut pages, &[50_000], round);
            assert!(pages.contains(&50_000));
            pages.len() - known.len()
        };
        assert_eq!((added(1), added(2), added(3)), (16, 32, 64));
        assert_eq!((added(5), added(7)), (256, 256));
        // Many that are far apart come, and their neighbours as far as there is room.
        let missing: Vec<u64> = (0..1_000).map(|number| 100_000 + number * 1_000).collect();
        let mut pages = known.clone();
        add_missing(&mut pages, &missing, 6);
        assert!(missing.iter().all(|page| pages.contains(page)));
        assert_eq!(pages.len(), known.len() + 16 * missing.len());
        let distinct: FxHashSet<u64> = pages.iter().copied().collect();
        assert_eq!(distinct.len(), pages.len(), "no page is copied twice");
    }
}
