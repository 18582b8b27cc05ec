//! Exact recordings of millisecond iterations: each is there, with its peak to the byte.

use crate::support::memspy::{Recording, document, memspy, wait_until, warnings};
use crate::support::pythons;
use crate::support::sim;
use crate::support::target::Target;
use memspy::model::{EventKind, Record, TrainingStep};
use memspy::render::json::IterationsJson;
use memspy::trace::TraceReader;
use serde_json::Value;

fn records(recording: &Recording) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    let _ = TraceReader::open(recording.trace()).map(|mut reader| reader.replay(&mut records));
    records
}

fn steps(recording: &Recording) -> Vec<TrainingStep> {
    let step = |record: Record| match record {
        Record::Step(step) => Some(step),
        _ => None,
    };
    records(recording).into_iter().filter_map(step).collect()
}

fn iterations(recording: &Recording, words: &[&str]) -> Vec<Value> {
    let trace = recording.trace().to_str().unwrap();
    let report = memspy(&[&["iterations", "--json", trace], words].concat()).ok().out;
    let report = document::<IterationsJson>(&report);
    report["iterations"].as_array().unwrap().clone()
}

/// An iteration as the job describes it.
type Truth = (Option<u64>, u64, i64);

/// From the first whole iteration on, each but the last is there with the peak that the job saw.
fn check(rows: &[Value], truth: &[Truth], least: usize) {
    let named = |row: &Value| (row["epoch"].as_u64(), row["step"].as_u64().unwrap());
    let begin = rows.iter().position(|row| row["peak_is_exact"] == true).unwrap();
    let first = truth.iter().position(|it| (it.0, it.1) == named(&rows[begin])).unwrap();
    let truth = &truth[first..truth.len() - 1];
    let rows = &rows[begin..begin + truth.len()];
    for (row, &(epoch, step, peak)) in rows.iter().zip(truth) {
        assert_eq!(named(row), (epoch, step), "{row}");
        assert_eq!(row["peak_is_exact"], true, "{row}");
        assert_eq!(row["peak_allocated"], peak, "{row}");
        assert_eq!(row["steps"], 1, "{row}");
    }
    assert!(rows.len() >= least, "{} of {least}", rows.len());
}

/// Waits until the variable is found.
fn seen(recording: &Recording) {
    wait_until("a step seen at an event", || {
        steps(recording).iter().any(TrainingStep::is_between_events)
    });
}

/// Checks that each allocation follows the step that it claims, from the first step whose begin was
/// seen. Returns how many did.
fn in_their_steps(records: &[Record], epochs: bool) -> usize {
    let mut now: Option<TrainingStep> = None;
    let mut found: Vec<(u64, TrainingStep, u64)> = Vec::new();
    for record in records {
        match record {
            Record::Step(step) => {
                assert!(now.is_none_or(|now| (now.epoch, now.step) != (step.epoch, step.step)));
                now = Some(*step).filter(TrainingStep::is_between_events);
                // Between the last time that the variable was seen and this one, any step is
                // possible.
                let within = step.uncertainty.unwrap_or(step.time).0;
                found.retain(|&(time, ..)| time <= step.time.0 - within);
            }
            Record::Events(batch) => {
                for event in &batch.events {
                    if let (Some(now), EventKind::Allocated { size, .. }) = (now, event.change)
                        && size < 1 << 40
                    {
                        found.push((event.time.0, now, size));
                    }
                }
            }
            _ => {}
        }
    }
    for (time, now, size) in &found {
        let epoch = epochs.then_some(size >> 20);
        assert_eq!((now.epoch, now.step & 0xf_ffff), (epoch, size & 0xf_ffff), "at {time}");
    }
    found.len()
}

