//! Takes an ownership snapshot: copies memory before a short stop, in it and after it, then walks
//! over the copy.
//!
//! A first walk over the running process finds the pages to copy. Most are the same before and
//! after the stop, so they were so in it ([`crate::target::PageCache::verify`]); the stop copies the
//! others.
//! A walk over the copy reads missing pages late; that result mixes moments, as do bytes that
//! changed: another round copies them in the stop. What is left after the last round is said. For a
//! process that changes faster, the last round walks during the stop. The process always continues
//! after the maximum pause.

use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

use super::copy_stop::CopyStop;
use super::error::OwnerError;
use super::options::{SnapshotRequest, StopPolicy};
use super::page_choice::remember;
use super::walk::{WalkResult, WalkSources};
use crate::model::{
    AllocatorBackend, AllocatorSnapshot, IncompleteSnapshot, Nanos, OwnershipSnapshot,
    ReachedLimit, SnapshotConsistency, StopTotals, UncertainSnapshot,
};
use crate::python::{HeapError, HeapListing, InterpreterReader};
use crate::target::{
    Addr, CopyLimit, MemoryError, PAGE, PageCache, PageHistory, Process, ProcessError, StopError,
};
use crate::torch::{AllocatorReader, TensorReader};

/// Time to read blocks again that a running process changes.
const RUNNING_TIMEOUT: Duration = Duration::from_millis(20);
/// Maximum number of copies. The last is walked during the stop, which takes longer.
const MAX_ROUNDS: u32 = 8;
/// A round of more than this is slow: then bytes that changed, and pages that were read late, are
/// accepted, and said, from these rounds on.
const SLOW: Duration = Duration::from_millis(150);
const SLOW_TORN: u32 = 2;
const SLOW_LATE: u32 = 3;
/// Fractions of the maximum pause after which the stop begins to copy nothing more: of what changes
/// and what is new, and of the rest.
const FOR_CHANGES: f64 = 0.67;
const FOR_REST: f64 = 0.25;
/// The allocator's blocks are read in the stop if that takes at most this fraction of it.
const FOR_BLOCKS: f64 = 0.15;
/// So many changing pages since the last snapshot are compared once more.
const MANY_BYTES: u64 = 16 << 20;
const MAX_RUNNING_ATTEMPTS: u32 = 8;
/// Attempts to find the layout of tensors meanwhile.
const MAX_LAYOUT_ATTEMPTS: u32 = 3;
/// After so many stops in a row that failed, the next snapshot is read without one.
const MAX_FAILED_STOPS: u32 = 5;
/// Time to find recent objects before the stop.
const MAX_SEARCH_OF_RECENT: Duration = Duration::from_millis(200);
/// Fraction of the time for finding pages.
const LEARNING: f64 = 0.45;

/// Reads the owners of one process.
pub struct OwnerReader {
    tensors: TensorReader,
    known: KnownPages,
}

