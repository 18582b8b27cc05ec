//! One round of a snapshot: reads pages, stops the process, copies what changes, walks the copy.

use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

use super::allocator_blocks::{blocks, blocks_of};
use super::copy_stop::CopyStop;
use super::error::OwnerError;
use super::options::StopPolicy;
use super::page_choice::remember;
use super::reader::PendingSnapshot;
use super::retained::RetainedFigures;
use super::walk::{Figures, TornPages, WalkResult, WalkSources};
use crate::model::{AllocatorSnapshot, OwnershipSnapshot, ReachedLimit, UncertainSnapshot};
use crate::python::{HeapError, HeapListing};
use crate::target::{
    Addr, CopyLimit, CopyProgress, Memory as _, PAGE, PageCache, PageHistory, PagePlan, Resumed,
    StopError,
};

/// Rounds of more than this are slow: from these rounds on, bytes that changed and pages that were
/// read late are accepted, and reported.
const SLOW: Duration = Duration::from_millis(150);
const SLOW_TORN: u32 = 2;
const SLOW_LATE: u32 = 3;
/// Fractions of the maximum pause after which the stop begins to copy nothing more: of what changes
/// and what is new, and of the rest.
pub(super) const FOR_CHANGES: f64 = 0.67;
const FOR_REST: f64 = 0.25;
/// The allocator's blocks are read in the stop if that takes at most this fraction of it.
const FOR_BLOCKS: f64 = 0.15;
/// So many changing pages since the last snapshot are compared once more.
const MANY_BYTES: u64 = 16 << 20;
/// After so many failed stops in a row, the next snapshot is read without one.
const MAX_FAILED_STOPS: u32 = 5;
/// Attempts to read a running process.
pub(super) const MAX_RUNNING_ATTEMPTS: u32 = 8;
/// Time to find recent objects before the stop.
const MAX_SEARCH_OF_RECENT: Duration = Duration::from_millis(200);

/// What earlier walks tell of the next.
#[derive(Default)]
pub(super) struct KnownPages {
    /// Numbers of the pages that the last walk needed.
    pub(super) numbers: Vec<u64>,
    history: PageHistory,
    /// What reading the allocator's blocks took.
    pub(super) blocks_took: Duration,
    /// There was no memory for all.
    pub(super) is_cut: bool,
    /// Stops in a row that failed because a thread did not stop in time.
    failed_stops: u32,
}

/// One of a snapshot's rounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundKind {
    pub(super) number: u32,
    pub(super) began: Instant,
    /// It walks during the stop.
    pub(super) is_standing: bool,
    pub(super) is_last: bool,
    is_slow: bool,
}

/// The newest objects, and room for their pages.
struct RecentObjects {
    objects: FxHashSet<Addr>,
    cache: PageCache,
    plan: PagePlan,
}

/// What a stop copied.
struct StoppedCopy {
    /// `None`: not read in the stop.
    blocks: Option<Vec<AllocatorSnapshot>>,
    newest: PageCache,
    /// No page is missing.
    is_whole: bool,
}

impl RoundKind {
    pub(super) fn new(number: u32, is_last: bool, is_standing: bool, took: Duration) -> RoundKind {
        let began = Instant::now();
        RoundKind { number, began, is_standing, is_last, is_slow: took > SLOW }
    }
}

impl KnownPages {
    fn add(&mut self, pages: Vec<u64>) {
        let known: FxHashSet<u64> = self.numbers.iter().copied().collect();
        self.numbers.extend(pages.into_iter().filter(|page| !known.contains(page)));
    }

    fn may_stop(&self) -> bool {
        self.failed_stops < MAX_FAILED_STOPS
    }
}

