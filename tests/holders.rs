//! Who holds the memory: names, categories and sums against what the job says itself, and against older tools.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]
#![allow(unreachable_pub, missing_docs, reason = "support is a module of each test binary")]

mod support;

use std::collections::BTreeMap;

use serde_json::Value;
use support::memspy::memspy_at;
use support::sim;
use support::target::Target;

fn start(script: &str, words: &[&str]) -> (Target, Value) {
    let target = sim::start(script, words);
    let truth = serde_json::from_str(target.said.first().unwrap()).unwrap();
    (target, truth)
}

fn tensors(target: &Target, words: &[&str]) -> Value {
    let done = memspy_at(target.pid(), &[&["tensors", "--json"], words].concat()).ok();
    serde_json::from_str(&done.out).unwrap()
}

fn by_id(look: &Value) -> BTreeMap<u64, &Value> {
    let rows = look["tensors"].as_array().unwrap();
    rows.iter().filter_map(|row| Some((row["id"].as_u64()?, row))).collect()
}

fn names(row: &Value) -> Vec<&str> {
    row["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

/// All that is allocated on the device has a holder or a cause.
fn check_sums(look: &Value, allocated: u64) {
    let sums = &look["devices"]["cuda:0"];
    assert_eq!(sums["allocated"], allocated);
    let parts = [
        "parameters",
        "buffers",
        "gradients",
        "optimizer_state",
        "saved_for_backward",
        "other_tensors",
        "rounding",
        "in_no_tensor",
    ];
    assert_eq!(parts.iter().map(|part| sums[part].as_u64().unwrap()).sum::<u64>(), allocated);
}

#[test]
fn every_tensor_has_its_names_and_the_categories_add_up() {
    let (target, truth) = start("holders_truth.py", &[]);
    let look = tensors(&target, &[]);
    let rows = by_id(&look);
    for (name, id) in truth["names"].as_object().unwrap() {
        let row = rows.get(&id.as_u64().unwrap()).unwrap_or_else(|| panic!("{name} is missing"));
        assert!(names(row).contains(&name.as_str()), "{name}: {:?}", names(row));
    }
    // Shared weights are one tensor with two names.
    assert_eq!(
        &names(rows[&truth["names"]["head.weight"].as_u64().unwrap()])[..2],
        ["embed.weight", "head.weight"]
    );
    let sums = &look["devices"]["cuda:0"];
    for category in ["parameters", "buffers", "gradients", "optimizer_state"] {
        assert_eq!(sums[category], truth[category], "{category}");
    }
    check_sums(&look, truth["allocated"].as_u64().unwrap());
    assert_eq!(look["unreadable"], 0);
    assert!(look["pause_seconds"].as_f64().unwrap() > 0.0);
    // Whatever is not in a variable is kept by the graph.
    assert_eq!(sums["unnamed"], 0);

    let dump = memspy_at(target.pid(), &["dump", "--json"]).ok();
    let dump: Value = serde_json::from_str(&dump.out).unwrap();
    assert_eq!(dump["holders"]["devices"]["cuda:0"], look["devices"]["cuda:0"]);
    let text = memspy_at(target.pid(), &["tensors", "--limit", "0"]).ok().out;
    for said in
        ["embed.weight", "= head.weight", "main: in_list[1][1][0]", "the process stood still for"]
    {
        assert!(text.contains(said), "{said}\n{text}");
    }
}

#[test]
fn a_job_in_full_run_is_looked_at_again_and_again_and_goes_on() {
    let (mut target, _) = start("holders_truth.py", &[]);
    let pid = target.pid();
    let steps = 400;
    target.say(&format!("train {steps}"));
    let mut looks = 0;
    let looking = std::thread::spawn(move || {
        let mut looks = Vec::new();
        for _ in 0..12 {
            let done = memspy_at(pid, &["tensors", "--json"]);
            looks.push(serde_json::from_str::<Value>(&done.ok().out).unwrap());
        }
        looks
    });
    for look in looking.join().unwrap() {
        // Whatever the moment: the whole fits together, or is not shown.
        check_sums(&look, look["devices"]["cuda:0"]["allocated"].as_u64().unwrap());
        assert!(by_id(&look).len() > 20);
        looks += 1;
    }
    assert_eq!(looks, 12);
    let _: Value = serde_json::from_str(&target.line()).unwrap();
    target.say("more 3");
    let allocated: u64 = target.line().parse().unwrap();
    check_sums(&tensors(&target, &[]), allocated);
    let running = tensors(&target, &["--no-pause"]);
    assert_eq!(running["pause_seconds"], Value::Null);
    check_sums(&running, allocated);
}

#[test]
fn what_memlabs_reporter_says_is_said_from_outside() {
    for scene in ["linear", "backward", "tied", "lstm"] {
        let (target, truth) = start("memlab_reporter.py", &[scene]);
        let look = tensors(&target, &[]);
        let mut seen: BTreeMap<(String, u64), i64> = BTreeMap::new();
        let mut storages: BTreeMap<u64, u64> = BTreeMap::new();
        let mut by_name: BTreeMap<&str, &Value> = BTreeMap::new();
        for row in by_id(&look).values().filter(|row| row["device"] == "cuda:0") {
            // Its rules: no empty tensors, scalars have size 1, storages in blocks of 512 bytes.
            let numel = row["numel"].as_u64().unwrap();
            let shape = match row["shape"].to_string() {
                empty if empty == "[]" => "[1]".to_owned(),
                shape => shape,
            };
            *seen.entry((shape, numel)).or_default() += 1;
            let bytes = row["storage_bytes"].as_u64().unwrap();
            storages.insert(row["data_ptr"].as_u64().unwrap(), bytes.next_multiple_of(512));
            by_name.extend(names(row).into_iter().map(|name| (name, *row)));
        }
        let mut memory = 0;
        for row in truth["rows"].as_array().unwrap() {
            let numel = row[2].as_u64().unwrap();
            *seen.entry((row[1].to_string(), numel)).or_default() -= 1;
            memory += row[3].as_u64().unwrap();
            let name = row[0].as_str().unwrap().split('(').next().unwrap();
            if !name.starts_with("Tensor") && !name.starts_with("Parameter") {
                let found = by_name.get(name).unwrap_or_else(|| panic!("{scene}: {name}"));
                assert_eq!(found["numel"], numel, "{scene}: {name}");
            }
        }
        assert!(seen.values().all(|count| *count == 0), "{scene}: {seen:?}");
        assert_eq!(storages.values().sum::<u64>(), memory, "{scene}");
        assert_eq!(look["devices"]["cuda:0"]["allocated"], truth["allocated"], "{scene}");
    }
}

#[test]
fn what_trumpy_says_is_said_from_outside_and_so_is_the_truth() {
    for scene in ["mlp", "cnn", "transformer", "resnet50"] {
        let (target, truth) = start("trumpy_scenes.py", &[scene]);
        let done = memspy_at(target.pid(), &["graph", "--json"]).ok();
        let look: Value = serde_json::from_str(&done.out).unwrap();
        let saved = &look["saved_for_backward"];
        let by_rule = &truth["memory_for_backward"];
        assert_eq!(&saved["by_trumpys_rule"], by_rule, "{scene}");
        if scene == "resnet50" {
            // The figure of its README.
            assert_eq!(*by_rule, 1_383_169_024u64);
        }
        let part = |name: &str| saved[name].as_u64().unwrap();
        let parts = ["activations", "inputs", "parameters", "buffers"];
        assert_eq!(parts.iter().map(|name| part(name)).sum::<u64>(), part("all"), "{scene}");
        // trumpy counts weights that are seen through a view, and the input.
        assert!(part("activations") < by_rule.as_u64().unwrap(), "{scene}");
    }
}

#[test]
fn what_cannot_be_looked_at_is_refused_in_one_line() {
    let python = support::pythons::newest_here();
    let mut command = python.command();
    command.args(["-c", "print('READY', flush=True)\nimport time\ntime.sleep(600)"]);
    let target = Target::start(command);
    memspy_at(target.pid(), &["tensors"]).refused(&["PyTorch is not loaded", "imported torch"]);
    let dump = memspy_at(target.pid(), &["dump"]).ok();
    assert!(dump.out.contains("No GPU memory is known"), "{}", dump.out);
}
