//! Each kind of finding: the job with the mistake is told so, with the bytes that the change gives
//! back; its twin with the change is not; healthy jobs have no finding.

use memspy::render::json::{OwnershipJson, SummaryJson};
use serde_json::Value;

use crate::support::memspy::{document, memspy_at};
use crate::support::sim;
use crate::support::target::Target;

const SCRIPT: &str = "findings.py";
/// Unoptimized builds on a busy machine take longer than people would wait.
const NO_LIMIT: [&str; 4] = ["--max-time", "120s", "--max-pause", "60s"];
/// PyTorch's smallest segment, and rounding.
const ROUNDING: u64 = 2 << 20;

/// What a job uses, and what is found in it.
fn observed(kind: &str) -> (u64, Vec<Value>) {
    let mut target = match kind.starts_with("stray") {
        true => {
            let mut command = sim::command(SCRIPT, &[kind]);
            command.env("SIM_CUDA_DEVICES", "2");
            Target::start(command)
        }
        false => sim::start(SCRIPT, &[kind]),
    };
    let truth: Value = serde_json::from_str(target.said.last().unwrap()).unwrap();
    // Growth takes several snapshots.
    let time = if kind.starts_with("replay") { "5s" } else { "1200ms" };
    let words = [&["summary", "--json", "--for", time][..], &NO_LIMIT].concat();
    let summary = document::<SummaryJson>(&memspy_at(target.pid(), &words).ok().out);
    assert_eq!(summary["incomplete"], Value::Null, "{kind}");
    target.kill();
    (truth["used"].as_u64().unwrap(), summary["findings"].as_array().unwrap().clone())
}

/// The finding's bytes to give back, and what the job uses.
fn found(kind: &str, name: &str, words: &[&str]) -> (u64, u64) {
    let (used, findings) = observed(kind);
    let found = findings.iter().find(|finding| finding["kind"] == name);
    let found = found.unwrap_or_else(|| panic!("{kind}: no '{name}' in {findings:#?}"));
    let text = found["text"].as_str().unwrap();
    for word in words {
        assert!(text.contains(word), "{kind}: no '{word}' in {text}");
    }
    // Of the profiler's events nobody knows the size.
    (found["frees"].as_u64().unwrap_or(0), used)
}

#[test]
fn memory_of_cpp_is_found_in_its_structures() {
    let mib = |(frees, _): (u64, u64)| frees >> 20;
    let autocast = found("autocast", "autocast cache", &["6 weights", "for each request"]);
    assert_eq!(mib(autocast), 12);
    let ddp = found("ddp", "ddp buckets", &["gradient_as_bucket_view=True"]);
    assert_eq!(mib(ddp), 32);
    let cublas = found("cublas", "cublas streams", &["5 streams"]);
    assert_eq!(mib(cublas), 160);
}

#[test]
fn frames_of_a_handled_exception_are_found_with_thread_and_line() {
    let words = ["RuntimeError is being handled", "in handled (findings.py:", "activations"];
    assert_eq!(found("handled", "exception kept", &words).0, 16 << 20);
}

#[test]
fn host_memory_of_pytorch_is_found() {
    let (frees, _) = found("rounding", "page-locked rounding", &["384.00 MiB", "198.00 MiB"]);
    assert_eq!(frees, 186 << 20);
    found("history", "memory history", &["without limit", "max_entries"]);
}

#[test]
fn context_on_another_gpu_is_found_with_its_thread() {
    found("stray", "stray context", &["GPU 0", "512 B", "norm", "loader", "set_device(1)"]);
}

#[test]
fn gradients_logits_and_processes_that_nobody_needs_are_found() {
    let gradients = found("gradients", "gradients between steps", &["set_to_none=True"]);
    assert_eq!(gradients.0, 24 << 20);
    let logits = found("logits", "logits in float32", &["scores", "logits\"]", "float16"]);
    assert_eq!(logits.0, 16 << 20);
    found("workers", "idle contexts", &["2 waiting workers"]);
    let (frees, _) = found("orphan", "orphans", &["its launcher", "has ended", "kill"]);
    assert!(frees > 128 << 20);
}

#[test]
fn a_buffer_is_found_only_if_it_has_no_room_until_it_is_full() {
    let words = ["replay: memory", "grows by", "to about 2.62 TiB when its deque is full"];
    found("replay", "grows", &words);
    assert_eq!(observed("replay_fixed").1, Vec::<Value>::new());
}

#[test]
fn a_sum_of_losses_is_found() {
    // Of each of 12 steps a factor and a result.
    let words = ["running_loss adds up 12 results", ".item()"];
    assert_eq!(found("added", "results added up", &words).0 >> 20, 96);
}

