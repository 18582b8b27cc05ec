//! The report on a condition, or on a recording's end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::analysis::attribution::Moment;
use crate::analysis::blocks::Fragmentation;
use crate::analysis::flame;
use crate::analysis::folded::{FoldOptions, FoldedProfile};
use crate::analysis::oom::oom_moment::MAX_REFUSAL_AGE;
use crate::analysis::oom::trigger::TriggerWatch;
use crate::analysis::profile::Profile;
use crate::model::{
    AllocatorCounters, AllocatorSnapshot, BlockState, CudaIndex, DeviceUsage, Event, EventBatch,
    EventKind, MemoryKind, Metric, Nanos, OomException, OwnershipBreakdown, Pool, Record,
    RecordSink, SinkResult, SiteId, SnapshotConsistency, StackId, StackSample, ThreadActivity,
    ThreadId, TriggerFired,
};

/// Free blocks are listed by size, up to each of these.
const CLASSES: [u64; 5] = [1 << 20, 10 << 20, 100 << 20, 1 << 30, u64::MAX];
/// PyTorch asks up to three times: keep live blocks once.
const RETRY_WINDOW: u64 = 200_000_000;
const MAX_REFUSED: usize = 64;

/// One moment; stacks are those of [`OomBuilder::profile`].
#[derive(Debug, Clone)]
pub struct OomReport {
    /// The condition; `None` at the recording's end.
    pub trigger: Option<TriggerFired>,
    /// The moment.
    pub time: Nanos,
    /// Those with PyTorch's memory.
    pub devices: Vec<OomDevice>,
    /// Driver refusals near it, latest first (exact recordings).
    pub refused: Vec<RefusedAllocation>,
    /// In order.
    pub oom_exception: Vec<OomException>,
    /// Threads in the samples around the moment.
    pub stood: Vec<OomThread>,
    /// The last owner snapshot before.
    pub owners: Option<OwnershipBreakdown>,
    /// The job ran out of memory.
    pub out_of_memory: bool,
}

/// An allocation that the driver refused.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefusedAllocation {
    pub time: Nanos,
    pub size: u64,
    pub memory_kind: MemoryKind,
    pub site: Option<SiteId>,
}

/// A thread in a sample.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OomThread {
    pub time: Nanos,
    pub thread: ThreadId,
    pub stack: StackId,
}

/// One device, in bytes; `None` is unknown.
#[derive(Debug, Clone)]
pub struct OomDevice {
    /// As numbered in the job.
    pub device: CudaIndex,
    /// Product name.
    pub name: Option<String>,
    /// Memory of the device.
    pub total: Option<u64>,
    /// The allocator's counters.
    pub counters: Option<Box<AllocatorCounters>>,
    /// The driver's last figures.
    pub usage: Option<DeviceUsage>,
    /// The cache in the last snapshot.
    pub cache: Option<AllocatorCache>,
    /// The last snapshot.
    pub snapshot: Option<Arc<AllocatorSnapshot>>,
    /// When the counters were read.
    pub counters_time: Option<Nanos>,
    /// Live memory by stack, if known.
    pub live: Option<FoldedProfile>,
}

impl OomDevice {
    /// Counters that were read after the failed work was unwound get what was allocated before:
    /// exact events know it.
    fn set_allocated_of(&mut self, at_refusal: &OomDevice) {
        let live = at_refusal.live.as_ref().map(|live| live.total);
        if let (Some(counters), Some(live)) = (&mut self.counters, live) {
            let allocated =
                &mut counters.stats[Metric::AllocatedBytes as usize][Pool::All as usize];
            if (allocated.current as u64) < live && live <= allocated.peak as u64 {
                allocated.current = live as i64;
            }
        }
    }
}

/// The allocator's cache in a snapshot: fragmentation, and free blocks by size.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatorCache {
    pub time: Nanos,
    pub consistent: bool,
    pub cut: Fragmentation,
    pub classes: Vec<FreeClass>,
}

/// Free blocks of similar size: `below` is exclusive, `u64::MAX` if unlimited.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeClass {
    pub from: u64,
    pub below: u64,
    pub blocks: u64,
    pub bytes: u64,
}

/// Reports on the last condition that came true, or on the end.
#[derive(Debug, Default)]
pub struct OomBuilder {
    profile: Profile,
    watch: TriggerWatch,
    only: bool,
    snapshots: BTreeMap<CudaIndex, Arc<AllocatorSnapshot>>,
    counters_times: BTreeMap<CudaIndex, Nanos>,
    samples: VecDeque<StackSample>,
    refused: VecDeque<RefusedAllocation>,
    oom_exception: VecDeque<OomException>,
    owners: Option<OwnershipBreakdown>,
    ooms: BTreeMap<CudaIndex, i64>,
    /// No allocator existed when events began.
    starts_empty: bool,
    /// Live blocks at the last refusal; they are freed later.
    at_refusal: Option<(Nanos, Vec<OomDevice>)>,
    /// Memory was allocated since, so the next refusal is no retry.
    was_satisfied: bool,
    last_oom: Option<Nanos>,
    now: Nanos,
    /// When the recorder last saw a condition come true.
    recorded: Option<Nanos>,
    given: Option<OomReport>,
}