/// What earlier walks tell of the next.
#[derive(Default)]
struct KnownPages {
    /// Numbers of the pages that the last walk needed.
    numbers: Vec<u64>,
    history: PageHistory,
    /// What reading the allocator's blocks took.
    blocks_took: Duration,
    /// Stops in a row that failed because a thread did not stop in time.
    failed_stops: u32,
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
    /// Whether the last round came to a walk.
    has_walked: bool,
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
        let has_walked = false;
        PendingSnapshot {
            tensors,
            process,
            python,
            torch,
            request,
            memory,
            stops,
            refused_by,
            has_walked,
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
            let may_repeat = has_time && unknown.is_none();
            let options = &self.request.options;
            self.refused_by = match (unknown, has_time) {
                (Some(limit), _) => limit,
                (None, false) => ReachedLimit::Repeating(options.max_time),
                (None, true) => ReachedLimit::Copies(round),
            };
            let is_last = round > MAX_ROUNDS || !may_repeat;
            let is_short = walk_took < max_pause.mul_f64(FOR_CHANGES);
            let is_slow = walk_took > SLOW;
            let kind = RoundKind {
                number: round,
                is_standing: round == MAX_ROUNDS && may_repeat && is_short,
                is_last,
                is_slow,
            };
            let began = Instant::now();
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

    /// Finds pages in the running process; returns a limit if reached.
    fn learn(&mut self, known: &mut KnownPages) -> Option<ReachedLimit> {
        let began = Instant::now();
        let blocks = self.running_blocks();
        known.blocks_took = began.elapsed();
        let time = self.request.options.max_time.mul_f64(LEARNING);
        self.memory.set_budget(self.request.budget.with_time_limit(time));
        for attempt in 1..=MAX_RUNNING_ATTEMPTS {
            let walked = self.walk(&blocks, HeapListing::Rough, &mut || {});
            known.numbers = self.memory.pages();
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

    /// `None`: the walk needed other pages, now in `known`.
    fn round(
        &mut self,
        known: &mut KnownPages,
        kind: RoundKind,
    ) -> Result<Option<OwnershipSnapshot>, OwnerError> {
        let max_pause = self.request.options.max_pause;
        self.has_walked = false;
        let may_stop = known.failed_stops < MAX_FAILED_STOPS;
        let reads_blocks = may_stop && known.blocks_took < max_pause.mul_f64(FOR_BLOCKS);
        if !reads_blocks && let Some(torch) = self.torch.as_deref() {
            known.add(torch.pages_of_blocks());
        }
        let (_, objects) = self.recent_pages(&FxHashSet::default());
        self.read_ahead(known);
        // A busy job keeps creating objects: find their pages again.
        let (recent, _) = self.recent_pages(&objects);
        let newest = PageCache::within(Box::new(self.process.memory()), self.request.budget);
        let recent_plan = newest.plan(&recent);
        known.add(recent);
        self.memory.set_budget(self.request.budget);
        let stopped = match may_stop {
            true => CopyStop::of(self.process, max_pause, self.stops),
            false => Ok(CopyStop::none()),
        };
        known.failed_stops = match &stopped {
            Err(OwnerError::Stop(StopError::Stubborn { .. })) => known.failed_stops + 1,
            Ok(stop) if !stop.is_real => known.failed_stops,
            _ => 0,
        };
        let mut stop = stopped?;
        // Blocks and the newest objects are read during the copy; the walk notices pages still
        // missing.
        let resumed = stop.resumed.clone();
        newest.close_with(resumed.clone());
        let (tensors, python) = (self.tensors, self.python);
        let ground = WalkSources { tensors, python, memory: &newest, blocks: &[], asked: None };
        let since = stop.since;
        let until = |part: f64| CopyLimit {
            resumed: resumed.clone(),
            until: Some(since + max_pause.mul_f64(part)),
        };
        let (for_changes, rest) = (until(FOR_CHANGES), until(FOR_REST));
        let rest = if kind.is_standing { &for_changes } else { &rest };
        let torch = self.torch.as_deref_mut().filter(|_| reads_blocks);
        let (mut read, mut in_time, mut took) = (Ok(Vec::new()), true, known.blocks_took);
        let whole = stop.is_real
            && self.memory.read_standing_beside(&for_changes, rest, |copying| {
                let began = Instant::now();
                read = torch.map_or(Ok(Vec::new()), |torch| blocks(torch, StopPolicy::Stop));
                took = if reads_blocks { began.elapsed() } else { took };
                in_time = !resumed.is_set();
                if read.is_err() || !in_time {
                    // This also ends the copying.
                    stop.end();
                    return false;
                }
                newest.copy_until(since + max_pause.mul_f64(FOR_CHANGES), copying);
                let whole = newest.copy(recent_plan, &resumed);
                let _ = ground.read_newest(&objects, &|| copying.is_done());
                whole
            });
        known.blocks_took = took;
        let mut blocks = match read {
            Ok(blocks) if in_time => blocks,
            _ if !in_time && !kind.is_last => {
                // The next round reads them from the copy.
                self.stops.add(stop.end());
                return Ok(None);
            }
            read => {
                self.stops.add(stop.end());
                // Data read too late is invalid, and so is its error.
                let too_late = || self.cut(ReachedLimit::Pause(max_pause));
                return Err(read.err().filter(|_| in_time).unwrap_or_else(too_late));
            }
        };
        let is_standing = kind.is_standing && whole && reads_blocks;
        if is_standing {
            self.memory.adopt(newest);
            self.memory.close_with(stop.resumed.clone());
        } else {
            stop.end();
            self.memory.adopt(newest);
            self.memory.verify(&mut known.history);
            self.memory.end_copy();
            if !reads_blocks {
                let began = Instant::now();
                let Some(copied) = self.copied_blocks(kind)? else {
                    self.stops.add(stop.end());
                    self.note_pages(known, kind, false);
                    return Ok(None);
                };
                blocks = copied;
                known.blocks_took = began.elapsed();
            }
        }
        self.has_walked = true;
        let are_torn = self.memory.torn_reads() > 0;
        let mut walked = self.walk(&blocks, HeapListing::Whole, &mut || _ = stop.end());
        if matches!(walked, Err(OwnerError::Heap(HeapError::Changing))) && self.accepts(kind) {
            // The list of objects changed while it was read.
            walked = self.walk(&blocks, HeapListing::Rough, &mut || {});
        }
        if stop.is_real {
            self.stops.add(stop.end());
        }
        if is_standing {
            self.memory.end_copy();
        }
        let walked = walked.map(|mut walked| {
            walked.torn.extend(are_torn.then_some("the allocator's blocks"));
            walked
        });
        self.judge(known, kind, walked, blocks, &stop)
    }

    /// Copies the known pages of the running process, those that change most first.
    fn read_ahead(&mut self, known: &mut KnownPages) {
        let KnownPages { numbers, history, .. } = known;
        history.retain(numbers);
        numbers.sort_by_cached_key(|number| std::cmp::Reverse(history.heat(*number)));
        self.memory.begin(self.memory.plan(numbers));
        let new = self.memory.read_ahead(history);
        // What was never read before, or long ago, tells little of what changes now.
        if new + self.memory.changing() > MANY_BYTES {
            self.memory.read_ahead(history);
        }
    }

    fn judge(
        &mut self,
        known: &mut KnownPages,
        kind: RoundKind,
        walked: Result<WalkResult, OwnerError>,
        blocks: Vec<AllocatorSnapshot>,
        stop: &CopyStop,
    ) -> Result<Option<OwnershipSnapshot>, OwnerError> {
        let is_mixed = self.memory.torn_pages() > 0;
        let is_all = walked.as_ref().is_ok_and(|walked| walked.missing.is_empty());
        self.note_pages(known, kind, is_all && !is_mixed);
        let is_cut = kind.is_standing && self.memory.refused() > 0;
        // The result may be an error because it is mixed.
        let is_enough = self.accepts(kind) && (walked.is_ok() || kind.is_last);
        if is_cut || is_mixed && !is_enough && self.memory.exceeded().is_none() {
            return Ok(None);
        }
        let walked = walked.map_err(|error| self.explain(error))?;
        let uncertain = is_mixed.then(|| UncertainSnapshot {
            bytes: (self.memory.torn_pages() * PAGE) as u64,
            of: (self.memory.pages().len() * PAGE) as u64,
            parts: walked.torn.clone(),
        });
        let snapshot = self.snapshot_of(walked, blocks)?;
        known.failed_stops = 0;
        let (pause, age) = (stop.is_real.then_some(stop.stopped_for), stop.age());
        let copied_in_stop = self.memory.copied_standing();
        Ok(Some(OwnershipSnapshot { pause, age, uncertain, copied_in_stop, ..snapshot }))
    }

    fn note_pages(&self, known: &mut KnownPages, kind: RoundKind, is_all: bool) {
        remember(&mut known.numbers, &self.memory, is_all, kind.number);
        known.history.note_needed(&self.memory.doubtful_pages());
    }

    /// Whether what is mixed now is good enough.
    fn accepts(&self, kind: RoundKind) -> bool {
        let from = if self.memory.late_pages() > 0 { SLOW_LATE } else { SLOW_TORN };
        kind.is_last || kind.is_slow && kind.number >= from
    }

    /// Blocks from the copy; `None`: it lacks some, or they changed.
    fn copied_blocks(
        &mut self,
        kind: RoundKind,
    ) -> Result<Option<Vec<AllocatorSnapshot>>, OwnerError> {
        let Some(torch) = self.torch.as_deref_mut() else { return Ok(Some(Vec::new())) };
        torch.set_timeout(Duration::ZERO);
        let read = blocks_of(torch, Some(&self.memory), StopPolicy::Stop);
        match self.memory.torn_reads() > 0 {
            true if !self.accepts(kind) => Ok(None),
            // Those of a moment after the stop are at least of one moment.
            true if read.is_err() => Ok(Some(self.running_blocks())),
            _ => read.map(Some),
        }
    }

    /// The pages of the newest objects, and of what those refer to that are not in `known`; and the
    /// objects.
    fn recent_pages(&self, known: &FxHashSet<Addr>) -> (Vec<u64>, FxHashSet<Addr>) {
        let budget = self.request.budget.with_time_limit(MAX_SEARCH_OF_RECENT);
        let mut pages = Vec::new();
        for _ in 0..MAX_RUNNING_ATTEMPTS {
            let memory = PageCache::within(Box::new(self.process.memory()), budget);
            let ground = WalkSources { memory: &memory, ..self.ground(&[]) };
            let read = ground.read_newest(known, &|| true);
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
            MemoryError::OutOfRoom => ReachedLimit::Memory(self.request.max_memory),
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

impl KnownPages {
    fn add(&mut self, pages: Vec<u64>) {
        let known: FxHashSet<u64> = self.numbers.iter().copied().collect();
        self.numbers.extend(pages.into_iter().filter(|page| !known.contains(page)));
    }
}

/// One of a snapshot's rounds.
#[derive(Debug, Clone, Copy)]
struct RoundKind {
    number: u32,
    /// It walks during the stop.
    is_standing: bool,
    is_last: bool,
    is_slow: bool,
}

fn blocks(
    torch: &mut AllocatorReader,
    stop_policy: StopPolicy,
) -> Result<Vec<AllocatorSnapshot>, OwnerError> {
    // A process without CUDA, or with another allocator, has tensors too.
    torch.refresh()?;
    torch.set_timeout(match stop_policy {
        StopPolicy::Stop => Duration::ZERO,
        StopPolicy::Never => RUNNING_TIMEOUT,
    });
    blocks_of(torch, None, stop_policy)
}

/// From `copy`, or the process's memory.
fn blocks_of(
    torch: &mut AllocatorReader,
    copy: Option<&PageCache>,
    stop_policy: StopPolicy,
) -> Result<Vec<AllocatorSnapshot>, OwnerError> {
    if *torch.backend() != AllocatorBackend::Native {
        return Ok(Vec::new());
    }
    let mut snapshots = Vec::new();
    for device in torch.devices() {
        let snapshot = match copy {
            Some(copy) => torch.blocks_in(copy, device)?,
            None => torch.blocks(device, &|| Nanos(0))?,
        };
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
