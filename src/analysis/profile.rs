//! `Profile`: takes records one by one and keeps what the answers need.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::autograd::EngineFrames;
use super::charge::Origin;
use super::device::{DeviceProfile, Moment, Seen, Snapshot};
use super::high_water::HighWater;
use super::line_bounds::{Around, BoundsByStack, Step};
use super::losses::Losses;
use super::tick::{ThreadChoice, Tick};
use super::timeline::Timeline;
use crate::model::{
    AllocatorCounters, CudaIndex, Definition, Device, DeviceUsage, End, FunctionId, Nanos,
    ProcessUsage, Record, RecordSink, Runtime, Sample, Source, StackId, StackTable, Start,
    ThreadSample,
};

/// Two looks that both see a line tell that it stayed in between only when they are at most so many
/// periods apart: where looks were missed, a loop may have come round.
const LONGEST_STAY: u64 = 5;

/// Greatest values that NVML told of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsagePeak {
    /// Memory of the device in bytes.
    pub total: u64,
    /// Greatest bytes in use by all processes.
    pub used: u64,
    /// Greatest bytes in use by the target.
    pub process: ProcessUsage,
    /// The last look.
    pub last: DeviceUsage,
}

/// One device's counters in a tick.
#[derive(Debug)]
struct CounterLook {
    device: CudaIndex,
    first: Box<AllocatorCounters>,
    /// Those read right after the stacks, when they differ from the first, read right before them.
    after: Option<(Nanos, Box<AllocatorCounters>)>,
}

/// Everything known from the records so far, in memory that grows with what is different (stacks,
/// blocks alive, devices), not with how long it was recorded.
///
/// Records of one tick (a [`Sample`], the counters of the devices, block maps) may come in any order
/// and up to half a period apart; they are taken together when the next tick begins, at the end of
/// the recording, or at [`Profile::finish`].
#[derive(Debug, Default)]
pub struct Profile {
    choice: ThreadChoice,
    stacks: StackTable,
    engine: EngineFrames,
    depths: Vec<u32>,
    sources: FxHashMap<FunctionId, Source>,
    start: Option<Start>,
    runtime: Option<Runtime>,
    devices: Vec<Device>,
    end: Option<End>,
    losses: Losses,
    usage: BTreeMap<u32, UsagePeak>,
    profiles: BTreeMap<CudaIndex, DeviceProfile>,
    bounds: BTreeMap<CudaIndex, BoundsByStack>,
    samples_of_stack: Vec<u64>,
    samples: u64,
    stacks_read: u64,
    ticks: u64,
    last_time: Nanos,
    bad_definitions: u64,
    warnings: Vec<String>,
    /// The tick being collected, and whether there is one.
    open: Tick,
    is_open: bool,
    open_counters: Vec<CounterLook>,
    open_maps: Vec<(CudaIndex, Seen)>,
    previous: Tick,
    /// The threads at work in the open tick and in the previous one.
    at_work: Vec<ThreadSample>,
    previously_at_work: Vec<ThreadSample>,
}

impl Profile {
    /// A profile without records.
    pub fn new() -> Profile {
        Profile::default()
    }

    /// A profile without records that charges memory to the threads chosen.
    pub fn charging(choice: ThreadChoice) -> Profile {
        Profile { choice, ..Profile::default() }
    }

    /// Takes the tick being collected into account. Called by [`Record::End`]; call it yourself when a
    /// recording ends abruptly, or to see the latest tick of a live one.
    pub fn finish(&mut self) {
        if self.is_open {
            self.close_tick();
        }
    }

    /// Adds a warning for the head of the report, from a caller who knows more than the records tell.
    pub fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// Warnings for the head of a report: those given to [`Profile::warn`] and those that follow from
    /// the records.
    pub fn warnings(&self) -> Vec<String> {
        let mut all = self.warnings.clone();
        if self.end.is_none() {
            all.push(
                "the recording ended abruptly (or goes on): what follows is up to its last whole block"
                    .to_owned(),
            );
        }
        if self.bad_definitions > 0 {
            all.push(format!(
                "{} definitions could not be used; stacks that need them are missing",
                self.bad_definitions
            ));
        }
        for (device, profile) in &self.profiles {
            if profile.maps_degraded > 0 {
                all.push(format!(
                    "GPU {}: {} of {} block maps were read while the job changed them",
                    device.0,
                    profile.maps_degraded,
                    profile.maps_degraded + profile.maps_consistent
                ));
            }
        }
        all
    }

    /// Functions, frames, stacks and threads.
    pub fn stacks(&self) -> &StackTable {
        &self.stacks
    }

    /// What was recorded, and how.
    pub fn start(&self) -> Option<&Start> {
        self.start.as_ref()
    }

