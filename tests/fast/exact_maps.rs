//! Exact events and block snapshots: what each adds to the other.

use crate::analysis_script::{MIB, folded};
use crate::exact_script::Probed;
use memspy::analysis::{FoldOptions, Moment, flame};
use memspy::model::*;

#[test]
fn pending_events_around_a_snapshot_are_not_lost() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    let old = s.malloc(0, 0, 6 * MIB);
    s.begin();
    let a = s.malloc(0, 0, MIB);
    // A snapshot has a block whose event comes after it, and one whose free came just before.
    let b = s.malloc_unseen(0, 0, 2 * MIB);
    s.tell_free(a, None);
    s.tell_free(old, None);
    let map = s.block_map(0);
    s.push_map(map);
    s.release_unseen(0, a);
    s.release_unseen(0, old);
    s.line(0, 2);
    let site = s.site(0);
    s.tell_malloc(0, b, 2 * MIB, site);
    s.now += 1_000_000_000;
    s.poll();
    s.now += 1_000_000_000;
    s.finish();
    let profile = s.profile();
    let exact = profile.exact().unwrap();
    assert_eq!(exact.without_event(CudaIndex(0)), (0, 0));
    let end = folded(&profile, 0, Moment::End);
    assert_eq!(end, [("main:2".to_owned(), 2 * MIB)].into());
    assert!(profile.warnings().is_empty(), "{:?}", profile.warnings());
}

#[test]
fn a_free_just_before_the_first_snapshot_is_not_lost() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    let old = s.malloc(0, 0, 6 * MIB);
    s.malloc(0, 0, MIB);
    s.begin();
    let map = s.take_first_map();
    s.tell_free(old, None);
    s.flush();
    s.push_map(map);
    s.release_unseen(0, old);
    s.now += 1_000_000_000;
    s.finish();
    let profile = s.profile();
    assert_eq!(profile.exact().unwrap().without_event(CudaIndex(0)), (0, 0));
    assert!(profile.warnings().is_empty(), "{:?}", profile.warnings());
    let end = flame::fold(&profile, CudaIndex(0), Moment::End, FoldOptions::default()).unwrap();
    assert_eq!((end.total, end.left_out), (0, MIB));
}

#[test]
fn a_free_pending_at_the_first_snapshot_has_its_event() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    let old = s.malloc(0, 0, 6 * MIB);
    s.malloc(0, 0, MIB);
    s.begin();
    let map = s.take_first_map();
    s.tell_free(old, None);
    // Its thread is interrupted before the allocator takes the block back.
    s.now += 50_000_000;
    s.push_map(map);
    s.release_unseen(0, old);
    s.now += 1_000_000_000;
    s.finish();
    let profile = s.profile();
    assert_eq!(profile.exact().unwrap().without_event(CudaIndex(0)), (0, 0));
    assert!(profile.warnings().is_empty(), "{:?}", profile.warnings());
    let end = flame::fold(&profile, CudaIndex(0), Moment::End, FoldOptions::default()).unwrap();
    assert_eq!((end.total, end.left_out), (0, MIB));
}

#[test]
fn a_first_snapshots_block_before_its_event_is_not_old() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.malloc(0, 0, 6 * MIB);
    s.begin();
    s.take_first_map();
    let highest = s.malloc(0, 0, 3 * MIB);
    s.release(0, highest);
    let ahead = s.malloc_unseen(0, 0, 2 * MIB);
    let map = s.block_map(0);
    s.push_map(map);
    let site = s.site(0);
    s.tell_malloc(0, ahead, 2 * MIB, site);
    s.now += 1_000_000_000;
    s.finish();
    let before = ("[before recording]".to_owned(), 6 * MIB);
    assert_eq!(
        folded(&s.profile(), 0, Moment::Peak),
        [before, ("main:1".to_owned(), 3 * MIB)].into()
    );
    assert!(s.profile().warnings().is_empty(), "{:?}", s.profile().warnings());
}

#[test]
fn what_no_event_told_of_is_shown_as_such() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.begin();
    s.malloc(0, 0, MIB);
    s.malloc_unseen(0, 0, 4 * MIB);
    let gone = s.malloc(0, 0, 2 * MIB);
    for _ in 0..2 {
        s.now += 1_000_000_000;
        s.poll();
    }
    s.release_unseen(0, gone);
    s.now += 1_000_000_000;
    s.finish();
    let profile = s.profile();
    assert_eq!(profile.exact().unwrap().without_event(CudaIndex(0)), (1, 1));
    let fold = folded(&profile, 0, Moment::Peak);
    assert_eq!((fold["main:1"], fold["[no event]"]), (3 * MIB, 4 * MIB));
    assert_eq!(folded(&profile, 0, Moment::End)["[no event]"], 4 * MIB);
    let warnings = memspy::render::warnings(&profile).join("\n");
    assert!(warnings.contains("1 block was allocated and 1 freed without an event"), "{warnings}");
}