#[test]
#[ignore = "takes long, and every_iteration_that_a_variable_counts_has_its_own_peak sees one CPython: scripts/test.sh --all runs it"]
fn steps_are_between_their_events_on_old_and_new_cpythons() {
    for python in pythons::some_versions() {
        let library = python.fake_allocator("steps");
        for (request, variable, epoch) in [
            ("local", "epoch_of:step", Some("local:epoch")),
            ("closed", "closed:step", Some("closed:epoch")),
            ("named", "counted", None),
        ] {
            let mut command = python.target("counted_steps.py");
            command.arg(&library);
            let mut target = Target::start(command);
            let mut words = vec!["--iter-var", variable];
            words.extend(epoch.into_iter().flat_map(|epoch| ["--epoch-var", epoch]));
            let mut recording = Recording::start_exact(target.pid(), &words);
            target.say(request);
            let made: usize = target.line().strip_prefix("DONE ").unwrap().parse().unwrap();
            let done = recording.interrupt();
            assert!(done.err.contains(" 0 lost"), "{}", done.err);
            let compared = in_their_steps(&records(&recording), epoch.is_some());
            eprintln!("{}: {request}: {compared} of {made}", python.label);
            assert!(compared >= made / 2, "{}: {request}: {compared} of {made}", python.label);
        }
    }
}

#[test]
#[ignore = "takes half a minute, and every_step_of_a_loop_is_listed_with_its_end sees loops: scripts/test.sh --all runs it"]
fn every_iteration_that_a_variable_counts_has_its_own_peak() {
    for (request, variable, epochs) in [
        ("local", "epoch_of:step", true),
        ("nested", "nested:step", true),
        ("closed", "closed:step", true),
        ("named", "counted", false),
    ] {
        let mut target = sim::start("iterations_truth.py", &[]);
        let mut words = vec!["--iter-var", variable];
        let epoch = format!("{}:epoch", if request == "local" { "local" } else { request });
        if epochs {
            words.extend(["--epoch-var", &epoch]);
        }
        let mut recording = Recording::start_exact(target.pid(), &words);
        target.say(&if epochs { format!("{request} 4 100") } else { format!("{request} 300") });
        let truth: Vec<Truth> = serde_json::from_str(&target.line()).unwrap();
        let done = recording.interrupt();
        assert!(warnings(&done.err).is_empty(), "{}", done.err);
        let rows = iterations(&recording, &[]);
        eprintln!("{request}: {} rows of {}", rows.len(), truth.len());
        check(&rows, &truth, truth.len() / 2);
    }
}

