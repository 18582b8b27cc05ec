//! Attribution of exact events over simulated processes with known truth.

use std::collections::BTreeMap;

use crate::analysis_script::{MIB, folded, text};
use crate::exact_script::Probed;
use memspy::analysis::{
    FoldError, FoldOptions, MemoryGroup, Moment, PeakTime, Profile, flame, peak,
};
use memspy::model::*;
use proptest::prelude::*;

fn fold_with(profile: &Profile, moment: Moment, options: FoldOptions) -> BTreeMap<String, u64> {
    let fold = flame::fold(profile, CudaIndex(0), moment, options).unwrap();
    assert_eq!(fold.stacks.iter().map(|s| s.bytes).sum::<u64>(), fold.total);
    fold.stacks.iter().map(|s| (text(profile, &s.path), s.bytes)).collect()
}

fn peak(s: &Probed) -> BTreeMap<String, u64> {
    folded(&s.profile(), 0, Moment::Peak)
}

#[test]
fn the_peak_has_the_blocks_live_when_it_was_reached() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.malloc(0, 0, 7 * MIB);
    s.begin();
    s.line(0, 2);
    let a = s.malloc(0, 0, 3 * MIB);
    s.line(0, 3);
    let b = s.malloc(0, 0, 1000);
    s.release(0, a);
    s.line(0, 4);
    s.malloc(0, 0, 2 * MIB);
    s.release(0, b);
    s.finish();
    let profile = s.profile();
    let fold = folded(&profile, 0, Moment::Peak);
    let expected = [("[before recording]", 7 * MIB), ("main:2", 3 * MIB), ("main:3", 1024)];
    assert_eq!(fold, expected.map(|(k, v)| (k.to_owned(), v)).into());
    let high = peak::allocated(&profile, CudaIndex(0)).unwrap();
    assert_eq!(high.bytes as u64, 10 * MIB + 1024);
    assert!(matches!(high.reached, PeakTime::Between(a, b) if a == b), "{high:?}");
    // The leak view: what was there before is left out, with a note.
    let end = flame::fold(&profile, CudaIndex(0), Moment::End, FoldOptions::default()).unwrap();
    assert_eq!((end.total, end.left_out), (2 * MIB, 7 * MIB));
    assert_eq!(text(&profile, &end.stacks[0].path), "main:4");
    assert!(profile.warnings().is_empty(), "{:?}", profile.warnings());
}

#[test]
fn blocks_larger_than_asked_for_have_their_true_size() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.begin();
    s.line(0, 2);
    s.unsplit = MIB - 512;
    let a = s.malloc(0, 0, 5 * MIB);
    s.unsplit = 0;
    s.line(0, 3);
    s.malloc(0, 0, 100);
    s.release(0, a);
    s.line(0, 4);
    s.malloc(0, 0, 3 * MIB);
    s.finish();
    let fold = peak(&s);
    assert_eq!(fold["main:2"], 6 * MIB - 512);
    assert_eq!(fold["main:3"], 512);
    assert!(!fold.contains_key("[no event]"), "{fold:?}");
}

#[test]
fn a_snapshot_corrects_a_wrong_size_at_the_peak() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.begin();
    // No counters with this event: the block is taken to have the requested size.
    s.unsplit = 1024;
    let a = s.malloc_unseen(0, 0, 5 * MIB);
    s.unsplit = 0;
    let site = s.site(0);
    let site = s.table.site(site);
    let memory_kind = MemoryKind::Torch(CudaIndex(0));
    s.push(
        EventKind::Allocated { memory_kind, address: a, size: 5 * MIB, levels: None, block: None },
        Some(site),
    );
    s.line(0, 2);
    let b = s.malloc(0, 0, 4 * MIB);
    s.release(0, b);
    s.poll();
    s.finish();
    let fold = peak(&s);
    assert_eq!(fold["main:1"], 5 * MIB + 1024, "{fold:?}");
    assert_eq!(fold["main:2"], 4 * MIB);
}

