//! Keeps live blocks at key moments.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::lifetimes::{BlockLifetimes, BlockSum, ReportedBlock};
use super::pruning::{KnownBytes, TrackDraft, TrackStacks};
use super::segment_map::{LastSnapshots, SegmentMap, SegmentMaps};
use super::track::{KeyMoment, MemoryTrack};
use crate::analysis::attribution::{BlockAttribution, Moment};
use crate::analysis::exact::AccountedBlock;
use crate::analysis::peak::KnownMoment;
use crate::analysis::profile::Profile;
use crate::model::{Event, EventBatch, MemoryKind, Nanos, Record, RecordSink, SinkResult};

/// After this many blocks, only requested moments are kept.
const MAX_WORK: u64 = 80_000_000;
/// Events arrive later than their time by less than this (batches).
const LONGEST_DELAY: u64 = 1_000_000_000;

/// For blocks of unknown address; no allocator uses these.
const UNKNOWN_ADDRESSES: u64 = 1 << 63;

#[derive(Debug, Clone)]
pub(super) enum ReportSource {
    /// An account of an exact recording.
    Account(usize),
    /// The attribution in a sampled recording.
    Charge(Arc<BlockAttribution>),
}

#[derive(Debug, Default)]
struct SourceNumbers {
    list: Vec<ReportSource>,
    accounts: FxHashMap<usize, u32>,
    charges: FxHashMap<usize, u32>,
    before: Option<Arc<BlockAttribution>>,
}

impl OpenTrack {
    fn new(is_exact: bool) -> OpenTrack {
        OpenTrack { lifetimes: BlockLifetimes::new(is_exact), ..OpenTrack::default() }
    }
}

impl SourceNumbers {
    fn account(&mut self, account: usize) -> u32 {
        let list = &mut self.list;
        *self.accounts.entry(account).or_insert_with(|| {
            list.push(ReportSource::Account(account));
            list.len() as u32 - 1
        })
    }

    fn charge(&mut self, charge: Option<&Arc<BlockAttribution>>) -> u32 {
        let before = self.before.get_or_insert_with(BlockAttribution::before);
        let charge = charge.unwrap_or(before);
        // Equal attributions share one `Arc`; the list keeps it, so its address stays unique.
        let list = &mut self.list;
        *self.charges.entry(Arc::as_ptr(charge) as usize).or_insert_with(|| {
            list.push(ReportSource::Charge(charge.clone()));
            list.len() as u32 - 1
        })
    }
}

#[derive(Debug, Default)]
struct OpenTrack {
    lifetimes: BlockLifetimes,
    /// By moment: (allocated, reserved) by the counters.
    counted: Vec<(Option<u64>, Option<u64>)>,
    /// By allocation site: allocated up to the last moment.
    allocated: FxHashMap<u32, BlockSum>,
    /// By (allocation site, moment): allocated and freed since the previous moment.
    churned: FxHashMap<(u32, u32), BlockSum>,
    maps: SegmentMaps,
}

/// Takes the records of a recording.
#[derive(Debug)]
pub struct PageBuilder {
    profile: Profile,
    length: Nanos,
    /// Moments in order, and how many have passed.
    schedule: Vec<(Nanos, MemoryKind)>,
    passed: usize,
    /// In a sampled recording, moments are snapshots.
    wanted: BTreeSet<(MemoryKind, Nanos)>,
    peaks: BTreeMap<MemoryKind, KnownMoment>,
    seen: BTreeMap<MemoryKind, Nanos>,
    /// Peaks between two snapshots that are already kept.
    between: BTreeSet<MemoryKind>,
    tracks: BTreeMap<MemoryKind, OpenTrack>,
    sources: SourceNumbers,
    snapshots: LastSnapshots,
    work: u64,
}

impl PageBuilder {
    /// `profile` is empty: it reads the records again.
    pub fn new(
        profile: Profile,
        length: Nanos,
        moments: &BTreeMap<MemoryKind, Vec<Nanos>>,
        peaks: BTreeMap<MemoryKind, KnownMoment>,
    ) -> PageBuilder {
        let all = || moments.iter().flat_map(|(kind, times)| times.iter().map(|t| (*t, *kind)));
        let mut schedule: Vec<(Nanos, MemoryKind)> = all().collect();
        schedule.sort_unstable();
        PageBuilder {
            profile,
            length,
            schedule,
            passed: 0,
            wanted: all().map(|(time, kind)| (kind, time)).collect(),
            peaks,
            seen: BTreeMap::new(),
            between: BTreeSet::new(),
            tracks: BTreeMap::new(),
            sources: SourceNumbers::default(),
            snapshots: LastSnapshots::new(),
            work: 0,
        }
    }

    fn is_peak(&self, kind: MemoryKind, time: Nanos) -> bool {
        self.peaks.get(&kind).is_some_and(|peak| peak.time == time)
    }

