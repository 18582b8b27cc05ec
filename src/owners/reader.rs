//! Takes an ownership snapshot: copies memory in a short stop, then walks over the copy.
//!
//! A first walk over the running process finds the pages to copy. A walk over the copy reads
//! missing pages late; that result mixes moments, so another round copies them too. For a process
//! that changes faster, the last round walks during the stop. The process always continues after
//! the maximum pause.

use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

use super::copy_stop::CopyStop;
use super::error::OwnerError;
use super::options::{SnapshotRequest, StopEstimate, StopPolicy};
use super::page_choice::remember;
use super::walk::{WalkResult, WalkSources};
use crate::model::{
    AllocatorBackend, AllocatorSnapshot, IncompleteSnapshot, Nanos, OwnershipSnapshot,
    ReachedLimit, SnapshotConsistency, StopTotals,
};
use crate::python::{HeapError, HeapListing, InterpreterReader};
use crate::target::{Addr, MemoryError, PAGE, PageCache, Process, ProcessError};
use crate::torch::{AllocatorReader, TensorReader};

/// Time to read blocks again that a running process changes.
const RUNNING_TIMEOUT: Duration = Duration::from_millis(20);
/// Maximum number of copies. The last is walked during the stop, which takes longer.
const MAX_ROUNDS: u32 = 8;
/// Following new objects ends this long after the stop began, or with the copy if later: another
/// round would cost more. Rounds two and three get the first's time, later ones up to this many
/// times as long.
const MAX_FOLLOWING: Duration = Duration::from_millis(25);
const MAX_FOLLOWING_FACTOR: u32 = 4;
const MAX_RUNNING_ATTEMPTS: u32 = 8;
/// Attempts to find the layout of tensors meanwhile.
const MAX_LAYOUT_ATTEMPTS: u32 = 3;
/// Time to find recent objects before the stop.
const MAX_SEARCH_OF_RECENT: Duration = Duration::from_millis(200);
/// Fraction of the time for finding pages.
const LEARNING: f64 = 0.45;

/// Reads the owners of one process.
pub struct OwnerReader {
    tensors: TensorReader,
    /// Numbers of the pages that the last walk needed.
    pages: Vec<u64>,
}

impl OwnerReader {
    /// `Ok(None)` if PyTorch is not loaded.
    pub fn attach(process: &Process) -> Result<Option<OwnerReader>, OwnerError> {
        let tensors = TensorReader::attach(process)?;
        Ok(tensors.map(|tensors| OwnerReader { tensors, pages: Vec::new() }))
    }

    /// Prepares the stop: the first time, finds the pages to copy.
    pub fn learn(
        &mut self,
        process: &Process,
        python: &InterpreterReader,
        torch: Option<&mut AllocatorReader>,
        request: &SnapshotRequest<'_>,
    ) {
        let may_stop = request.options.stop_policy == StopPolicy::Stop && !process.is_core();
        if self.pages.is_empty() && may_stop {
            let mut totals = StopTotals::default();
            let mut progress =
                PendingSnapshot::new(&self.tensors, process, python, torch, request, &mut totals);
            progress.learn(&mut self.pages);
        }
    }

    /// Takes a snapshot; the process always continues before this returns. `stops` counts its
    /// stops, also on an error.
    ///
    /// # Errors
    ///
    /// If [`OwnerError::is_transient`], another attempt costs less.
    pub fn read(
        &mut self,
        process: &Process,
        python: &InterpreterReader,
        torch: Option<&mut AllocatorReader>,
        request: &SnapshotRequest<'_>,
        stops: &mut StopTotals,
    ) -> Result<OwnershipSnapshot, OwnerError> {
        let mut progress =
            PendingSnapshot::new(&self.tensors, process, python, torch, request, stops);
        match request.options.stop_policy {
            _ if process.is_core() => progress.running(),
            StopPolicy::Never => progress.running(),
            StopPolicy::Stop => progress.stopping(&mut self.pages),
        }
    }
}

struct PendingSnapshot<'a> {
    tensors: &'a TensorReader,
    process: &'a Process,
    python: &'a InterpreterReader,
    torch: Option<&'a mut AllocatorReader>,
    request: &'a SnapshotRequest<'a>,
    memory: PageCache,
    stops: &'a mut StopTotals,
    /// The limit that prevents reading uncopied pages.
    refused_by: ReachedLimit,
}