#[test]
fn a_read_size_is_right_whatever_other_threads_allocate() {
    let mut s = Probed::new();
    s.thread("other", false);
    s.enter(0, "main", 1);
    s.enter(1, "other", 1);
    s.begin();
    // Both are counted before either event, so the counter grows by both sizes at the first event.
    let sizes = [(0, 5 * MIB), (1, 4 * MIB)];
    let told = sizes.map(|(thread, size)| (thread, size, s.malloc_unseen(thread, 0, size)));
    for (thread, size, address) in told {
        let site = s.site(thread);
        let site = s.table.site(site);
        let memory_kind = MemoryKind::Torch(CudaIndex(0));
        let (levels, block) = (Some(s.levels(0)), Some(size));
        s.push(EventKind::Allocated { memory_kind, address, size, levels, block }, Some(site));
    }
    s.counters(0);
    s.finish();
    let fold = peak(&s);
    assert_eq!((fold["main:1"], fold["other:1"]), (5 * MIB, 4 * MIB), "{fold:?}");
    let profile = s.profile();
    let balance = profile.exact().unwrap().balance(CudaIndex(0));
    assert!(balance.is_none_or(|balance| balance.is_even()), "{balance:?}");
}

#[test]
fn two_devices_are_kept_apart() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.gpus.entry(1).or_default();
    s.begin();
    let a = s.malloc(0, 0, 3 * MIB);
    s.line(0, 2);
    let b = s.malloc(0, 1, 5 * MIB);
    s.release(0, a);
    s.release(1, b);
    s.line(0, 3);
    s.malloc(0, 1, 512);
    s.finish();
    let profile = s.profile();
    assert_eq!(folded(&profile, 0, Moment::Peak), [("main:1".to_owned(), 3 * MIB)].into());
    assert_eq!(folded(&profile, 1, Moment::Peak), [("main:2".to_owned(), 5 * MIB)].into());
    assert_eq!(folded(&profile, 1, Moment::End), [("main:3".to_owned(), 512)].into());
}

#[test]
fn churn_counts_all_bytes_and_allocations() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.begin();
    for i in 0..10 {
        s.line(0, 1 + i % 2);
        let a = s.malloc(0, 0, MIB);
        s.release(0, a);
    }
    s.finish();
    let profile = s.profile();
    let options = FoldOptions { churn: true, ..FoldOptions::default() };
    let fold = flame::fold(&profile, CudaIndex(0), Moment::Peak, options).unwrap();
    assert_eq!((fold.total, fold.allocations), (10 * MIB, Some(10)));
    let fold = fold_with(&profile, Moment::Peak, options);
    assert_eq!((fold["main:1"], fold["main:2"]), (5 * MIB, 5 * MIB));
}

#[test]
fn short_lived_blocks_can_be_left_out() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.malloc(0, 0, MIB);
    s.begin();
    s.line(0, 2);
    s.malloc(0, 0, 2 * MIB);
    s.line(0, 3);
    let young = s.malloc(0, 0, 4 * MIB);
    s.release(0, young);
    s.line(0, 2);
    // A later, higher peak of another line: blocks freed before are not in it.
    s.line(0, 4);
    let long = s.malloc(0, 0, 16 * MIB);
    s.now += 3_000_000_000;
    s.release(0, long);
    s.line(0, 5);
    s.malloc(0, 0, 512);
    s.finish();
    let mut profile = Profile::new().with_min_lifetime(Nanos(2_000_000_000));
    for record in &s.records {
        profile.record(record).unwrap();
    }
    let fold = fold_with(&profile, Moment::Peak, FoldOptions::default());
    let expected = [("[before recording]", MIB), ("main:2", 2 * MIB), ("main:4", 16 * MIB)];
    assert_eq!(fold, expected.map(|(k, v)| (k.to_owned(), v)).into());
    let end = fold_with(&profile, Moment::End, FoldOptions::default());
    assert_eq!(end, [("main:2".to_owned(), 2 * MIB)].into(), "the youngest block is left out");
}

