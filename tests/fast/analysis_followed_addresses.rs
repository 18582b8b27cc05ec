//! Counter deltas with addresses: the freed block is known.

use crate::analysis_followed::{MIB, Script, allocated, freed, in_mib, stood, went};
use memspy::model::{AddressedBlock, CounterDelta, FollowedAddresses};

/// After `changes` deltas, `given` addresses have new blocks of 2 MiB and `taken_back` ones have
/// none; in MiB from the segment's start.
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

    /// A block of `mib` MiB at that address.
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

/// Without addresses the youngest block is taken for the freed one.
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

/// Which of two like blocks has which address matters when one is freed, also after a snapshot.
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

/// The tables are unchanged: a block was freed, and another one has its address.
#[test]
fn an_address_reused_between_two_reads_has_a_new_site() {
    let mut script = Script::new();
    script.allocates_at(0, 0);
    script.frees(2);
    script.addresses = read(2, &[], &[]);
    script.allocates(2, 3_000, stood(1));
    let (stacks, _) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("g", 2)]));
}

/// The tables were read in between, in a state that the poller did not see.
#[test]
fn an_address_reused_within_one_delta_has_a_new_block() {
    let mut script = Script::new();
    script.allocates_at(0, 0);
    script.allocates_at(0, 2);
    script.addresses = read(1, &[0], &[0]);
    script.change(and_frees(1, 2, 2), 3_000, stood(1));
    let (stacks, _) = script.end(&[(0, 2), (2, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2), ("g", 2)]));
}

/// A delta that also frees one block.
fn and_frees(allocations: i64, allocated_mib: u64, freed_mib: i64) -> CounterDelta {
    CounterDelta {
        frees: 1,
        freed_bytes: freed_mib << 20,
        freed_requested_bytes: freed_mib << 20,
        ..allocated(allocations, allocated_mib)
    }
}

/// The freed block was larger than the one at its address now: an older block of that size seemed
/// freed.
#[test]
fn a_smaller_block_can_reuse_a_larger_freed_address() {
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

/// Two larger ones between two reads. No freed block was as large as the new ones and the one
/// before, which are all live.
#[test]
fn smaller_blocks_can_reuse_addresses_of_two_larger_sizes() {
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

/// It was freed after it was allocated: the older block at another address is proven to be
/// untouched.
#[test]
fn a_block_that_lived_between_reads_leaves_others_unchanged() {
    let mut script = Script::new();
    script.allocates_at(0, 0);
    script.allocates(2, 3_000, stood(1));
    script.addresses = read(2, &[], &[]);
    script.frees(2);
    let (stacks, known) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2)]));
    assert_eq!(known.certain, Some(2 * MIB));
}

/// The tables had one of the two when read, and may have missed the other: both are proven only if
/// one line allocated both.
#[test]
fn addresses_are_proven_only_if_one_line_allocated_both() {
    for (second, certain) in [(1, 0), (0, 4 * MIB)] {
        let mut script = Script::new();
        script.allocates(2, 3_000, stood(0));
        script.addresses = read(2, &[0], &[]);
        script.allocates(2, 3_000, stood(second));
        let (_, known) = script.end(&[(0, 2), (2, 2)]);
        assert_eq!(known.certain, Some(certain), "the second was made by {second}");
    }
}

/// Two blocks between two polls, one by each of the lines seen, or both by one: neither is proven.
#[test]
fn blocks_allocated_between_two_polls_are_never_certain() {
    let mut script = Script::new();
    script.addresses = read(1, &[0, 2], &[]);
    script.change(allocated(2, 4), 3_000, went(0, 1));
    let (stacks, known) = script.end(&[(0, 2), (2, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 1), ("g", 2)]));
    assert_eq!(known.certain, Some(0));
}

/// Many deltas with one read at their end: frees are still known by address.
#[test]
fn a_read_after_many_deltas_shows_which_older_blocks_went() {
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

/// A layer: the first block is freed after the second is computed from it, and the third has its
/// address.
fn layer(script: &mut Script) {
    script.allocates_at(0, 0);
    script.allocates_at(1, 2);
    script.addresses = read(1, &[], &[0]);
    script.frees(2);
    script.allocates_at(3, 0);
}

/// All three are alike: earlier iterations show which of them a delta of several freed.
#[test]
fn like_blocks_are_freed_as_in_earlier_iterations() {
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

/// The 4 MiB were freed before the block was allocated: that free did not end it.
#[test]
fn a_known_free_is_not_taken_for_another() {
    let mut script = Script::new();
    script.allocates_a_small_and_a_large_one();
    script.frees(4);
    script.allocates(2, 3_000, stood(1));
    script.addresses = read(3, &[], &[2]);
    script.frees(2);
    let (stacks, _) = script.end(&[(0, 2)]);
    assert_eq!(stacks, in_mib(&[("f", 2)]));
}

/// Earlier iterations allocated it first and freed it then: a delta of both frees no older block.
#[test]
fn a_block_within_one_delta_leaves_older_ones_unchanged() {
    let mut script = Script::new();
    script.allocates_at(0, 0);
    // Its address is unknown, so earlier iterations do not show what was freed.
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
