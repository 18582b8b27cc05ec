//! Situations that people reported in public: memspy says what they needed to know.

use crate::support::memspy::{Recording, memspy_at};
use crate::support::one_peak::one_peak;
use crate::support::sim;
use crate::support::target::Target;
use serde_json::Value;

const MIB: u64 = 1 << 20;
const NO_LIMIT: [&str; 4] = ["--max-time", "10min", "--max-stop", "10min"];

/// What the job says of itself.
fn truth(target: &mut Target) -> Value {
    target.say("truth");
    serde_json::from_str(target.read_until_ready().last().unwrap()).unwrap()
}

/// The page said 335.86 MiB where the allocator's peak was 269.21: a block that one snapshot missed
/// was counted twice.
#[test]
fn growing_caches_have_one_peak_the_allocators() {
    let mut target = sim::start("growing_caches.py", &[]);
    let before = truth(&mut target);
    let mut recording = Recording::start(target.pid(), &[]);
    recording.wait_for_block();
    std::thread::sleep(std::time::Duration::from_secs(2));
    recording.interrupt();
    let after = truth(&mut target);
    let peak = one_peak(recording.trace());
    let [before, after] = [before, after].map(|truth| truth["peak"].as_u64().unwrap());
    assert!(before < peak.bytes && peak.bytes <= after, "{before}, {peak:?}, {after}");
    // A job that always grows is highest in its last seconds.
    assert!(peak.shown > peak.bytes / 10 * 9, "{peak:?}");
    target.finish();
}

/// Reserved memory climbs each epoch while allocated memory is flat: each creates a stream.
#[test]
fn streams_created_repeatedly_are_named_with_their_lines() {
    let mut target = sim::start("stream_per_epoch.py", &[]);
    let truth = truth(&mut target);
    let words = [&["summary", "--json", "--for", "2s"][..], &NO_LIMIT].concat();
    let summary: Value = serde_json::from_str(&memspy_at(target.pid(), &words).ok().out).unwrap();
    let findings = summary["findings"].as_array().unwrap();
    let found = findings.iter().find(|finding| finding["kind"] == "idle streams");
    let found = found.unwrap_or_else(|| panic!("no finding about streams: {findings:#?}"));
    let text = found["text"].as_str().unwrap();
    // One is in use; the others have a segment of 2 MiB and one of 20 MiB each.
    let bytes = found["bytes"].as_u64().unwrap();
    assert!(bytes >= 6 * 22 * MIB && bytes.is_multiple_of(22 * MIB), "{text}");
    assert!(text.contains("22.00 MiB each"), "{text}");
    let gpu = &summary["gpus"][0];
    assert!(gpu["reserved_grew"].as_u64().unwrap() >= 22 * MIB, "{gpu:#?}");
    assert!(gpu["peak_allocated"].as_u64().unwrap() > 5 * MIB, "{gpu:#?}");
    if summary["lines"]["source"] == "exact" {
        for line in ["raw", "image"] {
            let line = format!("stream_per_epoch.py:{}", truth[line]);
            assert!(text.contains(&line), "no {line}: {text}");
        }
    }
    target.finish();
}
