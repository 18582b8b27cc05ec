//! Followed changes of which the addresses were read: which block was freed is known then.

use crate::analysis_followed::{MIB, Script, allocated, freed, in_mib, stood, went};
use memspy::model::{AddressedBlock, CounterDelta, FollowedAddresses};

/// After so many changes blocks of 2 MiB are at the first addresses that were not before, and at the second ones not any more;
/// addresses are MiB from the start of the segment.
fn read(changes: u32, given: &[u64], taken_back: &[u64]) -> Option<FollowedAddresses> {
    let address = |at: &u64| (1 << 40) + at * MIB;
    let block = |at| AddressedBlock { address: address(at), size: 2 * MIB, requested: 2 * MIB };
    let allocated = given.iter().map(block).collect();
    Some(FollowedAddresses { changes, allocated, freed: taken_back.iter().map(address).collect() })
}

impl Script {
    fn allocates_at(&mut self, stack: u32, at: u64) {
        self.addresses = read(1, &[at], &[]);
        self.allocates(2, 3_000, stood(stack));
    }

    /// A block of so many MiB at that address.
    fn allocates_one_of(&mut self, mib: u64, at: u64) {
        let (address, size) = ((1 << 40) + at * MIB, mib * MIB);
        let allocated = vec![AddressedBlock { address, size, requested: size }];
        self.addresses = Some(FollowedAddresses { changes: 1, allocated, freed: Vec::new() });
        self.allocates(mib, 3_000, stood(0));
    }

    /// 2 MiB at the first address, and 4 MiB behind it.
    fn allocates_a_small_and_a_large_one(&mut self) {
        self.allocates_at(0, 0);
        self.allocates_one_of(4, 2);
    }
}

/// Without addresses the youngest is taken for the one that was freed.
#[test]
fn the_block_whose_address_was_taken_back_was_freed() {
    let mut script = Script::new();
    script.allocates_at(0, 0);
    script.allocates_at(1, 2);
    script.addresses = read(1, &[], &[0]);
    script.frees(2);
    let (stacks, known) = script.end(&[(2, 2)]);
    assert_eq!(stacks, in_mib(&[("g", 2)]));
    assert_eq!(known.certain, Some(2 * MIB));
}

/// Which of two like blocks has which address matters when one of them is freed, also after a map.
#[test]
fn like_blocks_of_two_lines_are_told_apart_over_maps() {
    let mut script = Script::new();
    script.allocates_at(0, 0);
    script.allocates_at(1, 2);
    script.blocks = vec![(0, 2), (2, 2)];
    script.map();
    script.addresses = read(1, &[], &[0]);
    script.frees(2);
    script.allocates_at(1, 0);
    let (stacks, known) = script.end(&[(0, 2), (2, 2)]);
    assert_eq!(stacks, in_mib(&[("g", 4)]));
    assert_eq!(known.certain, Some(4 * MIB));
}

/// The tables are what they were: a block was freed, and another one has its address.
#[test]
fn a_block_freed_and_allocated_again_at_its_address_between_two_readings_has_a_new_maker() {
    let mut script = Script::new();
    script.allocates_at(0, 0);
    script.frees(2);
    script.addresses = read(2, &[], &[]);
    script.allocates(2, 3_000, stood(1));
    let (stacks, _) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("g", 2)]));
}

/// The same where the tables were read in between, in a state that the poller did not see.
#[test]
fn an_address_that_was_taken_back_and_given_out_in_one_change_has_a_new_block() {
    let mut script = Script::new();
    script.allocates_at(0, 0);
    script.allocates_at(0, 2);
    script.addresses = read(1, &[0], &[0]);
    script.change(and_frees(1, 2, 2), 3_000, stood(1));
    let (stacks, _) = script.end(&[(0, 2), (2, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2), ("g", 2)]));
}

