//! `record --exact --native`: C and C++ frames appear between Python's, for large allocations only;
//! nothing else changes.

use std::collections::BTreeMap;

use memspy::model::{AllocationSite, NativeFrames, Record, StackSource};
use memspy::trace::TraceReader;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::exact::Exact;
use crate::support::memspy::{Recording, collapsed, lines, row, total};
use crate::support::sim;
use crate::support::target::Target;
use crate::support::versions::Environment;

const LARGE: u64 = 8 << 20;

/// Records one round of the target's work.
fn record(target: &mut Target, words: &[&str]) -> (Recording, Value) {
    let mut recording = Recording::start_exact(target.pid(), words);
    target.say("go");
    let truth = serde_json::from_str(&target.line()).unwrap();
    let done = recording.interrupt();
    assert!(done.err.contains(" 0 lost"), "{}", done.err);
    (recording, truth)
}

/// Frames, outermost first: `py:NAME` or a C function's name.
fn words(exact: &Exact, stack: memspy::model::StackId) -> Vec<String> {
    let word = |frame: memspy::model::Frame| {
        let function = exact.table.get_function(frame.function).unwrap();
        match function.is_native {
            true => function.name.to_string(),
            false => format!("py:{}", function.name),
        }
    };
    let mut words: Vec<String> = exact.table.frames(stack).map(word).collect();
    words.reverse();
    words
}

/// Panics unless the stack has these names in this order.
#[track_caller]
fn in_order(stack: &[String], wanted: &[&str]) {
    let mut rest = stack.iter();
    for name in wanted {
        assert!(rest.any(|frame| frame.contains(name)), "no {name} where it belongs: {stack:#?}");
    }
}

/// The sites of PyTorch's large and small allocations.
fn sites(exact: &Exact) -> (Vec<&AllocationSite>, Vec<&AllocationSite>) {
    let sites = exact.allocated().map(|(_, size, event)| (size, exact.site(event.site)));
    let (large, small): (Vec<_>, Vec<_>) = sites.partition(|(size, _)| *size >= 1 << 20);
    let only = |sites: Vec<(u64, _)>| sites.into_iter().map(|(_, site)| site).collect();
    (only(large), only(small))
}

/// All allocations without native frames, with counts.
fn python_part(exact: &Exact) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for (_, size, event) in exact.allocated() {
        let site = exact.site(event.site);
        let stack = site.stack.map(|stack| exact.frames(stack));
        let key = format!("{size} {stack:?} {:?} {:?} {}", site.source, site.node, site.truncated);
        *found.entry(key).or_default() += 1;
    }
    found
}

fn is_as_the_program_says(exact: &Exact) {
    let (large, small) = sites(exact);
    assert!(!small.is_empty());
    for site in small {
        assert_eq!(site.native, NativeFrames::NotTaken);
    }
    let native = |site: &AllocationSite| match site.native {
        NativeFrames::Stack(stack) => words(exact, stack),
        other => panic!("{other:?} of {site:?}"),
    };
    let stacks: Vec<_> = large.iter().map(|site| (site, native(site))).collect();
    for (site, stack) in &stacks {
        // No Python frame is lost, and no frame of the program's start is there.
        assert!(!stack.iter().any(|it| it.starts_with("_PyEval_EvalFrameDefault")), "{stack:#?}");
        assert!(!stack.iter().any(|it| it.contains("native frames unknown")), "{stack:#?}");
        let python: Vec<&String> = stack.iter().filter(|it| it.starts_with("py:")).collect();
        match site.source {
            StackSource::Own => {
                let own = words(exact, site.stack.unwrap());
                assert_eq!(python, own.iter().collect::<Vec<_>>());
                assert!(stack[0].starts_with("py:"), "{stack:#?}");
            }
            _ => assert!(python.is_empty(), "{stack:#?}"),
        }
    }
    let with = |name: &str| {
        let found: Vec<_> =
            stacks.iter().filter(|(_, stack)| stack.iter().any(|it| it == name)).collect();
        assert!(!found.is_empty(), "no {name}: {stacks:#?}");
        found
    };
    for (_, stack) in with("py:key") {
        in_order(
            stack,
            &[
                "py:through_sorted",
                "sorted",
                "list_sort",
                "py:key",
                "py:allocate",
                "THPVariable_empty",
                "at::native::empty_cuda",
                "CUDACachingAllocator",
            ],
        );
    }
    for (_, stack) in with("py:square") {
        in_order(
            stack,
            &[
                "py:work",
                "py:square",
                "THPVariable_mul",
                "at::_ops::mul_Tensor::call",
                "CUDACachingAllocator",
            ],
        );
    }
    let backward: Vec<_> =
        stacks.iter().filter(|(site, _)| site.node.as_deref() == Some("MulBackward0")).collect();
    assert!(!backward.is_empty(), "{stacks:#?}");
    for (site, stack) in backward {
        assert_eq!(site.source, StackSource::Backward);
        in_order(
            stack,
            &[
                "torch::autograd::Engine::thread_main",
                "torch::autograd::Engine::evaluate_function",
                "MulBackward0::apply",
                "at::_ops::mul_Tensor::call",
                "CUDACachingAllocator",
            ],
        );
    }
}

