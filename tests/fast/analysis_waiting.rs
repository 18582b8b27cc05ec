//! Attribution of an allocation around which threads wait at the samples.

use crate::analysis_script::{MIB, Script, folded};
use memspy::analysis::{FoldOptions, Moment, OomBuilder, Profile, flame, lines};
use memspy::model::*;
use memspy::render;

/// `main` waits in `load_batch` at every sample, and allocates in `keep` in between.
fn sleepy(waits: ThreadActivity) -> Profile {
    sleepy_script(waits, 0).profile()
}

/// The same after `main` itself allocated `seen` bytes, at work.
fn sleepy_script(waits: ThreadActivity, seen: u64) -> Script {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, MIB);
    if seen > 0 {
        s.tick();
        s.map(0);
        s.alloc(0, 0, seen);
        s.tick();
    }
    s.enter(0, "load_batch", 3);
    s.threads[0].activity = waits;
    s.tick();
    s.map(0);
    for _ in 0..2 {
        s.tick();
        s.leave(0);
        s.enter(0, "keep", 7);
        s.alloc(0, 0, 16 * MIB);
        s.leave(0);
        s.enter(0, "load_batch", 3);
        s.tick();
    }
    s.map(0);
    s.end();
    s
}

/// "Most of what grew in the 6.0 s recorded is held by main (oom.py:5): about 92.03 MiB" of 732
/// MiB, the rest `[not seen]`.
#[test]
fn the_oom_report_does_not_name_unsampled_bytes() {
    let script = sleepy_script(ThreadActivity::Idle, 4 * MIB);
    let mut reports = OomBuilder::new(Profile::new());
    for record in &script.records {
        reports.record(record).unwrap();
    }
    let (condition, seen) = ("oom".into(), "ran out".into());
    let trigger = TriggerFired { time: Nanos(script.now), condition, seen };
    reports.record(&Record::TriggerFired(trigger)).unwrap();
    let report = reports.report();
    let mut out = Vec::new();
    render::oom_report_text(&mut out, reports.profile(), &report).unwrap();
    let text = String::from_utf8(out).unwrap();
    for said in [
        "the line of 32.00 MiB of the 36.00 MiB that grew",
        "is unknown; 'record --exact' (as root) shows each line. The largest known line is main",
    ] {
        assert!(text.contains(said), "{said}\n{text}");
    }
    assert!(!text.contains("most of what grew"), "{text}");
}

#[test]
fn a_thread_asleep_at_both_samples_is_no_site() {
    for waits in [ThreadActivity::Idle, ThreadActivity::Unknown] {
        let profile = sleepy(waits);
        let fold = folded(&profile, 0, Moment::Peak);
        assert_eq!(fold.get("[not seen]"), Some(&(32 * MIB)), "{waits:?}: {fold:?}");
        let fold =
            flame::fold(&profile, CudaIndex(0), Moment::Peak, FoldOptions::default()).unwrap();
        assert_eq!((fold.resolution.one_stack, fold.resolution.not_seen), (0, 32 * MIB));
        let lines = lines::table(&profile, CudaIndex(0), &lines::default_columns()).unwrap();
        let charged: i64 = lines.functions.iter().flat_map(|f| &f.rows).map(|r| r.allocated).sum();
        assert_eq!(charged, 0, "{waits:?}");
    }
    // A working thread may be the site; a request for idle threads is followed.
    let fold = folded(&sleepy(ThreadActivity::Active), 0, Moment::Peak);
    assert_eq!(fold["main:1>load_batch:3"], 32 * MIB, "{fold:?}");
}

#[test]
fn a_thread_asleep_in_two_places_allocated_below_both() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, MIB);
    s.enter(0, "forward", 5);
    s.enter(0, "settle", 3);
    s.threads[0].activity = ThreadActivity::Idle;
    s.tick();
    s.map(0);
    s.leave(0);
    s.line(0, 6);
    s.alloc(0, 0, 16 * MIB);
    s.line(0, 7);
    s.enter(0, "settle", 3);
    s.tick();
    s.map(0);
    s.end();
    let profile = s.profile();
    let fold = folded(&profile, 0, Moment::Peak);
    assert_eq!(fold.get("main:1>[not seen]"), Some(&(16 * MIB)), "{fold:?}");
    let fold = flame::fold(&profile, CudaIndex(0), Moment::Peak, FoldOptions::default()).unwrap();
    assert_eq!((fold.resolution.one_stack, fold.resolution.not_seen), (0, 16 * MIB));
}

#[test]
fn a_sleeping_line_takes_nothing_of_the_next_line() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, MIB);
    s.enter(0, "load_batch", 3);
    s.threads[0].activity = ThreadActivity::Idle;
    s.tick();
    s.map(0);
    s.leave(0);
    s.enter(0, "keep", 7);
    s.threads[0].activity = ThreadActivity::Active;
    s.alloc(0, 0, 16 * MIB);
    s.tick();
    s.alloc(0, 0, 8 * MIB);
    s.leave(0);
    s.enter(0, "load_batch", 3);
    s.threads[0].activity = ThreadActivity::Idle;
    s.tick();
    s.map(0);
    s.end();
    let fold = folded(&s.profile(), 0, Moment::Peak);
    assert_eq!(fold["main:1>keep:7"], 24 * MIB, "{fold:?}");
}

#[test]
fn a_thread_that_fills_pinned_memory_is_no_site() {
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "train", 1);
    s.alloc(0, 0, MIB);
    s.enter_in(0, "wait", "/usr/lib/python3.12/threading.py", 9);
    s.threads[0].activity = ThreadActivity::Idle;
    s.thread("Thread-2", false);
    let pin = "/x/site-packages/torch/utils/data/_utils/pin_memory.py";
    s.enter_in(1, "_pin_memory_loop", pin, 20);
    s.enter_in(1, "pin_memory", pin, 60);
    s.tick();
    s.map(0);
    s.alloc(0, 0, 6 * MIB);
    s.tick();
    s.map(0);
    s.end();
    let fold = folded(&s.profile(), 0, Moment::End);
    assert_eq!(fold.get("[not seen]"), Some(&(6 * MIB)), "{fold:?}");
}

/// A sampler that took it for asleep in `conv`, because it had slept in `backward` before, made
/// these bytes `[not seen]`.
#[test]
fn a_thread_working_after_an_engine_wait_is_the_site() {
    let graph = "/x/site-packages/torch/autograd/graph.py";
    let mut s = Script::new(200);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    s.alloc(0, 0, MIB);
    s.enter_in(0, "_engine_run_backward", graph, 800);
    s.threads[0].activity = ThreadActivity::Unknown;
    s.tick();
    s.map(0);
    s.alloc(0, 0, 4 * MIB);
    s.tick();
    s.map(0);
    s.leave(0);
    s.enter(0, "conv", 5);
    s.threads[0].activity = ThreadActivity::Active;
    s.tick();
    s.map(0);
    s.alloc(0, 0, 16 * MIB);
    s.tick();
    s.map(0);
    s.end();
    let profile = s.profile();
    let stacks = folded(&profile, 0, Moment::Peak);
    assert_eq!(stacks.get("main:1>conv:5"), Some(&(16 * MIB)), "{stacks:?}");
    let engine = "main:1>_engine_run_backward:800>[autograd thread]";
    assert_eq!(stacks.get(engine), Some(&(4 * MIB)), "{stacks:?}");
    let fold = flame::fold(&profile, CudaIndex(0), Moment::Peak, FoldOptions::default()).unwrap();
    assert_eq!((fold.resolution.one_stack, fold.resolution.not_seen), (20 * MIB, 0));
}
