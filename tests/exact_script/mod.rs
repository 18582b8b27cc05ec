//! A simulated PyTorch process whose every allocation is seen by probes, and the records of that.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use memspy::analysis::Profile;
use memspy::model::*;

use crate::analysis_script::{MIB, Script};

/// A [`Script`] with probes in place.
pub struct Probed {
    script: Script,
    pub exact: ExactSettings,
    batch: Vec<Event>,
    began: bool,
    /// Bytes of each living block's stack at the highest moment of device 0; `None`: before the
    /// recording.
    pub peak_truth: BTreeMap<Option<StackId>, u64>,
    pub peak_bytes: u64,
    sizes: BTreeMap<(u32, u64), (u64, Option<StackId>)>,
    held: BTreeMap<Option<StackId>, u64>,
    /// Bytes allocated in all on device 0.
    pub churn_truth: BTreeMap<Option<StackId>, u64>,
}

impl Deref for Probed {
    type Target = Script;
    fn deref(&self) -> &Script {
        &self.script
    }
}

impl DerefMut for Probed {
    fn deref_mut(&mut self) -> &mut Script {
        &mut self.script
    }
}

impl Probed {
    pub fn new() -> Probed {
        let mut script = Script::new(1000);
        script.thread("MainThread", true);
        script.gpus.entry(0).or_default();
        Probed {
            script,
            exact: ExactSettings {
                knows_backward: true,
                probes: vec!["pytorch:malloc".into(), "pytorch:free".into()],
                ..ExactSettings::default()
            },
            batch: Vec::new(),
            began: false,
            peak_truth: BTreeMap::new(),
            peak_bytes: 0,
            sizes: BTreeMap::new(),
            held: BTreeMap::new(),
            churn_truth: BTreeMap::new(),
        }
    }

    /// The probes are in place: what is recorded first.
    pub fn begin(&mut self) {
        self.began = true;
        self.script.start();
        self.script.now += 1_000_000;
        self.exact.time = Nanos(self.script.now);
        let exact = Record::ExactSettings(self.exact.clone());
        self.script.records.push(exact);
        self.poll();
        self.note_peak();
    }

    /// The probes are in place before the job has an allocator.
    pub fn begin_empty(&mut self) {
        self.began = true;
        self.script.gpus.clear();
        self.script.start();
        self.script.now += 1_000_000;
        self.exact.time = Nanos(self.script.now);
        self.exact.starts_empty = true;
        let runtime = TargetRuntime {
            time: Nanos(self.script.now),
            python: Some("3.12.1".into()),
            torch: Some("2.11.0+cu130".into()),
            allocator: AllocatorBackend::NotInitialized,
        };
        self.script.records.push(Record::Runtime(runtime));
        let exact = Record::ExactSettings(self.exact.clone());
        self.script.records.push(exact);
    }

    /// Thread `t` allocates where it stands, before the kernel knows where the counters are.
    pub fn malloc_early(&mut self, t: usize, device: u32, requested: u64) -> u64 {
        let address = self.malloc_unseen(t, device, requested);
        let site = self.site(t);
        self.tell_without_levels(device, address, requested, site);
        address
    }

    pub fn tell_without_levels(
        &mut self,
        device: u32,
        address: u64,
        size: u64,
        site: AllocationSite,
    ) {
        let site = self.script.table.site(site);
        let memory_kind = MemoryKind::Torch(CudaIndex(device));
        self.push(
            EventKind::Allocated { memory_kind, address, size, levels: None, block: None },
            Some(site),
        );
    }

    /// What is recorded once a second: counters and maps.
    pub fn poll(&mut self) {
        let devices: Vec<u32> = self.script.gpus.keys().copied().collect();
        for &device in &devices {
            self.counters(device);
        }
        for device in devices {
            let map = self.script.block_map(device);
            self.push_map(map);
        }
    }

    pub fn counters(&mut self, device: u32) {
        self.flush();
        let counters = Record::Counters {
            time: Nanos(self.script.now),
            device: CudaIndex(device),
            counters: Box::new(self.script.gpus[&device].counters),
        };
        self.script.records.push(counters);
    }

    pub fn push_map(&mut self, mut map: AllocatorSnapshot) {
        self.flush();
        map.time = Nanos(self.script.now);
        self.script.records.push(Record::Snapshot(map));
    }

    /// Takes the first map out of the recording.
    pub fn take_first_map(&mut self) -> AllocatorSnapshot {
        let is_map = |record: &Record| matches!(record, Record::Snapshot(_));
        let at = self.records.iter().position(is_map).unwrap();
        let Record::Snapshot(map) = self.records.remove(at) else { panic!("no map") };
        map
    }

    /// Delivers the events so far.
    pub fn flush(&mut self) {
        let from = self.script.records.len();
        self.script.define();
        let functions = self.script.records[from..].iter().filter_map(|record| match record {
            Record::Definition(Definition::Function(function, _)) => Some(*function),
            _ => None,
        });
        // Every line is a statement of its own.
        let source = |function| {
            let text = "pass\n".repeat(999).into();
            Record::Source(SourceText { function, first_line: 1, text })
        };
        let sources: Vec<Record> = functions.map(source).collect();
        self.script.records.extend(sources);
        if !self.batch.is_empty() {
            let events = std::mem::take(&mut self.batch);
            self.script.records.push(Record::Events(EventBatch { events }));
        }
    }

    pub fn push(&mut self, change: EventKind, site: Option<SiteId>) {
        self.script.now += 1000;
        self.batch.push(Event { time: Nanos(self.script.now), change, site });
    }