impl OomBuilder {
    /// `profile` is empty; the conditions are the recording's own.
    pub fn new(profile: Profile) -> OomBuilder {
        OomBuilder { profile, ..OomBuilder::default() }
    }

    /// Adds the conditions of `watch`.
    pub fn with_trigger(self, watch: TriggerWatch) -> OomBuilder {
        OomBuilder { watch, ..self }
    }

    /// Uses only the conditions of `watch`.
    pub fn only(self, watch: TriggerWatch) -> OomBuilder {
        OomBuilder { watch, only: true, ..self }
    }

    /// The profile of the whole recording.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The profile, mutable.
    pub fn profile_mut(&mut self) -> &mut Profile {
        &mut self.profile
    }

    /// The report.
    pub fn report(&mut self) -> OomReport {
        match &self.given {
            Some(given) => given.clone(),
            None => self.at(None),
        }
    }

    fn at(&mut self, trigger: Option<TriggerFired>) -> OomReport {
        self.profile.finish();
        let time = trigger.as_ref().map_or(self.now, |trigger| trigger.time);
        let near = |then: Nanos| time.0.saturating_sub(then.0) <= MAX_REFUSAL_AGE;
        let refused: Vec<RefusedAllocation> =
            self.refused.iter().rev().filter(|asked| near(asked.time)).copied().collect();
        let mut devices: Vec<OomDevice> =
            self.profile.gpus().map(|device| self.device(device)).collect();
        // The failed work has been unwound since.
        for then in self.at_refusal.iter().filter(|(at, _)| near(*at)).flat_map(|(_, all)| all) {
            if let Some(device) = devices.iter_mut().find(|now| now.device == then.device) {
                device.live.clone_from(&then.live);
                device.set_allocated_of(then);
            }
        }
        let out_of_memory = self.last_oom.is_some_and(near)
            || trigger.as_ref().is_some_and(|trigger| trigger.condition == "oom");
        OomReport {
            devices,
            oom_exception: self
                .oom_exception
                .iter()
                .filter(|oom_exception| near(oom_exception.time))
                .cloned()
                .collect(),
            stood: self.threads(time),
            owners: self.owners.clone(),
            refused,
            trigger,
            time,
            out_of_memory,
        }
    }

    fn device(&self, device: CudaIndex) -> OomDevice {
        let known = self.profile.devices().iter().find(|known| known.cuda_index == Some(device));
        let usage = known
            .and_then(|known| known.nvml_index)
            .and_then(|index| self.profile.usage().get(&index))
            .map(|usage| usage.last.clone());
        OomDevice {
            device,
            name: known.and_then(|known| known.name.clone()),
            total: usage.as_ref().map(|u| u.total).or(known.and_then(|known| known.total)),
            counters: self.profile.counters(device).map(|counters| Box::new(*counters)),
            usage,
            cache: self.snapshots.get(&device).map(|snapshot| cache(snapshot)),
            snapshot: self.snapshots.get(&device).cloned(),
            counters_time: self.counters_times.get(&device).copied(),
            live: flame::fold(&self.profile, device, Moment::End, FoldOptions::default()).ok(),
        }
    }

    /// Active threads, in the samples before and at the moment.
    fn threads(&self, time: Nanos) -> Vec<OomThread> {
        let mut stood: Vec<OomThread> = Vec::new();
        for sample in self.samples.iter().filter(|sample| near(sample.time, time)) {
            for entry in &sample.threads {
                let is_idle = entry.activity == ThreadActivity::Idle;
                let is_main = self
                    .profile
                    .stacks()
                    .get_thread(entry.thread)
                    .is_some_and(|thread| thread.main);
                if is_idle && !is_main {
                    continue;
                }
                let same = |s: &&mut OomThread| s.thread == entry.thread && s.stack == entry.stack;
                if stood.iter_mut().find(same).is_none() {
                    let (thread, stack) = (entry.thread, entry.stack);
                    stood.push(OomThread { time: sample.time, thread, stack });
                }
            }
        }
        stood
    }

