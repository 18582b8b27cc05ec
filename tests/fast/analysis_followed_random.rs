//! Proven bytes of a followed recording are right, whatever the job does: random jobs of several
//! threads, whose deltas are seen late, several at once, and with requested bytes one delta later.

use std::collections::{BTreeMap, HashMap};

use crate::trace_support::Dice;
use memspy::analysis::{Evidence, FoldOptions, FoldedProfile, Moment, Profile, StackLabel, flame};
use memspy::model::{
    AddressedBlock, AllocatorCounters, AllocatorSnapshot, Block, BlockState, CounterDelta,
    CudaIndex, Definition, FollowedAddresses, FollowedChange, FollowedChanges, FollowedThread,
    Frame, FrameId, Function, FunctionId, Metric, Nanos, Pool, PoolId, Record, RecordSink, Segment,
    SnapshotConsistency, StackId, StackNode, StackReading, Thread, ThreadId,
};

const GPU: CudaIndex = CudaIndex(0);
const MIB: u64 = 1 << 20;
const STACKS: u64 = 4;
const THREADS: u64 = 2;

/// An allocation, or a free of the block at an address.
#[derive(Clone, Copy)]
enum Act {
    Allocate { mib: u64 },
    Free { at: u64 },
}

/// A block of the made-up allocator.
struct Living {
    mib: u64,
    stack: u32,
    /// Among all blocks.
    number: u64,
}

pub struct Job {
    pub dice: Dice,
    profile: Profile,
    /// Given to the profile.
    pub records: Vec<Record>,
    now: u64,
    live: HashMap<u64, Living>,
    /// Freed addresses by size: they are used again first.
    free: HashMap<u64, Vec<u64>>,
    /// MiB by address, freed since the last snapshot.
    freed: BTreeMap<u64, u64>,
    /// The highest level.
    pub peak: u64,
    next: u64,
    /// Requested bytes that come with the next delta.
    untold: i64,
    /// Blocks so far.
    numbers: u64,
    /// After how many of twelve deltas the addresses are read; their last state, and the deltas
    /// since.
    readings: u64,
    /// A read may miss a block just allocated, which the next one has.
    is_torn: bool,
    read: BTreeMap<u64, u64>,
    unread: u32,
    /// MiB by function after each delta.
    course: Vec<(u64, HashMap<String, u64>)>,
}

impl Job {
    pub fn new(seed: u64, readings: u64, is_torn: bool) -> Job {
        let mut job = Job {
            dice: Dice(seed),
            profile: Profile::new(),
            records: vec![crate::trace_support::Loop::start()],
            now: 0,
            live: HashMap::new(),
            free: HashMap::new(),
            freed: BTreeMap::new(),
            peak: 0,
            next: 0,
            untold: 0,
            numbers: 0,
            readings,
            is_torn,
            read: BTreeMap::new(),
            unread: 0,
            course: Vec::new(),
        };
        for id in 0..STACKS as u32 {
            let function = Function {
                name: format!("f{id}").into(),
                file: "a.py".into(),
                first_line: 1,
                last_line: 9,
                is_native: false,
            };
            job.take(Definition::Function(FunctionId(id), function));
            job.take(Definition::Frame(FrameId(id), Frame { function: FunctionId(id), line: 2 }));
            job.take(Definition::Stack(
                StackId(id),
                StackNode { parent: None, frame: FrameId(id), module: None },
            ));
        }
        for id in 0..THREADS as u32 {
            let thread = Thread { os_id: None, python_id: id.into(), name: None, main: id == 0 };
            job.take(Definition::Thread(ThreadId(id), thread));
        }
        job.map();
        job
    }

    fn take(&mut self, definition: Definition) {
        self.record(Record::Definition(definition));
    }

    fn record(&mut self, record: Record) {
        self.profile.record(&record).unwrap();
        self.records.push(record);
    }

    fn live_bytes(&self) -> u64 {
        self.live.values().map(|block| block.mib * MIB).sum()
    }

    /// The allocator's counters are read.
    pub fn counters(&mut self) {
        self.now += 100_000;
        let mut counters = AllocatorCounters::default();
        let allocated = &mut counters.stats[Metric::AllocatedBytes as usize];
        for pool in [Pool::All, Pool::Large] {
            allocated[pool as usize].current = self.live_bytes() as i64;
            allocated[pool as usize].peak = self.peak as i64;
        }
        let (time, counters) = (Nanos(self.now), Box::new(counters));
        self.record(Record::Counters { time, device: GPU, counters });
    }

