//! What is learned of who makes blocks of one kind.

use super::*;
use crate::model::{Frame, Function, Nanos, Pool, StackId, StackTable, Thread, ThreadId};

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
    BlockAttribution { shares, span: Some(5_000), allocated_at: 1, certain }
}

fn at(stack: StackId) -> AllocationOrigin {
    AllocationOrigin::Stack(THREAD, stack)
}

const KIND: BlockGroup = BlockGroup { size: 512, requested: 512, pool: Pool::Small };

/// Takes an allocation at which the thread stood there before and after.
fn saw(origins: &mut KindOrigins, stack: StackId, table: &StackTable) {
    let reading = StackReading::Whole(stack);
    let (before, after) = (reading, reading);
    let thread = FollowedThread { thread: THREAD, before, after, held_lock: true };
    let (after, threads) = (Nanos(5_000), vec![thread]);
    let change = FollowedChange { after, threads, ..FollowedChange::empty() };
    origins.locks.add(&change);
    origins.calls.add(&[at(stack)], table);
    origins.saw(KIND, &ReachSums::default(), None, &charge(vec![at(stack)], true), &change);
}

/// The calls below are the same from both lines of the program.
#[test]
fn what_was_not_seen_was_made_where_the_program_was_last() {
    let mut table = table();
    let loops = [1, 2].map(|line| {
        let program = calls(&mut table, None, line..=line)[0];
        calls(&mut table, Some(program), 10..=25)
    });
    let makers = loops.each_ref().map(|stacks| stacks[15]);
    let mut origins = KindOrigins::default();
    (0..9).for_each(|_| saw(&mut origins, makers[0], &table));
    (0..2).for_each(|_| saw(&mut origins, makers[1], &table));
    origins.calls.add(&[at(loops[1][14])], &table);
    let unseen = charge(vec![AllocationOrigin::NotSeen], false);
    let made_by = |seen_last: Option<StackId>| {
        let sighting = Sighting { seen_last: seen_last.map(at), ..Sighting::default() };
        let likely = origins.likely(KIND, &ReachSums::default(), &unseen, sighting)?;
        Some(likely.shares[0].0)
    };
    let made_by_both = [None, Some(loops[1][14])].map(made_by);
    assert_eq!(made_by_both, [Some(at(makers[0])), Some(at(makers[1]))]);
}

/// `with torch.no_grad():`, and the block on the next line, in a loop that comes round in less time than the polls are apart.
#[test]
fn a_line_is_not_certain_where_another_of_its_call_makes_such_blocks_as_a_rule() {
    let mut table = table();
    let call = calls(&mut table, None, 1..=1)[0];
    let [waits, makes] = [5, 6].map(|line| calls(&mut table, Some(call), line..=line)[0]);
    let mut origins = KindOrigins::default();
    (0..8).for_each(|_| saw(&mut origins, makes, &table));
    saw(&mut origins, waits, &table);
    let certain = |stack: StackId| {
        let charge = charge(vec![at(stack)], true);
        let likely = origins.likely(KIND, &ReachSums::default(), &charge, Sighting::default());
        likely.is_none_or(|likely| likely.certain)
    };
    assert_eq!([waits, makes].map(certain), [false, true]);
}

/// `param.data = ...` behind the call that makes the new data, in a loop over parameters: the thread is seen there a moment later.
#[test]
fn what_a_new_loop_made_where_it_makes_nothing_was_made_by_the_line_that_makes_such_blocks() {
    let mut table = table();
    let call = calls(&mut table, None, 1..=1)[0];
    let [assigns, converts] = [5, 6].map(|line| calls(&mut table, Some(call), line..=line)[0]);
    let made = calls(&mut table, Some(converts), 9..=9)[0];
    let mut origins = KindOrigins::default();
    (0..8).for_each(|_| saw(&mut origins, made, &table));
    // The loop came round once.
    saw(&mut origins, assigns, &table);
    let maker = |is_new| {
        let sighting = Sighting { is_doubtful: true, is_new, ..Sighting::default() };
        let seen = charge(vec![at(assigns)], false);
        let likely = origins.likely(KIND, &ReachSums::default(), &seen, sighting)?;
        Some(likely.shares[0].0)
    };
    assert_eq!([true, false].map(maker), [Some(at(made)), None]);
}
