//! What is learned of who makes blocks of one kind.

use super::*;
use crate::model::{
    FollowedThread, Frame, Function, Nanos, Pool, StackId, StackReading, StackTable, Thread,
    ThreadId,
};

const THREAD: ThreadId = ThreadId(0);

/// A chain of calls below `caller`, each on the line with its number: the stack of each.
fn calls(
    table: &mut StackTable,
    caller: Option<StackId>,
    lines: std::ops::RangeInclusive<u32>,
) -> Vec<StackId> {
    let function = table.function(Function {
        name: "f".into(),
        file: "a.py".into(),
        first_line: 1,
        last_line: 99,
        is_native: false,
    });
    let mut stack = caller;
    let called = lines.map(|line| {
        let frame = table.frame(Frame { function, line });
        let called = table.stack(stack, frame);
        stack = Some(called);
        called
    });
    called.collect()
}

fn table() -> StackTable {
    let mut table = StackTable::new();
    table.thread(Thread { os_id: None, python_id: 1, name: None, main: true });
    table
}

fn charge(shares: Vec<AllocationOrigin>, certain: bool) -> BlockAttribution {
    let shares = shares.into_iter().map(|origin| (origin, 1)).collect();
    BlockAttribution { shares, span: Some(5_000), allocated_at: 1, certain, contested: false }
}

fn at(stack: StackId) -> AllocationOrigin {
    AllocationOrigin::Stack(THREAD, stack)
}

const KIND: BlockGroup = BlockGroup { size: 512, requested: 512, pool: Pool::Small };

/// A change beside which the thread went from one line to another.
fn change(before: StackId, after: StackId) -> FollowedChange {
    let [before, after] = [before, after].map(StackReading::Whole);
    let thread =
        FollowedThread { thread: THREAD, before, after, held_lock: true, wait: Default::default() };
    FollowedChange { after: Nanos(5_000), threads: vec![thread], ..FollowedChange::empty() }
}

/// Takes an allocation at which the thread stood there before and after.
fn saw(origins: &mut KindOrigins, stack: StackId, table: &StackTable) {
    let change = change(stack, stack);
    origins.locks.add(&change, |_| false);
    origins.calls.add(&[at(stack)], table);
    origins.saw(KIND, &ReachSums::default(), [None; 2], &charge(vec![at(stack)], true), &change);
}

const LARGE: BlockGroup = BlockGroup { size: 1 << 20, requested: 1 << 20, pool: Pool::Small };

/// Takes an allocation of a large block beside which the thread went from one line to another; who is charged for the next one.
fn went(origins: &mut KindOrigins, from: StackId, to: StackId, table: &StackTable) -> Vec<StackId> {
    let change = change(from, to);
    let seen = charge(vec![at(from), at(to)], false);
    origins.calls.add(&[at(from), at(to)], table);
    origins.saw(LARGE, &ReachSums::default(), [None; 2], &seen, &change);
    let sighting = Sighting { is_doubtful: true, ..Sighting::default() };
    let likely = origins.likely(LARGE, &ReachSums::default(), &seen, sighting);
    let shares = likely.map_or(seen.shares, |likely| likely.shares.clone());
    let stack = |(origin, _)| match origin {
        AllocationOrigin::Stack(_, stack) => Some(stack),
        _ => None,
    };
    shares.into_iter().filter_map(stack).collect()
}

/// A layer that is called: the thread is seen on the line that calls it, and a moment later where the layer makes its result.
#[test]
fn a_line_that_makes_blocks_is_charged_rather_than_the_line_that_called_it() {
    let mut table = table();
    let stacks = calls(&mut table, None, 1..=9);
    let (calls_it, makes) = (stacks[0], stacks[8]);
    let mut origins = KindOrigins::default();
    assert_eq!(went(&mut origins, calls_it, makes, &table), [calls_it, makes]);
    (0..3).for_each(|_| saw(&mut origins, makes, &table));
    assert_eq!(went(&mut origins, calls_it, makes, &table), [makes]);
}

/// A loop over images that compares a few numbers of each, and then the model.
#[test]
fn a_line_that_makes_small_blocks_only_is_not_charged_for_a_large_one() {
    let mut table = table();
    let call = calls(&mut table, None, 1..=1)[0];
    let [compares, model] = [5, 9].map(|line| calls(&mut table, Some(call), line..=line)[0]);
    let makes = calls(&mut table, Some(model), 20..=22)[2];
    let mut origins = KindOrigins::default();
    (0..7).for_each(|_| saw(&mut origins, compares, &table));
    assert_eq!(went(&mut origins, compares, makes, &table), [compares, makes]);
    saw(&mut origins, compares, &table);
    assert_eq!(went(&mut origins, compares, makes, &table), [makes]);
}

/// Two lines make blocks of one kind, one after the other. At this place the second one was seen as a rule, for the polls come late.
#[test]
fn a_line_that_the_thread_had_not_reached_yet_did_not_make_the_block() {
    let mut table = table();
    let call = calls(&mut table, None, 1..=1)[0];
    let [first, second] = [5, 6].map(|line| calls(&mut table, Some(call), line..=line)[0]);
    let places: ReachSums = [Some(77), None, None];
    let mut origins = KindOrigins::default();
    let change = change(second, second);
    saw(&mut origins, first, &table);
    origins.calls.add(&[at(second)], &table);
    (0..4).for_each(|_| {
        origins.saw(KIND, &places, [None; 2], &charge(vec![at(second)], true), &change);
    });
    let maker = |sides| {
        let sighting = Sighting { is_doubtful: true, sides, ..Sighting::default() };
        let seen = charge(vec![at(first)], false);
        origins.likely(KIND, &places, &seen, sighting).map(|likely| likely.shares[0].0)
    };
    assert_eq!(maker([None, None]), Some(at(second)));
    assert_eq!(maker([None, Some(at(first))]), None);
}

/// The layers of a model make the same blocks of a prompt as of a token, but for their sizes.
#[test]
fn who_comes_behind_the_last_makers_makes_the_next_block_whatever_its_size() {
    let mut table = table();
    let call = calls(&mut table, None, 1..=1)[0];
    let [gate, activation] = [5, 6].map(|line| calls(&mut table, Some(call), line..=line)[0]);
    let mut origins = KindOrigins::default();
    let change = change(activation, activation);
    origins.calls.add(&[at(gate), at(activation)], &table);
    let seen = charge(vec![at(activation)], true);
    (0..3).for_each(|_| {
        origins.saw(KIND, &ReachSums::default(), [None, Some(9)], &seen, &change);
    });
    let unclear = charge(vec![at(gate)], false);
    origins.saw(LARGE, &ReachSums::default(), [None; 2], &unclear, &change);
    let maker = |sequence| {
        let sighting = Sighting { is_doubtful: true, sequence, ..Sighting::default() };
        let likely = origins.likely(LARGE, &ReachSums::default(), &unclear, sighting);
        likely.map(|likely| likely.shares[0].0)
    };
    assert_eq!(maker(Some(9)), Some(at(activation)));
    assert_eq!(maker(None), None);
}
