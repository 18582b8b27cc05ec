//! Answers that once misled: owners, what frees memory, how much a tensor keeps, against the job's
//! own truth.

use memspy::render::json::{DumpJson, OwnershipJson, SummaryJson};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::memspy::{document, memspy_at, wait_until};
use crate::support::sim;
use crate::support::target::Target;

/// Unoptimized builds on a busy machine take longer than people would wait.
const NO_LIMIT: [&str; 4] = ["--max-time", "120s", "--max-pause", "60s"];

/// A target of `misleading.py`, and its truth.
fn start(kind: &str) -> (Target, Value) {
    let target = sim::start("misleading.py", &[kind]);
    let told = serde_json::from_str(target.said.last().unwrap()).unwrap();
    (target, told)
}

fn tensors(target: &Target) -> Value {
    document::<OwnershipJson>(&memspy_at(target.pid(), &["tensors", "--json"]).ok().out)
}

fn summary(pid: u32) -> Value {
    let words = [&["summary", "--json", "--for", "600ms"][..], &NO_LIMIT].concat();
    document::<SummaryJson>(&memspy_at(pid, &words).ok().out)
}

/// What `gc.collect()` frees.
fn collected(target: &mut Target) -> Value {
    target.say("collect");
    let said: Value = serde_json::from_str(&target.read_until_ready()[0]).unwrap();
    said["freed"].clone()
}

fn finding<'a>(summary: &'a Value, kind: &str) -> Option<&'a Value> {
    summary["findings"].as_array().unwrap().iter().find(|finding| finding["kind"] == kind)
}

/// "256.00 MiB is garbage" of 384: gradients of garbage parameters exist in C++ only. It was not
/// said what is garbage.
#[test]
fn memory_behind_cpp_garbage_is_garbage_with_class_and_cycle() {
    let (mut target, _) = start("trials");
    let seen = tensors(&target);
    let told = summary(target.pid());
    let freed = collected(&mut target);
    assert_eq!(freed, 3 * (4 << 20));
    assert_eq!(seen["devices"]["cuda:0"]["garbage"], freed);
    let [cycle] = &seen["garbage_cycles"].as_array().unwrap()[..] else { panic!("{seen}") };
    assert_eq!((&cycle["class"], &cycle["cycles"]), (&"Trial".into(), &3.into()));
    let way = cycle["way"].as_str().unwrap();
    assert!(way.starts_with("Trial.callbacks[0] → ") && way.ends_with("→ Trial"), "{way}");
    let text = finding(&told, "garbage").unwrap()["text"].as_str().unwrap();
    for said in ["12.00 MiB", "3 cycles of class Trial", "Trial.callbacks[0]"] {
        assert!(text.contains(said), "no '{said}' in {text}");
    }
}

/// For a custom function that keeps its own output, output, node and context were "kept by a node".
#[test]
fn a_context_that_keeps_its_nodes_output_is_garbage() {
    let (mut target, _) = start("outputs");
    let seen = tensors(&target);
    let freed = collected(&mut target);
    assert_eq!(freed, 4 * (2 << 20));
    assert_eq!(seen["devices"]["cuda:0"]["garbage"], freed);
    let cycle = &seen["garbage_cycles"][0];
    assert_eq!((&cycle["class"], &cycle["cycles"]), (&"KeepsOutputBackward".into(), &4.into()));
    let way = "KeepsOutputBackward.result → Tensor.grad_fn → KeepsOutputBackward";
    assert_eq!(cycle["way"], way);
    let names = seen["tensors"].as_array().unwrap().iter().filter(|row| row["garbage"] == true);
    let names: Vec<&str> = names.filter_map(|row| row["names"][0].as_str()).collect();
    let of = |part: &str| names.iter().filter(|name| name.contains(part)).count();
    assert_eq!((of(".result"), of(".scratch")), (4, 4), "{names:?}");
}

/// Kept columns show a small part of what they hold; the finding was missing, because the tensor
/// below a view shows all.
#[test]
fn a_strided_view_shows_only_its_own_elements() {
    let (target, truth) = start("columns");
    let told = summary(target.pid());
    let found = finding(&told, "large storages").unwrap_or_else(|| panic!("{told}"));
    assert_eq!(found["bytes"], truth["hidden"]);
    assert!(found["text"].as_str().unwrap().contains("kept.columns["), "{found}");
}

/// "152.98 MiB is cached and free" described memory that CUDA graphs replay into.
#[test]
fn pools_of_cuda_graphs_are_listed_and_not_free() {
    let (target, truth) = start("graphs");
    let seen = tensors(&target);
    let pools = seen["private_pools"].as_array().unwrap();
    let bytes: Vec<&Value> = pools.iter().map(|pool| &pool["bytes"]).collect();
    assert_eq!(bytes, truth["pools"].as_array().unwrap().iter().collect::<Vec<_>>());
    let users: Vec<&str> = pools.iter().map(|pool| pool["users"][0].as_str().unwrap()).collect();
    assert!(users.iter().any(|user| user.contains("kept[4096][\"graph\"]")), "{users:?}");
    assert!(users.iter().any(|user| user.contains("kept[1024][\"graph\"]")), "{users:?}");
    let told = summary(target.pid());
    assert_eq!(told["gpus"][0]["free_in_private_pools"], truth["free"]);
    assert_eq!(finding(&told, "fragmented"), None);
    let text = finding(&told, "graph pools").unwrap()["text"].as_str().unwrap();
    assert!(text.contains("2 private pools") && text.contains("kept[4096]"), "{text}");
    let dump = memspy_at(target.pid(), &["dump"]).ok().out;
    assert!(dump.contains("of it only for private pools"), "{dump}");
}

