//! Sites of allocations whose polls came too late or too early: what allocated such blocks at the
//! same place of the run, or at all.

use crate::analysis_followed::{Script, allocated, at, freed, in_mib, stood, went};
use memspy::model::{CounterDelta, StackId, StackReading};

#[test]
fn a_stack_around_most_such_allocations_is_the_probable_site() {
    let mut script = Script::new();
    for i in 0..3 {
        script.allocates(2, 3_000, if i == 2 { stood(1) } else { went(0, 1) });
    }
    let (stacks, known) = script.end(&[(0, 2), (2, 2), (4, 2)]);
    assert_eq!(stacks, in_mib(&[("g", 6)]));
    assert_eq!(known.certain, Some(0));
}

/// The poll before saw the line ahead of it; the stack of the one after was unreadable.
#[test]
fn a_stack_that_always_allocates_at_this_place_is_probable() {
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

/// A line seen only after an allocation may be the next line.
#[test]
fn distant_polls_do_not_separate_a_line_from_the_next() {
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
fn frees_beside_an_allocation_do_not_change_its_probable_site() {
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
