//! Models under `torch.compile`: traced tensors have no memory; tensors that a CUDA graph replays
//! have.

use crate::support::memspy::memspy_at;
use crate::support::sim;
use serde_json::Value;

/// The target's truth, memspy's tensors, and the text of both commands.
fn snapshot(backend: &str) -> (Value, Value, String) {
    let target = sim::start("compiled.py", &[backend]);
    let truth = serde_json::from_str(target.said.last().unwrap()).unwrap();
    let done = memspy_at(target.pid(), &["tensors", "--json"]).ok();
    let text = memspy_at(target.pid(), &["tensors"]).ok().out;
    (truth, serde_json::from_str(&done.out).unwrap(), text)
}

fn check(truth: &Value, snapshot: &Value) {
    // Many more are traced than exist: counting them would be wrong by a factor.
    assert!(truth["fakes"].as_u64().unwrap() > 20, "{truth}");
    assert!(truth["fake_bytes"].as_u64().unwrap() > 10 << 20, "{truth}");
    let saved = &snapshot["saved_for_backward"];
    assert_eq!(saved["all"], truth["graph"]["bytes"]);
    assert_eq!(snapshot["nodes"].as_array().unwrap().len(), truth["graph"]["nodes"]);
    let sums = &snapshot["devices"]["cuda:0"];
    let of = |name: &str| sums[name].as_u64().unwrap();
    let parts = ["parameters", "gradients", "optimizer_state", "saved_for_backward"];
    let more = ["other_tensors", "in_cpp", "rounding", "in_no_tensor", "pending_free", "buffers"];
    let all: u64 = parts.iter().chain(&more).map(|part| of(part)).sum();
    assert_eq!((all, of("allocated")), (of("allocated"), truth["allocated"].as_u64().unwrap()));
    assert_eq!((of("in_graph_pools"), of("elsewhere")), (truth["in_pools"].as_u64().unwrap(), 0));
}

#[test]
#[ignore = "takes half a minute: scripts/test.sh --all runs it"]
fn what_was_only_traced_keeps_nothing() {
    let (truth, snapshot, _) = snapshot("aot_eager");
    check(&truth, &snapshot);
    assert_eq!(truth["in_pools"], 0);
    // What the compiled function itself saves is no input of the program.
    let saved = &snapshot["saved_for_backward"];
    let of = |name: &str| saved[name].as_u64().unwrap();
    assert!(of("activations") > 4 * of("inputs"), "{saved}");
}

#[test]
#[ignore = "takes long, and misleading::pools_of_cuda_graphs_are_listed_and_not_free sees pools: scripts/test.sh --all runs it"]
fn what_a_replayed_graph_keeps_is_told_apart() {
    let (truth, snapshot, text) = snapshot("cudagraphs");
    check(&truth, &snapshot);
    assert!(truth["in_pools"].as_u64().unwrap() > 1 << 20, "{truth}");
    assert!(text.contains("in pools of CUDA graphs"), "{text}");
}
