//! Attribution of counter deltas: a made-up recording for each rule.

#![allow(unreachable_pub, reason = "modules of a test binary")]

use memspy::analysis::{
    Evidence, FoldError, FoldOptions, FoldedProfile, Moment, Profile, TimeResolution, flame,
};
use memspy::model::{
    AllocatorSnapshot, Block, BlockState, CounterDelta, CudaIndex, Definition, FollowedAddresses,
    FollowedChange, FollowedChanges, FollowedThread, Frame, FrameId, Function, FunctionId, Nanos,
    PoolId, Record, RecordSink, Segment, SnapshotConsistency, StackId, StackNode, StackReading,
    Thread, ThreadId,
};

const GPU: CudaIndex = CudaIndex(0);
pub(crate) const MIB: u64 = 1 << 20;

/// Stacks: 0 and 1 of the program; in 2 Python waits for the autograd engine.
pub(crate) struct Script {
    records: Vec<Record>,
    now: u64,
    live: i64,
    pub(crate) blocks: Vec<(u64, u64)>,
    /// Nanoseconds between deltas.
    pub(crate) step: u64,
    pub(crate) consistency: SnapshotConsistency,
    /// Addresses read after the next delta.
    pub(crate) addresses: Option<FollowedAddresses>,
    /// An unlisted thread, or a listed one elsewhere, may have allocated.
    others_possible: bool,
}

/// The counter delta of allocating `blocks` with `mib` MiB together.
pub(crate) fn allocated(blocks: i64, mib: u64) -> CounterDelta {
    let bytes = (mib * MIB) as i64;
    CounterDelta {
        allocations: blocks,
        allocated_bytes: bytes,
        requested_bytes: bytes,
        ..CounterDelta::default()
    }
}

/// The same for frees.
pub(crate) fn freed(blocks: i64, mib: u64) -> CounterDelta {
    let bytes = (mib * MIB) as i64;
    CounterDelta {
        frees: blocks,
        freed_bytes: bytes,
        freed_requested_bytes: bytes,
        ..CounterDelta::default()
    }
}

impl Script {
    pub(crate) fn new() -> Script {
        let mut script = Script {
            records: Vec::new(),
            now: 0,
            live: 0,
            blocks: Vec::new(),
            step: 1_000_000,
            consistency: SnapshotConsistency::Consistent,
            addresses: None,
            others_possible: false,
        };
        let names = ["a.py", "a.py", "torch/autograd/graph.py"];
        for (i, (name, file)) in
            ["f", "g", "_engine_run_backward"].into_iter().zip(names).enumerate()
        {
            let id = i as u32;
            let function = Function {
                name: name.into(),
                file: file.into(),
                first_line: 1,
                last_line: 9,
                is_native: false,
            };
            script.take(Record::Definition(Definition::Function(FunctionId(id), function)));
            let frame = Frame { function: FunctionId(id), line: 2 };
            script.take(Record::Definition(Definition::Frame(FrameId(id), frame)));
            let node = StackNode { parent: None, frame: FrameId(id), module: None };
            script.take(Record::Definition(Definition::Stack(StackId(id), node)));
        }
        // 3: g called by f; 4: f called by g; 5: g called by 4.
        for (id, parent, frame) in [(3, 0, 1), (4, 1, 0), (5, 4, 1)] {
            let node =
                StackNode { parent: Some(StackId(parent)), frame: FrameId(frame), module: None };
            script.take(Record::Definition(Definition::Stack(StackId(id), node)));
        }
        for id in 0..2 {
            let thread = Thread { os_id: None, python_id: id.into(), name: None, main: id == 0 };
            script.take(Record::Definition(Definition::Thread(ThreadId(id), thread)));
        }
        script.map();
        script
    }

    pub(crate) fn take(&mut self, record: Record) {
        self.records.push(record);
    }

    /// One delta of the large pool, `apart` nanoseconds long.
    pub(crate) fn change(
        &mut self,
        amounts: CounterDelta,
        apart: u64,
        threads: Vec<FollowedThread>,
    ) {
        self.now += self.step;
        self.live += amounts.allocated_bytes - amounts.freed_bytes;
        let change = FollowedChange {
            before: Nanos(self.now - apart),
            after: Nanos(self.now),
            device: GPU,
            small: CounterDelta::default(),
            large: amounts,
            live: [0, self.live],
            threads,
            others_possible: self.others_possible,
            counters_torn: false,
            totals_reset: false,
            addresses: self.addresses.take().map(Box::new),
        };
        self.take(Record::Followed(FollowedChanges { changes: vec![change] }));
    }