#[test]
fn a_line_keeps_its_bytes_at_a_later_peak() {
    let mut s = Probed::new();
    s.enter(0, "main", 1);
    s.begin();
    s.malloc(0, 0, 2 * MIB);
    let young = s.malloc(0, 0, 4 * MIB);
    s.release(0, young);
    s.line(0, 2);
    s.malloc(0, 0, 16 * MIB);
    s.now += 3_000_000_000;
    s.finish();
    let mut profile = Profile::new().with_min_lifetime(Nanos(2_000_000_000));
    for record in &s.records {
        profile.record(record).unwrap();
    }
    let fold = fold_with(&profile, Moment::Peak, FoldOptions::default());
    assert_eq!((fold["main:1"], fold["main:2"]), (2 * MIB, 16 * MIB));
}

#[test]
fn memory_of_the_driver_is_drawn_by_kind() {
    let mut s = Probed::new();
    s.gpus.clear();
    s.enter(0, "main", 1);
    s.begin();
    let allocated = |memory_kind, address, size| EventKind::Allocated {
        memory_kind,
        address,
        size,
        levels: None,
        block: None,
    };
    let freed =
        |memory_kind, address| EventKind::Freed { memory_kind, address, in_backward: false };
    s.tell(0, allocated(MemoryKind::Driver(None), 0x1000, 3000));
    s.line(0, 2);
    s.tell(0, allocated(MemoryKind::PinnedHost, 0x1000, 500));
    s.tell(0, allocated(MemoryKind::Managed, 0x2000, 700));
    s.tell(0, allocated(MemoryKind::Physical(None), 0x1000, 900));
    s.tell(0, allocated(MemoryKind::Mapping, 0x9000, 900));
    s.tell(0, freed(AddressSpace::Driver, 0x1000));
    s.tell(0, freed(AddressSpace::Driver, 0x2000));
    let memory_kind = MemoryKind::Driver(None);
    s.tell(0, EventKind::Failed { memory_kind, size: 1 << 40, code: 2 });
    s.tell(0, EventKind::Marked(memspy::model::DriverEvent::ModuleLoaded));
    s.finish();
    let profile = s.profile();
    let memory = |kind, moment| {
        let options = FoldOptions { memory: Some(kind), ..FoldOptions::default() };
        let fold = flame::fold(&profile, CudaIndex(0), moment, options).unwrap();
        (fold.total, fold.stacks.first().map(|s| text(&profile, &s.path)))
    };
    let at = |line: &str| Some(line.to_owned());
    assert_eq!(memory(MemoryGroup::Driver, Moment::Peak), (3000, at("main:1")));
    assert_eq!(memory(MemoryGroup::Driver, Moment::End), (0, None));
    assert_eq!(memory(MemoryGroup::Pinned, Moment::End), (500, at("main:2")));
    assert_eq!(memory(MemoryGroup::Managed, Moment::Peak), (700, at("main:2")));
    assert_eq!(memory(MemoryGroup::Physical, Moment::End), (900, at("main:2")));
    let exact = profile.exact().unwrap();
    assert_eq!((exact.refused().count, exact.refused().largest), (1, 1 << 40));
    assert_eq!(exact.marks(), [0, 1, 0]);
    let torch = FoldOptions { memory: Some(MemoryGroup::Torch), ..FoldOptions::default() };
    let error = flame::fold(&profile, CudaIndex(0), Moment::Peak, torch).unwrap_err();
    assert!(matches!(error, FoldError::NoMemory));
}

