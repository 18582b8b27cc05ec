//! The phase of a recording's peak, and what is temporary in it, equal the job's own counts.

use crate::support::memspy::{Recording, memspy};
use crate::support::sim;
use serde_json::Value;

/// What the recording says of its peak's phase, and the job's own figures.
fn recorded(kind: &str, is_exact: bool) -> (Option<String>, Value) {
    let mut target = sim::start("peak_phase.py", &[kind]);
    let mut recording = match is_exact {
        true => Recording::start_exact(target.pid(), &[]),
        false => Recording::start(target.pid(), &[]),
    };
    target.say("go");
    let truth: Value = serde_json::from_str(&target.line()).unwrap();
    let said = recording.interrupt().err;
    target.say("end");
    let sentence = said.lines().find_map(|line| line.trim().strip_prefix("The peak lies in "));
    let picture = ["flame", recording.trace().to_str().unwrap(), "--text", "-o", "-"];
    let picture = memspy(&picture).ok().out;
    let place = sentence.and_then(|text| text.split(':').next());
    if let Some(place) = place {
        assert!(picture.contains(&format!("the peak lies in {place}")), "{picture}");
    }
    (sentence.map(str::to_owned), truth)
}

/// The sizes in a sentence, in MiB.
fn figures(said: &str) -> Vec<f64> {
    let words: Vec<&str> = said.split(' ').collect();
    let sizes = words.windows(2).filter(|pair| pair[1] == "MiB");
    sizes.map(|pair| pair[0].parse().unwrap()).collect()
}

fn words(phase: &str) -> &'static str {
    match phase {
        "forward" => "the forward pass:",
        "backward" => "the backward pass:",
        _ => "the optimizer's step:",
    }
}

#[test]
fn phase_of_an_exact_peak_is_the_job_s() {
    for kind in ["foreach", "single", "backward", "forward"] {
        let (said, truth) = recorded(kind, true);
        let said = said.unwrap_or_else(|| panic!("{kind}: no phase; {truth}"));
        let phase = truth["phase"].as_str().unwrap();
        assert!(said.starts_with(words(phase)), "{kind}: {said}; {truth}");
        if kind == "foreach" {
            let temporary = truth["temporary"].as_u64().unwrap();
            let figure = format!(" {:.2} MiB are temporary", temporary as f64 / f64::from(1 << 20));
            assert!(said.contains(&figure) && said.contains("foreach=False"), "{said}; {truth}");
        } else {
            assert!(!said.contains("foreach"), "{said}");
            if kind != "single" {
                // The job keeps nothing of a pass but a work space of cuBLAS.
                let [there, temporary] = figures(&said)[..] else { panic!("{said}") };
                assert!([0.0, 32.0].contains(&(there - temporary)), "{kind}: {said}");
                assert!(temporary > 0.0, "{kind}: {said}");
            }
        }
    }
}

/// The twin of the advice: what was said comes back.
#[test]
fn without_foreach_the_peak_falls_by_its_temporaries() {
    let peak = |kind| {
        let (_, truth) = recorded(kind, true);
        let figure = |name: &str| truth[name].as_u64().unwrap();
        (figure("peak"), figure("temporary"))
    };
    let ((with, temporary), (without, one)) = (peak("foreach"), peak("single"));
    assert_eq!(with - without, temporary - one, "{with} {without}");
}

/// A followed recording proves less: it may say nothing, but nothing wrong.
#[test]
fn phase_of_a_followed_peak_is_never_wrong() {
    for kind in ["foreach", "backward", "forward"] {
        let (said, truth) = recorded(kind, false);
        let phase = words(truth["phase"].as_str().unwrap());
        assert!(said.as_deref().is_none_or(|said| said.starts_with(phase)), "{said:?}; {truth}");
    }
}
