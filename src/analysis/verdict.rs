//! The verdict: what there is to say of the moment at which a condition came true, or a recording ended.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use super::device::Moment;
use super::fold::{FoldOptions, Folded};
use super::fragmentation::Fragmentation;
use super::profile::Profile;
use super::trigger::{OUT_OF_MEMORY, Watch};
use crate::model::{
    Activity, AllocatorCounters, Arena, BlockMap, BlockState, Change, Consistency, CudaIndex,
    DeviceUsage, Event, Events, HolderSnapshot, Nanos, Record, RecordSink, Sample, SiteId, StackId,
    ThreadId, Thrown, Triggered,
};

/// Upper ends of the classes of free blocks, in bytes.
const CLASSES: [u64; 5] = [1 << 20, 10 << 20, 100 << 20, 1 << 30, u64::MAX];
/// What was refused so long before the moment belongs to it, in nanoseconds.
const BELONGS: u64 = 2_000_000_000;
/// PyTorch asks the driver up to three times before it gives up: what lived is noted once.
const AGAIN: u64 = 200_000_000;
/// Refusals kept.
const MOST_REFUSED: usize = 64;

/// Everything about one moment; its stacks are in the numbers of [`Verdicts::profile`].
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The condition that came true; `None` when the recording only ended.
    pub trigger: Option<Triggered>,
    /// The moment.
    pub time: Nanos,
    /// The devices with PyTorch's memory.
    pub devices: Vec<VerdictDevice>,
    /// What the driver refused at that time, the latest first; of exact recordings only.
    pub refused: Vec<Asked>,
    /// The out-of-memory errors that were looked for at that time, in their order.
    pub thrown: Vec<Thrown>,
    /// Where threads stood at the looks around the moment, the earlier first; of sampled stacks.
    pub stood: Vec<Stood>,
    /// The last look at holders before.
    pub holders: Option<HolderSnapshot>,
    /// Whether the job ran out of memory.
    pub out_of_memory: bool,
}

/// An allocation that the driver refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// When.
    pub time: Nanos,
    /// Bytes asked for.
    pub size: u64,
    /// Of what.
    pub arena: Arena,
    /// Who asked.
    pub site: Option<SiteId>,
}

/// A thread at a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stood {
    /// When.
    pub time: Nanos,
    /// The thread.
    pub thread: ThreadId,
    /// Its stack.
    pub stack: StackId,
}

/// One device at the moment. Sizes in bytes; `None` is unknown.
#[derive(Debug, Clone)]
pub struct VerdictDevice {
    /// The device, as the job numbers it.
    pub device: CudaIndex,
    /// Product name.
    pub name: Option<String>,
    /// Memory of the device.
    pub total: Option<u64>,
    /// The allocator's counters.
    pub counters: Option<Box<AllocatorCounters>>,
    /// What the driver said of it last.
    pub usage: Option<DeviceUsage>,
    /// The last block map.
    pub cache: Option<Cache>,
    /// What lived, by stack; `None` without block map or events.
    pub live: Option<Folded>,
}

/// The allocator's cache by a block map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// When the map was read.
    pub time: Nanos,
    /// Whether it is one instant's truth.
    pub consistent: bool,
    /// How it is cut up.
    pub cut: Fragmentation,
    /// Free blocks by size.
    pub classes: Vec<FreeClass>,
}

/// Free blocks of similar size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeClass {
    /// Their size is at least this.
    pub from: u64,
    /// And less than this; `u64::MAX`: without limit.
    pub below: u64,
    /// How many.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Reads a recording and gives the verdict on the last moment at which a condition came true, else on its end.
#[derive(Debug, Default)]
pub struct Verdicts {
    profile: Profile,
    watch: Watch,
    only: bool,
    maps: BTreeMap<CudaIndex, BlockMap>,
    samples: VecDeque<Sample>,
    refused: VecDeque<Asked>,
    thrown: VecDeque<Thrown>,
    holders: Option<HolderSnapshot>,
    ooms: BTreeMap<CudaIndex, i64>,
    /// What lived when the driver last refused memory: freed again when its time is looked at.
    at_refusal: Option<(Nanos, Vec<VerdictDevice>)>,
    /// When an out-of-memory error was last seen.
    last_oom: Option<Nanos>,
    now: Nanos,
    /// When the recorder last saw a condition come true.
    recorded: Option<Nanos>,
    given: Option<Verdict>,
}