    pub fn map(&mut self) {
        let live = self.live.iter().map(|(&at, block)| (at, block.mib)).collect();
        self.map_of(live, SnapshotConsistency::Consistent);
    }

    /// A snapshot read while the job changed it: with blocks already gone, and without some that
    /// exist.
    pub fn torn_map(&mut self) {
        let mut live: Vec<(u64, u64)> =
            self.live.iter().map(|(at, block)| (*at, block.mib)).collect();
        live.sort_unstable();
        live.retain(|_| self.dice.roll(8) > 0);
        let is_gone = |(at, _): &(u64, u64)| !self.live.contains_key(at);
        live.extend(self.freed.iter().map(|(at, mib)| (*at, *mib)).filter(is_gone));
        let allocated_in_blocks = live.iter().map(|(_, mib)| mib * MIB).sum();
        let allocated_counter = self.live_bytes();
        self.map_of(live, SnapshotConsistency::Degraded { allocated_in_blocks, allocated_counter });
    }

    fn map_of(&mut self, blocks: Vec<(u64, u64)>, consistency: SnapshotConsistency) {
        self.now += 1_000_000;
        self.freed.clear();
        let block = |(at, mib): (u64, u64)| Block {
            address: (1 << 40) + at * MIB,
            size: mib * MIB,
            requested: mib * MIB,
            state: BlockState::Allocated,
        };
        let mut blocks: Vec<Block> = blocks.into_iter().map(block).collect();
        blocks.sort_by_key(|block| block.address);
        let segment = Segment {
            address: 1 << 40,
            size: 1 << 38,
            stream: 0,
            small: false,
            expandable: false,
            granule: 0,
            retired: false,
            pool: PoolId(0, 0),
            blocks,
        };
        let snapshot = AllocatorSnapshot {
            time: Nanos(self.now),
            device: GPU,
            retries: 0,
            consistency,
            segments: vec![segment],
        };
        self.record(Record::Snapshot(snapshot));
    }

    fn act(&mut self, stack: u32, delta: &mut CounterDelta) {
        let addresses: Vec<u64> = {
            let mut addresses: Vec<u64> = self.live.keys().copied().collect();
            addresses.sort_unstable();
            addresses
        };
        let many = addresses.len() as u64;
        let act = if many > 0 && self.dice.roll(12) < many.min(8) {
            Act::Free { at: addresses[self.dice.roll(many) as usize] }
        } else {
            Act::Allocate { mib: 2 << self.dice.roll(3) }
        };
        match act {
            Act::Allocate { mib } => {
                let at = self.free.get_mut(&mib).and_then(Vec::pop).unwrap_or_else(|| {
                    self.next += mib;
                    self.next - mib
                });
                self.numbers += 1;
                self.live.insert(at, Living { mib, stack, number: self.numbers });
                self.peak = self.peak.max(self.live_bytes());
                delta.allocations += 1;
                delta.allocated_bytes += (mib * MIB) as i64;
                delta.requested_bytes += (mib * MIB) as i64;
            }
            Act::Free { at } => {
                let block = self.live.remove(&at).unwrap();
                self.freed.insert(at, block.mib);
                self.free.entry(block.mib).or_default().push(at);
                delta.frees += 1;
                delta.freed_bytes += (block.mib * MIB) as i64;
                delta.freed_requested_bytes += (block.mib * MIB) as i64;
            }
        }
    }

