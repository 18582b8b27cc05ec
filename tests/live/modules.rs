//! Memory by module equals what the process itself counts for each module's calls.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::memspy::{Recording, memspy};
use crate::support::sim;
use serde_json::Value;

/// Bytes by the paths of modules: `blocks.0.mlp` for `blocks[*];0;mlp`.
fn by_module(trace: &Path, words: &[&str]) -> BTreeMap<String, u64> {
    let common = ["flame", trace.to_str().unwrap(), "--by", "module", "-f", "collapsed", "-o", "-"];
    let done = memspy(&[&common[..], words].concat()).ok();
    let row = |line: &str| {
        let (path, bytes) = line.rsplit_once(' ').unwrap();
        (path.replace("[*]", "").replace(';', "."), bytes.parse().unwrap())
    };
    done.out.lines().map(row).collect()
}

fn sums(value: &Value) -> BTreeMap<String, u64> {
    let rows = value.as_object().unwrap().iter();
    rows.map(|(name, bytes)| (name.clone(), bytes.as_u64().unwrap())).collect()
}

#[test]
fn each_module_has_what_its_calls_allocated() {
    let mut target = sim::start("module_truth.py", &[]);
    let recording = Recording::start_exact(target.pid(), &[]);
    target.say("go");
    let truth: Value = serde_json::from_str(&target.line()).unwrap();
    let mut recording = recording;
    recording.interrupt();
    target.say("end");
    let parameters = sums(&truth["parameters"]);
    for (words, counted) in [(&["--total-allocated"][..], "allocated"), (&[], "held")] {
        let seen = by_module(recording.trace(), words);
        let mut expected = sums(&truth[counted]);
        expected.remove("[outside modules]");
        for (name, bytes) in &parameters {
            *expected.entry(name.clone()).or_default() += bytes;
        }
        expected.retain(|_, bytes| *bytes > 0);
        assert!(expected.len() > 12, "{expected:?}");
        let modules = seen.iter().filter(|(name, _)| !name.starts_with('['));
        let modules: BTreeMap<String, u64> = modules.map(|(n, b)| (n.clone(), *b)).collect();
        assert_eq!(modules, expected, "{words:?}");
        assert!(!seen.contains_key("[module not known]"), "{seen:?}");
        if counted == "held" {
            assert_eq!(seen.values().sum::<u64>(), truth["peak"].as_u64().unwrap());
        }
    }
    let table = memspy(&["lines", recording.trace().to_str().unwrap(), "--by", "module"]).ok().out;
    let rows: Vec<&str> = table.lines().skip(3).take(3).collect();
    assert!(rows.iter().any(|row| row.contains("blocks[*].mlp[*]  (9 modules)")), "{table}");
    let opened = ["lines", recording.trace().to_str().unwrap(), "--by", "module", "--depth", "2"];
    let opened = memspy(&opened).ok().out;
    assert!((0..3).all(|block| opened.contains(&format!("  blocks.{block}  "))), "{opened}");
}