impl Verdicts {
    /// Reads into `profile`, which is empty, and judges the conditions that the recording waited for.
    pub fn new(profile: Profile) -> Verdicts {
        Verdicts { profile, ..Verdicts::default() }
    }

    /// Judges those of `watch` as well.
    pub fn also(self, watch: Watch) -> Verdicts {
        Verdicts { watch, ..self }
    }

    /// Judges those of `watch` and no others.
    pub fn only(self, watch: Watch) -> Verdicts {
        Verdicts { watch, only: true, ..self }
    }

    /// The profile of the whole recording.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The same, to be added to.
    pub fn profile_mut(&mut self) -> &mut Profile {
        &mut self.profile
    }

    /// The profile by itself.
    pub fn into_profile(self) -> Profile {
        self.profile
    }

    /// The verdict.
    pub fn verdict(&mut self) -> Verdict {
        match &self.given {
            Some(given) => given.clone(),
            None => self.at(None),
        }
    }

    fn at(&mut self, trigger: Option<Triggered>) -> Verdict {
        self.profile.finish();
        let time = trigger.as_ref().map_or(self.now, |trigger| trigger.time);
        let near = |then: Nanos| time.0.saturating_sub(then.0) <= BELONGS;
        let refused: Vec<Asked> =
            self.refused.iter().rev().filter(|asked| near(asked.time)).copied().collect();
        let mut devices: Vec<VerdictDevice> =
            self.profile.gpus().map(|device| self.device(device)).collect();
        // What failed has been unwound since.
        for then in self.at_refusal.iter().filter(|(at, _)| near(*at)).flat_map(|(_, all)| all) {
            if let Some(device) = devices.iter_mut().find(|now| now.device == then.device) {
                device.live.clone_from(&then.live);
            }
        }
        let out_of_memory = self.last_oom.is_some_and(near)
            || trigger.as_ref().is_some_and(|trigger| trigger.condition == "oom");
        Verdict {
            devices,
            thrown: self.thrown.iter().filter(|thrown| near(thrown.time)).cloned().collect(),
            stood: self.stood(time),
            holders: self.holders.clone(),
            refused,
            trigger,
            time,
            out_of_memory,
        }
    }

    fn device(&self, device: CudaIndex) -> VerdictDevice {
        let known = self.profile.devices().iter().find(|known| known.cuda_index == Some(device));
        let usage = known
            .and_then(|known| known.nvml_index)
            .and_then(|index| self.profile.usage().get(&index))
            .map(|usage| usage.last.clone());
        VerdictDevice {
            device,
            name: known.and_then(|known| known.name.clone()),
            total: usage.as_ref().map(|u| u.total).or(known.and_then(|known| known.total)),
            counters: self.profile.counters(device).map(|counters| Box::new(*counters)),
            usage,
            cache: self.maps.get(&device).map(cache),
            live: self.profile.fold(device, Moment::End, FoldOptions::default()).ok(),
        }
    }

    /// Where the threads at work stood at the last look before the moment and at the first one of it.
    fn stood(&self, time: Nanos) -> Vec<Stood> {
        let mut stood: Vec<Stood> = Vec::new();
        for sample in self.samples.iter().filter(|sample| near(sample.time, time)) {
            for entry in &sample.threads {
                let is_idle = entry.activity == Activity::Idle;
                let is_main = self
                    .profile
                    .stacks()
                    .get_thread(entry.thread)
                    .is_some_and(|thread| thread.main);
                if is_idle && !is_main {
                    continue;
                }
                let same = |s: &&mut Stood| s.thread == entry.thread && s.stack == entry.stack;
                if stood.iter_mut().find(same).is_none() {
                    let (thread, stack) = (entry.thread, entry.stack);
                    stood.push(Stood { time: sample.time, thread, stack });
                }
            }
        }
        stood
    }