    pub(crate) fn allocates(&mut self, mib: u64, apart: u64, threads: Vec<FollowedThread>) {
        self.change(allocated(1, mib), apart, threads);
    }

    pub(crate) fn frees(&mut self, mib: u64) {
        self.change(freed(1, mib), 2_000, Vec::new());
    }

    /// A snapshot of `blocks`: MiB from the segment's start, and size in MiB.
    pub(crate) fn map(&mut self) {
        self.now += 1_000_000;
        let blocks = self.blocks.iter().map(|&(at, size)| Block {
            address: (1 << 40) + at * MIB,
            size: size * MIB,
            requested: size * MIB,
            state: BlockState::Allocated,
        });
        let segment = Segment {
            address: 1 << 40,
            size: 1 << 34,
            stream: 0,
            small: false,
            expandable: false,
            granule: 0,
            retired: false,
            pool: PoolId(0, 0),
            blocks: blocks.collect(),
        };
        self.take(Record::Snapshot(AllocatorSnapshot {
            time: Nanos(self.now),
            device: GPU,
            retries: 0,
            consistency: self.consistency,
            segments: vec![segment],
        }));
    }

    /// Of two readings.
    pub(crate) fn profile(&self) -> Profile {
        let read = |mut profile: Profile| {
            for record in &self.records {
                profile.record(record).unwrap();
                if matches!(record, Record::Snapshot(_)) {
                    profile.finish();
                }
            }
            profile.finish();
            profile
        };
        let first = read(Profile::first_reading()).into_first_reading();
        let mut second = Profile::new();
        second.set_first(&first);
        read(second)
    }

    /// The last snapshot with `blocks`: MiB by the stack's first label, and their evidence.
    pub(crate) fn end(mut self, blocks: &[(u64, u64)]) -> (Vec<(String, u64)>, TimeResolution) {
        self.blocks = blocks.to_vec();
        self.map();
        let (stacks, folded) = self.folded(FoldOptions::default());
        (stacks, folded.resolution)
    }

    /// MiB by stack, in the last snapshot unless the options differ.
    pub(crate) fn folded(&self, options: FoldOptions) -> (Vec<(String, u64)>, FoldedProfile) {
        self.folded_at(Moment::End, options)
    }

    /// The same at a moment.
    pub(crate) fn folded_at(
        &self,
        moment: Moment,
        options: FoldOptions,
    ) -> (Vec<(String, u64)>, FoldedProfile) {
        let profile = self.profile();
        let folded = flame::fold(&profile, GPU, moment, options).unwrap();
        let mut stacks: Vec<(String, u64)> = folded
            .stacks
            .iter()
            .map(|stack| {
                let names = stack.path.iter().map(|label| match label {
                    memspy::analysis::StackLabel::Frame(frame) => {
                        let function = profile.stacks().get_function(frame.function);
                        function.unwrap().name.to_string()
                    }
                    memspy::analysis::StackLabel::Pseudo(mark) => mark.text().to_owned(),
                    other => format!("{other:?}"),
                });
                (names.collect::<Vec<_>>().join(" "), stack.bytes / MIB)
            })
            .collect();
        stacks.sort();
        (stacks, folded)
    }
}

pub(crate) fn at(thread: u32, before: StackReading, after: StackReading) -> FollowedThread {
    FollowedThread {
        thread: ThreadId(thread),
        before,
        after,
        held_lock: false,
        wait: Default::default(),
    }
}

pub(crate) fn stood(stack: u32) -> Vec<FollowedThread> {
    went(stack, stack)
}

pub(crate) fn went(before: u32, after: u32) -> Vec<FollowedThread> {
    let whole = |stack| StackReading::Whole(StackId(stack));
    vec![at(0, whole(before), whole(after))]
}

pub(crate) fn in_mib(stacks: &[(&str, u64)]) -> Vec<(String, u64)> {
    stacks.iter().map(|(stack, mib)| ((*stack).to_owned(), *mib)).collect()
}