#[test]
fn large_allocations_have_their_operators_and_autograd_functions() {
    let mut target = sim::start("exact_native.py", &[]);
    let (recording, truth) = record(&mut target, &["--native"]);
    let exact = Exact::read(recording.trace());
    is_as_the_program_says(&exact);

    // Every allocation is there, to the byte.
    let grown =
        |key: &str| truth["after"][key].as_u64().unwrap() - truth["before"][key].as_u64().unwrap();
    assert_eq!(exact.allocated().count() as u64, grown("allocation.all.allocated"));
    assert_eq!(exact.allocated().map(|a| a.1).sum::<u64>(), grown("requested_bytes.all.allocated"));
    let totals = exact.totals.unwrap();
    let large = exact.allocated().filter(|(_, size, _)| *size >= 1 << 20).count() as u64;
    assert!(totals.native >= large && totals.native_lost == 0, "{totals:?}");

    let allocates = exact
        .allocated()
        .filter_map(|(_, _, event)| exact.site(event.site).stack)
        .find_map(|stack| exact.frames(stack).into_iter().find(|frame| frame.0 == "allocate"))
        .map(|frame| u64::from(frame.2))
        .unwrap();

    // The picture has native frames; lines are the program's only.
    let stacks = collapsed(recording.trace(), &["--total-allocated"]);
    assert_eq!(total(&stacks), grown("allocated_bytes.all.allocated"));
    let (sorted, bytes) =
        stacks.iter().find(|(stack, _)| stack.contains("builtin_sorted")).unwrap();
    assert_eq!(*bytes, LARGE);
    assert!(sorted.contains("at::native::empty_cuda (libtorch_cuda.so)"), "{sorted}");
    let backward = stacks.iter().find(|(stack, _)| stack.contains("MulBackward0;"));
    let (backward, _) = backward.unwrap_or_else(|| panic!("{stacks:#?}"));
    let expected = "MulBackward0;torch::autograd::Engine::thread_main (libtorch_cpu.so);";
    assert!(backward.contains(expected), "{backward}");
    // Frames that only pass a call on are left out.
    assert!(
        !sorted.contains("_PyObject_MakeTpCall") && !sorted.contains("wrap_kernel"),
        "{sorted}"
    );
    let report = lines(recording.trace(), &[]);
    assert!(row(&report, "allocate", allocates).is_some(), "{report:#}");
    assert!(!report["functions"].to_string().contains("libtorch"), "{report:#}");

    // Recorded without native frames, all else is the same.
    let (plain, _) = record(&mut target, &[]);
    let plain = Exact::read(plain.trace());
    assert_eq!(python_part(&plain), python_part(&exact));
    assert!(
        plain
            .allocated()
            .all(|(_, _, event)| plain.site(event.site).native == NativeFrames::NotTaken)
    );
    assert_eq!(plain.totals.unwrap().native, 0);
}

