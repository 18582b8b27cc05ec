//! Sites of allocations whose polls came too late or too early: what allocated such blocks at the
//! same place of the run, or at all.

use crate::analysis_followed::{MIB, Script, allocated, at, freed, in_mib, stood, went};
use memspy::model::{CounterDelta, StackId, StackReading};

#[test]
fn the_stack_seen_on_both_sides_of_a_kinds_allocations_is_likely_to_make_them() {
    let mut script = Script::new();
    for i in 0..3 {
        script.allocates(2, 3_000, if i == 2 { stood(1) } else { went(0, 1) });
    }
    let (stacks, known) = script.end(&[(0, 2), (2, 2), (4, 2)]);
    assert_eq!(stacks, in_mib(&[("g", 6)]));
    assert_eq!(known.certain, Some(0));
}

#[test]
fn a_thread_that_went_from_one_line_that_makes_such_blocks_to_another_made_it_there() {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(1));
    script.allocates(2, 3_000, stood(0));
    script.allocates(2, 3_000, went(0, 1));
    let (stacks, _) = script.end(&[(0, 2), (2, 2), (4, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2), ("g", 4)]), "f's was seen before");
}

/// An optimizer's states, two for each parameter: both polls of the first one's were late once.
#[test]
fn a_thread_that_had_made_nothing_yet_on_the_line_it_went_from_made_it_there() {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(0));
    script.allocates(2, 3_000, stood(1));
    script.allocates(2, 3_000, went(0, 1));
    script.allocates(2, 3_000, stood(1));
    let (stacks, _) = script.end(&[(0, 2), (2, 2), (4, 2), (6, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 4), ("g", 4)]));
}

/// A one-time allocation: the thread was in the call that allocates such blocks, on a line that
/// allocates none.
#[test]
fn what_was_allocated_between_two_lines_is_likely_of_those_that_make_such_blocks_in_that_call() {
    let unread = |before| vec![at(0, StackReading::Whole(StackId(before)), StackReading::Torn)];
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(5));
    script.allocates(2, 3_000, stood(5));
    script.allocates(2, 3_000, unread(4));
    script.allocates(2, 3_000, unread(3));
    let (stacks, _) = script.end(&[(0, 2), (2, 2), (4, 2), (6, 2)]);
    assert_eq!(stacks, in_mib(&[("f g", 2), ("g f g", 6)]), "3 is in another call");
}

/// The poll before saw the line ahead of it; the stack of the one after was unreadable.
#[test]
fn an_allocation_is_likely_of_the_stack_that_always_makes_it_at_its_place() {
    let mut script = Script::new();
    for i in 0..7 {
        let unread = at(0, StackReading::Whole(StackId(1)), StackReading::Torn);
        script.allocates(2, 3_000, if i == 6 { vec![unread] } else { stood(0) });
        script.allocates(4, 3_000, stood(1));
    }
    let blocks: Vec<(u64, u64)> = (0..7).flat_map(|i| [(6 * i, 2), (6 * i + 2, 4)]).collect();
    let (stacks, _) = script.end(&blocks);
    assert_eq!(stacks, in_mib(&[("f", 14), ("g", 28)]));
}

/// A sleeping thread is polled seldom, so the polls around its next allocation are far apart.
#[test]
fn where_a_thread_slept_before_its_allocations_shared_them() {
    let mut script = Script::new();
    for i in 0..4 {
        script.allocates(2, 60_000, if i == 3 { stood(1) } else { went(0, 1) });
    }
    let (stacks, known) = script.end(&[(0, 2), (2, 2), (4, 2), (6, 2)]);
    assert_eq!(stacks, in_mib(&[("g", 8)]));
    assert_eq!(known.certain, Some(0));
}

/// A line seen only after an allocation may be the next line.
#[test]
fn far_polls_do_not_tell_a_line_from_the_one_behind_it() {
    let mut script = Script::new();
    for _ in 0..4 {
        script.allocates(2, 60_000, went(0, 1));
    }
    let (stacks, _) = script.end(&[(0, 2), (2, 2), (4, 2), (6, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 4), ("g", 4)]));
}

/// Between two polls a layer's output was allocated and its input freed; in other layers the polls
/// came in between.
#[test]
fn an_allocation_is_likely_of_who_makes_it_at_its_place_whatever_was_freed_beside_it() {
    let mut script = Script::new();
    script.allocates(4, 3_000, stood(1));
    for i in 0..7 {
        let unread = at(0, StackReading::Whole(StackId(1)), StackReading::Torn);
        if i == 6 {
            let both = CounterDelta { allocations: 1, ..allocated(1, 2) };
            let CounterDelta { frees, freed_bytes, freed_requested_bytes, .. } = freed(1, 4);
            let both = CounterDelta { frees, freed_bytes, freed_requested_bytes, ..both };
            script.change(both, 3_000, vec![unread]);
        } else {
            script.allocates(2, 3_000, stood(0));
            script.frees(4);
        }
        script.allocates(4, 3_000, stood(1));
    }
    let mut blocks: Vec<(u64, u64)> = (0..7).map(|i| (2 * i, 2)).collect();
    blocks.push((14, 4));
    let (stacks, _) = script.end(&blocks);
    assert_eq!(stacks, in_mib(&[("f", 14), ("g", 4)]));
}

/// In `keys = cat(…); values = cat(…)` the poll after the first is sometimes late, and sees the
/// second.
#[test]
fn who_comes_later_is_seen_after_an_allocation_less_often_than_who_made_it() {
    let mut script = Script::new();
    for i in 0..12 {
        script.allocates(2, 3_000, if i % 4 == 3 { went(3, 1) } else { went(3, 0) });
        script.allocates(4, 3_000, stood(1));
    }
    let blocks: Vec<(u64, u64)> = (0..12).flat_map(|i| [(6 * i, 2), (6 * i + 2, 4)]).collect();
    let (stacks, known) = script.end(&blocks);
    assert_eq!(stacks, in_mib(&[("f", 24), ("g", 48)]));
    assert_eq!(known.certain, Some(48 * MIB), "none of those");
}
