//! Each allocation of a backward pass has the class and forward stack that PyTorch's anomaly mode
//! reports.

use std::collections::BTreeSet;

use crate::support::exact::Exact;
use crate::support::memspy::{Recording, run};
use crate::support::sim;
use memspy::model::{AllocationSite, StackSource};
use serde_json::Value;

/// File, line and the function's plain name, outermost first.
type Frames = Vec<(String, u64, String)>;

fn truth(line: &str) -> BTreeSet<(String, Frames)> {
    let value: Value = serde_json::from_str(line).unwrap();
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let frame = |f: &Value| (text(&f[0]), f[1].as_u64().unwrap(), text(&f[2]));
    let pair =
        |p: &Value| (text(&p[0]), p[1].as_array().unwrap().iter().map(frame).collect::<Frames>());
    value.as_array().unwrap().iter().map(pair).collect()
}

fn forward(exact: &Exact, site: &AllocationSite) -> Option<Frames> {
    let plain = |name: &str| name.rsplit('.').next().unwrap().to_owned();
    let frames = exact.frames(site.forward?).into_iter().rev();
    Some(frames.map(|(name, file, line)| (file, line.into(), plain(&name))).collect())
}

/// Records a scene; anomaly mode must know every node's class and forward stack. `elsewhere`
/// selects forward stacks outside the outer graph, the only graph with a known truth.
fn compare(scene: &str, elsewhere: fn(&Frames) -> bool) {
    let mut target = sim::start("exact_backward.py", &[scene]);
    let mut recording = Recording::start_exact(target.pid(), &["--backward-lines"]);
    target.say("go");
    let truth = truth(&target.line());
    let done = recording.interrupt();
    assert!(done.err.contains(" 0 lost"), "{}", done.err);
    let exact = Exact::read(recording.trace());
    let (mut compared, mut others) = (0, 0);
    let mut classes = BTreeSet::new();
    for (_, _, event) in exact.allocated() {
        let site = exact.site(event.site);
        assert_ne!(site.source, StackSource::Borrowed, "{scene}: {site:?}");
        let Some(node) = &site.node else { continue };
        let frames = forward(&exact, site).unwrap_or_else(|| panic!("{scene}: {node} has no line"));
        if elsewhere(&frames) {
            others += 1;
            continue;
        }
        let pair = (node.to_string(), frames);
        assert!(truth.contains(&pair), "{scene}: {pair:#?}");
        classes.insert(pair.0);
        compared += 1;
    }
    assert!(compared > 50, "{scene}: {compared} compared, {others} of inner graphs");
    assert!(classes.len() > 3, "{scene}: {classes:?}");
    eprintln!(
        "{scene}: {compared} allocations of {} classes equal, {others} of inner graphs",
        classes.len()
    );
}

#[test]
fn plain_with_a_custom_function() {
    compare("plain", |_| false);
}

#[test]
fn checkpointing_without_reentry() {
    compare("checkpoint", |_| false);
}

#[test]
fn checkpointing_with_reentry() {
    // The inner graph is built in the engine's thread and is gone before anybody could query it.
    compare("reentrant", |frames| frames[0].2 != "<module>");
}

#[test]
fn double_backward() {
    compare("double", |_| false);
}

#[test]
fn two_threads() {
    compare("threads", |_| false);
}

/// Probes exist before PyTorch's libraries are initialised: the engine's current node cannot be
/// located yet.
#[test]
fn a_job_recorded_from_its_start_has_autograd_nodes() {
    let job = "import torch\n\
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).cuda()\n\
        for _ in range(20): model(torch.randn(8, 64, device='cuda')).sum().backward()\n";
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.bin");
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = std::process::Command::new(root.join("scripts/with-sim"));
    command.args([env!("CARGO_BIN_EXE_memspy"), "record", "--exact", "-o"]).arg(&trace);
    let done = run(command.args(["--", "python", "-c", job])).ok();
    assert!(done.err.contains(" 0 lost"), "{}", done.err);
    let exact = Exact::read(&trace);
    let mut nodes = BTreeSet::new();
    for (_, _, event) in exact.allocated() {
        let site = exact.site(event.site);
        assert_ne!(site.source, StackSource::Borrowed, "{site:?}\n{}", done.err);
        nodes.extend(site.node.as_ref().map(|node| node.to_string()));
    }
    assert!(nodes.contains("AddmmBackward0"), "{nodes:?}\n{}", done.err);
}