    /// Keeps the moments before `time`.
    fn pass(&mut self, time: Nanos) {
        while let Some(&(at, kind)) = self.schedule.get(self.passed)
            && at < time
        {
            self.passed += 1;
            self.keep_exact(kind, at);
        }
    }

    fn keep_exact(&mut self, kind: MemoryKind, time: Nanos) {
        let is_peak = self.is_peak(kind, time);
        if self.work > MAX_WORK && !is_peak {
            return;
        }
        let Some(exact) = self.profile.exact() else { return };
        let living = exact.living(kind);
        let counted = match kind {
            MemoryKind::Torch(device) => {
                exact.allocated_now(device).map(|bytes| bytes.max(0) as u64)
            }
            _ => None,
        };
        let reserved = match kind {
            MemoryKind::Torch(device) => {
                exact.levels(device).map(|levels| levels.reserved.max(0) as u64)
            }
            _ => None,
        };
        self.work += living.len() as u64;
        let sources = &mut self.sources;
        let block = |block: &AccountedBlock| ReportedBlock {
            address: block.address,
            size: block.size,
            stands_for: block.stands_for,
            source: sources.account(block.account),
            allocated_at: block.allocated_at,
            is_from_before: block.is_from_before(),
        };
        let blocks: Vec<ReportedBlock> = living.iter().map(block).collect();
        let track = self.tracks.entry(kind).or_insert_with(|| OpenTrack::new(true));
        let appeared = track.lifetimes.advance(time, &blocks);
        track.counted.push((counted, reserved));
        let moment = track.counted.len() as u32 - 1;
        for (account, bytes, stands_for, count) in exact.allocated_by_account(kind) {
            let source = sources.account(account);
            let all = BlockSum { bytes, stands_for, count };
            let before = track.allocated.insert(source, all).unwrap_or_default();
            let since = all.without(before);
            let gone = since.without(appeared.get(&source).copied().unwrap_or_default());
            if moment > 0 && gone.count > 0 && gone.bytes > 0 {
                track.churned.entry((source, moment)).or_default().add(gone);
            }
        }
        self.map(kind, time, is_peak, &blocks);
    }

    fn keep_sampled(&mut self, kind: MemoryKind, time: Nanos) {
        let MemoryKind::Torch(device) = kind else { return };
        let is_peak = self.is_peak(kind, time);
        if self.work > MAX_WORK && !is_peak {
            return;
        }
        let Some(snapshot) = self.profile.snapshot(device, Moment::End) else { return };
        let (allocated, reserved) = (snapshot.allocated, snapshot.reserved);
        let mut blocks = Vec::new();
        for block in self.profile.charged_blocks(device) {
            let charge = block.charge.as_ref();
            let is_from_before = charge.is_none_or(|charge| charge.is_before());
            blocks.push(ReportedBlock {
                address: block.address,
                size: block.size,
                stands_for: block.size,
                source: self.sources.charge(charge),
                allocated_at: charge.map_or(0, |charge| charge.allocated_at),
                is_from_before,
            });
        }
        self.work += blocks.len() as u64;
        let track = self.tracks.entry(kind).or_insert_with(|| OpenTrack::new(false));
        track.lifetimes.advance(time, &blocks);
        track.counted.push((Some(allocated), reserved));
        self.map(kind, time, is_peak, &blocks);
    }

    /// Keeps a sampled peak once it has passed.
    fn keep_between_snapshots(&mut self, kind: MemoryKind, until: Nanos) {
        let Some(peak) = self.peaks.get(&kind).filter(|peak| peak.time < until) else { return };
        let Some(snapshot) = peak.snapshot.clone().filter(|s| !s.addresses.is_empty()) else {
            return;
        };
        if !self.between.insert(kind) {
            return;
        }
        let track = self.tracks.entry(kind).or_insert_with(|| OpenTrack::new(false));
        let mut blocks = Vec::new();
        for (number, ((size, charge), address)) in
            (0..).zip(snapshot.blocks.iter().zip(&snapshot.addresses))
        {
            blocks.push(ReportedBlock {
                // Only the previous snapshot's blocks have a known address.
                address: address.unwrap_or(UNKNOWN_ADDRESSES + number),
                size: *size,
                stands_for: *size,
                source: self.sources.charge(Some(charge)),
                allocated_at: charge.allocated_at,
                is_from_before: charge.is_before(),
            });
        }
        blocks.sort_by_key(|block| block.address);
        blocks.dedup_by_key(|block| block.address);
        track.lifetimes.advance(snapshot.time, &blocks);
        track.counted.push((Some(snapshot.allocated), snapshot.reserved));
    }

    fn map(&mut self, kind: MemoryKind, time: Nanos, is_peak: bool, blocks: &[ReportedBlock]) {
        let MemoryKind::Torch(device) = kind else { return };
        let Some(snapshot) = self.snapshots.get(&device).filter(|map| map.time <= time) else {
            return;
        };
        let Some(track) = self.tracks.get_mut(&kind) else { return };
        if is_peak || track.maps.wants(time, self.length) {
            track.maps.keep(SegmentMap::new(snapshot, time, blocks));
        }
    }