#[test]
fn paths_say_where_a_stack_is_not_the_threads_own() {
    let mut s = Probed::new();
    s.enter(0, "train", 1);
    s.thread("pt_autograd_0", false);
    s.exact.backward_lines = true;
    s.begin();
    let own = s.site(0);
    let worker = s.thread_id(1);
    let forward = own.stack;
    s.line(0, 2);
    let waiting = s.site(0).stack;
    let engine = AllocationSite { thread: worker, stack: waiting, ..own.clone() };
    let node = Some("AddmmBackward0".into());
    let sites = [
        ("train:1", own.clone()),
        ("[deeper frames not read]>train:1", AllocationSite { truncated: true, ..own.clone() }),
        (
            "train:2>[autograd thread]",
            AllocationSite { source: StackSource::Borrowed, ..engine.clone() },
        ),
        (
            "train:2>[autograd thread]>[backward of]>train:1>AddmmBackward0",
            AllocationSite { source: StackSource::Backward, node, forward, ..engine.clone() },
        ),
        (
            "train:2>[autograd thread]>MulBackward0 (forward line unknown)",
            AllocationSite {
                source: StackSource::Backward,
                node: Some("MulBackward0".into()),
                ..engine.clone()
            },
        ),
        (
            "[no Python]>thread pt_autograd_0",
            AllocationSite { source: StackSource::NoPython, stack: None, ..engine.clone() },
        ),
        (
            "[stack not taken]",
            AllocationSite { source: StackSource::NotTaken, stack: None, ..own.clone() },
        ),
        ("[unknown stack]", AllocationSite { source: StackSource::Unknown, stack: None, ..own }),
    ];
    let mut expected = BTreeMap::new();
    for (i, (text, site)) in sites.into_iter().enumerate() {
        let size = (1 + i as u64) * 512;
        s.malloc_at(0, 0, size, site);
        expected.insert(text.to_owned(), size);
    }
    s.finish();
    assert_eq!(peak(&s), expected);
    let by_thread = FoldOptions { by_thread: true, ..FoldOptions::default() };
    let fold = fold_with(&s.profile(), Moment::Peak, by_thread);
    assert!(fold.contains_key("thread MainThread>train:1"), "{fold:?}");
    assert!(fold.contains_key("thread pt_autograd_0>train:2>[autograd thread]"), "{fold:?}");
    assert!(fold.contains_key("[no Python]>thread pt_autograd_0"), "{fold:?}");
}

#[test]
fn a_sampled_recording_has_no_churn_and_no_kinds() {
    let mut s = crate::analysis_script::Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, MIB);
    s.tick();
    s.map(0);
    s.end();
    let options = FoldOptions { churn: true, ..FoldOptions::default() };
    let error = flame::fold(&s.profile(), CudaIndex(0), Moment::Peak, options).unwrap_err();
    assert!(matches!(error, FoldError::NeitherExactNorFollowed));
    let memory = Some(MemoryGroup::Driver);
    let options = FoldOptions { memory, ..FoldOptions::default() };
    let error = flame::fold(&s.profile(), CudaIndex(0), Moment::Peak, options).unwrap_err();
    assert!(matches!(error, FoldError::NotExact { .. }));
}

/// Random programs on two devices with two threads.
pub fn run(seed: &[(u8, u64)]) -> Probed {
    let mut s = Probed::new();
    s.thread("worker", false);
    s.enter(0, "main", 1);
    s.enter(1, "work", 1);
    s.gpus.entry(1).or_default();
    for size in [100, 70_000] {
        s.malloc(0, 0, size);
    }
    s.begin();
    for &(what, n) in seed {
        let t = usize::from(what >> 7);
        let device = u32::from(what & 64 != 0 && what & 32 != 0);
        match what % 8 {
            0..=3 => {
                s.unsplit = if n > MIB { n % 4 * 1024 } else { 0 };
                s.malloc(t, device, n);
                s.unsplit = 0;
            }
            4 | 5 => {
                let blocks: Vec<u64> = s.gpus[&device].blocks.keys().copied().collect();
                if !blocks.is_empty() {
                    s.release(device, blocks[n as usize % blocks.len()]);
                }
            }
            6 => s.line(t, 1 + n as u32 % 5),
            _ => {
                s.now += 1_000_000_000;
                s.poll();
            }
        }
    }
    s.finish();
    s
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn the_peak_and_all_allocations_equal_a_naive_account(
        seed in proptest::collection::vec((any::<u8>(), 1u64..5_000_000), 1..300),
    ) {
        let s = run(&seed);
        let profile = s.profile();
        prop_assert_eq!(folded(&profile, 0, Moment::Peak), s.by_text(&profile, &s.peak_truth));
        let known = |held: &BTreeMap<Option<StackId>, u64>| {
            let mut held = s.by_text(&profile, held);
            held.remove("[before recording]");
            held
        };
        prop_assert_eq!(folded(&profile, 0, Moment::End), known(&s.held()));
        let options = FoldOptions { churn: true, ..FoldOptions::default() };
        prop_assert_eq!(fold_with(&profile, Moment::Peak, options), known(&s.churn_truth));
        prop_assert!(profile.warnings().is_empty(), "{:?}", profile.warnings());
    }
}
