//! Sites of one-time allocations seen in passing: what lines of their call allocate at all, and in
//! which order.

use crate::analysis_followed::{MIB, Script, allocated, at, in_mib, stood, went};
use memspy::model::{
    Definition, FollowedThread, FrameId, Record, StackId, StackNode, StackReading,
};

/// Two lines of one call: 3 is g called by f, and this is f called by it.
const OTHER_LINE: u32 = 6;

fn script_with_two_lines() -> Script {
    let mut script = Script::new();
    let node = StackNode { parent: Some(StackId(0)), frame: FrameId(0) };
    script.take(Record::Definition(Definition::Stack(StackId(OTHER_LINE), node)));
    script
}

fn unread(thread: u32) -> FollowedThread {
    at(thread, StackReading::Torn, StackReading::Torn)
}

/// A call over several lines: the arguments have their own.
#[test]
fn a_new_size_goes_to_the_line_that_allocates_blocks() {
    let mut script = script_with_two_lines();
    (0..3).for_each(|_| script.allocates(4, 3_000, stood(3)));
    script.allocates(7, 3_000, went(OTHER_LINE, 3));
    let (stacks, known) = script.end(&[(0, 4), (4, 4), (8, 4), (12, 7)]);
    assert_eq!(stacks, in_mib(&[("f g", 19)]));
    assert_eq!(known.certain, Some(12 * MIB));
}

/// An optimizer's states, two for each parameter, whatever its size.
fn states(script: &mut Script, sizes: impl IntoIterator<Item = u64>) {
    for size in sizes {
        script.allocates(size, 3_000, stood(OTHER_LINE));
        script.allocates(size, 3_000, stood(3));
    }
}

#[test]
fn a_new_size_goes_to_the_line_usually_next() {
    let mut script = script_with_two_lines();
    states(&mut script, 2..6);
    script.allocates(20, 3_000, went(OTHER_LINE, 3));
    script.allocates(20, 3_000, went(OTHER_LINE, 3));
    let blocks = [(0, 2), (2, 2), (4, 3), (7, 3), (10, 4), (14, 4), (18, 5), (23, 5)];
    let (stacks, _) = script.end(&[&blocks[..], &[(30, 20), (50, 20)]].concat());
    assert_eq!(stacks, in_mib(&[("f f", 34), ("f g", 34)]));
}

#[test]
fn blocks_of_one_change_were_made_in_the_usual_order() {
    let mut script = script_with_two_lines();
    states(&mut script, 2..6);
    script.change(allocated(2, 4), 3_000, went(OTHER_LINE, 3));
    let blocks = [(0, 2), (2, 2), (4, 3), (7, 3), (10, 4), (14, 4), (18, 5), (23, 5)];
    let (stacks, known) = script.end(&[&blocks[..], &[(30, 2), (32, 2)]].concat());
    assert_eq!(stacks, in_mib(&[("f f", 16), ("f g", 16)]));
    assert!(known.certain.is_some_and(|certain| certain < 32 * MIB), "the order is a guess");
}

/// Kernels are tried one after the other, each in a loop that fills a buffer of the same size.
#[test]
fn unseen_loop_allocations_go_to_the_previous_stack() {
    let mut script = script_with_two_lines();
    for stack in [3, OTHER_LINE] {
        for _ in 0..8 {
            script.allocates(4, 3_000, stood(stack));
            script.frees(4);
        }
    }
    script.allocates(4, 3_000, Vec::new());
    let (stacks, _) = script.end(&[(0, 4)]);
    assert_eq!(stacks, in_mib(&[("f f", 4)]));
}

/// A thread that reads from a pipe waits beside every allocation.
#[test]
fn threads_without_the_lock_do_not_exclude_unreadable_ones() {
    let mut script = Script::new();
    script.step = 5_000;
    let reads = || at(1, StackReading::Whole(StackId(1)), StackReading::Whole(StackId(1)));
    for _ in 0..10 {
        let holds = FollowedThread { held_lock: true, ..stood(0).remove(0) };
        script.allocates(4, 3_000, vec![holds, reads()]);
    }
    script.allocates(4, 3_000, vec![unread(0), reads()]);
    let blocks: Vec<(u64, u64)> = (0..11).map(|i| (4 * i, 4)).collect();
    let (stacks, _) = script.end(&blocks);
    assert_eq!(stacks, in_mib(&[("f", 44)]));
}

/// Deep within a call a thread does not reach another line of its caller between two polls.
#[test]
fn a_site_elsewhere_does_not_allocate_deep_within_another_call() {
    let mut script = Script::new();
    let deep = 26;
    for id in 6..=deep {
        let parent = StackId(if id == 6 { 0 } else { id - 1 });
        let node = StackNode { parent: Some(parent), frame: FrameId(0) };
        script.take(Record::Definition(Definition::Stack(StackId(id), node)));
    }
    for _ in 0..8 {
        script.allocates(4, 3_000, stood(3));
        script.frees(4);
    }
    script.allocates(4, 3_000, vec![at(0, StackReading::Whole(StackId(deep)), StackReading::Torn)]);
    let (stacks, _) = script.end(&[(0, 4)]);
    assert_eq!(stacks, in_mib(&[(["f"; 22].join(" ").as_str(), 4)]));
}