#[test]
fn driver_allocations_without_python_have_native_frames() {
    let folder = tempfile::tempdir().unwrap();
    let mut target = super::exact_driver::driver_api(folder.path());
    let mut recording = Recording::start_exact(target.pid(), &["--native", "--native-from", "1"]);
    target.say("go");
    while target.line() != "DONE" {}
    let done = recording.interrupt();
    assert!(done.err.contains(" 0 lost"), "{}", done.err);
    let exact = Exact::read(recording.trace());
    let stacks: Vec<Vec<String>> = exact
        .events
        .iter()
        .filter_map(|event| exact.table.get_site(event.site?)?.native.stack())
        .map(|stack| words(&exact, stack))
        .collect();
    assert!(stacks.iter().any(|stack| stack.iter().any(|it| it == "main")), "{stacks:#?}");
}

#[test]
fn a_stack_copy_without_room_loses_no_allocation() {
    const COUNT: u64 = 4000;
    let mut target = sim::start("exact_native.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &["--native"]);
    // Nothing empties the rings: they have room for all events and a third of the stack copies.
    recording.signal(Signal::SIGSTOP);
    target.say(&format!("many {COUNT}"));
    let truth: Value = serde_json::from_str(&target.line()).unwrap();
    recording.signal(Signal::SIGCONT);
    let done = recording.interrupt();
    assert!(done.err.contains(" 0 lost"), "{}", done.err);
    assert!(done.err.contains("without the native frames that were asked for"), "{}", done.err);
    let exact = Exact::read(recording.trace());
    let grown =
        |key: &str| truth["after"][key].as_u64().unwrap() - truth["before"][key].as_u64().unwrap();
    assert_eq!(exact.allocated().count() as u64, grown("allocation.all.allocated"));
    assert_eq!(exact.allocated().map(|a| a.1).sum::<u64>(), grown("requested_bytes.all.allocated"));
    let (mut native, mut lost) = (0, 0);
    for (_, _, event) in exact.allocated() {
        let site = exact.site(event.site);
        // Python's frames are there with and without them.
        assert_eq!(words(&exact, site.stack.unwrap()).last().unwrap(), "py:many");
        match site.native {
            NativeFrames::Stack(stack) => {
                in_order(&words(&exact, stack), &["py:many", "at::native::empty_cuda"]);
                native += 1;
            }
            NativeFrames::Lost => lost += 1,
            NativeFrames::NotTaken => panic!("{site:?}"),
        }
    }
    let totals = exact.totals.unwrap();
    assert!(lost > 0 && native + lost == COUNT, "{native} {lost}");
    assert!(totals.native >= native && totals.native_lost >= lost, "{totals:?}");
}

#[test]
fn without_bpf_memspy_says_that_native_frames_are_missing() {
    let target = sim::start("exact_native.py", &[]);
    let mut recording =
        Recording::start_exact(target.pid(), &["--native", "--probes", "perf-only"]);
    recording.wait_for("(--native) are not recorded");
    let _ = recording.interrupt();
}

#[test]
#[ignore = "large_allocations_have_their_operators_and_autograd_functions sees one CPython: scripts/test.sh --all runs it"]
fn native_frames_stand_where_they_belong_in_every_version() {
    for environment in crate::support::versions::environments() {
        if environment.cuda {
            has_native_frames(&environment);
        }
    }
}

fn has_native_frames(environment: &Environment) {
    let mut target = environment.start("exact_native.py", &[]);
    let (recording, _) = record(&mut target, &["--native", "--probes", "perf-bpf"]);
    let mut records: Vec<Record> = Vec::new();
    TraceReader::open(recording.trace()).unwrap().replay(&mut records).unwrap();
    let from = records.iter().find_map(|record| match record {
        Record::ExactSettings(settings) => Some(settings.native_from),
        _ => None,
    });
    assert_eq!(from, Some(Some(1 << 20)), "{environment:?}");
    is_as_the_program_says(&Exact::read(recording.trace()));
}
