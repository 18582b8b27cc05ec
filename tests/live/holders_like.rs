//! The figures of trumpy and modelsize, computed from outside by their own rules (`memspy graph
//! --like`).

use std::collections::BTreeMap;

use crate::support::memspy::{document, memspy_at};
use crate::support::sim;
use crate::support::target::Target;
use memspy::render::json::{ModelsizeJson, OwnershipJson, TrumpyJson};
use serde_json::Value;

fn start(script: &str, words: &[&str]) -> (Target, Value) {
    let target = sim::start(script, words);
    let truth = serde_json::from_str(target.said.last().unwrap()).unwrap();
    (target, truth)
}

fn graph(target: &Target, words: &[&str]) -> Value {
    let done = memspy_at(target.pid(), &[&["graph", "--json"], words].concat()).ok();
    match words.contains(&"trumpy") {
        true => document::<TrumpyJson>(&done.out),
        false if words.contains(&"modelsize") => document::<ModelsizeJson>(&done.out),
        false => document::<OwnershipJson>(&done.out),
    }
}

#[test]
#[ignore = "takes half a minute: scripts/test.sh --all runs it"]
fn trumpys_figure_and_the_truth_are_both_shown() {
    for scene in ["mlp", "cnn", "transformer", "resnet50"] {
        let (target, truth) = start("trumpy_scenes.py", &[scene]);
        let by_rule = &truth["memory_for_backward"];
        let like = graph(&target, &["--like", "trumpy", "--loss", "main: loss"]);
        assert_eq!(&like["losses"][0]["figures"][0]["memory_for_backward"], by_rule, "{scene}");
        assert_eq!(like["losses"].as_array().unwrap().len(), 1, "{scene}");
        if scene == "resnet50" {
            // The figure of its README.
            assert_eq!(*by_rule, 1_383_169_024u64);
            continue;
        }
        let saved = &graph(&target, &[])["saved_for_backward"];
        let part = |name: &str| saved[name].as_u64().unwrap();
        let parts = ["activations", "inputs", "parameters", "buffers"];
        assert_eq!(parts.iter().map(|name| part(name)).sum::<u64>(), part("all"), "{scene}");
        // trumpy counts weights seen through a view, and the input.
        assert!(part("activations") < by_rule.as_u64().unwrap(), "{scene}");
    }
}

#[test]
fn several_losses_that_are_alive_are_not_summed() {
    let (target, truth) = start("trumpy_scenes.py", &["several"]);
    let all = graph(&target, &["--like", "trumpy"]);
    let mut seen: BTreeMap<String, Value> = BTreeMap::new();
    for loss in all["losses"].as_array().unwrap() {
        let loss_name = loss["loss"].as_str().unwrap().trim_start_matches("main: ").to_owned();
        for figure in loss["figures"].as_array().unwrap() {
            let net = figure["net"].as_str().unwrap().trim_start_matches("main: ");
            seen.insert(format!("{loss_name} {net}"), figure["memory_for_backward"].clone());
        }
    }
    // "one" does not lead to the second net, "alone" not to the first.
    assert_eq!(seen.len(), 4, "{seen:?}");
    for (what, bytes) in &seen {
        assert_eq!(&truth[what], bytes, "{what}");
    }
    // Each by its name, also without its function.
    let one = graph(&target, &["--like", "trumpy", "--loss", "one"]);
    assert_eq!(one["losses"].as_array().unwrap().len(), 1);
    assert_eq!(one["losses"][0]["figures"][0]["memory_for_backward"], truth["one first"]);
    let plain = memspy_at(target.pid(), &["graph"]).ok().out;
    assert!(!plain.contains("trumpy") && !plain.contains("modelsize"), "{plain}");
    let like =
        |words: &[&str]| memspy_at(target.pid(), &[&["graph", "--like", "trumpy"], words].concat());
    like(&["--loss", "first.0.weight"]).refused(&["has no autograd graph"]);
    let modelsize = ["graph", "--like", "modelsize", "--loss", "one"];
    memspy_at(target.pid(), &modelsize).refused(&["--like trumpy"]);
}

#[test]
#[ignore = "takes half a minute: scripts/test.sh --all runs it"]
fn where_trumpy_raises_an_error_or_recomputes_it_is_said() {
    let (target, truth) = start("trumpy_scenes.py", &["changed"]);
    assert_eq!(truth["loss net"], Value::Null);
    let like = graph(&target, &["--like", "trumpy"]);
    assert_eq!(like["losses"][0]["changed_in_place"], 1);
    let text = memspy_at(target.pid(), &["graph", "--like", "trumpy"]).ok().out;
    assert!(text.contains("changed in place since: trumpy raises an error"), "{text}");
    let (target, _) = start("trumpy_scenes.py", &["checkpointed"]);
    let text = memspy_at(target.pid(), &["graph", "--like", "trumpy"]).ok().out;
    assert!(text.contains("packed by hooks"), "{text}");
}

#[test]
fn what_modelsize_estimates_is_in_the_graph() {
    for device in ["cpu", "cuda"] {
        let (target, truth) = start("oracle_modelsize.py", &["--device", device]);
        let text = memspy_at(target.pid(), &["graph", "--like", "modelsize"]).ok().out;
        // The figures of its README.
        let figures =
            "parameters 0.450304 M, intermediate variables 336.0896 M, with backward 672.1792 M";
        assert!(text.contains(figures), "{text}");
        assert_eq!(truth["estimate"]["params"], 0.450304);
    }
}

#[test]
fn modelsize_counts_modules_not_nodes_or_says_unknown() {
    for (model, unknown) in [
        ("mixed", None),
        ("middle", None),
        ("frozen", Some("'0' (Conv2d) returned left no trace")),
        ("nested", Some("'0' (Sequential) contains modules")),
        ("unordered", Some("do not follow each other")),
    ] {
        let (target, truth) = start("oracle_modelsize.py", &["--model", model]);
        let like = graph(&target, &["--like", "modelsize"]);
        let [said] = &like["models"].as_array().unwrap()[..] else { panic!("{like}") };
        let millions = |key: &str| said[key].as_u64().map(|elements| elements as f64 * 4.0 / 1e6);
        let estimate = &truth["estimate"];
        match unknown {
            None => {
                let same =
                    |a: Option<f64>, b: &Value| (a.unwrap() - b.as_f64().unwrap()).abs() < 1e-9;
                assert!(
                    same(millions("parameter_elements"), &estimate["params"]),
                    "{model}: {like}"
                );
                let elements = millions("intermediate_elements");
                assert!(elements.is_some(), "{model}: {like}");
                assert!(same(elements, &estimate["without_backward"]), "{model}: {like} {truth}");
            }
            Some(why) => {
                assert_eq!(said["intermediate_elements"], Value::Null, "{model}: {like}");
                assert!(said["why_unknown"].as_str().unwrap().contains(why), "{model}: {like}");
            }
        }
    }
}
