//! Attribution over simulated processes whose truth is known.

use crate::analysis_script::{MIB, Script, folded, text};
use memspy::analysis::{
    FoldError, FoldOptions, Moment, PeakTime, Profile, ThreadChoice, flame, peak,
};
use memspy::model::*;
use proptest::prelude::*;

fn two_lines() -> Script {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, 7 * MIB);
    s.tick();
    s.map(0);
    s.line(0, 2);
    s.tick();
    s.alloc(0, 0, 3 * MIB);
    s.tick();
    s.line(0, 3);
    s.tick();
    s.alloc(0, 0, 5 * MIB);
    s.alloc(0, 0, 1000);
    s.tick();
    s.map(0);
    s.end();
    s
}

#[test]
fn each_block_goes_to_the_line_that_allocated_it() {
    let profile = two_lines().profile();
    let fold = folded(&profile, 0, Moment::Peak);
    assert_eq!(fold["[before recording]"], 7 * MIB);
    assert_eq!(fold["main:2"], 3 * MIB);
    assert_eq!(fold["main:3"], 5 * MIB + 1024);
    assert_eq!(fold.len(), 3);
    let fold = flame::fold(&profile, CudaIndex(0), Moment::Peak, FoldOptions::default()).unwrap();
    assert_eq!(fold.below_peak(), Some(0));
    assert_eq!(fold.resolution.seen, fold.resolution.one_stack);
    assert_eq!(fold.resolution.median, 5_000_000);
}

#[test]
fn the_order_of_records_within_a_tick_does_not_matter() {
    let mut s = two_lines();
    let expected = folded(&s.profile(), 0, Moment::End);
    for i in 1..s.records.len() {
        let (before, after) = s.records.split_at_mut(i);
        if let (Record::Sample(sample), Record::Counters { time, .. }) =
            (&before[i - 1], &mut after[0])
        {
            time.0 = sample.time.0 - 1000;
            s.records.swap(i - 1, i);
        }
    }
    assert_eq!(folded(&s.profile(), 0, Moment::End), expected);
}

#[test]
fn a_temporary_does_not_draw_bytes_to_its_line() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, 2 * MIB);
    s.tick();
    s.map(0);
    s.line(0, 2);
    s.tick();
    let a = s.alloc(0, 0, 64 * MIB);
    s.tick();
    s.free(0, a);
    s.line(0, 3);
    s.tick();
    s.alloc(0, 0, 4 * MIB);
    s.alloc(0, 0, 8 * MIB);
    s.tick();
    s.map(0);
    s.end();
    let fold = folded(&s.profile(), 0, Moment::End);
    assert_eq!(fold["main:3"], 12 * MIB, "{fold:?}");
    assert_eq!(fold.len(), 2, "{fold:?}");
}

#[test]
fn an_interval_between_two_lines_is_shared_to_the_byte() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, 512);
    s.tick();
    s.map(0);
    s.line(0, 2);
    s.alloc(0, 0, 1025 * 512);
    s.tick();
    s.map(0);
    s.end();
    let profile = s.profile();
    let fold = folded(&profile, 0, Moment::End);
    assert_eq!(fold["main:1"] + fold["main:2"], 1025 * 512);
    assert!(fold["main:1"].abs_diff(fold["main:2"]) <= 1);
    let fold = flame::fold(&profile, CudaIndex(0), Moment::End, FoldOptions::default()).unwrap();
    assert_eq!(fold.resolution.one_stack, 0);
}

#[test]
fn after_many_allocations_only_the_common_callers_are_shown() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.enter(0, "train", 1);
    s.alloc(0, 0, MIB);
    s.tick();
    s.map(0);
    s.line(0, 2);
    (0..100).for_each(|_| _ = s.alloc(0, 0, MIB));
    s.tick();
    s.map(0);
    s.end();
    let profile = s.profile();
    let fold = flame::fold(&profile, CudaIndex(0), Moment::End, FoldOptions::default()).unwrap();
    let paths: Vec<String> = fold.stacks.iter().map(|f| text(&profile, &f.path)).collect();
    assert!(paths.contains(&"main:1>[not seen]".to_owned()), "{paths:?}");
    assert_eq!(fold.resolution.unattributed(), 100 * MIB);
}