#[test]
fn every_iteration_that_an_optimizer_counts_has_its_own_peak() {
    let mut target = sim::start("iterations_truth.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &["--owners=50"]);
    let snapshot = |record: &Record| matches!(record, Record::Ownership(_));
    wait_until("a snapshot", || records(&recording).iter().any(snapshot));
    target.say("optimizer 20");
    target.line();
    seen(&recording);
    let mut truths: Vec<Vec<Truth>> = Vec::new();
    wait_until("a snapshot among iterations", || {
        target.say("optimizer 200");
        truths.push(serde_json::from_str(&target.line()).unwrap());
        // The previous request began the first one.
        let first = truths[0][1].1;
        let rows = iterations(&recording, &[]);
        rows.iter().skip_while(|row| row["step"] != first).any(|row| !row["held"].is_null())
    });
    recording.interrupt();
    let rows = iterations(&recording, &[]);
    let from = |truth: &Truth| rows.iter().position(|row| row["step"] == truth.1).unwrap();
    for truth in &truths {
        check(&rows[from(&truth[1])..], &truth[1..], 198);
    }
    // A snapshot belongs to the iteration in which it was taken, although that has long ended.
    let rows = rows[from(&truths[0][1])..].iter();
    let snapshots: Vec<&Value> = rows.filter(|row| !row["held"].is_null()).collect();
    assert!(!snapshots.is_empty());
    for row in snapshots {
        let of = |name: &str| row[name].as_i64().unwrap();
        assert!(of("snapshot_below_peak") >= 0, "{row}");
        assert_eq!(
            of("snapshot_allocated") + of("snapshot_below_peak"),
            of("peak_allocated"),
            "{row}"
        );
    }
}

#[test]
fn intermediate_gradients_are_allocated_and_freed_by_the_backward_pass() {
    let mut target = sim::start("iterations_truth.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &["--iter-var", "counted"]);
    target.say("named 50");
    target.line();
    seen(&recording);
    target.say("backward 60");
    let truth: Vec<(u64, i64, u64)> = serde_json::from_str(&target.line()).unwrap();
    recording.interrupt();
    let rows = iterations(&recording, &[]);
    // Earlier iterations have no backward pass.
    assert!(rows[0]["intermediate_gradients"].is_null(), "{}", rows[0]);
    let from = rows.iter().position(|row| row["step"] == truth[0].0).unwrap();
    for (row, (step, peak, intermediate)) in rows[from..].iter().zip(&truth[..59]) {
        assert_eq!((&row["step"], &row["peak_allocated"]), (&(*step).into(), &(*peak).into()));
        assert_eq!(row["intermediate_gradients"], *intermediate, "{row}");
    }
    // The last was still running.
    assert_eq!((rows[from..].len(), &rows.last().unwrap()["end"]), (60, &"not seen".into()));
}

#[test]
#[ignore = "takes long, and holders sees what is saved for the backward pass: scripts/test.sh --all runs it"]
fn feature_maps_are_those_of_the_fullest_snapshot() {
    for exact in [true, false] {
        let mut target = sim::start("iterations_truth.py", &[]);
        let words = ["--iter-var", "counted", "--owners=50"];
        let words: &[&str] = if exact { &[&["--exact"], &words[..]].concat() } else { &words };
        let mut recording = Recording::start(target.pid(), words);
        let snapshot = |record: &Record| matches!(record, Record::Ownership(_));
        wait_until("a snapshot", || records(&recording).iter().any(snapshot));
        target.say("named 100");
        target.line();
        let mut truth: Vec<(u64, u64, u64)> = Vec::new();
        let has_results = |record: &Record| match record {
            Record::Ownership(snapshot) => snapshot.devices[0].results > Some(0),
            _ => false,
        };
        wait_until("snapshots between forward and backward", || {
            target.say("holding 4");
            let more: Vec<(u64, u64, u64)> = serde_json::from_str(&target.line()).unwrap();
            truth.extend(more);
            // Several may fall into one iteration.
            records(&recording).into_iter().filter(has_results).count() >= 5
        });
        target.say("holding 1");
        target.line();
        recording.interrupt();
        let rows = iterations(&recording, &[]);
        let mut compared = 0;
        for (step, peak, bytes) in &truth {
            let Some(row) = rows.iter().find(|row| row["step"] == *step) else { continue };
            if exact {
                assert_eq!(row["peak_allocated"], *peak, "{row}");
            }
            // A snapshot while both were there.
            if row["snapshot_allocated"] == *peak {
                assert_eq!(row["feature_maps"], *bytes, "{row}");
                assert_eq!(row["held"]["saved for backward"], bytes / 2, "{row}");
                compared += 1;
            }
            if !exact {
                assert!(row["intermediate_gradients"].is_null(), "{row}");
            }
        }
        eprintln!("exact {exact}: {compared} of {}", truth.len());
        assert!(compared >= 2, "{compared} of {}", truth.len());
    }
}

#[test]
fn without_bpf_steps_are_seen_from_time_to_time() {
    let mut target = sim::start("iterations_truth.py", &[]);
    let words = ["--probes", "perf-only", "--iter-var", "counted"];
    let mut recording = Recording::start_exact(target.pid(), &words);
    target.say("named 500");
    let truth: Vec<Truth> = serde_json::from_str(&target.line()).unwrap();
    recording.interrupt();
    let steps = steps(&recording);
    assert!(steps.len() > 10 && !steps.iter().any(TrainingStep::is_between_events), "{steps:?}");
    let last = truth.last().unwrap().1;
    assert!(steps.iter().all(|step| (1001..=last).contains(&step.step) || step.step == 0));
    let rows = iterations(&recording, &[]);
    assert!(rows.iter().all(|row| row["intermediate_gradients"].is_null()));
}

/// `iterations` omitted the last step of a loop and, in exact recordings, the first; in sampled
/// ones the end of a step was the begin of the next.
#[test]
fn every_step_of_a_loop_is_listed_with_its_end() {
    for exact in [false, true] {
        let mut target = sim::start("iterations_truth.py", &[]);
        let words = ["--iter-var", "counted_in_function:number"];
        let words: &[&str] = if exact { &[&["--exact"], &words[..]].concat() } else { &words };
        let mut recording = Recording::start(target.pid(), words);
        target.say("slow 8");
        let truth: Vec<(u64, i64, i64)> = serde_json::from_str(&target.line()).unwrap();
        wait_until("the end of the loop", || steps(&recording).iter().any(|step| step.is_over));
        recording.interrupt();
        let rows = iterations(&recording, &[]);
        let listed: Vec<u64> = rows.iter().map(|row| row["step"].as_u64().unwrap()).collect();
        assert_eq!(listed, truth.iter().map(|it| it.0).collect::<Vec<_>>(), "exact {exact}");
        let mut right = 0;
        for (row, (step, peak, end)) in rows.iter().zip(&truth) {
            let is_last = *step == 7;
            assert_eq!(row["end"], if is_last { "variable gone" } else { "counted" });
            assert_eq!(row["begin_is_known"], *step > 0);
            if row["peak_is_exact"] == true {
                assert_eq!(row["peak_allocated"], *peak, "exact {exact}: {row}");
            }
            // Uncertain figures say so.
            if row["allocated_is_exact"] == true {
                assert_eq!(row["allocated"], *end, "exact {exact}: {row}");
            }
            assert!(!exact || is_last || row["allocated_is_exact"] == true, "{row}");
            right += usize::from(row["allocated"] == *end);
        }
        assert!(right >= if exact { 7 } else { 5 }, "exact {exact}: {right} of 8: {rows:?}");
        let trace = recording.trace().to_str().unwrap();
        let text = memspy(&["iterations", trace]).ok().out;
        assert!(text.contains("8 steps, counted by the loop's variable"), "{text}");
        // The wait before the first step is not in it.
        assert!(text.contains("7 steps that were seen from start to end in "), "{text}");
        assert!(
            text.contains("7*") && text.contains("*: ended when the variable disappeared"),
            "{text}"
        );
    }
}

#[test]
#[ignore = "takes half a minute: scripts/test.sh --all runs it"]
fn a_step_unfinished_at_the_end_is_listed_as_that() {
    for exact in [false, true] {
        let mut target = sim::start("iterations_truth.py", &[]);
        let words: &[&str] = if exact { &["--exact"] } else { &["-r", "1000"] };
        let words = [words, &["--iter-var", "counted"]].concat();
        let mut recording = Recording::start(target.pid(), &words);
        wait_until("the variable", || !steps(&recording).is_empty());
        target.say("named 100");
        let truth: Vec<Truth> = serde_json::from_str(&target.line()).unwrap();
        let last = truth.last().unwrap().1;
        wait_until("its last value", || steps(&recording).iter().any(|step| step.step == last));
        recording.interrupt();
        let rows = iterations(&recording, &[]);
        let (end, whole) = rows.split_last().unwrap();
        assert_eq!((&end["step"], &end["end"]), (&last.into(), &"not seen".into()), "{end}");
        assert_eq!(
            (&end["peak_is_exact"], &end["allocated_is_exact"]),
            (&false.into(), &false.into())
        );
        assert!(whole.iter().all(|row| row["end"] == "counted"));
    }
}