/// `-p WORKER` showed the parent's memory as the worker's.
#[test]
fn a_forked_child_owns_nothing_and_names_the_owner() {
    let (mut target, truth) = start("forked");
    let child = truth["child"].as_u64().unwrap() as u32;
    let told = summary(child);
    let copied = serde_json::json!({
        "of_process": target.pid(), "storages": 3, "bytes": truth["bytes"],
    });
    assert_eq!((&told["copied"], &told["gpus"]), (&copied, &serde_json::json!([])));
    let parent = format!("forked from process {}", target.pid());
    for words in [&["tensors"][..], &["dump"], &["summary", "--for", "600ms"], &["graph"]] {
        let out = memspy_at(child, words).ok().out.replace("\n  ", " ");
        assert!(out.contains("holds no GPU memory of its own"), "{words:?}: {out}");
        assert!(out.contains(&parent) && !out.contains("3.00 MiB allocated"), "{words:?}: {out}");
    }
    // The parent owns its memory, and so does a job forked before CUDA began.
    let own = tensors(&target);
    assert_eq!(
        (&own["copied"], &own["devices"]["cuda:0"]["allocated"]),
        (&Value::Null, &truth["bytes"])
    );
    target.kill();
    let dump = document::<DumpJson>(&memspy_at(child, &["dump", "--json"]).ok().out);
    kill(Pid::from_raw(child as i32), Signal::SIGKILL).unwrap();
    assert_eq!(dump["owners"]["copied"]["of_process"], Value::Null);
    assert!(dump["allocator"].as_str().unwrap().contains("a process that has ended"), "{dump}");
}

/// A job without a GPU: the screen was empty and gave no advice.
#[test]
fn a_cpu_job_has_owners_in_summary_and_dump() {
    let (target, truth) = start("on_cpu");
    let words = [&["summary", "--for", "600ms"][..], &NO_LIMIT].concat();
    let screen = memspy_at(target.pid(), &words).ok().out;
    let weights = truth["weights"].as_u64().unwrap() as f64 / f64::from(1 << 20);
    for said in [
        "parameters of ",
        &format!("{weights:.2} MiB"),
        "saved for the backward pass",
        "memspy graph -p",
    ] {
        assert!(screen.contains(said), "no '{said}' in\n{screen}");
    }
    let dump = memspy_at(target.pid(), &["dump"]).ok().out;
    assert!(dump.contains("parameters of ") && dump.contains("memspy tensors"), "{dump}");
    let only = memspy_at(target.pid(), &["tensors", "--gpu", "cpu"]).ok().out;
    assert!(only.contains("cpu: ") && !only.contains("cuda"), "{only}");
}

/// A rank that leads its own session, as under torchrun, was not recognised as an orphan.
#[test]
fn a_rank_with_its_own_session_is_its_launchers_orphan() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("card");
    let script = "exec 3<&0; export LAUNCHER=$$; \
                  setsid scripts/with-sim python tests/targets/allocator_truth.py two_devices <&3 &";
    let mut launcher = std::process::Command::new("sh");
    launcher.args(["-c", script]).env("SIM_CUDA_STATE", &state);
    let target = Target::start(launcher);
    let left: Value = serde_json::from_str(target.said.last().unwrap()).unwrap();
    let devices = |words: &[&str]| {
        let mut memspy = std::process::Command::new("scripts/with-sim");
        memspy.env("SIM_CUDA_STATE", &state).arg(env!("CARGO_BIN_EXE_memspy")).arg("devices");
        crate::support::memspy::run(memspy.args(words)).ok().out
    };
    let mut seen = Value::Null;
    wait_until("the launcher's end", || {
        let json: Value = serde_json::from_str(&devices(&["--json"])).unwrap();
        let all = json["left_behind"].as_array().unwrap();
        seen = all.iter().find(|found| found["pid"] == left["pid"]).cloned().unwrap_or_default();
        !seen.is_null()
    });
    assert_eq!(seen["launcher"], target.pid());
    assert_eq!(seen["launcher_told_by"], "LAUNCHER in its environment");
    let text = devices(&[]);
    let said = format!("Orphan: {} (", left["pid"]);
    let of = format!("its launcher has ended: process {} (LAUNCHER", target.pid());
    assert!(
        text.contains(&said) && text.contains(&of) && text.contains("running since 20"),
        "{text}"
    );
    kill(Pid::from_raw(left["pid"].as_i64().unwrap() as i32), Signal::SIGKILL).unwrap();
}