#[test]
fn a_stack_that_stood_on_both_sides_is_certain() {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(0));
    script.allocates(4, 3_000, stood(1));
    let (stacks, known) = script.end(&[(0, 2), (2, 4)]);
    assert_eq!(stacks, in_mib(&[("f", 2), ("g", 4)]));
    assert_eq!((known.seen, known.certain, known.not_seen), (6 * MIB, Some(6 * MIB), 0));
}

#[test]
fn two_stacks_are_candidates_and_neither_is_certain() {
    let mut script = Script::new();
    script.allocates(2, 3_000, went(0, 1));
    let (stacks, known) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 1), ("g", 1)]));
    assert_eq!((known.certain, known.one_stack), (Some(0), 0));
}

/// `time.sleep(0.5)` before and after an allocation does not make it the site.
#[test]
fn a_stack_seen_long_before_and_after_is_no_site() {
    let mut script = Script::new();
    script.allocates(2, 500_000, stood(0));
    let (stacks, known) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("[not seen]", 2)]));
    assert_eq!((known.certain, known.not_seen), (Some(0), 2 * MIB));
}

/// No thread could be read beside it, but one could a moment before; after a longer time that means
/// nothing.
#[test]
fn without_a_readable_stack_the_only_known_site_is_not_proven() {
    let torn = || vec![at(0, StackReading::Torn, StackReading::Torn)];
    let mut script = Script::new();
    script.step = 20_000;
    script.allocates(2, 3_000, stood(1));
    script.allocates(4, 10_000, torn());
    script.step = 300_000;
    script.allocates(8, 10_000, torn());
    let (stacks, known) = script.end(&[(0, 2), (2, 4), (6, 8)]);
    assert_eq!(stacks, in_mib(&[("g", 14)]));
    assert_eq!(known.certain, Some(2 * MIB));
}

/// cuBLAS allocated its workspace in an engine thread, for 118 us in which no thread returned from
/// anywhere.
#[test]
fn a_thread_waiting_for_the_engine_waited_all_the_time() {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(0));
    script.allocates(2, 118_000, stood(2));
    let (stacks, known) = script.end(&[(0, 2), (2, 2)]);
    assert_eq!(stacks, in_mib(&[("_engine_run_backward [autograd thread]", 2), ("f", 2)]));
    assert_eq!((known.certain, known.not_seen), (Some(0), 0));
}

#[test]
fn between_two_stacks_the_one_making_such_blocks_is_the_site() {
    let mut script = Script::new();
    script.allocates(2, 500_000, stood(0));
    for _ in 0..3 {
        script.allocates(2, 3_000, stood(1));
    }
    script.allocates(2, 50_000, went(0, 1));
    let (stacks, known) = script.end(&[(0, 2), (2, 2), (4, 2), (6, 2), (8, 2)]);
    assert_eq!(stacks, in_mib(&[("[not seen]", 2), ("g", 8)]), "one stack 500 µs apart is no site");
    assert_eq!(known.certain, Some(0));
}

#[test]
fn the_thread_that_held_the_allocators_lock_is_the_site() {
    let mut script = Script::new();
    let whole = |stack| StackReading::Whole(StackId(stack));
    let owner = FollowedThread { held_lock: true, ..at(1, whole(1), whole(1)) };
    script.allocates(2, 3_000, vec![at(0, whole(0), whole(0)), owner]);
    let (stacks, known) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("g", 2)]));
    assert_eq!(known.certain, Some(0), "it may have held it for a neighbouring delta");
}

/// Under `torch.compile` copying the stacks of eight threads came so late after the counters that
/// the program was two lines further.
#[test]
fn a_held_lock_proves_no_stack_that_may_be_later() {
    for late in [false, true] {
        let mut script = Script::new();
        script.others_possible = late;
        let whole = |stack| StackReading::Whole(StackId(stack));
        let owner = FollowedThread { held_lock: true, ..at(0, whole(0), whole(0)) };
        script.allocates(2, 2_000, vec![owner]);
        let (stacks, known) = script.end(&[(0, 2)]);
        assert_eq!(stacks, in_mib(&[("f", 2)]));
        assert_eq!(known.certain, Some(if late { 0 } else { 2 * MIB }));
    }
}