/// A change that also frees one block.
pub(crate) fn and_frees(allocations: i64, allocated_mib: u64, freed_mib: i64) -> CounterDelta {
    CounterDelta {
        frees: 1,
        freed_bytes: freed_mib << 20,
        freed_requested_bytes: freed_mib << 20,
        ..allocated(allocations, allocated_mib)
    }
}

/// What was freed was larger than the block that has its address now: an older block of that block's size seemed to be the one.
#[test]
fn a_smaller_block_can_have_the_address_of_a_larger_one_that_was_freed() {
    let mut script = Script::new();
    script.allocates_a_small_and_a_large_one();
    script.frees(4);
    script.addresses = read(2, &[], &[]);
    script.allocates(2, 3_000, stood(1));
    script.addresses = read(1, &[], &[0]);
    script.frees(2);
    let (stacks, _) = script.end(&[(2, 2)]);
    assert_eq!(stacks, in_mib(&[("g", 2)]));
}

/// The same of two larger ones between two readings. None of those that were freed was as large as the new ones and the one before, which are all
/// alive.
#[test]
fn smaller_blocks_can_have_the_addresses_of_larger_ones_of_two_sizes() {
    let mut script = Script::new();
    script.allocates_one_of(4, 0);
    script.allocates_one_of(6, 4);
    script.allocates_at(0, 10);
    script.frees(4);
    script.allocates(2, 3_000, stood(1));
    script.frees(6);
    script.addresses = read(4, &[], &[]);
    script.allocates(2, 3_000, stood(1));
    let (stacks, _) = script.end(&[(0, 2), (4, 2), (10, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2), ("g", 4)]));
}

/// The same where several were allocated between two polls.
#[test]
fn one_of_several_blocks_can_have_the_address_of_a_larger_one_that_was_freed() {
    let mut script = Script::new();
    script.allocates_a_small_and_a_large_one();
    script.addresses = read(1, &[8], &[]);
    script.change(and_frees(2, 4, 4), 3_000, went(0, 1));
    script.addresses = read(1, &[], &[0]);
    script.frees(2);
    let (stacks, _) = script.end(&[(2, 2), (8, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2), ("g", 2)]));
}

/// It was freed after it was allocated, so it can only have been that one: the older block at another address is untouched, for sure.
#[test]
fn a_block_that_lived_between_two_readings_leaves_the_others_as_they_were() {
    let mut script = Script::new();
    script.allocates_at(0, 0);
    script.allocates(2, 3_000, stood(1));
    script.addresses = read(2, &[], &[]);
    script.frees(2);
    let (stacks, known) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2)]));
    assert_eq!(known.certain, Some(2 * MIB));
}

/// The tables had one of the two when they were read. Which has the other address is certain only where one line made both.
#[test]
fn which_of_two_blocks_has_an_address_is_certain_only_if_one_line_made_both() {
    for (second, certain) in [(1, 0), (0, 2 * MIB)] {
        let mut script = Script::new();
        script.allocates(2, 3_000, stood(0));
        script.addresses = read(2, &[0], &[]);
        script.allocates(2, 3_000, stood(second));
        let (_, known) = script.end(&[(0, 2), (2, 2)]);
        assert_eq!(known.certain, Some(certain), "the second was made by {second}");
    }
}

/// Two blocks were allocated between two polls, one by each of the lines that were seen: each has one maker, neither is certain.
#[test]
fn blocks_allocated_between_two_polls_are_never_certain() {
    let mut script = Script::new();
    script.addresses = read(1, &[0, 2], &[]);
    script.change(allocated(2, 4), 3_000, went(0, 1));
    let (stacks, known) = script.end(&[(0, 2), (2, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2), ("g", 2)]));
    assert_eq!(known.certain, Some(0));
}

