//! A simulated PyTorch process with exact truth, and the records that memspy would see of it.
#![allow(dead_code, unreachable_pub, missing_docs, clippy::unwrap_used)]

pub mod live_job;

use std::collections::BTreeMap;

use memspy::analysis::{Profile, flame};
use memspy::model::*;

pub const MIB: u64 = 1 << 20;

/// A snapshot of the owners of GPU 0: category, name and MiB of each; beside them 4 MiB in no
/// tensor, and 2 MiB of rounding.
pub fn owners(time: u64, held: &[(TensorCategory, &str, u64)]) -> Record {
    let sum: u64 = held.iter().map(|(_, _, mib)| mib).sum();
    let owned = |&(category, owner, mib): &(TensorCategory, &str, u64)| OwnedStorages {
        category,
        owner: owner.into(),
        bytes: mib * MIB,
        count: 1,
    };
    let device = DeviceOwners {
        device: CudaIndex(0),
        allocated: (sum + 6) * MIB,
        rounding: 2 * MIB,
        without_tensor: 4 * MIB,
        results: None,
        held: held.iter().map(owned).collect(),
    };
    Record::Ownership(OwnershipBreakdown {
        time: Nanos(time),
        pause: None,
        devices: vec![device],
        age: Nanos(0),
        unnamed_blocks: Vec::new(),
        blocks: Vec::new(),
        retained: Vec::new(),
    })
}

/// Everything the allocator does, one device.
#[derive(Default)]
pub struct Gpu {
    pub counters: AllocatorCounters,
    pub blocks: BTreeMap<u64, (u64, u64)>,
    free: BTreeMap<u64, Vec<u64>>,
    next: u64,
    recorded: Option<AllocatorCounters>,
}

/// A frame on a simulated stack.
struct Live {
    function: FunctionId,
    line: u32,
    /// Greatest allocated bytes since the line came on the stack.
    peak: i64,
    seen: bool,
    /// The module that the function calls.
    module: Option<FunctionId>,
}

pub struct Thread {
    id: ThreadId,
    frames: Vec<Live>,
    pub activity: ThreadActivity,
}

/// The process and its recorder.
pub struct Script {
    pub table: StackTable,
    pub records: Vec<Record>,
    pub now: u64,
    pub period: u64,
    pub gpus: BTreeMap<u32, Gpu>,
    pub threads: Vec<Thread>,
    /// Greatest allocated bytes of GPU 0 while (function, line) was on a stack, of executions seen.
    pub truth: BTreeMap<(FunctionId, u32), i64>,
    /// The same of all executions.
    pub truth_all: BTreeMap<(FunctionId, u32), i64>,
    /// Who allocated each living block: device, address → stack.
    pub owner: BTreeMap<(u32, u64), StackId>,
    started: bool,
    /// Bytes that blocks are larger than what was asked for, rounded.
    pub unsplit: u64,
    pub totals: RecordingTotals,
}

impl Script {
    /// A job whose first 40 MiB, of `train`, are allocated between the first two looks, each with a
    /// map.
    pub fn with_first_allocation() -> Script {
        let mut s = Script::new(100);
        s.thread("MainThread", true);
        s.gpus.entry(0).or_default();
        s.enter(0, "train", 10);
        s.start();
        s.tick();
        s.map(0);
        s.alloc(0, 0, 40 * MIB);
        s.tick();
        s.map(0);
        s
    }

    pub fn new(rate: u32) -> Script {
        let mut script = Script {
            table: StackTable::new(),
            records: Vec::new(),
            now: 0,
            period: 1_000_000_000 / u64::from(rate),
            gpus: BTreeMap::new(),
            threads: Vec::new(),
            truth: BTreeMap::new(),
            truth_all: BTreeMap::new(),
            owner: BTreeMap::new(),
            started: false,
            unsplit: 0,
            totals: RecordingTotals::default(),
        };
        script.records.push(Record::Start(RecordingStart {
            memspy: "0.1.0".into(),
            pid: 42,
            host: "box".into(),
            command: vec!["python".into(), "train.py".into()],
            directory: Some("/home/me/job".into()),
            unix_nanos: 0,
            rate,
            rank: None,
        }));
        script
    }

    pub fn thread(&mut self, name: &str, main: bool) -> usize {
        let id = self.table.thread(memspy::model::Thread {
            os_id: Some(100 + self.threads.len() as u64),
            python_id: 0x7000 + self.threads.len() as u64,
            name: Some(name.into()),
            main,
        });
        self.threads.push(Thread { id, frames: Vec::new(), activity: ThreadActivity::Active });
        self.threads.len() - 1
    }

    pub fn function(&mut self, name: &str, file: &str) -> FunctionId {
        self.table.function(Function {
            name: name.into(),
            file: file.into(),
            first_line: 1,
            last_line: 99,
            is_native: false,
        })
    }

    fn current(&self) -> i64 {
        self.gpus.get(&0).map_or(0, |g| g.counters.allocated())
    }

    /// Thread `t` calls a function, whose first line executed is `line`.
    pub fn enter(&mut self, t: usize, name: &str, line: u32) {
        self.enter_in(t, name, "/home/me/job/train.py", line);
    }