#[test]
fn reused_addresses_get_a_new_site() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, 4 * MIB);
    s.tick();
    s.map(0);
    s.line(0, 2);
    s.tick();
    let a = s.alloc(0, 0, 8 * MIB);
    s.tick();
    s.map(0);
    s.free(0, a);
    s.line(0, 3);
    s.tick();
    assert_eq!(s.alloc(0, 0, 8 * MIB), a, "the cache gives the same block");
    s.tick();
    s.map(0);
    s.end();
    let fold = folded(&s.profile(), 0, Moment::End);
    assert_eq!(fold["main:3"], 8 * MIB, "{fold:?}");
}

#[test]
fn engine_allocations_go_to_the_stack_that_waits() {
    for (name, file) in [
        ("_engine_run_backward", "/x/site-packages/torch/autograd/graph.py"),
        ("backward", "/x/site-packages/torch/autograd/__init__.py"),
    ] {
        let mut s = Script::new(200);
        s.thread("MainThread", true);
        s.enter(0, "train", 1);
        s.alloc(0, 0, MIB);
        s.enter_in(0, name, file, 800);
        // A reader may take a waiting thread for idle.
        s.threads[0].activity = ThreadActivity::Idle;
        s.thread("other", false);
        s.enter(1, "serve", 7);
        s.threads[1].activity = ThreadActivity::Unknown;
        s.tick();
        s.map(0);
        s.alloc(0, 0, 6 * MIB);
        s.tick();
        s.map(0);
        s.end();
        let fold = folded(&s.profile(), 0, Moment::End);
        assert_eq!(fold[&format!("train:1>{name}:800>[autograd thread]")], 6 * MIB, "{fold:?}");
    }
}

#[test]
fn an_engine_thread_that_runs_python_is_charged_itself() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "train", 1);
    s.alloc(0, 0, MIB);
    s.enter_in(0, "_engine_run_backward", "/x/torch/autograd/graph.py", 800);
    s.thread("pt_autograd_0", false);
    s.enter(1, "recompute", 5);
    s.tick();
    s.map(0);
    s.alloc(1, 0, 6 * MIB);
    s.tick();
    s.map(0);
    s.end();
    let profile = s.profile();
    assert_eq!(folded(&profile, 0, Moment::End)["recompute:5"], 6 * MIB);
    let by_thread = FoldOptions { by_thread: true, ..FoldOptions::default() };
    let fold = flame::fold(&profile, CudaIndex(0), Moment::End, by_thread).unwrap();
    let paths: Vec<String> = fold.stacks.iter().map(|f| text(&profile, &f.path)).collect();
    assert!(paths.contains(&"thread pt_autograd_0>recompute:5".to_owned()), "{paths:?}");
}

#[test]
fn main_is_preferred_and_nothing_is_charged_to_one_of_two_workers() {
    let run = |activities: [ThreadActivity; 3]| {
        let mut s = Script::new(200);
        for (i, name) in ["MainThread", "a", "b"].into_iter().enumerate() {
            s.thread(name, i == 0);
            s.enter(i, name, 1);
            s.threads[i].activity = activities[i];
        }
        s.alloc(0, 0, MIB);
        s.tick();
        s.map(0);
        s.alloc(1, 0, 6 * MIB);
        s.tick();
        s.map(0);
        s.end();
        folded(&s.profile(), 0, Moment::End)
    };
    use ThreadActivity::{Active, Idle, Unknown};
    assert_eq!(run([Active, Active, Idle])["MainThread:1"], 6 * MIB);
    assert_eq!(run([Idle, Active, Active])["[not seen]"], 6 * MIB);
    assert_eq!(run([Unknown, Idle, Active])["b:1"], 6 * MIB);
    assert_eq!(run([Idle, Idle, Idle])["[not seen]"], 6 * MIB);
}

#[test]
fn devices_are_separate_and_the_fuller_one_is_first() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, MIB);
    s.alloc(0, 3, MIB);
    s.tick();
    s.map(0);
    s.map(3);
    s.line(0, 2);
    s.tick();
    s.alloc(0, 0, 2 * MIB);
    s.tick();
    s.line(0, 3);
    s.tick();
    s.alloc(0, 3, 9 * MIB);
    s.tick();
    s.map(0);
    s.map(3);
    s.end();
    let profile = s.profile();
    assert_eq!(peak::main_gpu(&profile), Some(CudaIndex(3)));
    assert_eq!(folded(&profile, 0, Moment::Peak)["main:2"], 2 * MIB);
    assert_eq!(folded(&profile, 3, Moment::Peak)["main:3"], 9 * MIB);
    let error =
        flame::fold(&profile, CudaIndex(1), Moment::Peak, FoldOptions::default()).unwrap_err();
    assert!(matches!(error, FoldError::NoGpu { .. }));
    assert_eq!(error.to_string(), "GPU 1 is not in the recording; it has GPU 0, GPU 3");
}