#[test]
fn lost_frees_do_not_hide() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.begin();
    let a = s.malloc(0, 0, 4 * MIB);
    s.release_unseen(0, a);
    s.line(0, 2);
    s.malloc(0, 0, 5 * MIB);
    let time = Nanos(s.now);
    s.records.push(Record::Missed(MissedObservation {
        time,
        reader: ReaderKind::Events,
        why: MissReason::Late,
        count: 1,
    }));
    s.finish();
    let profile = s.profile();
    let warnings = memspy::render::warnings(&profile).join("\n");
    assert!(warnings.contains("1 event was lost"), "{warnings}");
    assert!(warnings.contains("known blocks exceed"), "{warnings}");
}

#[test]
fn an_address_allocated_again_ends_the_block_before() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.begin();
    let a = s.malloc(0, 0, 4 * MIB);
    s.release_unseen(0, a);
    s.line(0, 2);
    assert_eq!(s.malloc(0, 0, 4 * MIB), a);
    s.finish();
    let profile = s.profile();
    assert_eq!(folded(&profile, 0, Moment::End), [("main:2".to_owned(), 4 * MIB)].into());
    assert_eq!(profile.exact().unwrap().without_event(CudaIndex(0)), (0, 1));
}

#[test]
fn without_free_events_the_highest_map_is_drawn() {
    let mut s = Probed::new();
    s.exact.frees = FreeTracking::Snapshots;
    s.enter(0, "main", 1);
    s.malloc(0, 0, MIB);
    s.begin();
    s.line(0, 2);
    let a = s.malloc(0, 0, 4 * MIB);
    s.now += 1_000_000_000;
    s.poll();
    s.line(0, 3);
    let b = s.malloc(0, 0, 4 * MIB);
    s.release(0, a);
    s.release(0, b);
    s.now += 1_000_000_000;
    s.poll();
    // Freed again before the highest snapshot, and so young that the snapshot alone does not show
    // it.
    s.malloc(0, 0, 5 * MIB);
    s.line(0, 4);
    let c = s.malloc(0, 0, 512);
    s.release(0, c);
    s.poll();
    s.now += 1_000_000_000;
    s.finish();
    let profile = s.profile();
    let fold = flame::fold(&profile, CudaIndex(0), Moment::Peak, FoldOptions::default()).unwrap();
    assert_eq!((fold.total, fold.below_peak()), (6 * MIB, Some(3 * MIB)));
    let fold = folded(&profile, 0, Moment::Peak);
    let expected = [("[before recording]", MIB), ("main:3", 5 * MIB)];
    assert_eq!(fold, expected.map(|(k, v)| (k.to_owned(), v)).into());
    assert_eq!(folded(&profile, 0, Moment::End), [("main:3".to_owned(), 5 * MIB)].into());
    assert!(profile.warnings().is_empty(), "{:?}", profile.warnings());
    assert_eq!(profile.exact().unwrap().without_event(CudaIndex(0)), (0, 0));
}

/// Probes attached in the middle of a step, whose peak all later steps reach again: the picture
/// showed that step, half of it unknown.
#[test]
fn of_equal_peaks_the_one_with_known_stacks_is_shown() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.begin();
    let unseen = s.malloc_unseen(0, 0, 4 * MIB);
    for _ in 0..2 {
        s.now += 1_000_000_000;
        s.poll();
    }
    // So that the counters reveal nothing of the unseen block with the next event.
    let tiny = s.malloc(0, 0, 512);
    s.release(0, tiny);
    let first = s.malloc(0, 0, 3 * MIB);
    s.release(0, unseen);
    s.release(0, first);
    s.line(0, 2);
    for _ in 0..3 {
        let blocks = [s.malloc(0, 0, 4 * MIB), s.malloc(0, 0, 3 * MIB)];
        blocks.into_iter().for_each(|block| s.release(0, block));
    }
    s.finish();
    let profile = s.profile();
    let fold = folded(&profile, 0, Moment::Peak);
    assert_eq!(fold.get("main:2"), Some(&(7 * MIB)), "{fold:?}");
    assert!(!fold.contains_key("[no event]"), "{fold:?}");
}