/// A poller that loses its processor between copying the lock and the frames sees where the thread
/// went meanwhile. But a thread inside the allocator does not wait there: the first matrix product
/// takes cuBLAS's workspace, for which CUDA needs 200 µs.
#[test]
fn a_held_lock_makes_a_distant_stack_probable_not_proven() {
    let mut script = Script::new();
    let whole = |stack| StackReading::Whole(StackId(stack));
    let owner = FollowedThread { held_lock: true, ..at(0, whole(0), whole(0)) };
    script.allocates(2, 500_000, vec![owner]);
    let (stacks, known) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2)]));
    assert_eq!(known.certain, Some(0));
}

/// `torch.compile`'s thread that waits for its processes got half of what the program allocated
/// while no thread was seen with the lock.
#[test]
fn a_thread_that_never_held_the_lock_gets_nothing() {
    let mut script = Script::new();
    let whole = |stack| StackReading::Whole(StackId(stack));
    let waiting = at(1, whole(1), whole(1));
    for _ in 0..100 {
        let owner = FollowedThread { held_lock: true, ..at(0, whole(0), whole(0)) };
        script.allocates(4, 3_000, vec![owner, waiting]);
        script.frees(4);
    }
    script.allocates(2, 3_000, vec![at(0, whole(0), whole(0)), waiting]);
    let torn = at(0, StackReading::Torn, StackReading::Torn);
    script.allocates(8, 3_000, vec![torn, waiting]);
    let (stacks, known) = script.end(&[(0, 2), (2, 8)]);
    assert_eq!(stacks, in_mib(&[("f", 10)]));
    assert_eq!(known.certain, Some(0), "that it never allocates is not proven");
}

/// While the engine ran a backward pass of `torch.compile`, only the thread that waits for its
/// processes had Python frames.
#[test]
fn beside_a_thread_waiting_for_the_engine_nothing_is_proven() {
    let mut script = Script::new();
    let whole = |stack| StackReading::Whole(StackId(stack));
    let waiting = at(0, whole(2), whole(2));
    let engine = at(2, StackReading::NoFrames, StackReading::NoFrames);
    script.allocates(2, 3_000, vec![waiting, at(1, whole(1), whole(1)), engine]);
    let (_, known) = script.end(&[(0, 2)]);
    assert_eq!(known.certain, Some(0));
}

#[test]
fn of_two_threads_that_may_have_allocated_neither_is_charged() {
    let mut script = Script::new();
    let whole = |stack| StackReading::Whole(StackId(stack));
    script.allocates(2, 3_000, vec![at(0, whole(0), whole(0)), at(1, whole(1), whole(1))]);
    let (stacks, known) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("[not seen]", 2)]));
    assert_eq!(known.certain, Some(0));
}

#[test]
fn engine_c_code_goes_to_the_waiter_python_to_itself() {
    let mut script = Script::new();
    let whole = |stack| StackReading::Whole(StackId(stack));
    let waits = at(0, whole(2), whole(2));
    let none = StackReading::NoFrames;
    script.allocates(2, 3_000, vec![waits, at(1, none, none)]);
    // A hook, or a recomputation.
    script.allocates(4, 3_000, vec![waits, at(1, whole(1), whole(1))]);
    let (stacks, known) = script.end(&[(0, 2), (2, 4)]);
    assert_eq!(stacks, in_mib(&[("_engine_run_backward [autograd thread]", 2), ("g", 4)]));
    assert_eq!(known.certain, Some(2 * MIB), "that the waiter sleeps is not told");
}

#[test]
fn the_last_block_is_freed_first_but_nothing_is_proven() {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(0));
    script.allocates(2, 3_000, stood(1));
    // One millisecond later, see `Script::change`.
    script.frees(2);
    let (stacks, known) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2)]));
    assert_eq!(known.certain, Some(0));
}

/// After `x = g(x)` in a chain of layers the old `x` seemed live and the new one freed: in a conv
/// net 67 MB were on the batch norm's line instead of the activation's.
#[test]
fn a_new_block_outlives_the_one_it_replaces() {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(0));
    script.allocates(2, 3_000, stood(1));
    script.step = 30_000;
    script.frees(2);
    let (stacks, known) = script.end(&[(2, 2)]);
    assert_eq!(stacks, in_mib(&[("g", 2)]));
    assert_eq!(known.certain, Some(0));
}