    /// What ran in the target, as last told.
    pub fn runtime(&self) -> Option<&Runtime> {
        self.runtime.as_ref()
    }

    /// The machine's GPUs.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The recording's end; `None` while it lasts, or when it ended abruptly.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// What was missed.
    pub fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Looks at the threads' stacks.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Thread stacks read.
    pub fn stacks_read(&self) -> u64 {
        self.stacks_read
    }

    /// Instants at which anything was looked at.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// Time of the latest record.
    pub fn duration(&self) -> Nanos {
        self.last_time
    }

    /// The source text of a function.
    pub fn source(&self, function: FunctionId) -> Option<&Source> {
        self.sources.get(&function)
    }

    /// NVML's figures by its device numbers.
    pub fn usage(&self) -> &BTreeMap<u32, UsagePeak> {
        &self.usage
    }

    /// The devices with counters or maps, as the target numbers them.
    pub fn gpus(&self) -> impl Iterator<Item = CudaIndex> + '_ {
        self.profiles.keys().copied()
    }

    /// The device with the greatest peak of allocated bytes (the lowest number of equals).
    pub fn main_gpu(&self) -> Option<CudaIndex> {
        let height = |d: &DeviceProfile| {
            let counter = d.allocated.map_or(0, |h| h.bytes);
            counter.max(d.peak.as_ref().map_or(0, |s| s.allocated as i64))
        };
        self.profiles
            .iter()
            .max_by_key(|(device, d)| (height(d), std::cmp::Reverse(**device)))
            .map(|(&device, _)| device)
    }

    /// High-water mark of `allocated_bytes.all`.
    pub fn peak_allocated(&self, device: CudaIndex) -> Option<HighWater> {
        self.profiles.get(&device)?.allocated
    }

    /// High-water mark of `reserved_bytes.all`.
    pub fn peak_reserved(&self, device: CudaIndex) -> Option<HighWater> {
        self.profiles.get(&device)?.reserved
    }

    /// The last counters.
    pub fn counters(&self, device: CudaIndex) -> Option<&AllocatorCounters> {
        Some(&self.profiles.get(&device)?.counters.as_ref()?.1)
    }

    /// Allocated and reserved bytes over time.
    pub fn timeline(&self, device: CudaIndex) -> Option<&Timeline> {
        Some(&self.profiles.get(&device)?.timeline)
    }

    /// The block map kept for a moment; `None` when the device has none.
    pub fn snapshot(&self, device: CudaIndex, moment: Moment) -> Option<&Arc<Snapshot>> {
        let profile = self.profiles.get(&device)?;
        match moment {
            Moment::Peak => profile.peak.as_ref(),
            Moment::End => profile.end.as_ref(),
        }
    }

    /// Block maps taken of a device: one instant's truth, and degraded.
    pub fn maps(&self, device: CudaIndex) -> (u64, u64) {
        self.profiles.get(&device).map_or((0, 0), |d| (d.maps_consistent, d.maps_degraded))
    }

    pub(crate) fn engine(&self) -> &EngineFrames {
        &self.engine
    }

    pub(crate) fn bounds(&self, device: CudaIndex) -> Option<&BoundsByStack> {
        self.bounds.get(&device)
    }

    pub(crate) fn samples_of_stack(&self, stack: u32) -> u64 {
        self.samples_of_stack.get(stack as usize).copied().unwrap_or(0)
    }

    /// Number of stacks defined.
    pub(crate) fn known_stacks(&self) -> u32 {
        self.depths.len() as u32
    }

    pub(crate) fn has_gpu(&self, device: CudaIndex) -> bool {
        self.profiles.contains_key(&device)
    }

    /// Half a period of the wanted rate in nanoseconds: what is further apart is another tick.
    fn half_period(&self) -> u64 {
        let rate = self.start.as_ref().map_or(0, |s| s.rate);
        500_000_000 / u64::from(if rate == 0 { 200 } else { rate })
    }

    /// Makes sure that the open tick is the one of `time`; `taken` says that it already has this record.
    fn enter_tick(&mut self, time: Nanos, taken: bool) {
        self.last_time = self.last_time.max(time);
        if self.is_open {
            let apart = time.0.saturating_sub(self.open.time.0) >= self.half_period();
            if !taken && !apart {
                return;
            }
            self.close_tick();
        }
        self.is_open = true;
        self.open.time = time;
        self.open.sampled = false;
        self.open.threads.clear();
    }

    fn take_sample(&mut self, sample: &Sample) {
        self.enter_tick(sample.time, self.open.sampled);
        self.samples += 1;
        self.stacks_read += sample.threads.len() as u64;
        self.open.sampled = true;
        self.open.threads.extend(sample.threads.iter().filter_map(|t| self.choice.of(*t)));
    }

    fn define(&mut self, definition: &Definition) {
        if let Definition::Function(_, function) = definition {
            self.engine.saw(function);
        }
        if !self.stacks.define(definition.clone()) {
            self.bad_definitions += 1;
            return;
        }
        if let Definition::Stack(_, node) = definition {
            let depth = node.parent.map_or(0, |p| self.depths[p.0 as usize] + 1);
            self.depths.push(depth);
        }
    }

    /// Takes the open tick into account and makes it the previous one.
    fn close_tick(&mut self) {
        self.is_open = false;
        self.ticks += 1;
        let had_counters = !self.open_counters.is_empty();
        let known = self.depths.len();
        if self.open.threads != self.previous.threads {
            self.open.threads.retain(|t| (t.stack.0 as usize) < known);
            let at_work = self.open.at_work(&self.stacks, &self.engine);
            self.at_work.clear();
            self.at_work.extend(at_work.copied());
            self.samples_of_stack.resize(known, 0);
            self.step_devices();
        } else if had_counters || self.profiles.values().any(|p| p.around.is_some()) {
            self.step_devices();
        }
        for thread in &self.at_work {
            if let Some(samples) = self.samples_of_stack.get_mut(thread.stack.0 as usize) {
                *samples += 1;
            }
        }
        if !self.open_maps.is_empty() {
            let seen = self.open.allocating(&self.stacks, &self.engine);
            for (device, map) in std::mem::take(&mut self.open_maps) {
                let profile = self.profiles.entry(device).or_default();
                profile.take_map(map, self.open.time, &seen);
            }
        }
        if self.open.sampled || had_counters {
            std::mem::swap(&mut self.open, &mut self.previous);
            self.previously_at_work.clone_from(&self.at_work);
        } else {
            // A map alone says nothing of the threads: those seen last stay where they were.
            self.at_work.clone_from(&self.previously_at_work);
        }
        self.open.sampled = false;
    }

    /// Charges the interval between the previous tick and the open one.
    fn step_devices(&mut self) {
        let looks = std::mem::take(&mut self.open_counters);
        let (stacks, engine) = (&self.stacks, &self.engine);
        let (previous, open) = (&self.previous, &self.open);
        let apart = open.time.0.saturating_sub(previous.time.0);
        let near = apart <= LONGEST_STAY * 2 * self.half_period();
        let (mut seen, mut seen_here) = (Vec::new(), Vec::new());
        if !looks.is_empty() {
            seen_here = open.allocating(stacks, engine);
            seen = previous.allocating(stacks, engine);
            seen.extend(seen_here.iter().copied());
        }
        for look in &looks {
            self.profiles.entry(look.device).or_default();
        }
        for (&device, profile) in &mut self.profiles {
            let bounds = self.bounds.entry(device).or_default();
            let around_before = profile.around.take();
            let mut step = None;
            if let Some(look) = looks.iter().find(|l| l.device == device) {
                let looked = profile.counters.as_ref().map_or(Nanos(0), |c| c.0);
                let from = previous.time.max(looked);
                let old = profile.step(from, open.time, &look.first, &seen);
                if let Some(old) = old {
                    let between = Step::between(&old, &look.first);
                    bounds.charge(&between, &stacks_of(&seen));
                    step = Some(between);
                }
                if let Some((time, after)) = &look.after {
                    profile.step(open.time, *time, after, &seen_here);
                    let around = Step::between(&look.first, after);
                    bounds.charge(&around, &stacks_of(&seen_here));
                    profile.around =
                        Some(Box::new(Around::between(&Step::at(&look.first), &around)));
                }
            } else if around_before.is_some() {
                step = profile.counters.as_ref().map(|c| Step::at(&c.1));
            }
            let around = profile.around.as_deref();
            if let Some(mut step) = step {
                step.widen(around_before.as_deref(), around);
                let mut seen_at_ends = |then: Option<&ThreadSample>, now: Option<&ThreadSample>| {
                    let (then, now) = (then.map(|t| t.stack), now.map(|t| t.stack));
                    match (then, now) {
                        (Some(a), Some(b)) if near && a == b => {
                            bounds.stayed(a.0, &step, profile.version);
                        }
                        (Some(a), Some(b)) => {
                            let common = common_stack(stacks, &self.depths, a, b);
                            if let Some(common) = common.filter(|_| near) {
                                bounds.stayed(common.0, &step, profile.version);
                            }
                            bounds.left(a.0, &step);
                            bounds.came(b.0, &step, profile.version);
                        }
                        (Some(a), None) => bounds.left(a.0, &step),
                        (None, Some(b)) => bounds.came(b.0, &step, profile.version),
                        (None, None) => {}
                    }
                };
                // A thread idle at one end only is followed to that end: its lines stayed on its stack.
                let find = |threads: &'_ [ThreadSample], t: &ThreadSample| {
                    threads.iter().copied().find(|o| o.thread == t.thread)
                };
                for now in &self.at_work {
                    seen_at_ends(find(&previous.threads, now).as_ref(), Some(now));
                }
                for then in &self.previously_at_work {
                    if find(&self.at_work, then).is_none() {
                        seen_at_ends(Some(then), find(&open.threads, then).as_ref());
                    }
                }
            }
            // A stack newly seen while the counters stand still has their values at least.
            let Some((_, current)) = &profile.counters else {
                continue;
            };
            for thread in &self.at_work {
                if bounds.version(thread.stack.0) != profile.version {
                    let mut step = Step::at(current);
                    step.widen(None, around);
                    bounds.came(thread.stack.0, &step, profile.version);
                }
            }
        }
    }

    /// Takes counters into the open tick, or begins the next one with them.
    fn take_counters(&mut self, time: Nanos, device: CudaIndex, counters: &AllocatorCounters) {
        let known = self.open_counters.iter().position(|l| l.device == device);
        let counters = Box::new(*counters);
        if let Some(look) = known.map(|i| &mut self.open_counters[i])
            && look.after.is_none()
            && time > self.open.time
            && self.open.sampled
        {
            self.last_time = self.last_time.max(time);
            look.after = Some((time, counters));
            return;
        }
        self.enter_tick(time, known.is_some());
        self.open_counters.push(CounterLook { device, first: counters, after: None });
    }

    fn take_usage(&mut self, usage: &DeviceUsage) {
        self.last_time = self.last_time.max(usage.time);
        let peak = self.usage.entry(usage.nvml_index).or_insert_with(|| UsagePeak {
            total: usage.total,
            used: usage.used,
            process: usage.process.clone(),
            last: usage.clone(),
        });
        peak.total = usage.total;
        peak.used = peak.used.max(usage.used);
        peak.process = match (&peak.process, &usage.process) {
            (ProcessUsage::Bytes(a), ProcessUsage::Bytes(b)) => ProcessUsage::Bytes(*a.max(b)),
            (known @ ProcessUsage::Bytes(_), ProcessUsage::Unknown(_)) => known.clone(),
            (ProcessUsage::Unknown(_), new) => new.clone(),
        };
        peak.last = usage.clone();
    }
}