impl PendingSnapshot<'_> {
    /// `None`: the walk needed other pages, now in `known`.
    pub(super) fn round(
        &mut self,
        known: &mut KnownPages,
        kind: RoundKind,
    ) -> Result<Option<OwnershipSnapshot>, OwnerError> {
        (self.has_walked, self.late_blocks) = (false, false);
        let for_blocks = self.request.options.max_pause.mul_f64(FOR_BLOCKS);
        let reads_blocks = known.may_stop() && known.blocks_took < for_blocks;
        if !reads_blocks
            && !known.is_cut
            && let Some(torch) = self.torch.as_deref()
        {
            known.add(torch.pages_of_blocks());
        }
        let recent = self.prepare(known);
        let mut stop = self.stop(known)?;
        let copied = self.copy_stopped(known, kind, &mut stop, recent, reads_blocks);
        if !matches!(copied, Ok(Some(_))) {
            stop.count(self.stops);
        }
        let Some(copied) = copied? else { return Ok(None) };
        let is_standing = kind.is_standing && copied.is_whole && copied.blocks.is_some();
        if is_standing {
            self.memory.adopt(copied.newest);
            self.memory.close_with(stop.resumed.clone());
        } else {
            stop.count(self.stops);
            self.memory.adopt(copied.newest);
            self.memory.verify(&mut known.history);
            self.memory.end_copy();
        }
        let blocks = match copied.blocks {
            Some(blocks) => blocks,
            None => match self.copied_blocks(known, kind)? {
                Some(blocks) => blocks,
                None => {
                    self.note_pages(known, kind, false);
                    return Ok(None);
                }
            },
        };
        let walked = self.walk_copy(kind, &blocks, &mut stop);
        stop.count(self.stops);
        if is_standing {
            self.memory.end_copy();
        }
        self.judge(known, kind, walked, blocks, &stop)
    }

    /// Reads the known pages and the newest objects of the running process.
    fn prepare(&mut self, known: &mut KnownPages) -> RecentObjects {
        let (_, objects) = self.recent_pages(&FxHashSet::default());
        self.read_ahead(known);
        // A busy job keeps creating objects: find their pages again.
        let (recent, _) = self.recent_pages(&objects);
        let cache = PageCache::within(Box::new(self.process.memory()), self.request.budget);
        let plan = cache.plan(&recent);
        known.add(recent);
        self.memory.set_budget(self.request.budget);
        RecentObjects { objects, cache, plan }
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

    fn stop(&mut self, known: &mut KnownPages) -> Result<CopyStop, OwnerError> {
        if !known.may_stop() {
            return Ok(CopyStop::none());
        }
        let stopped = CopyStop::of(self.process, self.request.options.max_pause, self.stops);
        known.failed_stops = match &stopped {
            Err(OwnerError::Stop(StopError::Stubborn { .. })) => known.failed_stops + 1,
            _ => 0,
        };
        stopped
    }

    /// Copies what changes, the newest objects and, if `reads_blocks`, the allocator's blocks.
    /// `None`: it came too late for the blocks.
    fn copy_stopped(
        &mut self,
        known: &mut KnownPages,
        kind: RoundKind,
        stop: &mut CopyStop,
        recent: RecentObjects,
        reads_blocks: bool,
    ) -> Result<Option<StoppedCopy>, OwnerError> {
        let RecentObjects { objects, cache: newest, plan } = recent;
        if !stop.is_real {
            return Ok(Some(StoppedCopy { blocks: None, newest, is_whole: false }));
        }
        let (max_pause, since) = (self.request.options.max_pause, stop.since);
        // Blocks and the newest objects are read during the copy; the walk notices pages still
        // missing.
        let resumed = stop.resumed.clone();
        newest.close_with(resumed.clone());
        let (tensors, python) = (self.tensors, self.python);
        let ground = WalkSources {
            tensors,
            python,
            memory: &newest,
            blocks: &[],
            asked: None,
            figures: Figures::Left,
        };
        let until = |part: f64| CopyLimit {
            resumed: resumed.clone(),
            until: Some(since + max_pause.mul_f64(part)),
        };
        let (for_changes, end) = (until(FOR_CHANGES), since + max_pause.mul_f64(FOR_CHANGES));
        let rest = if kind.is_standing { for_changes.clone() } else { until(FOR_REST) };
        let mut torch = self.torch.as_deref_mut();
        let (mut read, mut in_time) = (None, true);
        let is_whole = self.memory.read_standing_beside(&for_changes, &rest, |copying| {
            if reads_blocks {
                let began = Instant::now();
                read = Some(torch.take().map_or(Ok(Vec::new()), |t| blocks(t, StopPolicy::Stop)));
                known.blocks_took = began.elapsed();
            }
            in_time = !resumed.is_set();
            if matches!(read, Some(Err(_))) || !in_time {
                // This also ends the copying.
                stop.end();
                return false;
            }
            copy_newest(&ground, plan, &objects, &resumed, (end, copying))
        });
        match read {
            // The next round reads them from the copy.
            _ if !in_time && !kind.is_last => Ok(None),
            // Data read too late is invalid, and so is its error.
            _ if !in_time => Err(self.cut(ReachedLimit::Pause(max_pause))),
            read => Ok(Some(StoppedCopy { blocks: read.transpose()?, newest, is_whole })),
        }
    }

    fn walk_copy(
        &mut self,
        kind: RoundKind,
        blocks: &[AllocatorSnapshot],
        stop: &mut CopyStop,
    ) -> Result<WalkResult, OwnerError> {
        self.has_walked = true;
        let are_torn = self.late_blocks || self.memory.torn_reads() > 0;
        // During a stop only what cannot be had without.
        let figures = if kind.is_standing { Figures::Left } else { Figures::Computed };
        let sources = WalkSources { figures, ..self.ground(blocks) };
        let mut walked = sources.walk(HeapListing::Whole, &mut || stop.end());
        if matches!(walked, Err(OwnerError::Heap(HeapError::Changing)))
            && self.accepts(kind, self.memory.late_pages())
        {
            // The list of objects changed while it was read.
            walked = sources.walk(HeapListing::Rough, &mut || {});
        }
        if let Ok(walked) = &mut walked
            && are_torn
        {
            walked.torn.push("the allocator's blocks");
            // Their sizes may be those of other blocks.
            walked.figures = RetainedFigures::default();
        }
        walked
    }

    fn judge(
        &mut self,
        known: &mut KnownPages,
        kind: RoundKind,
        walked: Result<WalkResult, OwnerError>,
        blocks: Vec<AllocatorSnapshot>,
        stop: &CopyStop,
    ) -> Result<Option<OwnershipSnapshot>, OwnerError> {
        let torn = walked.as_ref().map_or(TornPages::of(&self.memory), |walked| walked.torn_pages);
        let is_mixed = torn.all > 0 || self.late_blocks;
        let is_all = walked.as_ref().is_ok_and(|walked| walked.missing.is_empty());
        self.note_pages(known, kind, is_all && !is_mixed);
        let is_cut = kind.is_standing && self.memory.refused() > 0;
        // The result may be an error because it is mixed.
        let is_enough = self.accepts(kind, torn.late) && (walked.is_ok() || kind.is_last);
        let is_dropped = is_mixed && !is_enough && self.memory.exceeded().is_none();
        if is_cut || is_dropped {
            if let Ok(walked) = walked
                && is_all
                && !is_cut
                && self.is_late(kind.began)
            {
                self.earlier = Some(self.assemble(walked, blocks, stop)?);
            }
            return Ok(None);
        }
        let walked = walked.map_err(|error| self.explain(error))?;
        known.failed_stops = 0;
        self.assemble(walked, blocks, stop).map(Some)
    }

    fn assemble(
        &self,
        walked: WalkResult,
        blocks: Vec<AllocatorSnapshot>,
        stop: &CopyStop,
    ) -> Result<OwnershipSnapshot, OwnerError> {
        let torn = walked.torn_pages;
        let is_mixed = torn.all > 0 || self.late_blocks;
        let uncertain = is_mixed.then(|| UncertainSnapshot {
            bytes: (torn.all * PAGE) as u64,
            of: (self.memory.pages().len() * PAGE) as u64,
            parts: walked.torn.clone(),
            left_out: walked.torn_tensors,
        });
        let mut snapshot = self.snapshot_of(walked, blocks)?;
        let (pause, age) = (stop.is_real.then_some(stop.stopped_for), stop.age());
        let copied_in_stop = self.memory.copied_standing();
        if pause.is_none() {
            snapshot.retained.clear();
            snapshot.ways.clear();
        }
        Ok(OwnershipSnapshot { pause, age, uncertain, copied_in_stop, ..snapshot })
    }

    fn note_pages(&self, known: &mut KnownPages, kind: RoundKind, is_all: bool) {
        remember(&mut known.numbers, &self.memory, is_all, kind.number);
        known.history.note_needed(&self.memory.doubtful_pages());
    }

    /// Whether what is mixed now is good enough.
    fn accepts(&self, kind: RoundKind, late_pages: usize) -> bool {
        let from = if late_pages > 0 { SLOW_LATE } else { SLOW_TORN };
        kind.is_last || kind.is_slow && kind.number >= from
    }

    /// Blocks from the copy; `None`: it lacks some, or they changed.
    fn copied_blocks(
        &mut self,
        known: &mut KnownPages,
        kind: RoundKind,
    ) -> Result<Option<Vec<AllocatorSnapshot>>, OwnerError> {
        if known.is_cut {
            // Reading them takes memory, too.
            self.late_blocks = true;
            let earlier = self.earlier_blocks.take();
            return Ok(Some(earlier.unwrap_or_else(|| self.running_blocks())));
        }
        let Some(torch) = self.torch.as_deref_mut() else { return Ok(Some(Vec::new())) };
        let began = Instant::now();
        torch.set_timeout(Duration::ZERO);
        let read = blocks_of(torch, Some(&self.memory), StopPolicy::Stop);
        known.blocks_took = began.elapsed();
        match self.memory.torn_reads() > 0 {
            true if !self.accepts(kind, self.memory.late_pages()) => Ok(None),
            // Those of a moment after the stop are at least of one moment.
            true if read.is_err() => {
                self.late_blocks = true;
                Ok(Some(self.running_blocks()))
            }
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
}

/// Whether all planned pages were copied.
fn copy_newest(
    ground: &WalkSources<'_>,
    plan: PagePlan,
    objects: &FxHashSet<Addr>,
    resumed: &Resumed,
    (until, copying): (Instant, &CopyProgress),
) -> bool {
    ground.memory.copy_until(until, copying);
    let is_whole = ground.memory.copy(plan, resumed);
    // The walk notices what is missing.
    let _ = ground.read_newest(objects, &|| copying.is_done());
    is_whole
}
