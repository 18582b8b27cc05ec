//! The turns that lines of a loop take.

use super::*;
use crate::model::{CounterDelta, FollowedThread, Frame, Function, Nanos};

const MAIN: ThreadId = ThreadId(0);
/// Bytes asked for by blocks of the two pools.
const SMALL: u64 = 500;
const LARGE: u64 = (2 << 20) - 1;
/// The lines of the loop that make blocks, and one of its other lines.
const FIRST: u32 = 3;
const SECOND: u32 = 5;
const LAST: u32 = 7;

/// A thread in `main`, and in the loop that it calls by line 1.
struct LoopScene {
    stacks: StackTable,
    caller: StackId,
    function: FunctionId,
    order: LoopOrder,
    number: u64,
    told: Vec<(u64, Vec<u32>)>,
    /// The bytes of each block told, with the number of its change.
    sizes: Vec<(u64, u64)>,
}

impl LoopScene {
    fn new() -> LoopScene {
        let mut stacks = StackTable::new();
        let mut function = |name: &str| stacks.function(Function::of_test(name, 9));
        let (main, function) = (function("main"), function("make_state"));
        let frame = stacks.frame(Frame { function: main, line: 1 });
        let caller = stacks.stack(None, frame);
        let order = LoopOrder::default();
        LoopScene {
            stacks,
            caller,
            function,
            order,
            number: 0,
            told: Vec::new(),
            sizes: Vec::new(),
        }
    }

    fn at(&mut self, line: u32) -> StackReading {
        let frame = self.stacks.frame(Frame { function: self.function, line });
        StackReading::Whole(self.stacks.stack(Some(self.caller), frame))
    }

    /// So many small blocks, between polls that found the thread at these lines of the loop; 0 is its caller.
    fn change(&mut self, blocks: i64, before: u32, after: u32) {
        self.change_of([blocks, 0], before, after);
    }

    /// The same of so many small and large blocks.
    fn change_of(&mut self, blocks: [i64; 2], before: u32, after: u32) {
        let [before, after] = [before, after].map(|line| match line {
            0 => StackReading::Whole(self.caller),
            line => self.at(line),
        });
        let delta = |blocks: i64, size: i64, requested: u64| CounterDelta {
            allocations: blocks,
            allocated_bytes: size * blocks,
            requested_bytes: requested as i64 * blocks,
            ..CounterDelta::default()
        };
        self.number += 1;
        let thread = FollowedThread {
            thread: MAIN,
            before,
            after,
            held_lock: false,
            wait: Default::default(),
        };
        let change = FollowedChange {
            before: Nanos(self.number * 50_000),
            after: Nanos(self.number * 50_000 + 10_000),
            small: delta(blocks[0], 512, SMALL),
            large: delta(blocks[1], 2 << 20, LARGE),
            threads: vec![thread],
            ..FollowedChange::empty()
        };
        let made = self.order.add(self.number, &change, &[MAIN], &self.stacks);
        self.told(made);
    }

    /// Eight rounds: some polls find the thread at a line that makes a block, others before and behind one or two of them.
    fn rounds(&mut self) {
        for _ in 0..2 {
            for (before, after) in [
                (FIRST, FIRST),
                (FIRST, SECOND),
                (LAST, FIRST),
                (SECOND, SECOND),
                (FIRST, SECOND),
                (SECOND, LAST),
                (SECOND, FIRST),
                (FIRST, LAST),
            ] {
                self.change(1, before, after);
            }
        }
    }

    fn told(&mut self, made: Vec<(u64, Vec<MadeBuffer>)>) {
        for (number, blocks) in made {
            let line = |&(origin, bytes): &MadeBuffer| {
                assert!([SMALL, LARGE].contains(&bytes));
                self.sizes.push((number, bytes));
                let AllocationOrigin::Stack(MAIN, stack) = origin else { panic!("{origin:?}") };
                self.stacks.frames(stack).next().unwrap().line
            };
            self.told.push((number, blocks.iter().map(line).collect()));
        }
    }

    fn settle(&mut self) -> Vec<(u64, Vec<u32>)> {
        let made = self.order.settle();
        self.told(made);
        std::mem::take(&mut self.told)
    }
}

#[test]
fn lines_that_take_turns_made_each_second_block_wherever_the_polls_fell() {
    let mut scene = LoopScene::new();
    scene.rounds();
    scene.change(2, FIRST, FIRST);
    let mut turns: Vec<_> = (1..=16)
        .map(|number| (number, vec![if number % 2 == 1 { FIRST } else { SECOND }]))
        .collect();
    turns.push((17, vec![FIRST, SECOND]));
    assert_eq!(scene.settle(), turns);
    assert!(scene.settle().is_empty(), "each is told once");
}

/// What the one line makes two of in each round takes no turns.
#[test]
fn of_lines_that_do_not_take_turns_nothing_is_said() {
    let mut scene = LoopScene::new();
    for _ in 0..6 {
        scene.change(1, FIRST, FIRST);
        scene.change(1, FIRST, FIRST);
        scene.change(1, SECOND, SECOND);
    }
    scene.change(1, FIRST, LAST);
    assert!(scene.settle().is_empty());
}

#[test]
fn of_a_call_that_made_blocks_before_the_other_iterations_tell_more() {
    let mut scene = LoopScene::new();
    scene.rounds();
    scene.change(1, 0, 0);
    assert_eq!(std::mem::take(&mut scene.told).len(), 16, "at its end");
    scene.rounds();
    assert!(scene.settle().is_empty());
}

/// Most polls fall before and behind both lines: any order would do.
#[test]
fn where_few_polls_tell_one_line_from_the_other_nothing_is_said() {
    let mut scene = LoopScene::new();
    (0..2).for_each(|_| scene.change(1, FIRST, FIRST));
    (0..2).for_each(|_| scene.change(1, SECOND, SECOND));
    (0..20).for_each(|_| scene.change(1, FIRST, LAST));
    assert!(scene.settle().is_empty());
}

/// A line makes small blocks only, the other one large ones: so it is known which of the two that were made together is which.
#[test]
fn of_blocks_of_both_pools_each_line_made_those_that_it_makes_as_a_rule() {
    let mut scene = LoopScene::new();
    for _ in 0..6 {
        scene.change_of([1, 0], FIRST, FIRST);
        scene.change_of([0, 1], SECOND, SECOND);
    }
    scene.change_of([1, 1], SECOND, SECOND);
    let told = scene.settle();
    assert_eq!(told.last(), Some(&(13, vec![FIRST, SECOND])));
    assert_eq!(scene.sizes[12..], [(13, SMALL), (13, LARGE)]);
}

#[test]
fn of_blocks_of_both_pools_nothing_is_said_where_each_line_makes_both_kinds() {
    let mut scene = LoopScene::new();
    for round in 0..6 {
        let blocks = if round % 2 == 0 { [1, 0] } else { [0, 1] };
        scene.change_of(blocks, FIRST, FIRST);
        scene.change_of(blocks, SECOND, SECOND);
    }
    scene.change_of([1, 1], SECOND, SECOND);
    assert_eq!(scene.settle().len(), 12);
}