fn stacks_of(seen: &[(Origin, u64)]) -> Vec<(u32, u64)> {
    let stack = |&(origin, weight): &(Origin, u64)| match origin {
        Origin::Stack(_, stack) => Some((stack.0, weight)),
        Origin::Before | Origin::NoStack => None,
    };
    seen.iter().filter_map(stack).collect()
}

/// The innermost stack that two stacks have in common.
fn common_stack(table: &StackTable, depths: &[u32], a: StackId, b: StackId) -> Option<StackId> {
    let depth = |s: StackId| depths.get(s.0 as usize).copied().unwrap_or(0);
    let up = |s: StackId| table.get_stack(s).and_then(|n| n.parent);
    let (mut a, mut b) = (a, b);
    while a != b {
        let (depth_a, depth_b) = (depth(a), depth(b));
        if depth_a >= depth_b {
            a = up(a)?;
        }
        if depth_b >= depth_a {
            b = up(b)?;
        }
    }
    Some(a)
}

impl RecordSink for Profile {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Sample(sample) => self.take_sample(sample),
            Record::Counters { time, device, counters } => {
                self.take_counters(*time, *device, counters);
            }
            Record::Blocks(map) => {
                let taken = self.open_maps.iter().any(|(d, _)| *d == map.device);
                self.enter_tick(map.time, taken);
                self.open_maps.push((map.device, Seen::of(map)));
            }
            Record::Definition(definition) => self.define(definition),
            Record::Source(source) => {
                self.sources.insert(source.function, source.clone());
            }
            Record::Start(start) => self.start = Some(start.clone()),
            Record::Runtime(runtime) => {
                self.last_time = self.last_time.max(runtime.time);
                self.runtime = Some(runtime.clone());
            }
            Record::Device(device) => device.keep_in(&mut self.devices),
            Record::Usage(usage) => self.take_usage(usage),
            Record::Missed(missed) => {
                self.last_time = self.last_time.max(missed.time);
                self.losses.add(missed);
            }
            Record::End(end) => {
                self.finish();
                self.last_time = self.last_time.max(end.time);
                self.end = Some(end.clone());
            }
        }
        Ok(())
    }
}
