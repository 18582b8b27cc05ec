//! Takes an ownership snapshot: copies memory before a short stop, in it and after it, then walks
//! over the copy.
//!
//! A first walk over the running process finds the pages to copy. Most are the same before and
//! after the stop, so they were so in it ([`PageCache::verify`]); the stop copies the others. The
//! walk over the copy reads missing pages late; that mixes moments, as do bytes that changed:
//! another round copies them in the stop ([`super::rounds`]). What is left after the last round is
//! reported. For a process that changes faster, the last round walks during the stop. The process
//! always continues after the maximum pause.

use std::time::{Duration, Instant};

use super::allocator_blocks::blocks;
use super::error::OwnerError;
use super::options::{SnapshotRequest, StopPolicy};
use super::retained::RetainedFigures;
use super::rounds::{FOR_CHANGES, KnownPages, MAX_RUNNING_ATTEMPTS, RoundKind};
use super::walk::{Figures, WalkResult, WalkSources};
use crate::model::{
    AllocatorSnapshot, IncompleteSnapshot, OwnershipSnapshot, ReachedLimit, StopTotals,
};
use crate::python::{HeapError, HeapListing, InterpreterReader};
use crate::target::{MemoryError, PageCache, Process, ProcessError};
use crate::torch::{AllocatorReader, TensorReader};

/// Maximum number of copies. The last is walked during the stop, which takes longer.
const MAX_ROUNDS: u32 = 8;
/// Attempts to find the layout of tensors.
const MAX_LAYOUT_ATTEMPTS: u32 = 3;
/// Fraction of the time for finding pages. If that needs more, what it found is the snapshot.
const LEARNING: f64 = 0.65;
/// A walk over a copy takes so many times as long as the walk before it, at most.
const FOR_A_WALK: f64 = 1.5;

/// Reads the owners of one process.
pub struct OwnerReader {
    tensors: TensorReader,
    known: KnownPages,
}

impl OwnerReader {
    /// `Ok(None)` if PyTorch is not loaded.
    pub fn attach(process: &Process) -> Result<Option<OwnerReader>, OwnerError> {
        let tensors = TensorReader::attach(process)?;
        Ok(tensors.map(|tensors| OwnerReader { tensors, known: KnownPages::default() }))
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
        if self.known.numbers.is_empty() && may_stop {
            let mut totals = StopTotals::default();
            let mut progress =
                PendingSnapshot::new(&self.tensors, process, python, torch, request, &mut totals);
            progress.learn(&mut self.known);
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
            StopPolicy::Stop => progress.stopping(&mut self.known),
        }
    }
}