    /// One delta, as two polls see it.
    pub fn change(&mut self, together: u64) {
        let mut delta = CounterDelta::default();
        let stacks: Vec<u32> = (0..together).map(|_| self.dice.roll(STACKS) as u32).collect();
        for &stack in &stacks {
            self.act(stack, &mut delta);
        }
        delta.freed_requested_bytes += std::mem::take(&mut self.untold);
        if delta.frees > 0 && self.dice.roll(4) == 0 {
            self.untold = delta.freed_requested_bytes;
            delta.freed_requested_bytes = 0;
        }
        // A poll sees the thread at the allocation, before or after it.
        let (first, last) = (stacks[0], stacks[stacks.len() - 1]);
        let is_late = |job: &mut Job| job.dice.roll(3) == 0;
        let before = if is_late(self) { self.dice.roll(STACKS) as u32 } else { first };
        let after = if is_late(self) { self.dice.roll(STACKS) as u32 } else { last };
        // Going elsewhere, allocating there and coming back takes longer than 20 µs.
        let went = stacks.iter().any(|&stack| stack != before || stack != after);
        let apart = if went { 20_001 + self.dice.roll(100_000) } else { self.dice.roll(20_000) };
        let whole = |stack| StackReading::Whole(StackId(stack));
        let thread = |id, before, after| FollowedThread {
            thread: ThreadId(id),
            before,
            after,
            held_lock: false,
            wait: Default::default(),
        };
        let mut threads = vec![thread(0, whole(before), whole(after))];
        if self.dice.roll(3) == 0 {
            let other = self.dice.roll(STACKS) as u32;
            threads.push(thread(1, whole(other), whole(other)));
        }
        self.now += apart + self.dice.roll(200_000);
        let bytes = self.live_bytes();
        let change = FollowedChange {
            before: Nanos(self.now - apart),
            after: Nanos(self.now),
            device: GPU,
            small: CounterDelta::default(),
            large: delta,
            live: [0, bytes as i64],
            threads,
            others_possible: self.dice.roll(10) == 0,
            counters_torn: false,
            totals_reset: false,
            addresses: self.addresses().map(Box::new),
        };
        let batch = FollowedChanges { changes: vec![change] };
        self.record(Record::Followed(batch));
        self.course.push((self.now, self.truth()));
    }

    /// MiB by function.
    fn truth(&self) -> HashMap<String, u64> {
        let mut truth: HashMap<String, u64> = HashMap::new();
        for block in self.live.values() {
            *truth.entry(format!("f{}", block.stack)).or_default() += block.mib;
        }
        truth
    }

    /// The address tables after a delta, if read then. An address freed and allocated again shows
    /// only if they were read in between, too.
    fn addresses(&mut self) -> Option<FollowedAddresses> {
        self.unread += 1;
        // A job without addresses draws the same numbers.
        let (is_read, in_between) = (self.dice.roll(12), self.dice.roll(2) == 0);
        if is_read >= self.readings {
            return None;
        }
        let mut now: BTreeMap<u64, u64> = self.live.iter().map(|(at, b)| (*at, b.number)).collect();
        if self.is_torn && self.dice.roll(4) == 0 {
            let new = now.keys().find(|at| !self.read.contains_key(at)).copied();
            new.and_then(|at| now.remove(&at));
        }
        let before = std::mem::replace(&mut self.read, now);
        let is_same = |of: &BTreeMap<u64, u64>, at: &u64, number: &u64| match in_between {
            true => of.get(at) == Some(number),
            false => of.contains_key(at),
        };
        let address = |at: &u64| (1 << 40) + at * MIB;
        let allocated = self.read.iter().filter(|(at, number)| !is_same(&before, at, number));
        let block = |(at, _): (&u64, &u64)| {
            let size = self.live[at].mib * MIB;
            AddressedBlock { address: address(at), size, requested: size }
        };
        let freed = before.iter().filter(|(at, number)| !is_same(&self.read, at, number));
        Some(FollowedAddresses {
            changes: std::mem::take(&mut self.unread),
            allocated: allocated.map(block).collect(),
            freed: freed.map(|(at, _)| address(at)).collect(),
        })
    }

    /// MiB by function, in the profile.
    fn folded(&mut self, certain: bool) -> HashMap<String, u64> {
        self.folded_at(Moment::End, certain).1
    }

    fn folded_at(
        &mut self,
        moment: Moment,
        certain: bool,
    ) -> (FoldedProfile, HashMap<String, u64>) {
        self.profile.finish();
        let evidence = certain.then_some(Evidence::Proven);
        let options = FoldOptions { evidence, ..FoldOptions::default() };
        let folded = flame::fold(&self.profile, GPU, moment, options).unwrap();
        let mut mib: HashMap<String, u64> = HashMap::new();
        for stack in &folded.stacks {
            let name = match stack.path.last().unwrap() {
                StackLabel::Frame(frame) => {
                    let stacks = self.profile.stacks();
                    stacks.get_function(frame.function).unwrap().name.to_string()
                }
                other => format!("{other:?}"),
            };
            *mib.entry(name).or_default() += stack.bytes / MIB;
        }
        (folded, mib)
    }