    pub fn enter_in(&mut self, t: usize, name: &str, file: &str, line: u32) {
        let function = self.function(name, file);
        let peak = self.current();
        self.threads[t].frames.push(Live { function, line, peak, seen: false, module: None });
    }

    /// Thread `t` calls a `torch.nn.Module`; without a path its name is not known.
    pub fn enter_module(&mut self, t: usize, path: Option<&str>) {
        const FILE: &str = "/v/lib/python3.12/site-packages/torch/nn/modules/module.py";
        self.enter_in(t, "Module._wrapped_call_impl", FILE, 1751);
        let module = path.map(|path| self.table.module_name(path));
        self.threads[t].frames.last_mut().unwrap().module = module;
    }

    /// Thread `t` goes on to another line of its innermost function.
    pub fn line(&mut self, t: usize, line: u32) {
        let frame = self.threads[t].frames.pop().unwrap();
        let function = frame.function;
        self.commit(&frame);
        let (peak, module) = (self.current(), frame.module);
        self.threads[t].frames.push(Live { function, line, peak, seen: false, module });
    }

    pub fn leave(&mut self, t: usize) {
        let frame = self.threads[t].frames.pop().unwrap();
        self.commit(&frame);
    }

    fn commit(&mut self, frame: &Live) {
        if !self.started {
            return;
        }
        let key = (frame.function, frame.line);
        let all = self.truth_all.entry(key).or_insert(frame.peak);
        *all = (*all).max(frame.peak);
        if frame.seen {
            let seen = self.truth.entry(key).or_insert(frame.peak);
            *seen = (*seen).max(frame.peak);
        }
    }

    pub fn stack(&mut self, t: usize) -> Option<StackId> {
        let mut stack = None;
        for i in 0..self.threads[t].frames.len() {
            let (function, line, module) = {
                let f = &self.threads[t].frames[i];
                (f.function, f.line, f.module)
            };
            let frame = self.table.frame(Frame { function, line });
            stack = Some(self.table.node(StackNode { parent: stack, frame, module }));
        }
        stack
    }

    /// Thread `t` allocates; returns the address.
    pub fn alloc(&mut self, t: usize, device: u32, requested: u64) -> u64 {
        let stack = self.stack(t).unwrap();
        let size = requested.div_ceil(512) * 512 + self.unsplit;
        let gpu = self.gpus.entry(device).or_default();
        let address = gpu.free.get_mut(&size).and_then(Vec::pop);
        let address = address.unwrap_or_else(|| {
            // Addresses differ between devices too.
            gpu.next = (gpu.next + (1 << 32)) | (u64::from(device) << 56);
            grow(&mut gpu.counters, Metric::ReservedBytes, size, size);
            grow(&mut gpu.counters, Metric::Segment, size, 1);
            gpu.next
        });
        gpu.blocks.insert(address, (size, requested));
        for (metric, by) in [
            (Metric::Allocation, 1),
            (Metric::Active, 1),
            (Metric::AllocatedBytes, size),
            (Metric::ActiveBytes, size),
            (Metric::RequestedBytes, requested),
        ] {
            grow(&mut gpu.counters, metric, size, by);
        }
        self.owner.insert((device, address), stack);
        if device == 0 {
            let current = self.current();
            for frame in self.threads.iter_mut().flat_map(|t| &mut t.frames) {
                frame.peak = frame.peak.max(current);
            }
        }
        address
    }

    pub fn free(&mut self, device: u32, address: u64) {
        let gpu = self.gpus.get_mut(&device).unwrap();
        let (size, requested) = gpu.blocks.remove(&address).unwrap();
        gpu.free.entry(size).or_default().push(address);
        for (metric, by) in [
            (Metric::Allocation, 1),
            (Metric::Active, 1),
            (Metric::AllocatedBytes, size),
            (Metric::ActiveBytes, size),
            (Metric::RequestedBytes, requested),
        ] {
            for pool in pools_of(size) {
                let stat = &mut gpu.counters.stats[metric as usize][pool as usize];
                stat.current -= by as i64;
                stat.freed += by as i64;
            }
        }
        self.owner.remove(&(device, address));
    }

    pub fn reset_peak(&mut self, device: u32) {
        for stat in self.gpus.get_mut(&device).unwrap().counters.stats.iter_mut().flatten() {
            stat.peak = stat.current;
        }
    }

    pub fn reset_accumulated(&mut self, device: u32) {
        for stat in self.gpus.get_mut(&device).unwrap().counters.stats.iter_mut().flatten() {
            (stat.allocated, stat.freed) = (0, 0);
        }
    }

    /// Writes the definitions made so far.
    pub fn define(&mut self) {
        let definitions = self.table.take_definitions();
        self.records.extend(definitions.into_iter().map(Record::Definition));
    }

    pub fn thread_id(&self, t: usize) -> ThreadId {
        self.threads[t].id
    }

    /// The stack of thread `t` is seen as it stands.
    pub fn saw(&mut self, t: usize) {
        self.threads[t].frames.iter_mut().for_each(|f| f.seen = true);
    }