    /// Splits events at refusals, to keep the live blocks of each.
    fn on_events(&mut self, events: &[Event]) -> SinkResult {
        let is_refused = |e: &Event| {
            matches!(e.change, EventKind::Failed { code: EventKind::OUT_OF_MEMORY, .. })
        };
        for part in events.split_inclusive(is_refused) {
            self.profile.record(&Record::Events(EventBatch { events: part.to_vec() }))?;
            // After a success, a refusal is of another request.
            self.was_satisfied |= part.iter().any(|event| {
                matches!(
                    event.change,
                    EventKind::Allocated { memory_kind: MemoryKind::Torch(_), .. }
                )
            });
            let Some(last) = part.last().filter(|event| is_refused(event)) else { continue };
            let before = self.refused.back().copied();
            self.refuse(last);
            let is_other = before.zip(self.refused.back()).is_none_or(|(before, now)| {
                (before.size, before.memory_kind) != (now.size, now.memory_kind)
                    || now.time.0.saturating_sub(before.time.0) >= RETRY_WINDOW
            });
            let is_first = self.at_refusal.is_none();
            if is_first || is_other || std::mem::take(&mut self.was_satisfied) {
                self.was_satisfied = false;
                self.profile.add_report()?;
                // Events of an allocator whose counters were not yet read wait for them.
                self.profile.finish();
                let devices = self.profile.gpus().map(|device| self.device(device)).collect();
                self.at_refusal = Some((last.time, devices));
            }
        }
        Ok(())
    }

    /// An error's message arrives after its count.
    fn on_oom_exception(&mut self, oom_exception: &OomException) {
        if self.oom_exception.len() == MAX_REFUSED {
            self.oom_exception.pop_front();
        }
        self.oom_exception.push_back(oom_exception.clone());
        if let Some(given) = &mut self.given
            && near(oom_exception.time, given.time)
            && given.out_of_memory
        {
            given.oom_exception.push(oom_exception.clone());
        }
    }

    fn refuse(&mut self, event: &Event) {
        let EventKind::Failed { memory_kind, size, .. } = event.change else { return };
        if self.refused.len() == MAX_REFUSED {
            self.refused.pop_front();
        }
        self.refused.push_back(RefusedAllocation {
            time: event.time,
            size,
            memory_kind,
            site: event.site,
        });
    }
}

fn near(snapshot: Nanos, time: Nanos) -> bool {
    snapshot.0.abs_diff(time.0) <= MAX_REFUSAL_AGE
}

fn cache(snapshot: &AllocatorSnapshot) -> AllocatorCache {
    let mut classes: Vec<FreeClass> = Vec::new();
    let mut from = 0;
    for below in CLASSES {
        classes.push(FreeClass { from, below, blocks: 0, bytes: 0 });
        from = below;
    }
    for (_, block) in snapshot.blocks().filter(|(_, block)| block.state == BlockState::Inactive) {
        if let Some(class) = classes.iter_mut().find(|class| block.size < class.below) {
            class.blocks += 1;
            class.bytes += block.size;
        }
    }
    classes.retain(|class| class.blocks > 0);
    AllocatorCache {
        time: snapshot.time,
        consistent: snapshot.consistency == SnapshotConsistency::Consistent,
        cut: Fragmentation::new(snapshot),
        classes,
    }
}

impl RecordSink for OomBuilder {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.now = self.now.max(record.time().unwrap_or_default());
        match record {
            Record::Events(_) => {}
            other => self.profile.record(other)?,
        }
        match record {
            Record::Snapshot(snapshot) => {
                self.snapshots.insert(snapshot.device, Arc::new(snapshot.clone()));
            }
            Record::Sample(sample) => {
                while self.samples.len() > 1 {
                    self.samples.pop_front();
                }
                self.samples.push_back(sample.clone());
            }
            Record::Counters { time, device, counters } => {
                self.counters_times.insert(*device, *time);
                let before = self.ooms.insert(*device, counters.num_ooms);
                let before = before.or(self.starts_empty.then_some(0));
                if before.is_some_and(|before| counters.num_ooms > before) {
                    self.last_oom = Some(*time);
                }
            }
            Record::Events(batch) => self.on_events(&batch.events)?,
            Record::ExactSettings(exact) => self.starts_empty |= exact.starts_empty,
            Record::OomException(oom_exception) => self.on_oom_exception(oom_exception),
            Record::Ownership(snapshot) => self.owners = Some(snapshot.clone()),
            Record::TriggerFired(triggered) if !self.only => {
                self.profile.add_report()?;
                self.recorded = Some(triggered.time);
                self.given = Some(self.at(Some(triggered.clone())));
            }
            _ => {}
        }
        // The recorder only counts a condition this soon after another.
        let counted = |recorded: Nanos| self.now.0.saturating_sub(recorded.0) < MAX_REFUSAL_AGE;
        if let Some(triggered) = self.watch.on_record(record)
            && !self.recorded.is_some_and(counted)
        {
            self.profile.add_report()?;
            self.given = Some(self.at(Some(triggered)));
        }
        Ok(())
    }
}