pub(super) struct PendingSnapshot<'a> {
    pub(super) tensors: &'a TensorReader,
    pub(super) process: &'a Process,
    pub(super) python: &'a InterpreterReader,
    pub(super) torch: Option<&'a mut AllocatorReader>,
    pub(super) request: &'a SnapshotRequest<'a>,
    pub(super) memory: PageCache,
    pub(super) stops: &'a mut StopTotals,
    /// The limit that prevents reading uncopied pages.
    refused_by: ReachedLimit,
    /// Whether the last round came to a walk.
    pub(super) has_walked: bool,
    /// The last round's blocks are of another moment.
    pub(super) late_blocks: bool,
    /// With parts of other moments, if there is no time for a better one.
    pub(super) earlier: Option<OwnershipSnapshot>,
    /// Blocks that were read to find the pages.
    pub(super) earlier_blocks: Option<Vec<AllocatorSnapshot>>,
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
        PendingSnapshot {
            tensors,
            process,
            python,
            torch,
            request,
            memory,
            stops,
            refused_by,
            has_walked: false,
            late_blocks: false,
            earlier: None,
            earlier_blocks: None,
        }
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

    fn stopping(&mut self, known: &mut KnownPages) -> Result<OwnershipSnapshot, OwnerError> {
        let began = Instant::now();
        let max_pause = self.request.options.max_pause;
        let mut unknown = None;
        if known.numbers.is_empty() {
            unknown = self.learn(known);
        }
        let mut walk_took = began.elapsed();
        for round in 1.. {
            // A round that may fail must leave time for another.
            let has_time = self.request.budget.left() > walk_took.mul_f64(2.5);
            if let Some(earlier) = self.earlier.take() {
                return Ok(OwnershipSnapshot { stops: *self.stops, ..earlier });
            }
            let may_repeat = has_time && unknown.is_none();
            let options = &self.request.options;
            self.refused_by = match (unknown, has_time) {
                (Some(limit), _) => limit,
                (None, false) => ReachedLimit::Repeating(options.max_time),
                (None, true) => ReachedLimit::Copies(round),
            };
            let is_last = round > MAX_ROUNDS || !may_repeat;
            let is_short = walk_took < max_pause.mul_f64(FOR_CHANGES);
            let is_standing = round == MAX_ROUNDS && may_repeat && is_short;
            let kind = RoundKind::new(round, is_last, is_standing, walk_took);
            let began = kind.began;
            if let Some(snapshot) = self.round(known, kind)? {
                return Ok(snapshot);
            }
            if !self.request.may_stop_again {
                return Err(OwnerError::Moved);
            }
            // A round without a walk tells nothing.
            walk_took = if self.has_walked { began.elapsed() } else { walk_took };
        }
        Err(self.cut(ReachedLimit::Time(self.request.options.max_time)))
    }

    /// Whether there is too little time for another walk like the one since `began`.
    pub(super) fn is_late(&self, began: Instant) -> bool {
        self.request.budget.left() < began.elapsed().mul_f64(FOR_A_WALK)
    }

    /// Finds pages in the running process; returns a limit if reached.
    fn learn(&mut self, known: &mut KnownPages) -> Option<ReachedLimit> {
        let began = Instant::now();
        let blocks = self.running_blocks();
        known.blocks_took = began.elapsed();
        let time = self.request.options.max_time.mul_f64(LEARNING);
        self.memory.set_budget(self.request.budget.restarted().with_time_limit(time));
        for attempt in 1..=MAX_RUNNING_ATTEMPTS {
            let walked = self.walk(&blocks, HeapListing::Rough, &mut || {});
            known.numbers = self.memory.pages();
            // It may succeed during the stop, but then the first copy is useless.
            let may_differ = match walked {
                Ok(walked) if self.is_late(began) => {
                    self.memory.plan(&[]);
                    self.earlier = self.snapshot_of(walked, blocks.clone()).ok();
                    false
                }
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
        self.earlier_blocks = Some(blocks);
        let of = self.request.options.max_time;
        known.is_cut = self.memory.exceeded() == Some(MemoryError::OutOfRoom);
        Some(match self.memory.exceeded()? {
            MemoryError::TimeUp if self.request.budget.left() > Duration::ZERO => {
                ReachedLimit::Finding { part: time, of }
            }
            exceeded => self.limit(exceeded),
        })
    }

    pub(super) fn walk(
        &self,
        blocks: &[AllocatorSnapshot],
        listing: HeapListing,
        read_all: &mut dyn FnMut(),
    ) -> Result<WalkResult, OwnerError> {
        let figures = match listing {
            HeapListing::Rough => Figures::Pages,
            HeapListing::Whole | HeapListing::Newest => Figures::Computed,
        };
        WalkSources { figures, ..self.ground(blocks) }.walk(listing, read_all)
    }

    pub(super) fn ground<'g>(&'g self, blocks: &'g [AllocatorSnapshot]) -> WalkSources<'g> {
        let PendingSnapshot { tensors, python, memory, request, .. } = self;
        let (asked, figures) = (request.asked, Figures::Left);
        WalkSources { tensors, python, memory, blocks, asked, figures }
    }

    pub(super) fn explain(&self, error: OwnerError) -> OwnerError {
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
            MemoryError::OutOfRoom => ReachedLimit::Memory(self.request.max_memory),
            _ => ReachedLimit::Pause(self.request.options.max_pause),
        }
    }

    pub(super) fn cut(&self, limit: ReachedLimit) -> OwnerError {
        OwnerError::Cut { limit, copied: self.memory.copied() }
    }

    pub(super) fn snapshot_of(
        &self,
        walked: WalkResult,
        blocks: Vec<AllocatorSnapshot>,
    ) -> Result<OwnershipSnapshot, OwnerError> {
        let WalkResult { tensors, nodes, referrers, counting, models, optimizers, queues, .. } =
            walked;
        let WalkResult { objects, unreadable, misfits, missing, garbage, pool_users, cpp, .. } =
            walked;
        // What runs may have changed: a figure would be of no moment.
        let is_still =
            self.process.is_core() || self.request.options.stop_policy == StopPolicy::Stop;
        let is_known = is_still && missing.is_empty() && misfits == 0;
        let RetainedFigures { references: retained, ways } =
            if is_known { walked.figures } else { RetainedFigures::default() };
        let limit = self.memory.exceeded().map(|error| self.limit(error));
        let limit = limit.unwrap_or_else(|| self.limit_of_copy());
        if tensors.is_empty() && !missing.is_empty() {
            return Err(self.cut(limit));
        }
        let without_garbage = IncompleteSnapshot {
            limit: ReachedLimit::Counts,
            missing: vec![IncompleteSnapshot::GARBAGE],
        };
        let incomplete = match missing.is_empty() {
            true => walked.counts_contradict.then_some(without_garbage),
            false => Some(IncompleteSnapshot { limit, missing }),
        };
        let (pause, age, stops) = (None, Duration::ZERO, *self.stops);
        Ok(OwnershipSnapshot {
            tensors,
            nodes,
            blocks,
            pause,
            stops,
            incomplete,
            uncertain: None,
            copied_in_stop: 0,
            age,
            objects,
            unreadable,
            misfits,
            referrers,
            counting,
            models,
            optimizers,
            queues,
            garbage,
            pool_users,
            cpp,
            copied: None,
            retained,
            ways,
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

    pub(super) fn running_blocks(&mut self) -> Vec<AllocatorSnapshot> {
        let torch = self.torch.as_deref_mut();
        torch.and_then(|torch| blocks(torch, StopPolicy::Never).ok()).unwrap_or_default()
    }
}

impl From<ProcessError> for OwnerError {
    fn from(error: ProcessError) -> OwnerError {
        OwnerError::Torch(error.into())
    }
}