    fn after_record(&mut self) {
        let gpus: Vec<_> = self.snapshots.keys().copied().collect();
        for device in gpus {
            let kind = MemoryKind::Torch(device);
            let Some(snapshot) = self.profile.snapshot(device, Moment::End) else { continue };
            let time = snapshot.time;
            self.keep_between_snapshots(kind, time);
            if self.seen.insert(kind, time) != Some(time) && self.wanted.contains(&(kind, time)) {
                self.keep_sampled(kind, time);
            }
        }
    }

    fn on_events(&mut self, events: &[Event]) -> SinkResult {
        let mut rest = events;
        while let (Some(&(at, _)), Some(last)) = (self.schedule.get(self.passed), rest.last())
            && last.time > at
        {
            let (due, later) = rest.split_at(rest.partition_point(|event| event.time <= at));
            if !due.is_empty() {
                self.profile.record(&Record::Events(EventBatch { events: due.to_vec() }))?;
            }
            rest = later;
            self.pass(Nanos(at.0.saturating_add(1)));
        }
        self.profile.record(&Record::Events(EventBatch { events: rest.to_vec() }))
    }

    /// The profile, and tracks with the counters' totals.
    pub fn build(mut self) -> (Profile, Vec<MemoryTrack>) {
        self.profile.finish();
        match self.profile.exact().is_some() {
            true => self.pass(Nanos(u64::MAX)),
            false => {
                self.after_record();
                let kinds: Vec<MemoryKind> = self.peaks.keys().copied().collect();
                kinds
                    .into_iter()
                    .for_each(|kind| self.keep_between_snapshots(kind, Nanos(u64::MAX)));
            }
        }
        let sources = self.sources.list;
        let mut tracks = Vec::new();
        for (kind, track) in self.tracks {
            let times: Vec<Nanos> = track.lifetimes.times().to_vec();
            let mut stacks = TrackStacks::new(&self.profile, &sources);
            let mut draft = TrackDraft::new(times.len());
            for ((source, from, to), sum) in sorted(track.lifetimes.finish()) {
                draft.add_span(&mut stacks, source, (from, to), sum);
            }
            let is_exact = self.profile.exact().is_some();
            for ((source, moment), sum) in sorted(track.churned) {
                draft.add_churned(&mut stacks, source, moment, sum);
            }
            let known = draft.known();
            let moments = key_moments(&times, &track.counted, &known);
            let missing = moments
                .iter()
                .zip(&known)
                .map(|(moment, known)| moment.total.saturating_sub(known.bytes));
            draft.add_remainder(&mut stacks, &missing.collect::<Vec<u64>>(), is_exact);
            let stack_of = |source: u32| stacks.stack_of(source);
            let mut maps = track.maps.kept;
            let blocks = maps.iter_mut().flat_map(|map| &mut map.segments);
            for block in blocks.flat_map(|segment| &mut segment.blocks) {
                block.stack = block.stack.and_then(stack_of);
            }
            let track = MemoryTrack {
                peak_time: self.peaks.get(&kind).map(|peak| peak.time),
                kind,
                moments,
                stacks: stacks.into_list(),
                small: 0,
                spans: draft.spans,
                churned: is_exact.then_some(draft.churned),
                maps,
            };
            tracks.push(track.pruned());
        }
        (self.profile, tracks)
    }
}

/// `counted`: (allocated, reserved) bytes.
fn key_moments(
    times: &[Nanos],
    counted: &[(Option<u64>, Option<u64>)],
    known: &[KnownBytes],
) -> Vec<KeyMoment> {
    let moments = times.iter().zip(counted).zip(known);
    moments
        .map(|((time, (counted, reserved)), known)| KeyMoment {
            time: *time,
            total: counted.unwrap_or(known.bytes),
            reserved: *reserved,
            shared: known.shared,
        })
        .collect()
}

fn sorted<K: Ord + Copy>(map: FxHashMap<K, BlockSum>) -> Vec<(K, BlockSum)> {
    let mut all: Vec<(K, BlockSum)> = map.into_iter().collect();
    all.sort_unstable_by_key(|(key, _)| *key);
    all
}

impl RecordSink for PageBuilder {
    fn record(&mut self, record: &Record) -> SinkResult {
        if let Record::Snapshot(snapshot) = record {
            self.snapshots.insert(snapshot.device, snapshot.clone());
        }
        if let Record::Events(batch) = record {
            return self.on_events(&batch.events);
        }
        let is_exact = self.profile.exact().is_some();
        if let Some(time) = record.time().filter(|_| is_exact) {
            self.pass(Nanos(time.0.saturating_sub(LONGEST_DELAY)));
        }
        self.profile.record(record)?;
        if self.profile.exact().is_none() {
            self.after_record();
        }
        Ok(())
    }
}