#[test]
fn bytes_without_python_stacks_go_to_their_own_root() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, MIB);
    s.tick();
    s.map(0);
    s.alloc(0, 0, 2 * MIB);
    s.tick();
    s.map(0);
    s.end();
    s.records.retain(|r| !matches!(r, Record::Sample(_) | Record::Definition(_)));
    let fold = folded(&s.profile(), 0, Moment::End);
    assert_eq!(fold["[no Python stack]"], 2 * MIB, "{fold:?}");
}

#[test]
fn blocks_missing_in_a_degraded_snapshot_are_not_reborn() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, MIB);
    s.tick();
    s.map(0);
    s.line(0, 2);
    s.tick();
    s.alloc(0, 0, 2 * MIB);
    s.tick();
    s.map(0);
    s.line(0, 3);
    s.tick();
    s.alloc(0, 0, 4 * MIB);
    s.tick();
    let mut map = s.block_map(0);
    map.segments.remove(1);
    map.consistency =
        SnapshotConsistency::Degraded { allocated_in_blocks: 5 * MIB, allocated_counter: 7 * MIB };
    s.records.push(Record::Snapshot(map));
    let mut profile = s.profile();
    profile.finish();
    let degraded = folded(&profile, 0, Moment::End);
    assert_eq!(degraded["[unmatched]"], 2 * MIB);
    assert_eq!(degraded["main:3"], 4 * MIB);
    s.line(0, 4);
    s.tick();
    s.alloc(0, 0, MIB);
    s.tick();
    s.map(0);
    s.end();
    let profile = s.profile();
    let fold = folded(&profile, 0, Moment::End);
    assert_eq!(fold["main:2"], 2 * MIB, "{fold:?}");
    assert_eq!(fold["main:4"], MIB, "{fold:?}");
    assert!(memspy::render::warnings(&profile).iter().any(|w| w.contains("1 of 4 snapshots")));
}

#[test]
fn a_pending_free_block_is_not_allocated() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, MIB);
    let b = s.alloc(0, 0, 2 * MIB);
    s.tick();
    let mut map = s.block_map(0);
    for segment in &mut map.segments {
        if segment.address == b {
            segment.blocks[0].state = BlockState::PendingFree;
        }
    }
    s.records.push(Record::Snapshot(map));
    s.end();
    let profile = s.profile();
    let snapshot = profile.snapshot(CudaIndex(0), Moment::Peak).unwrap();
    assert_eq!((snapshot.allocated, snapshot.pending_free), (MIB, 2 * MIB));
    assert_eq!(snapshot.cached(), Some(0));
}

#[test]
fn the_peak_is_the_counters_and_may_precede_the_recording() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    let a = s.alloc(0, 0, 100 * MIB);
    s.free(0, a);
    s.alloc(0, 0, 10 * MIB);
    s.tick();
    s.map(0);
    let early = peak::allocated(&s.profile(), CudaIndex(0));
    s.tick();
    let before = peak::allocated(&s.profile(), CudaIndex(0)).unwrap();
    assert_eq!(early, None, "the open tick is not taken into account yet");
    assert_eq!(before.bytes, 100 * MIB as i64);
    assert_eq!(before.reached, PeakTime::BeforeRecording);
    assert_eq!(before.within, 10 * MIB as i64);

    let b = s.alloc(0, 0, 200 * MIB);
    s.free(0, b);
    s.tick();
    s.reset_peak(0);
    s.tick();
    s.end();
    let profile = s.profile();
    let high = peak::allocated(&profile, CudaIndex(0)).unwrap();
    assert_eq!(high.bytes, 210 * MIB as i64);
    assert_eq!(high.reached, PeakTime::Between(Nanos(10_000_000), Nanos(15_000_000)));
    assert_eq!(high.resets, 1);
    let fold = flame::fold(&profile, CudaIndex(0), Moment::Peak, FoldOptions::default()).unwrap();
    assert_eq!(fold.below_peak(), Some(200 * MIB));
}

