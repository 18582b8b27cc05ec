//! Common kinds of leaks: each is in the first three rows of `summary` or `growth`.

use memspy::render::json::{GrowthJson, SummaryJson};
use serde_json::Value;

use crate::support::memspy::{document, memspy_at};
use crate::support::sim;
use crate::support::target::Target;

/// Leaks at the same time, with what their rows say.
type Leaks = &'static [(&'static str, &'static str)];

const IN_SUMMARY: &[Leaks] = &[
    &[
        ("losses", "saved for backward, alive by main: trainer.val_losses[*]"),
        ("outputs", "main: trainer.metrics.outputs[*]"),
        ("cache", r#"__main__.FEATURE_CACHE[*]["features"]"#),
    ],
    &[
        ("closure", "main: trainer.count.__closure__[0].cell_contents[*]"),
        ("lru_cache", "__main__.positions.<cache>[*]"),
        ("hook", "main: trainer.model.layers[1].act._forward_hooks[0].__closure__[0]"),
    ],
];

/// Found since later versions: a buffer per step under its own name, storages without tensors, a C
/// queue.
const ALSO_IN_SUMMARY: Leaks = &[
    ("numbered", "buffers: trainer.bank.queue_*"),
    ("storages", "[in no tensor: work spaces, C++]"),
    ("queued", "main: trainer.queued"),
];

const IN_GROWTH: &[Leaks] = &[
    &[
        ("traceback", "main: trainer.errors"),
        ("notebook", "__main__.Out[*]"),
        ("sessions", "main: trainer.sessions"),
    ],
    &[
        ("cycles", "garbage in reference cycles"),
        ("optimizer", "optimizer state of main: trainer.old_optimizers[*] (AdamW)"),
    ],
];

/// Unoptimized builds on a busy machine take longer than people would wait.
const NO_LIMIT: [&str; 4] = ["--max-time", "120s", "--max-pause", "60s"];

fn leak(target: &mut Target, leaks: Leaks) {
    let kinds: Vec<&str> = leaks.iter().map(|(kind, _)| *kind).collect();
    target.say(&kinds.join(" "));
    target.read_until_ready();
}

fn json(target: &Target, words: &[&str]) -> Value {
    let done = memspy_at(target.pid(), &[words, &["--json"], &NO_LIMIT].concat()).ok();
    match words[0] {
        "growth" => document::<GrowthJson>(&done.out),
        _ => document::<SummaryJson>(&done.out),
    }
}

/// Leaks in none of the first three rows.
fn missing(growth: &Value, leaks: Leaks) -> Vec<String> {
    let rows: Vec<&str> = growth["owners"]
        .as_array()
        .unwrap()
        .iter()
        .take(3)
        .map(|row| row["owner"].as_str().unwrap())
        .collect();
    let is_named = |owner: &str| rows.iter().any(|row| row.starts_with(owner));
    let missing = leaks.iter().filter(|(_, owner)| !is_named(owner));
    missing.map(|(kind, _)| format!("{kind} is not in {rows:#?}")).collect()
}

/// Repeats until each leak is named: on a busy machine nothing may have leaked since the last
/// snapshot.
#[track_caller]
fn named(target: &Target, words: &[&str], part: &str, leaks: Leaks) -> Value {
    let mut last = Vec::new();
    for _ in 0..4 {
        let told = json(target, words);
        let growth = if part.is_empty() { &told } else { &told[part] };
        last = missing(growth, leaks);
        if last.is_empty() {
            return told;
        }
    }
    panic!("{}", last.join("\n"))
}

#[test]
fn leaks_are_named_in_the_first_three_rows() {
    let mut target = sim::start("leaks.py", &[]);
    for leaks in IN_SUMMARY.iter().chain([&ALSO_IN_SUMMARY]) {
        leak(&mut target, leaks);
        // Memory in no tensor counts from eight blocks on, and a busy machine slows the job's
        // steps.
        let time = if *leaks == ALSO_IN_SUMMARY { "4s" } else { "600ms" };
        let summary = named(&target, &["summary", "--for", time], "growth", leaks);
        let found = summary["findings"].as_array().unwrap();
        // Where the cause is known, its finding says how fast the owner grows.
        let grows = |finding: &&Value| finding["text"].as_str().unwrap().contains("grow");
        let grows = found.iter().filter(grows).count();
        assert!(grows >= leaks.len(), "{found:#?}");
        // Figures shown together are of one moment: the groups add up to what tensors hold.
        let held: u64 = summary["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|g| g["bytes"].as_u64().unwrap())
            .sum();
        let allocated = summary["gpus"][0]["allocated"].as_u64().unwrap();
        let least = if *leaks == ALSO_IN_SUMMARY { allocated / 4 } else { allocated / 2 };
        assert!(held <= allocated && held > least, "{held} of {allocated}");
    }
    for leaks in IN_GROWTH {
        leak(&mut target, leaks);
        named(&target, &["growth", "--for", "900ms"], "", leaks);
    }
    let screen = memspy_at(target.pid(), &[&["summary", "--for", "600ms"][..], &NO_LIMIT].concat());
    let screen = screen.ok().out;
    assert!(screen.lines().count() <= 40, "{screen}");
    for said in [
        "GPU 0, 80.00 GiB",
        "garbage in reference cycles",
        "gc.collect() would free it",
        "optimizers have state for the same parameters",
        "leaks.py:",
        "the process was stopped",
    ] {
        assert!(screen.contains(said), "no '{said}' in\n{screen}");
    }
}

#[test]
fn a_list_of_losses_is_found_behind_its_graph() {
    let mut target = sim::start("leaks.py", &[]);
    leak(&mut target, &[("losses", "")]);
    let words = [&["graph"][..], &NO_LIMIT].concat();
    let graph = memspy_at(target.pid(), &words).ok().out;
    assert!(graph.contains("alive by main: trainer.val_losses[*] ("), "{graph}");
    let words = [&["tensors"][..], &NO_LIMIT].concat();
    let tensors = memspy_at(target.pid(), &words).ok().out;
    // The matrix multiplication's workspace keeps its size.
    let is_row = |line: &&str| line.contains(" MiB  ") && !line.contains("[in no tensor");
    let first = tensors.lines().find(is_row).unwrap();
    assert!(
        first.contains("saved for backward, alive by main: trainer.val_losses[*] ("),
        "{tensors}"
    );
    assert!(tensors.contains("AddmmBackward0 of layers.*.down"), "{tensors}");
}

#[test]
#[ignore = "takes long, and every_scene_is_seen_as_it_says_on_a_gpu sees groups of owners: scripts/test.sh --all runs it"]
fn a_dump_groups_owners_and_lists_storages_on_request() {
    let mut target = sim::start("leaks.py", &[]);
    leak(&mut target, &[("sessions", "")]);
    let dump = |words: &[&str]| memspy_at(target.pid(), &[words, &NO_LIMIT].concat()).ok().out;
    let groups = dump(&["dump"]);
    assert!(groups.contains("  main: trainer.sessions[*].layers[*]"), "{groups}");
    let each = dump(&["dump", "--each"]);
    let storages = each.lines().filter(|line| line.contains("trainer.sessions[")).count();
    assert!(storages >= 16, "{each}");
}