    /// Checks the peak, which may be between two snapshots.
    fn check_peak(&mut self, found: &mut Found) {
        let (folded, told) = self.folded_at(Moment::Peak, false);
        let certain = self.folded_at(Moment::Peak, true).1;
        let until = self.course.partition_point(|(at, _)| *at <= folded.snapshot.time.0);
        let empty = HashMap::new();
        let truth = until.checked_sub(1).map_or(&empty, |last| &self.course[last].1);
        let true_mib = |name: &String| truth.get(name).copied().unwrap_or(0);
        for (name, mib) in &certain {
            assert!(
                *mib <= true_mib(name),
                "at the peak {certain:?} is called certain, of {truth:?}"
            );
        }
        let sum = |mib: &HashMap<String, u64>| mib.values().sum::<u64>();
        assert_eq!(folded.total, sum(truth) * MIB, "{told:?}, {truth:?}");
        let highest = self.course.iter().map(|(_, truth)| sum(truth)).max().unwrap_or(0);
        found.highest += highest;
        found.drawn += sum(truth);
        found.right_at_peak +=
            told.iter().map(|(name, mib)| *mib.min(&true_mib(name))).sum::<u64>();
    }
}

/// MiB of random jobs.
#[derive(Debug, Default)]
struct Found {
    all: u64,
    right: u64,
    certain: u64,
    /// The true peak, the drawn bytes, and the right ones of these.
    highest: u64,
    drawn: u64,
    right_at_peak: u64,
}

/// How many of twelve deltas have addresses after them, and whether these may lack a block.
const KINDS: [(u64, bool); 7] =
    [(0, false), (4, false), (8, false), (12, false), (4, true), (8, true), (12, true)];

/// No byte of a random job may be proven and wrong.
fn check_job(seed: u64, (readings, is_torn): (u64, bool), found: &mut Found) {
    let mut job = Job::new(seed, readings, is_torn);
    let lost = job.dice.roll(4);
    for _ in 0..6 {
        for _ in 0..1 + job.dice.roll(8) {
            let together = if job.dice.roll(4) < lost { 1 + job.dice.roll(3) } else { 1 };
            job.change(together);
        }
        job.map();
        let truth = job.truth();
        let true_mib = |name: &String| truth.get(name).copied().unwrap_or(0);
        let certain = job.folded(true);
        for (name, mib) in &certain {
            assert!(
                *mib <= true_mib(name),
                "seed {seed}, {readings} readings, torn: {is_torn}: {mib} MiB of {name} are called certain, of {}: {truth:?}, {certain:?}",
                true_mib(name)
            );
        }
        found.certain += certain.values().sum::<u64>();
        found.all += truth.values().sum::<u64>();
        let told = job.folded(false);
        assert!(told.values().sum::<u64>() <= truth.values().sum::<u64>());
        found.right += told.iter().map(|(name, mib)| *mib.min(&true_mib(name))).sum::<u64>();
    }
    job.check_peak(found);
}

fn check(readings: u64, is_torn: bool) -> Found {
    let mut found = Found::default();
    (0..400).for_each(|seed| check_job(seed, (readings, is_torn), &mut found));
    eprintln!("{readings} readings: {found:?}");
    // With addresses peaks are drawn, and are as right as snapshots.
    assert!(readings < 8 || found.drawn * 100 > found.highest * 95, "{found:?}");
    assert!(found.right_at_peak * found.all * 20 > found.right * found.drawn * 19, "{found:?}");
    found
}

/// In these jobs a byte was proven and wrong once.
#[test]
fn seeds_that_were_wrong_are_right() {
    for seed in [235, 500, 994, 1823, 3308, 16783] {
        KINDS.into_iter().for_each(|kind| check_job(seed, kind, &mut Found::default()));
    }
}

#[test]
#[ignore = "minutes: cargo test --release --test fast random -- --ignored"]
fn no_seed_of_20_000_is_proven_wrong() {
    for kind in KINDS {
        let mut found = Found::default();
        (0..20_000).for_each(|seed| check_job(seed, kind, &mut found));
        eprintln!("{kind:?}: {found:?}");
    }
}

#[test]
fn what_is_certain_is_so_whatever_the_job_does() {
    let found = check(0, false);
    // A test without proven bytes would find nothing.
    assert!(found.certain * 50 > found.all, "{found:?}");
}

/// Addresses are read after each delta, after most, and after some; and by reads that miss blocks.
#[test]
fn addresses_tell_more_and_what_is_certain_stays_so() {
    let without = check(0, false);
    let [_, most, each] = [4, 8, 12].map(|readings| check(readings, false));
    assert!(most.certain > without.certain, "{most:?}, {without:?}");
    let torn = [4, 8, 12].map(|readings| check(readings, true));
    assert!(torn[2].certain > without.certain, "{torn:?}");
    assert!(each.certain > 2 * without.certain, "{each:?}, {without:?}");
}