    pub fn levels(&self, device: u32) -> CounterSnapshot {
        let counters = &self.script.gpus[&device].counters;
        CounterSnapshot {
            allocated: counters.allocated(),
            peak: counters.max_allocated(),
            reserved: counters.reserved(),
            active: counters.stat(Metric::ActiveBytes, Pool::All).current,
        }
    }

    /// A site of thread `t` where it stands.
    pub fn site(&mut self, t: usize) -> AllocationSite {
        AllocationSite {
            thread: self.script.thread_id(t),
            stack: self.script.stack(t),
            source: StackSource::Own,
            truncated: false,
            node: None,
            forward: None,
            native: Default::default(),
        }
    }

    /// Thread `t` allocates where it stands.
    pub fn malloc(&mut self, t: usize, device: u32, requested: u64) -> u64 {
        let site = self.site(t);
        self.malloc_at(t, device, requested, site)
    }

    /// The stack of thread `t` allocates, told as `site`.
    pub fn malloc_at(
        &mut self,
        t: usize,
        device: u32,
        requested: u64,
        site: AllocationSite,
    ) -> u64 {
        let address = self.malloc_unseen(t, device, requested);
        if self.began {
            self.tell_malloc(device, address, requested, site);
        }
        address
    }

    pub fn tell_malloc(&mut self, device: u32, address: u64, size: u64, site: AllocationSite) {
        let site = self.script.table.site(site);
        let levels = Some(self.levels(device));
        let memory_kind = MemoryKind::Torch(CudaIndex(device));
        self.push(
            EventKind::Allocated { memory_kind, address, size, levels, block: None },
            Some(site),
        );
    }

    /// An allocation whose event is not told (lost, or from before).
    pub fn malloc_unseen(&mut self, t: usize, device: u32, requested: u64) -> u64 {
        let address = self.script.alloc(t, device, requested);
        if self.began {
            self.script.saw(t);
        }
        let size = self.script.gpus[&device].blocks[&address].0;
        let stack = self.script.owner[&(device, address)];
        let known = self.began.then_some(stack);
        self.sizes.insert((device, address), (size, known));
        if device == 0 {
            *self.held.entry(known).or_default() += size;
        }
        if self.began && device == 0 {
            *self.churn_truth.entry(Some(stack)).or_default() += size;
        }
        self.note_peak();
        address
    }

    fn note_peak(&mut self) {
        let current = self.script.gpus.get(&0).map_or(0, |g| g.counters.allocated()) as u64;
        if self.began && current > self.peak_bytes {
            self.peak_bytes = current;
            self.peak_truth = self.held();
        }
    }

    /// Bytes that each stack holds of device 0 now; `None`: from before the recording.
    pub fn held(&self) -> BTreeMap<Option<StackId>, u64> {
        self.held.iter().filter(|h| *h.1 > 0).map(|(&stack, &bytes)| (stack, bytes)).collect()
    }

    pub fn release(&mut self, device: u32, address: u64) {
        let site = None;
        self.tell_free(address, site);
        self.release_unseen(device, address);
    }

    /// Thread `t` frees where it stands, and its stack is told.
    pub fn release_by(&mut self, t: usize, device: u32, address: u64) {
        let site = self.site(t);
        let site = self.script.table.site(site);
        self.script.saw(t);
        self.tell_free(address, Some(site));
        self.release_unseen(device, address);
    }

    pub fn tell_free(&mut self, address: u64, site: Option<SiteId>) {
        if self.began && self.exact.frees != FreeTracking::Snapshots {
            self.push(
                EventKind::Freed { memory_kind: AddressSpace::Torch, address, in_backward: false },
                site,
            );
        }
    }

    pub fn release_unseen(&mut self, device: u32, address: u64) {
        self.script.free(device, address);
        let (size, stack) = self.sizes.remove(&(device, address)).unwrap();
        if device == 0 {
            *self.held.entry(stack).or_default() -= size;
        }
    }

    /// Events of other memory, or failures.
    pub fn tell(&mut self, t: usize, change: EventKind) {
        let site = self.site(t);
        let site = self.script.table.site(site);
        self.push(change, Some(site));
    }

    pub fn finish(&mut self) {
        self.flush();
        self.poll();
        self.script.totals.exact = Some(EventTotals::default());
        self.script.end();
    }

    /// What stacks hold, as [`folded`](crate::analysis_script::folded) has it.
    pub fn by_text(
        &self,
        profile: &Profile,
        held: &BTreeMap<Option<StackId>, u64>,
    ) -> BTreeMap<String, u64> {
        let mut truth = BTreeMap::new();
        for (stack, bytes) in held {
            let text = match stack {
                None => "[before recording]".to_owned(),
                Some(stack) => stack_text(profile, *stack),
            };
            *truth.entry(text).or_default() += bytes;
        }
        truth
    }
}

pub fn stack_text(profile: &Profile, stack: StackId) -> String {
    let mut frames: Vec<memspy::analysis::StackLabel> =
        profile.stacks().frames(stack).map(memspy::analysis::StackLabel::Frame).collect();
    frames.reverse();
    crate::analysis_script::text(profile, &frames)
}

/// Records with 300 MiB from before, 64 MiB of `forward` and 32 MiB of `train`; the 64 MiB are
/// freed at the end.
pub fn two_lines() -> Vec<Record> {
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.malloc(0, 0, 300 * MIB);
    s.begin();
    s.enter(0, "forward", 20);
    let activation = s.malloc(0, 0, 64 * MIB);
    s.leave(0);
    s.line(0, 11);
    s.malloc(0, 0, 32 * MIB);
    s.release(0, activation);
    s.finish();
    std::mem::take(&mut s.script.records)
}
