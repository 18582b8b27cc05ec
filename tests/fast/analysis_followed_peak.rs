//! The peak of a followed recording between two snapshots.

use crate::analysis_followed::{MIB, Script, allocated, freed, in_mib, stood};
use memspy::analysis::{FoldOptions, FoldedProfile, Moment};
use memspy::model::{AddressedBlock, FollowedAddresses, SnapshotConsistency};

fn peak(script: &Script) -> (Vec<(String, u64)>, FoldedProfile) {
    script.folded_at(Moment::Peak, FoldOptions::default())
}

/// The next block's address is read.
fn reads_address(script: &mut Script, at: u64, mib: u64) {
    let (address, size) = ((1 << 40) + at * MIB, mib * MIB);
    let allocated = vec![AddressedBlock { address, size, requested: size }];
    script.addresses = Some(FollowedAddresses { changes: 1, allocated, freed: Vec::new() });
}

/// The next delta frees this address.
fn takes_back(script: &mut Script, at: u64) {
    let freed = vec![(1 << 40) + at * MIB];
    script.addresses = Some(FollowedAddresses { changes: 1, allocated: Vec::new(), freed });
}

/// 2 MiB, and a snapshot of them.
fn two_mib() -> Script {
    let mut script = Script::new();
    script.allocates(2, 3_000, stood(0));
    script.blocks = vec![(0, 2)];
    script.map();
    script
}

/// 2 MiB that stay; 30 MiB that come and go between two snapshots.
fn between_maps() -> Script {
    let mut script = two_mib();
    reads_address(&mut script, 10, 30);
    script.allocates(30, 3_000, stood(1));
    script.frees(30);
    script.map();
    script
}

/// Too often, the blocks freed meanwhile would be guessed.
#[test]
fn without_addresses_the_map_nearest_below_the_peak_is_drawn() {
    let mut script = two_mib();
    script.allocates(30, 3_000, stood(1));
    script.frees(30);
    script.map();
    assert_eq!(peak(&script).0, in_mib(&[("f", 2)]));
}

#[test]
fn the_peak_between_two_maps_is_drawn() {
    let script = between_maps();
    let (stacks, folded) = peak(&script);
    assert_eq!(stacks, in_mib(&[("f", 2), ("g", 30)]));
    assert_eq!((folded.total, folded.snapshot.cached()), (32 * MIB, None));
    assert_eq!(folded.resolution.certain, Some(32 * MIB));
}

/// A function's result is allocated and its inputs are freed before the address tables are read.
#[test]
fn the_peak_is_drawn_if_over_when_addresses_are_read() {
    let mut script = two_mib();
    reads_address(&mut script, 10, 8);
    script.allocates(8, 3_000, stood(0));
    script.allocates(30, 3_000, stood(1));
    let size = 30 * MIB;
    script.addresses = Some(FollowedAddresses {
        changes: 2,
        allocated: vec![AddressedBlock { address: (1 << 40) + 100 * MIB, size, requested: size }],
        freed: vec![(1 << 40) + 10 * MIB],
    });
    script.frees(8);
    takes_back(&mut script, 100);
    script.frees(30);
    script.map();
    let (stacks, folded) = peak(&script);
    assert_eq!(stacks, in_mib(&[("f", 10), ("g", 30)]));
    assert_eq!(folded.total, 40 * MIB);
}

/// Which block of a size was freed is probable, not proven.
#[test]
fn at_the_peak_sizes_with_a_free_are_not_proven() {
    let mut script = between_maps();
    script.allocates(30, 3_000, stood(0));
    script.allocates(30, 3_000, stood(1));
    script.frees(30);
    reads_address(&mut script, 100, 40);
    script.allocates(40, 3_000, stood(1));
    script.frees(40);
    script.frees(30);
    script.map();
    let (_, folded) = peak(&script);
    assert_eq!((folded.total, folded.resolution.certain), (72 * MIB, Some(42 * MIB)));
}

/// No addresses are known at that moment.
#[test]
fn what_needs_addresses_has_the_highest_map() {
    let options = FoldOptions { with_addresses: true, ..FoldOptions::default() };
    let (stacks, folded) = between_maps().folded_at(Moment::Peak, options);
    assert_eq!(stacks, in_mib(&[("f", 2)]));
    assert!(folded.snapshot.cached().is_some());
}

#[test]
fn a_higher_map_that_comes_later_is_the_peak() {
    let mut script = between_maps();
    script.allocates(40, 3_000, stood(0));
    script.blocks = vec![(0, 2), (100, 40)];
    script.map();
    assert_eq!(peak(&script).0, in_mib(&[("f", 42)]));
}

#[test]
fn unknown_bytes_at_the_peak_are_not_seen() {
    let mut script = Script::new();
    script.allocates(190, 3_000, stood(0));
    script.blocks = vec![(0, 190)];
    script.map();
    reads_address(&mut script, 300, 1);
    script.allocates(1, 3_000, stood(0));
    // Three blocks of different sizes, allocated at once.
    script.change(allocated(3, 10), 3_000, stood(1));
    script.change(freed(3, 10), 3_000, stood(1));
    script.frees(1);
    script.map();
    let (stacks, folded) = peak(&script);
    assert_eq!(stacks, in_mib(&[("[not seen]", 10), ("f", 191)]));
    assert_eq!(folded.resolution.not_seen, 10 * MIB);
}

/// Half of the peak has no known site: the nearest snapshot below it is drawn, and says so.
#[test]
fn a_peak_of_which_little_is_known_is_not_drawn() {
    let mut script = Script::new();
    script.allocates(20, 3_000, stood(0));
    script.blocks = vec![(0, 20)];
    script.map();
    reads_address(&mut script, 300, 1);
    script.allocates(1, 3_000, stood(0));
    script.change(allocated(3, 10), 3_000, stood(1));
    script.change(freed(3, 10), 3_000, stood(1));
    script.map();
    assert_eq!(peak(&script).0, in_mib(&[("f", 20)]));
}

/// Two snapshots that the job disturbed: what the first has and the second has not was not in the
/// complete snapshot before them.
#[test]
fn blocks_after_the_last_complete_snapshot_are_not_older() {
    let mut script = Script::new();
    script.allocates(20, 3_000, stood(0));
    script.allocates(8, 3_000, stood(0));
    script.blocks = vec![(0, 20), (30, 8)];
    script.map();
    script.allocates(8, 3_000, stood(1));
    script.consistency = SnapshotConsistency::Degraded {
        allocated_in_blocks: 36 * MIB,
        allocated_counter: 37 * MIB,
    };
    script.blocks = vec![(0, 20), (30, 8), (50, 8)];
    script.map();
    script.frees(8);
    script.blocks = vec![(0, 20), (30, 8)];
    script.map();
    reads_address(&mut script, 120, 40);
    script.allocates(40, 3_000, stood(1));
    script.frees(40);
    takes_back(&mut script, 30);
    script.frees(8);
    script.consistency = SnapshotConsistency::Consistent;
    script.blocks = vec![(0, 20)];
    script.map();
    assert_eq!(peak(&script).0, in_mib(&[("f", 28), ("g", 40)]));
}