    /// Takes events one refusal at a time, so that what lived at each is known.
    fn take_events(&mut self, events: &[Event]) -> io::Result<()> {
        let is_refused = |e: &Event| matches!(e.change, Change::Failed { code: OUT_OF_MEMORY, .. });
        for part in events.split_inclusive(is_refused) {
            self.profile.record(&Record::Events(Events { events: part.to_vec() }))?;
            let Some(last) = part.last().filter(|event| is_refused(event)) else { continue };
            self.refuse(last);
            let is_new = |(at, _): &(Nanos, _)| last.time.0.saturating_sub(at.0) >= AGAIN;
            if self.at_refusal.as_ref().is_none_or(is_new) {
                let devices = self.profile.gpus().map(|device| self.device(device)).collect();
                self.at_refusal = Some((last.time, devices));
            }
        }
        Ok(())
    }

    /// An error's words come some time after its count.
    fn take_thrown(&mut self, thrown: &Thrown) {
        if self.thrown.len() == MOST_REFUSED {
            self.thrown.pop_front();
        }
        self.thrown.push_back(thrown.clone());
        if let Some(given) = &mut self.given
            && near(thrown.time, given.time)
            && given.out_of_memory
        {
            given.thrown.push(thrown.clone());
        }
    }

    fn refuse(&mut self, event: &Event) {
        let Change::Failed { arena, size, .. } = event.change else { return };
        if self.refused.len() == MOST_REFUSED {
            self.refused.pop_front();
        }
        self.refused.push_back(Asked { time: event.time, size, arena, site: event.site });
    }
}

/// Looks further away say nothing of a moment.
fn near(look: Nanos, time: Nanos) -> bool {
    look.0.abs_diff(time.0) <= BELONGS
}

fn cache(map: &BlockMap) -> Cache {
    let mut classes: Vec<FreeClass> = Vec::new();
    let mut from = 0;
    for below in CLASSES {
        classes.push(FreeClass { from, below, blocks: 0, bytes: 0 });
        from = below;
    }
    for (_, block) in map.blocks().filter(|(_, block)| block.state == BlockState::Inactive) {
        if let Some(class) = classes.iter_mut().find(|class| block.size < class.below) {
            class.blocks += 1;
            class.bytes += block.size;
        }
    }
    classes.retain(|class| class.blocks > 0);
    Cache {
        time: map.time,
        consistent: map.consistency == Consistency::Consistent,
        cut: Fragmentation::of(map),
        classes,
    }
}

impl RecordSink for Verdicts {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        self.now = self.now.max(record.time().unwrap_or_default());
        match record {
            Record::Events(_) => {}
            other => self.profile.record(other)?,
        }
        match record {
            Record::Blocks(map) => {
                self.maps.insert(map.device, map.clone());
            }
            Record::Sample(sample) => {
                while self.samples.len() > 1 {
                    self.samples.pop_front();
                }
                self.samples.push_back(sample.clone());
            }
            Record::Counters { time, device, counters } => {
                let before = self.ooms.insert(*device, counters.num_ooms);
                if before.is_some_and(|before| counters.num_ooms > before) {
                    self.last_oom = Some(*time);
                }
            }
            Record::Events(batch) => self.take_events(&batch.events)?,
            Record::Thrown(thrown) => self.take_thrown(thrown),
            Record::Holders(snapshot) => self.holders = Some(snapshot.clone()),
            Record::Triggered(triggered) if !self.only => {
                self.recorded = Some(triggered.time);
                self.given = Some(self.at(Some(triggered.clone())));
            }
            _ => {}
        }
        // The recorder only counts what comes so shortly after another one.
        let counted = |recorded: Nanos| self.now.0.saturating_sub(recorded.0) < BELONGS;
        if let Some(triggered) = self.watch.take(record)
            && !self.recorded.is_some_and(counted)
        {
            self.given = Some(self.at(Some(triggered)));
        }
        Ok(())
    }
}
