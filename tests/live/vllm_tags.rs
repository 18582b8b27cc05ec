//! Sleeping memory of a process with vLLM's allocator, by tag, compared with what the program did.
//! The target brings a module of the shape of vLLM's, which is not installed here.

use serde_json::Value;

use crate::support::memspy::{command, document, run};
use crate::support::sim;
use crate::support::target::Target;
use memspy::render::json::{DevicesJson, DumpJson};

fn memspy(target: &Target, words: &[&str]) -> String {
    let pid = target.pid().to_string();
    run(command(Some(target.pid())).args(words).args(["-p", &pid])).ok().out
}

/// The device of `memspy dump --json`.
fn device(target: &Target) -> Value {
    document::<DumpJson>(&memspy(target, &["dump", "--json"]))["devices"][0].clone()
}

fn tag<'d>(device: &'d Value, tag: &str) -> &'d Value {
    let tags = device["vllm_tags"].as_array().unwrap_or_else(|| panic!("{device}"));
    tags.iter().find(|known| known["tag"] == tag).unwrap_or_else(|| panic!("{tag}: {device}"))
}

fn say(target: &mut Target, line: &str) {
    target.say(line);
    target.read_until_ready();
}

#[test]
fn memory_asleep_under_vllm_is_told_by_its_tags() {
    let mut target = sim::start("vllm_asleep.py", &[]);
    let truth: Value = serde_json::from_str(target.said.last().unwrap()).unwrap();
    let bytes = |tag: &str| truth["tags"][tag].as_u64().unwrap();
    let awake = device(&target);
    assert_eq!(awake["unmapped_at_least"], 0);
    let cache = tag(&awake, "kv_cache");
    assert_eq!(cache["mapped"], bytes("kv_cache"), "{cache}");
    // So little may be asleep otherwise that the driver's figure shows this.
    let weights = tag(&awake, "weights");
    assert_eq!((&weights["bytes"], &weights["asleep"]), (&truth["tags"]["weights"], &Value::Null));
    assert!(weights["unknown_because"].is_string(), "{weights}");

    say(&mut target, "sleep");
    let asleep = device(&target);
    for name in ["weights", "kv_cache"] {
        let share = tag(&asleep, name);
        assert_eq!(
            (&share["asleep"], &share["mapped"]),
            (&Value::from(bytes(name)), &Value::from(0))
        );
    }
    let summary = ["summary", "--for", "100ms", "--max-time", "120s"];
    for words in [&["dump"][..], &["devices"], &summary] {
        let text = memspy(&target, words);
        for said in ["unmapped (asleep), at least", "vLLM's tag 'kv_cache'", "11.72 GiB asleep"] {
            assert!(text.contains(said), "{words:?}: {said}: {text}");
        }
    }
    let json = document::<DevicesJson>(&memspy(&target, &["devices", "--json"]));
    let share = tag(&json["processes"][0]["devices"][0], "weights").clone();
    assert_eq!(share["asleep"], bytes("weights"), "{share}");

    // Any other content there is no figure.
    for damage in ["entry", "tag", "dict", "class"] {
        say(&mut target, &format!("damage {damage}"));
        let device = device(&target);
        assert_eq!(device["vllm_tags"], Value::Null, "{damage}");
        let why = device["vllm_tags_unknown_because"].as_str().unwrap();
        assert!(why.contains("not laid out as known"), "{damage}: {why}");
        assert!(device["unmapped_at_least"].as_u64().unwrap() > 0);
    }
}

#[test]
fn sleeping_cache_beside_awake_weights_shows_in_drivers_figure() {
    let mut target = sim::start("vllm_asleep.py", &[]);
    let truth: Value = serde_json::from_str(target.said.last().unwrap()).unwrap();
    say(&mut target, "sleep_cache");
    let device = device(&target);
    let cache = tag(&device, "kv_cache");
    assert_eq!((&cache["asleep"], &cache["mapped"]), (&truth["tags"]["kv_cache"], &Value::from(0)));
    say(&mut target, "forget");
    assert_eq!(self::device(&target)["vllm_tags"], serde_json::json!([]));
}