/// Without a GIL nobody holds it: `--gil` excludes everything, and says so.
#[test]
fn gil_option_says_that_no_thread_held_the_gil() {
    let mut s = Script::new(100);
    let main = s.thread("MainThread", true);
    s.start();
    s.enter(main, "train", 1);
    s.tick();
    s.end();
    let warned = |choice: ThreadChoice, held: bool| {
        let mut profile = Profile::with_filter(choice);
        for mut record in s.records.clone() {
            if let Record::Sample(sample) = &mut record {
                sample.threads.iter_mut().for_each(|thread| thread.gil = held);
            }
            profile.record(&record).unwrap();
        }
        memspy::render::warnings(&profile).iter().any(|warning| warning.contains("--gil"))
    };
    let gil = ThreadChoice { gil_only: true, idle_too: false };
    assert!(warned(gil, false));
    assert!(!warned(gil, true));
    assert!(!warned(ThreadChoice::default(), false));
}

#[test]
fn missed_polls_are_counted_by_reader_and_reason() {
    let mut profile = Profile::new();
    for (reader, why, count) in [
        (ReaderKind::Stacks, MissReason::Torn, 3),
        (ReaderKind::Stacks, MissReason::Torn, 4),
        (ReaderKind::Counters, MissReason::Late, 5),
        (ReaderKind::Gpu, MissReason::Failed("no NVML".into()), 1),
    ] {
        let time = Nanos(1);
        let missed = MissedObservation { time, reader, why, count };
        profile.record(&Record::Missed(missed)).unwrap();
    }
    assert_eq!(profile.losses().torn(ReaderKind::Stacks), 7);
    assert_eq!(profile.losses().late(ReaderKind::Counters), 5);
    assert_eq!(profile.losses().failed(ReaderKind::Gpu), 1);
    assert_eq!(profile.losses().all().len(), 3);
    assert_eq!(profile.warnings().len(), 1);
    assert!(memspy::render::warnings(&profile)[0].starts_with("the recording ended abruptly"));
}

#[derive(Debug, Clone)]
enum Act {
    Alloc(u64),
    Free(usize),
    Line(u32),
    Call(u32),
    Return,
    Tick,
    Map,
    Degraded(usize),
    ResetPeak,
    ResetTotals,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => (1u64..4_000_000).prop_map(Act::Alloc),
        4 => (0usize..64).prop_map(Act::Free),
        3 => (1u32..6).prop_map(Act::Line),
        2 => (0u32..4).prop_map(Act::Call),
        2 => Just(Act::Return),
        6 => Just(Act::Tick),
        1 => Just(Act::Map),
        1 => (0usize..8).prop_map(Act::Degraded),
        1 => Just(Act::ResetPeak),
        1 => Just(Act::ResetTotals),
    ];
    proptest::collection::vec(act, 1..300)
}

proptest! {
    #[test]
    fn a_fold_always_adds_up_to_the_counter(acts in acts()) {
        let mut s = Script::new(200);
        s.thread("MainThread", true);
        s.enter(0, "main", 1);
        let mut last = None;
        s.alloc(0, 0, 1000);
        for act in acts {
            match act {
                Act::Alloc(size) => { s.alloc(0, 0, size); }
                Act::Free(i) => {
                    let address = s.gpus[&0].blocks.keys().copied().nth(i);
                    if let Some(address) = address { s.free(0, address); }
                }
                Act::Line(line) => s.line(0, line),
                Act::Call(f) => s.enter(0, &format!("f{f}"), 1),
                Act::Return => if s.stack(0).is_some_and(|x| s.table.frames(x).count() > 1) { s.leave(0) },
                Act::Tick => s.tick(),
                Act::Map => { s.map(0); last = Some(s.gpus[&0].counters.allocated() as u64); }
                Act::Degraded(cut) => {
                    let mut map = s.block_map(0);
                    let counter = map.allocated();
                    map.segments.truncate(cut);
                    let allocated_in_blocks = map.allocated();
                    map.consistency = SnapshotConsistency::Degraded { allocated_in_blocks, allocated_counter: counter };
                    s.records.push(Record::Snapshot(map));
                    last = Some(counter);
                }
                Act::ResetPeak => s.reset_peak(0),
                Act::ResetTotals => s.reset_accumulated(0),
            }
        }
        s.end();
        let profile = s.profile();
        if let Some(last) = last {
            let fold = folded(&profile, 0, Moment::End);
            prop_assert_eq!(fold.values().sum::<u64>(), last);
            folded(&profile, 0, Moment::Peak);
        }
    }
}