#[test]
fn what_a_notebook_keeps_is_found_with_graphs_and_the_last_error() {
    let (frees, _) = found("notebook", "notebook outputs", &["5 tensors", "graphs saved"]);
    // Four of 8 MiB, one of 4 MiB, and its graph: a leaf and a saved result, 4 MiB each.
    assert_eq!(frees, 44 << 20);
    // Two local variables, and a factor that the graph of one saved.
    assert_eq!(found("last_error", "last error", &["local variables", "1/0"]).0, 24 << 20);
}

/// The job, the kind, and whether the twin shows what comes back.
const KINDS: [(&str, &str, bool); 23] = [
    ("autocast", "autocast cache", true),
    ("ddp", "ddp buckets", true),
    ("cublas", "cublas streams", true),
    ("graphs", "graph pools", true),
    ("create_graph", "graph in gradients", false),
    ("losses", "graphs kept", true),
    ("added", "results added up", true),
    ("removed", "state of removed parameters", true),
    ("checkpoint", "checkpoint kept", true),
    ("twice", "models twice", true),
    ("notebook", "notebook outputs", true),
    ("last_error", "last error", true),
    ("slices", "large storages", true),
    ("handled", "exception kept", true),
    ("pinning", "pinned segments", false),
    ("rounding", "page-locked rounding", true),
    ("history", "memory history", false),
    ("stray", "stray context", false),
    ("gradients", "gradients between steps", true),
    ("logits", "logits in float32", true),
    ("profiler", "profiler", false),
    ("workers", "idle contexts", true),
    ("orphan", "orphans", false),
];

#[test]
#[ignore = "takes minutes, and the tests above see several kinds: scripts/test.sh --all runs it"]
fn twins_with_the_change_have_no_finding_and_the_bytes_back() {
    for (job, name, has_bytes) in KINDS {
        let (frees, used) = found(job, name, &[]);
        let (after, findings) = observed(&format!("{job}_fixed"));
        assert!(findings.iter().all(|it| it["kind"] != name), "{job}: {findings:#?}");
        let back = used.saturating_sub(after);
        if has_bytes {
            assert!(back.abs_diff(frees) <= ROUNDING, "{job}: {frees} said, {back} came back");
        }
    }
}

/// Parameters, gradients and states of FSDP2 are `DTensor`s: wrappers, whose parts have the memory.
#[test]
fn parts_of_fsdp_have_owners_and_figures() {
    let mut target = sim::start(SCRIPT, &["healthy_fsdp"]);
    let words = [&["tensors", "--json"][..], &NO_LIMIT].concat();
    let told = document::<OwnershipJson>(&memspy_at(target.pid(), &words).ok().out);
    target.kill();
    let groups = told["groups"].as_array().unwrap().iter();
    let groups: Vec<&Value> = groups.filter(|group| group["device"] == "cuda:0").collect();
    let of = |kind: &str, category: &str| {
        let is_it = |group: &&&Value| group["kind"] == kind && group["category"] == category;
        groups.iter().find(is_it).copied().unwrap_or_else(|| panic!("no {kind} in {groups:#?}"))
    };
    let state = of("optimizer", "optimizer state");
    assert_eq!(state["bytes"], 32 << 20, "{state:#?}");
    assert!(state["owner"].as_str().unwrap().ends_with(": optimizer (AdamW)"), "{state:#?}");
    // All of it goes with the optimizer.
    assert_eq!(state["frees"]["at_once"], 32 << 20, "{state:#?}");
    // While a weight is gathered, this rank's part is no other tensor.
    let parameters = of("model", "parameters");
    assert!(parameters["bytes"].as_u64().unwrap() >= 16 << 20, "{parameters:#?}");
    let others = groups.iter().filter(|group| group["category"] == "other tensors");
    assert!(others.clone().all(|it| it["bytes"].as_u64().unwrap() < 1 << 20), "{groups:#?}");
}

#[test]
#[ignore = "takes minutes: scripts/test.sh --all runs it"]
fn healthy_jobs_have_no_finding() {
    for job in [
        "healthy_training",
        "healthy_accumulation",
        "healthy_autocast",
        "healthy_server",
        "healthy_average",
        "healthy_two_models",
        "healthy_streams",
        "healthy_graph",
        "healthy_recomputation",
        "healthy_frozen",
        "healthy_cache",
        "healthy_sizes",
        "healthy_recorder",
        "healthy_fsdp",
        "healthy_clients",
    ] {
        assert_eq!(observed(job).1, Vec::<Value>::new(), "{job}");
    }
}