    /// The recording begins: what was reached before does not count.
    pub fn start(&mut self) {
        if !self.started {
            self.started = true;
            let current = self.current();
            for frame in self.threads.iter_mut().flat_map(|t| &mut t.frames) {
                frame.peak = current;
            }
        }
    }

    /// memspy looks at the process, one period after the last look.
    pub fn tick(&mut self) {
        self.now += self.period;
        self.start();
        let mut threads = Vec::new();
        for t in 0..self.threads.len() {
            if let Some(stack) = self.stack(t) {
                threads.push(ThreadSample {
                    thread: self.threads[t].id,
                    stack,
                    gil: false,
                    activity: self.threads[t].activity,
                });
                self.saw(t);
            }
        }
        self.define();
        self.totals.ticks += 1;
        let time = Nanos(self.now);
        self.records.push(Record::Sample(StackSample { time, threads }));
        for (&device, gpu) in &mut self.gpus {
            if gpu.recorded != Some(gpu.counters) {
                gpu.recorded = Some(gpu.counters);
                self.records.push(Record::Counters {
                    time: Nanos(self.now + 1000),
                    device: CudaIndex(device),
                    counters: Box::new(gpu.counters),
                });
            }
        }
    }

    pub fn block_map(&self, device: u32) -> AllocatorSnapshot {
        let gpu = &self.gpus[&device];
        AllocatorSnapshot {
            time: Nanos(self.now + 2000),
            device: CudaIndex(device),
            retries: 0,
            consistency: SnapshotConsistency::Consistent,
            segments: gpu
                .blocks
                .iter()
                .map(|(&address, &(size, requested))| Segment {
                    address,
                    size,
                    stream: 0,
                    small: size <= MIB,
                    expandable: false,
                    granule: 0,
                    retired: false,
                    pool: PoolId(0, 0),
                    blocks: vec![Block { address, size, requested, state: BlockState::Allocated }],
                })
                .collect(),
        }
    }

    pub fn map(&mut self, device: u32) {
        let map = self.block_map(device);
        self.totals.snapshots_consistent += 1;
        self.records.push(Record::Snapshot(map));
    }

    pub fn end(&mut self) {
        self.now += self.period;
        for t in 0..self.threads.len() {
            while let Some(frame) = self.threads[t].frames.pop() {
                self.commit(&frame);
            }
        }
        self.records.push(Record::End(RecordingEnd {
            time: Nanos(self.now),
            reason: EndReason::Duration,
            totals: self.totals,
        }));
    }

    pub fn profile(&self) -> Profile {
        let mut profile = Profile::new();
        for record in &self.records {
            profile.record(record).unwrap();
        }
        profile
    }
}

fn pools_of(size: u64) -> [Pool; 2] {
    [Pool::All, if size <= MIB { Pool::Small } else { Pool::Large }]
}

fn grow(counters: &mut AllocatorCounters, metric: Metric, size: u64, by: u64) {
    for pool in pools_of(size) {
        let stat = &mut counters.stats[metric as usize][pool as usize];
        stat.current += by as i64;
        stat.allocated += by as i64;
        stat.peak = stat.peak.max(stat.current);
    }
}

/// A folded path as text: `f:10>g:3`, marks as they print, threads as `thread NAME`.
pub fn text(profile: &Profile, path: &[memspy::analysis::StackLabel]) -> String {
    use memspy::analysis::StackLabel;
    let stacks = profile.stacks();
    let node = |site| stacks.get_site(site).unwrap().node.as_deref().unwrap().to_owned();
    let one = |label: &StackLabel| match *label {
        StackLabel::Frame(f) => {
            format!("{}:{}", stacks.get_function(f.function).unwrap().name, f.line)
        }
        StackLabel::Native(f) => stacks.get_function(f.function).unwrap().name.to_string(),
        StackLabel::Pseudo(mark) => mark.text().to_owned(),
        StackLabel::Owner(owner) => stacks.owners.text(owner).unwrap().to_owned(),
        StackLabel::Node(site) => node(site),
        StackLabel::Module(name) => profile.stacks().get_function(name).unwrap().name.to_string(),
        StackLabel::NodeOfUnknownLine(site) => format!("{} (forward line unknown)", node(site)),
        StackLabel::Thread(t) => {
            let name = stacks.get_thread(t).unwrap().name.clone();
            format!("thread {}", name.as_deref().unwrap_or("?"))
        }
    };
    path.iter().map(one).collect::<Vec<_>>().join(">")
}

/// A fold as a map from text to bytes.
pub fn folded(
    profile: &Profile,
    device: u32,
    moment: memspy::analysis::Moment,
) -> BTreeMap<String, u64> {
    let fold = flame::fold(profile, CudaIndex(device), moment, Default::default()).unwrap();
    let sum: u64 = fold.stacks.iter().map(|s| s.bytes).sum();
    assert_eq!(sum, fold.total, "the stacks add up to the total");
    fold.stacks.iter().map(|s| (text(profile, &s.path), s.bytes)).collect()
}