/// Frees of several blocks in one delta were missed: the old blocks seemed live, proven for the
/// wrong stack.
#[test]
fn blocks_freed_several_at_once_are_found_by_their_sums() {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(0));
    script.allocates(4, 3_000, stood(0));
    script.allocates(8, 3_000, stood(0));
    script.blocks = vec![(0, 2), (2, 4), (6, 8)];
    script.map();
    script.change(freed(2, 6), 3_000, stood(1));
    script.allocates(2, 3_000, stood(1));
    script.allocates(4, 3_000, stood(1));
    let (stacks, _) = script.end(&[(0, 2), (2, 4), (6, 8)]);
    assert_eq!(stacks, in_mib(&[("f", 8), ("g", 6)]));
}

/// Requested bytes are subtracted later than the block; a poll between saw a free of a size that
/// does not exist, and the block seemed live.
#[test]
fn a_free_with_late_requested_bytes_is_found() {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(0));
    script.blocks = vec![(0, 2)];
    script.map();
    let bytes = 2 * MIB as i64;
    let untold = CounterDelta { freed_requested_bytes: 0, ..freed(1, 2) };
    script.change(untold, 3_000, stood(1));
    let told = CounterDelta { freed_requested_bytes: bytes, ..CounterDelta::default() };
    script.change(told, 3_000, stood(1));
    script.allocates(2, 3_000, stood(1));
    let (stacks, _) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("g", 2)]));
}

/// If nothing was freed before the allocation, the new block cannot have the old one's address.
#[test]
fn a_block_at_a_never_reused_address_is_proven() {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(0));
    script.blocks = vec![(0, 2)];
    script.map();
    script.allocates(2, 3_000, stood(1));
    script.frees(2);
    let (stacks, known) = script.end(&[(0, 2)]);
    assert_eq!((stacks, known.certain), (in_mib(&[("f", 2)]), Some(2 * MIB)));
}

/// Two addresses of three blocks remain, and never fewer than two blocks were live; yet one is
/// another block.
#[test]
fn a_constant_number_of_live_blocks_proves_nothing() {
    let mut script = Script::new();
    for _ in 0..3 {
        script.allocates(2, 3_000, stood(0));
    }
    script.blocks = vec![(0, 2), (2, 2), (4, 2)];
    script.map();
    script.frees(2);
    script.allocates(2, 3_000, stood(1));
    script.frees(2);
    let (_, known) = script.end(&[(0, 2), (2, 2)]);
    assert_eq!(known.certain, Some(0));
}

#[test]
fn a_block_at_a_reused_address_has_a_new_site() {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(0));
    script.blocks = vec![(0, 2)];
    script.map();
    script.frees(2);
    script.allocates(2, 3_000, stood(1));
    let (stacks, _) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("g", 2)]));
}

#[test]
fn blocks_of_a_change_of_several_allocations_share_its_candidates() {
    let mut script = Script::new();
    script.change(allocated(2, 6), 5_000, went(0, 1));
    let (stacks, known) = script.end(&[(0, 2), (2, 4)]);
    assert_eq!(stacks, in_mib(&[("f", 2), ("g", 3)]), "2.9 and 3.1 MiB");
    assert_eq!(known.certain, Some(0));
}

#[test]
fn what_happened_after_a_map_is_left_for_the_next() {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(0));
    script.allocates(2, 3_000, stood(1));
    // By its time it is younger than both; by its blocks it is not.
    script.blocks = vec![(0, 2)];
    script.map();
    let (stacks, known) = script.end(&[(0, 2), (2, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2), ("g", 2)]));
    assert_eq!(known.certain, Some(0), "its time and its blocks do not agree");
}

#[test]
fn nothing_is_certain_of_a_recording_that_did_not_follow() {
    let script = Script::new();
    let options = FoldOptions { evidence: Some(Evidence::Proven), ..FoldOptions::default() };
    let refused = flame::fold(&script.profile(), GPU, Moment::End, options).unwrap_err();
    assert!(matches!(refused, FoldError::NotFollowed));
}