impl<'a> PendingSnapshot<'a> {
    fn new(
        tensors: &'a TensorReader,
        process: &'a Process,
        python: &'a InterpreterReader,
        torch: Option<&'a mut AllocatorReader>,
        request: &'a SnapshotRequest<'a>,
        stops: &'a mut StopTotals,
    ) -> PendingSnapshot<'a> {
        let memory = PageCache::within(Box::new(process.memory()), request.budget);
        let refused_by = ReachedLimit::Time(request.options.max_time);
        PendingSnapshot { tensors, process, python, torch, request, memory, stops, refused_by }
    }

    fn running(&mut self) -> Result<OwnershipSnapshot, OwnerError> {
        let blocks = self.blocks()?;
        let walked = self.walk(&blocks, HeapListing::Whole, &mut || {});
        let walked = walked.map_err(|error| match self.explain(error) {
            // Their pointers may change while the process runs.
            OwnerError::Heap(HeapError::NoLists { .. }) if !self.process.is_core() => {
                HeapError::Changing.into()
            }
            other => other,
        })?;
        self.snapshot_of(walked, blocks)
    }

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
            // A round that may fail must leave time for another.
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
                (None, false) => ReachedLimit::Repeating(options.max_time),
                (None, true) => ReachedLimit::Copies(round),
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
        Err(self.cut(ReachedLimit::Time(self.request.options.max_time)))
    }

    /// Finds pages in the running process; returns a limit if reached.
    fn learn(&mut self, pages: &mut Vec<u64>) -> Option<ReachedLimit> {
        let blocks = self.running_blocks();
        let time = self.request.options.max_time.mul_f64(LEARNING);
        self.memory.set_budget(self.request.budget.with_time_limit(time));
        for attempt in 1..=MAX_RUNNING_ATTEMPTS {
            let walked = self.walk(&blocks, HeapListing::Rough, &mut || {});
            *pages = self.memory.pages();
            // It may succeed during the stop, but then the first copy is useless.
            let may_differ = match walked {
                Err(OwnerError::Heap(_)) => true,
                // Too many sampled tensors were gone; sample others.
                Err(OwnerError::Torch(_)) => attempt < MAX_LAYOUT_ATTEMPTS,
                _ => false,
            };
            if !may_differ || self.memory.exceeded().is_some() {
                break;
            }
            self.memory.plan(&[]);
        }
        let of = self.request.options.max_time;
        Some(match self.memory.exceeded()? {
            MemoryError::TimeUp if self.request.budget.left() > Duration::ZERO => {
                ReachedLimit::Finding { part: time, of }
            }
            exceeded => self.limit(exceeded),
        })
    }

    /// Stops the process, and copies its blocks, its newest objects and `pages`. The stop lasts on
    /// for a walk that needs it.
    fn copy(&mut self, pages: &mut Vec<u64>, round: u32) -> Result<StoppedCopy, OwnerError> {
        let max_pause = self.request.options.max_pause;
        // A busy job keeps creating objects: find their pages again.
        let (recent, known) = self.recent_pages();
        let is_recent: FxHashSet<u64> = recent.iter().copied().collect();
        pages.retain(|page| !is_recent.contains(page));
        let plan = self.memory.plan(pages);
        let newest = PageCache::within(Box::new(self.process.memory()), self.request.budget);
        let recent_plan = newest.plan(&recent);
        pages.extend(&recent);
        self.memory.set_budget(self.request.budget);
        let mut stop = CopyStop::of(self.process, max_pause, self.stops)?;
        // Blocks and the newest objects are read during the copy; the walk notices pages still
        // missing.
        let resumed = stop.resumed.clone();
        newest.close_with(resumed.clone());
        let (tensors, python) = (self.tensors, self.python);
        let ground = WalkSources { tensors, python, memory: &newest, blocks: &[], asked: None };
        let torch = self.torch.as_deref_mut();
        let mut read = Ok(Vec::new());
        let mut in_time = true;
        let is_whole = self.memory.copy_beside(plan, &resumed, |copying| {
            read = torch.map_or(Ok(Vec::new()), |torch| blocks(torch, StopPolicy::Stop));
            in_time = !resumed.is_set();
            if read.is_err() || !in_time {
                // This also ends the copying.
                stop.end();
                return false;
            }
            newest.copy_until(stop.since + max_following(round), copying);
            let whole = newest.copy(recent_plan, &resumed);
            let _ = ground.read_newest(&known, &|| copying.is_done());
            whole
        });
        match read {
            Ok(blocks) if in_time => Ok(StoppedCopy { stop, blocks, newest, is_whole }),
            read => {
                self.stops.add(stop.end());
                // Data read too late is invalid, and so is its error.
                let too_late = || self.cut(ReachedLimit::Pause(max_pause));
                Err(read.err().filter(|_| in_time).unwrap_or_else(too_late))
            }
        }
    }

    /// `None`: the walk needed other pages, now in `pages`.
    fn round(
        &mut self,
        pages: &mut Vec<u64>,
        missing: MissingPage,
        round: u32,
    ) -> Result<Option<OwnershipSnapshot>, OwnerError> {
        let StoppedCopy { mut stop, blocks, newest, is_whole } = self.copy(pages, round)?;
        if missing != MissingPage::ReadStanding || !is_whole {
            stop.end();
            self.memory.adopt(newest);
            self.memory.end_copy();
        } else {
            self.memory.adopt(newest);
            self.memory.close_with(stop.resumed.clone());
        }
        if !is_whole || missing == MissingPage::Refused {
            self.memory.close();
        }
        let walked = self.walk(&blocks, HeapListing::Whole, &mut || _ = stop.end());
        self.stops.add(stop.end());
        let is_mixed = missing == MissingPage::ReadLate && self.memory.late_pages() > 0;
        let is_all = walked.as_ref().is_ok_and(|walked| walked.missing.is_empty());
        remember(pages, &self.memory, is_all && !is_mixed, round);
        if is_mixed {
            return match self.memory.exceeded() {
                // The result mixes moments, and no time is left.
                Some(error) => Err(self.cut(self.limit(error))),
                None => Ok(None),
            };
        }
        let walked = walked.map_err(|error| self.explain(error))?;
        let snapshot = self.snapshot_of(walked, blocks)?;
        let age = stop.age();
        Ok(Some(OwnershipSnapshot { pause: Some(stop.stopped_for), age, ..snapshot }))
    }

    fn recent_pages(&self) -> (Vec<u64>, FxHashSet<Addr>) {
        let budget = self.request.budget.with_time_limit(MAX_SEARCH_OF_RECENT);
        let mut pages = Vec::new();
        for _ in 0..MAX_RUNNING_ATTEMPTS {
            let memory = PageCache::within(Box::new(self.process.memory()), budget);
            let ground = WalkSources { memory: &memory, ..self.ground(&[]) };
            let read = ground.read_newest(&FxHashSet::default(), &|| false);
            pages = memory.pages();
            match read {
                Ok(known) => return (pages, known),
                Err(_) if budget.left() == Duration::ZERO => break,
                // It was changing its lists.
                Err(_) => {}
            }
        }
        // A failure here recurs during the stop.
        (pages, FxHashSet::default())
    }

    fn walk(
        &self,
        blocks: &[AllocatorSnapshot],
        listing: HeapListing,
        read_all: &mut dyn FnMut(),
    ) -> Result<WalkResult, OwnerError> {
        self.ground(blocks).walk(listing, read_all)
    }

    fn ground<'g>(&'g self, blocks: &'g [AllocatorSnapshot]) -> WalkSources<'g> {
        let PendingSnapshot { tensors, python, memory, request, .. } = self;
        WalkSources { tensors, python, memory, blocks, asked: request.asked }
    }

    fn explain(&self, error: OwnerError) -> OwnerError {
        match self.memory.exceeded() {
            Some(error) => self.cut(self.limit(error)),
            // Required memory was refused.
            None if self.memory.refused() > 0 => self.cut(self.limit_of_copy()),
            None => error,
        }
    }

    /// Why the copy misses something although time is left.
    fn limit_of_copy(&self) -> ReachedLimit {
        let options = &self.request.options;
        match self.stops.longest < options.max_pause {
            true => self.refused_by,
            false => ReachedLimit::Pause(options.max_pause),
        }
    }

    fn limit(&self, exceeded: MemoryError) -> ReachedLimit {
        match exceeded {
            MemoryError::TimeUp => ReachedLimit::Time(self.request.options.max_time),
            MemoryError::OutOfRoom => ReachedLimit::Memory(self.request.options.max_memory),
            _ => ReachedLimit::Pause(self.request.options.max_pause),
        }
    }

    fn cut(&self, limit: ReachedLimit) -> OwnerError {
        OwnerError::Cut { limit, copied: self.memory.copied() }
    }

    fn snapshot_of(
        &self,
        walked: WalkResult,
        blocks: Vec<AllocatorSnapshot>,
    ) -> Result<OwnershipSnapshot, OwnerError> {
        let WalkResult { tensors, nodes, referrers, counting, models, optimizers, .. } = walked;
        let WalkResult { objects, unreadable, misfits, missing, garbage, pool_users, .. } = walked;
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
            garbage,
            pool_users,
            copied: None,
        })
    }

    /// Read during the stop, or when no thread changes them.
    fn blocks(&mut self) -> Result<Vec<AllocatorSnapshot>, OwnerError> {
        let stop_policy = match self.process.is_core() {
            // A core file may contain half a change; its result says so.
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

struct StoppedCopy {
    stop: CopyStop,
    blocks: Vec<AllocatorSnapshot>,
    newest: PageCache,
    /// No page is missing.
    is_whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissingPage {
    /// Reads it from the running process, to find what else is needed.
    ReadLate,
    ReadStanding,
    Refused,
}

fn max_following(round: u32) -> Duration {
    MAX_FOLLOWING * round.saturating_sub(2).clamp(1, MAX_FOLLOWING_FACTOR)
}

fn blocks(
    torch: &mut AllocatorReader,
    stop_policy: StopPolicy,
) -> Result<Vec<AllocatorSnapshot>, OwnerError> {
    // A process without CUDA, or with another allocator, has tensors too.
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
        let snapshot = torch.blocks(device, &|| Nanos(0))?;
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
    fn second_and_third_stops_are_no_longer_than_the_first() {
        assert_eq!([1, 2, 3].map(max_following), [MAX_FOLLOWING; 3]);
        assert_eq!([4, 6, 8].map(max_following), [2, 4, 4].map(|factor| factor * MAX_FOLLOWING));
    }
}