/// Many changes with one reading at their end: the frees are known by address all the same.
#[test]
fn a_reading_after_many_changes_tells_what_of_the_older_blocks_was_freed() {
    let mut script = Script::new();
    (0..8).for_each(|n| script.allocates_at(n as u32 % 2, 2 * n));
    let odd: Vec<u64> = (0..8).filter(|n| n % 2 == 1).map(|n| 2 * n).collect();
    odd[1..].iter().for_each(|_| script.change(freed(1, 2), 3_000, Vec::new()));
    script.addresses = read(4, &[], &odd);
    script.frees(2);
    let (stacks, known) = script.end(&[(0, 2), (4, 2), (8, 2), (12, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 8)]));
    assert_eq!(known.certain, Some(8 * MIB));
}

/// A layer: the first block is freed once the second has been made of it, and the third has its address.
fn layer(script: &mut Script) {
    script.allocates_at(0, 0);
    script.allocates_at(1, 2);
    script.addresses = read(1, &[], &[0]);
    script.frees(2);
    script.allocates_at(3, 0);
}

/// All three are alike: which of them was freed in a change of several is what it was in earlier iterations.
#[test]
fn of_several_like_blocks_in_one_change_the_one_is_freed_that_was_in_earlier_iterations() {
    let mut script = Script::new();
    for _ in 0..3 {
        layer(&mut script);
        for at in [0, 2] {
            script.addresses = read(1, &[], &[at]);
            script.frees(2);
        }
    }
    script.allocates_at(0, 0);
    script.addresses = read(1, &[2], &[]);
    script.change(and_frees(2, 4, 2), 3_000, went(0, 3));
    let (stacks, known) = script.end(&[(0, 2), (2, 2)]);
    assert_eq!(stacks, in_mib(&[("f g", 2), ("g", 2)]));
    assert_eq!(known.certain.unwrap_or(0), 0, "what happened before may have been otherwise now");
}

/// The same where something else was freed, too, as in no iteration before, and where the youngest but one is not what was freed.
#[test]
fn what_is_known_of_earlier_iterations_tells_it_also_where_not_all_of_a_window_is_known() {
    let mut script = Script::new();
    // Nothing is known of its address, so that one of its kind has to be found.
    script.allocates(4, 3_000, stood(2));
    for _ in 0..3 {
        script.allocates_at(0, 0);
        script.allocates_at(1, 2);
        script.addresses = read(1, &[], &[2]);
        script.frees(2);
        script.allocates_at(3, 2);
        for at in [0, 2] {
            script.addresses = read(1, &[], &[at]);
            script.frees(2);
        }
    }
    script.allocates_at(0, 0);
    script.change(and_frees(2, 4, 2), 3_000, went(0, 3));
    script.addresses = read(2, &[2], &[]);
    script.frees(4);
    let (stacks, _) = script.end(&[(0, 2), (2, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2), ("f g", 2)]));
}

/// The 4 MiB were freed before the block was allocated: that free is not the one that ended it.
#[test]
fn a_free_that_is_known_is_not_taken_for_another_one() {
    let mut script = Script::new();
    script.allocates_a_small_and_a_large_one();
    script.frees(4);
    script.allocates(2, 3_000, stood(1));
    script.addresses = read(3, &[], &[2]);
    script.frees(2);
    let (stacks, _) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2)]));
}

/// In earlier iterations it was allocated first and freed then: that makes one change of both no free of an older block.
#[test]
fn a_block_that_lived_within_one_change_leaves_the_older_ones_as_they_were() {
    let mut script = Script::new();
    script.allocates_at(0, 0);
    // Nothing is known of its address, so that what was freed is not known from earlier iterations.
    script.allocates(4, 3_000, stood(2));
    for _ in 0..3 {
        script.allocates_at(1, 2);
        script.addresses = read(1, &[], &[2]);
        script.frees(2);
        script.allocates_at(3, 2);
        script.addresses = read(1, &[], &[2]);
        script.frees(2);
    }
    script.change(and_frees(1, 2, 2), 3_000, went(3, 1));
    script.addresses = read(2, &[], &[]);
    script.frees(4);
    let (stacks, _) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2)]));
}
