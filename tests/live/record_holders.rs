//! Recordings with snapshots of owners.

use std::collections::BTreeMap;

use crate::support::memspy::{Recording, collapsed, document, memspy, total, wait_until, warnings};
use crate::support::sim;
use memspy::model::{EventKind, Record, TensorCategory};
use memspy::render::json::IterationsJson;
use memspy::trace::TraceReader;

fn records(recording: &Recording) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    let _ = TraceReader::open(recording.trace()).map(|mut reader| reader.replay(&mut records));
    records
}

fn snapshots(recording: &Recording) -> usize {
    records(recording).iter().filter(|record| matches!(record, Record::Ownership(_))).count()
}

/// A failure was not reported; 'flame --by owner' then asked for the option that had been given.
#[test]
#[ignore = "takes long: scripts/test.sh --all runs it"]
fn a_recording_without_a_snapshot_of_owners_says_so() {
    for how in [&[][..], &["--exact"]] {
        let target = sim::start("holders_truth.py", &[]);
        let words = [&["--owners", "-d", "10ms"], how].concat();
        let mut recording = Recording::start(target.pid(), &words);
        let done = recording.wait();
        let said = done.err.contains("the recording ended before the first one was taken");
        assert_eq!(said, snapshots(&recording) == 0, "{how:?}: {}", done.err);
        let lines = memspy(&["lines", recording.trace().to_str().unwrap()]);
        assert_eq!(lines.err.contains("a snapshot of the owners failed"), said, "{}", lines.err);
    }
}

#[test]
fn a_slowly_importing_job_is_not_stopped_in_vain() {
    let mut target = sim::start("late_cuda.py", &[]);
    let mut recording = Recording::start(target.pid(), &["--owners"]);
    let samples = |recording: &Recording| {
        let is_sample = |record: &&Record| matches!(record, Record::Sample(_));
        records(recording).iter().filter(is_sample).count()
    };
    // Before, during and after the import of PyTorch: all is recorded before newer samples come.
    for word in ["import", "import", "use"] {
        let before = samples(&recording);
        target.say(word);
        target.read_until_ready();
        wait_until("newer samples", || samples(&recording) > before + 50);
    }
    wait_until("a snapshot", || snapshots(&recording) >= 1);
    let done = recording.interrupt();
    assert!(!done.err.contains("of the owners failed"), "{}", done.err);
    let first = records(&recording).into_iter().find_map(|record| match record {
        Record::Ownership(snapshot) => Some(snapshot.devices.first()?.allocated),
        _ => None,
    });
    assert_eq!(first, Some(48 << 20));
}

#[test]
fn holders_are_recorded_within_their_budget_and_drawn_by_module() {
    for exact in [false, true] {
        let mut target = sim::start("holders_truth.py", &[]);
        let words: &[&str] = if exact { &["--exact", "--owners=8"] } else { &["--owners=8"] };
        let mut recording = Recording::start(target.pid(), words);
        target.say("more 5");
        let most: u64 = target.line().parse().unwrap();
        wait_until("two snapshots", || snapshots(&recording) >= 2);
        target.say("less");
        let least: u64 = target.line().parse().unwrap();
        // Earlier snapshots may still come.
        wait_until("a snapshot of what is left", || {
            let records = records(&recording);
            let mut snapshots = records.iter().filter_map(|record| match record {
                Record::Ownership(snapshot) => Some(snapshot.devices[0].allocated),
                _ => None,
            });
            snapshots.next_back() == Some(least)
        });
        let done = recording.interrupt();
        assert!(warnings(&done.err).is_empty(), "{}", done.err);

        // The sums of a snapshot are what the allocator counts.
        let (mut paused, mut last) = (0, 0);
        for record in records(&recording) {
            let Record::Ownership(snapshot) = record else { continue };
            let device = &snapshot.devices[0];
            let held: u64 = device.held.iter().map(|held| held.bytes).sum();
            assert_eq!(held + device.rounding + device.without_tensor, device.allocated);
            let weight = |held: &&memspy::model::OwnedStorages| &*held.owner == "embed.weight";
            assert_eq!(
                device.held.iter().find(weight).unwrap().category,
                TensorCategory::Parameter
            );
            paused += snapshot.pause.unwrap().0;
            last = snapshot.time.0;
        }
        // Half of the time, plus the snapshot at the end.
        assert!(paused < last / 2 + 1_000_000_000, "{paused} of {last}");

        let peak = collapsed(recording.trace(), &["--by", "owner"]);
        assert_eq!(total(&peak), most);
        let of = |text: &str| peak.iter().find(|(path, _)| path == text).map(|(_, bytes)| *bytes);
        assert_eq!(of("parameters;embed;weight"), Some(64 * 64 * 4));
        assert_eq!(of("optimizer state;AdamW.exp_avg;blocks;0;inner;bias"), Some(64 * 4));
        let saved =
            |path: &str| path.starts_with("saved for backward;") && path.contains("[saved by ");
        assert!(peak.iter().any(|(path, _)| saved(path)));
        // Many tensors of one list are one frame.
        let kept = |path: &str| path.starts_with("other tensors;main: kept;[*]");
        assert_eq!(peak.iter().filter(|(path, _)| kept(path)).count(), 1, "{peak:?}");
        let end = collapsed(recording.trace(), &["--by", "owner", "--at", "end"]);
        assert_eq!(total(&end), least);

        let svg = recording.trace().with_extension("svg");
        let trace = recording.trace().to_str().unwrap();
        memspy(&["flame", "--by", "owner", trace, "-o", svg.to_str().unwrap()]).ok();
        let svg = std::fs::read_to_string(svg).unwrap();
        for text in ["GPU memory by owner", "the process was stopped for", "optimizer state"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}

#[test]
#[ignore = "takes long, and exact_stacks sees allocating lines: scripts/test.sh --all runs it"]
fn in_exact_recordings_nameless_memory_has_its_allocating_line() {
    let mut target = sim::start("holders_truth.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &["--owners=50"]);
    let said: serde_json::Value = serde_json::from_str(target.said.first().unwrap()).unwrap();
    let standing = said["allocated"].as_u64().unwrap();
    // A step's input alone is 0.8 MB.
    let is_in_forward = |record: &Record| match record {
        Record::Ownership(snapshot) => {
            let made =
                snapshot.unnamed_blocks.iter().filter(|b| b.held.is_some() && b.bytes > 500_000);
            snapshot.devices[0].allocated > standing + 2_000_000 && made.count() >= 2
        }
        _ => false,
    };
    wait_until("a snapshot between forward and backward", || {
        target.say("steady 1 10");
        target.line();
        records(&recording).iter().any(is_in_forward)
    });
    recording.interrupt();
    let peak = collapsed(recording.trace(), &["--by", "owner"]);
    let saved = |(path, _): &&(String, u64)| {
        path.starts_with("saved for backward;") && path.contains("holders_truth.py:")
    };
    assert!(peak.iter().any(|row| saved(&row)), "{peak:?}");
    // Allocation sites divide what owners have, and add nothing.
    let mut most = 0;
    for record in records(&recording) {
        let Record::Ownership(snapshot) = record else { continue };
        most = most.max(snapshot.devices[0].allocated);
    }
    assert_eq!(total(&peak), most);
}

#[test]
#[ignore = "takes long, and exact_iterations sees peaks of iterations: scripts/test.sh --all runs it"]
fn iterations_have_the_peaks_that_the_job_saw() {
    let mut target = sim::start("holders_truth.py", &[]);
    let mut recording = Recording::start(target.pid(), &["--owners=10", "-r", "1000"]);
    wait_until("a snapshot", || snapshots(&recording) >= 1);
    let mut truth: Vec<(u64, i64)> = Vec::new();
    // Two snapshots: one of them began after the first step.
    let before = snapshots(&recording);
    while truth.is_empty() || snapshots(&recording) < before + 3 {
        target.say("iterate 12");
        let round: Vec<(u64, i64)> = serde_json::from_str(&target.line()).unwrap();
        truth.extend(round);
    }
    let before = snapshots(&recording);
    wait_until("another snapshot", || snapshots(&recording) > before);
    recording.interrupt();
    let trace = recording.trace().to_str().unwrap();
    let done = memspy(&["iterations", "--json", trace]).ok();
    let report: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let rows = report["iterations"].as_array().unwrap();
    // The counter was known before the first step.
    let steps: Vec<u64> = rows.iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, truth.iter().map(|(step, _)| *step).collect::<Vec<_>>());
    let mut exact = 0;
    for (row, (_, peak)) in rows.iter().zip(&truth) {
        let seen = row["peak_allocated"].as_i64().unwrap();
        if row["peak_is_exact"] == true {
            assert_eq!(seen, *peak, "{row}");
            exact += 1;
        } else {
            assert!(seen <= *peak, "{row}");
        }
        assert_eq!(row["steps"], 1);
    }
    // Where a snapshot, or a busy machine, hid the end of a step, its peak is a lower bound.
    assert!(2 * exact >= truth.len(), "{exact} of {}: {rows:?}", truth.len());
    let said: serde_json::Value = serde_json::from_str(target.said.first().unwrap()).unwrap();
    let held = |row: &serde_json::Value| row["held"]["parameters"] == said["parameters"];
    assert!(rows.iter().any(held), "{rows:?}");

    let text = memspy(&["iterations", trace]).ok().out;
    assert!(
        text.contains(&format!("{} steps, counted by the optimizer's step counter", truth.len()))
            && text.contains("optimizer state"),
        "{text}"
    );
    let csv = memspy(&["iterations", "--format", "csv", trace]).ok().out;
    assert_eq!(csv.lines().count(), truth.len() + 1);
}

#[test]
#[ignore = "takes half a minute, and iterations are seen in the others and in exact_iterations: scripts/test.sh --all runs it"]
fn without_an_optimizers_counter_other_signs_count_iterations() {
    let source = std::fs::read_to_string("tests/targets/holders_truth.py").unwrap();
    let line =
        1 + source.lines().position(|l| l.contains("# The line that a test looks for")).unwrap();
    for exact in [false, true] {
        let mut target = sim::start("holders_truth.py", &[]);
        let rate: &[&str] = if exact { &["--exact"] } else { &["-r", "1000"] };
        let words = ["--iter-var", "steady:i", "--epoch-var", "epoch"];
        let mut recording = Recording::start(target.pid(), &[rate, &words[..]].concat());
        let begun = |record: &Record| matches!(record, Record::Counters { .. });
        wait_until("the counters", || records(&recording).iter().any(begun));
        target.say("steady 3 12");
        let (made, peaks): (Vec<i64>, Vec<i64>) = serde_json::from_str(&target.line()).unwrap();
        recording.interrupt();
        let trace = recording.trace().to_str().unwrap();
        let iterations = |words: &[&str]| {
            let words = [&["iterations", "--json", trace], words].concat();
            let report = memspy(&words).ok().out;
            let report: serde_json::Value = serde_json::from_str(&report).unwrap();
            report["iterations"].as_array().unwrap().clone()
        };
        // The first step has no peak known to be its own.
        let rows = iterations(&[]);
        let named: Vec<(u64, u64)> = rows
            .iter()
            .map(|row| (row["epoch"].as_u64().unwrap(), row["step"].as_u64().unwrap()))
            .collect();
        let all: Vec<(u64, u64)> = (0..36).map(|n| (n / 12, n % 12)).collect();
        // A missing variable is searched for from time to time.
        let first = all.iter().position(|step| *step == named[0]).unwrap();
        assert!(first <= 3, "{first}");
        assert_eq!(named, all[first..]);
        let mut known = 0;
        for (row, peak) in rows.iter().zip(&peaks[first..]) {
            let seen = row["peak_allocated"].as_i64().unwrap();
            match row["peak_is_exact"].as_bool().unwrap() {
                true => assert_eq!(seen, *peak, "exact {exact}: {row}"),
                false => assert!(seen <= *peak, "{row} of {peak}"),
            }
            known += usize::from(row["peak_is_exact"] == true);
        }
        // Except the first, whose begin was not seen, and the last, after which the variable may
        // have stayed for a while.
        assert!(known >= if exact { rows.len() - 2 } else { 10 }, "{known}");
        assert!(memspy(&["iterations", trace]).ok().out.contains("loop's variable changes"));

        let marker = format!("targets/holders_truth.py:{line}");
        // An exact recording sees only lines that allocate.
        let marker =
            if exact { marker.replace(&line.to_string(), &(line - 1).to_string()) } else { marker };
        let rows = iterations(&["--marker", &marker]);
        assert!((34..=35).contains(&rows.len()), "{} by {marker}", rows.len());
        memspy(&["iterations", trace, "--marker", "nowhere.py:1"])
            .refused(&["nowhere.py:1", "memspy lines"]);

        // Steps after the first make the same allocations.
        assert!(made[1..].iter().all(|n| *n == made[1]), "{made:?}");
        let rows = iterations(&["--period"]);
        let text = memspy(&["iterations", trace, "--period"]).ok().out;
        assert!(text.contains(&format!("{} allocations are made", made[1])), "{made:?}: {text}");
        // A period may be several steps; it names what it counts by.
        let by = format!("periods, counted by the period of the allocator's counters, {}", made[1]);
        assert!(text.contains(&by) && text.contains("may be several real steps"), "{text}");
        assert!((32..=35).contains(&rows.len()), "{}", rows.len());
        assert!(rows.iter().any(|row| row["peak_allocated"] == peaks[20]), "{rows:?}");
    }
}

#[test]
fn a_recording_without_snapshots_says_how_to_have_them() {
    let target = sim::start("holders_truth.py", &[]);
    let mut recording = Recording::start(target.pid(), &["-d", "1"]);
    recording.wait().ok();
    let trace = recording.trace().to_str().unwrap();
    memspy(&["flame", "--by", "owner", trace]).refused(&["no snapshots of the owners", "--owners"]);
    memspy(&["iterations", trace]).refused(&["no whole training iteration", "--owners"]);
}

/// Snapshots came at random, so most steps had no feature maps, which exist only between forward
/// and backward.
#[test]
#[ignore = "takes half a minute: scripts/test.sh --all runs it"]
fn snapshots_come_at_the_end_of_the_forward_pass() {
    const ROUND: usize = 8;
    for exact in [false, true] {
        let mut target = sim::start("holders_truth.py", &[]);
        let words: &[&str] = if exact { &["--exact", "--owners=8"] } else { &["--owners=8"] };
        let mut recording = Recording::start(target.pid(), words);
        wait_until("a snapshot", || snapshots(&recording) >= 1);
        target.say("thirds");
        let before = snapshots(&recording);
        let saved = |record: Record| match record {
            Record::Ownership(snapshot) => {
                let of =
                    |held: &&memspy::model::OwnedStorages| held.category == TensorCategory::Saved;
                Some(snapshot.devices[0].held.iter().filter(of).map(|held| held.bytes).sum::<u64>())
            }
            _ => None,
        };
        // Steps before the shape is known do not count. Other jobs delay samples and snapshots: one
        // of three rounds must be free of that.
        let rounds = || -> Vec<usize> {
            let all: Vec<u64> = records(&recording).into_iter().filter_map(saved).collect();
            let most = all.iter().max().copied().unwrap_or_default().max(1_000_000);
            let late = |round: &[u64]| round.iter().filter(|it| **it >= most / 10 * 9).count();
            all.get(before + 3..).unwrap_or_default().chunks_exact(ROUND).map(late).collect()
        };
        wait_until("snapshots of a job that trains", || {
            // Reading the trace takes processor time from the job.
            std::thread::sleep(std::time::Duration::from_millis(500));
            let rounds = rounds();
            rounds.len() == 3 || rounds.iter().any(|late| *late >= 6)
        });
        target.say("");
        target.line();
        let rounds = rounds();
        recording.interrupt();
        eprintln!("exact {exact}: {rounds:?} of {ROUND} each");
        // One in three by chance.
        assert!(rounds.iter().any(|late| *late >= 6), "exact {exact}: {rounds:?} of {ROUND} each");
    }
}

/// With the optimizer's counter on the GPU, as in the default optimizer of transformers' Trainer,
/// no steps were counted.
#[test]
#[ignore = "takes long, and counters are seen in the others: scripts/test.sh --all runs it"]
fn steps_of_an_optimizer_with_a_gpu_counter_are_counted() {
    for (request, counted_by, words) in [
        ("trainer", "trainer", "global_step of transformers' TrainerState"),
        ("scheduler", "scheduler", "each may be several real steps, or an epoch"),
    ] {
        let mut target = sim::start("holders_truth.py", &[]);
        target.say(&format!("{request} 6"));
        assert_eq!(target.line(), "MADE");
        let mut recording = Recording::start(target.pid(), &["--owners=50"]);
        let counts = |record: &Record| matches!(record, Record::Step(_));
        wait_until("a count", || records(&recording).iter().any(counts));
        target.say("");
        let truth: [Option<u64>; 2] = serde_json::from_str(&target.line()).unwrap();
        let last = truth[usize::from(request == "trainer")].unwrap();
        let is_last = |record: &Record| matches!(record, Record::Step(step) if step.step == last);
        wait_until("the last step", || records(&recording).iter().any(is_last));
        recording.interrupt();
        let trace = recording.trace().to_str().unwrap();
        let report = memspy(&["iterations", "--json", trace]).ok().out;
        let report = document::<IterationsJson>(&report);
        assert_eq!(report["counted_by"], counted_by);
        let rows = report["iterations"].as_array().unwrap();
        let steps: Vec<u64> = rows.iter().map(|row| row["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, (last - 5..=last).collect::<Vec<_>>(), "{request}");
        let text = memspy(&["iterations", trace]).ok().out;
        assert!(text.contains("6 steps, counted by ") && text.contains(words), "{text}");
    }
}

/// Step 7806941921280 was reported at the job's end: the counter's memory was another tensor's by
/// then.
#[test]
#[ignore = "takes long, and counters of optimizers are seen in the others: scripts/test.sh --all runs it"]
fn what_lies_where_an_optimizers_counter_was_is_no_step() {
    for exact in [false, true] {
        let mut target = sim::start("holders_truth.py", &[]);
        target.say("own");
        target.line();
        let words: &[&str] = if exact { &["--exact", "--owners"] } else { &["--owners"] };
        let mut recording = Recording::start(target.pid(), words);
        let found = |record: &Record| matches!(record, Record::Ownership(_));
        wait_until("the counter", || records(&recording).iter().any(found));
        target.say("train 3");
        target.line();
        let counted = |record: &Record| matches!(record, Record::Step(step) if step.step == 4);
        wait_until("its steps", || records(&recording).iter().any(counted));
        target.say("reuse");
        target.line();
        recording.interrupt();
        let step = |record: Record| match record {
            Record::Step(step) => Some(step.step),
            _ => None,
        };
        let steps: Vec<u64> = records(&recording).into_iter().filter_map(step).collect();
        assert!(steps.iter().all(|step| *step <= 4), "exact {exact}: {steps:?}");
    }
}

/// The parts of `[before recording]`: bytes by the first frame below it, `None` without an owner.
fn before_by_category(stacks: &[(String, u64)]) -> BTreeMap<Option<String>, u64> {
    let mut sums = BTreeMap::new();
    for (path, bytes) in stacks {
        let mut steps = path.split(';');
        if steps.next() == Some("[before recording]") {
            *sums.entry(steps.next().map(str::to_owned)).or_default() += bytes;
        }
    }
    sums
}

/// Waits until the recording has these allocated bytes, with their blocks.
fn wait_for_level(recording: &Recording, allocated: u64) {
    wait_until("the level", || {
        records(recording).iter().any(|record| match record {
            Record::Snapshot(map) => map.allocated() == allocated,
            Record::Events(batch) => batch.events.iter().any(|event| match event.change {
                EventKind::Allocated { levels: Some(levels), .. } => {
                    levels.allocated == allocated as i64
                }
                _ => false,
            }),
            _ => false,
        })
    });
}

#[test]
#[ignore = "the same is seen of an exact recording: scripts/test.sh --all runs it"]
fn memory_older_than_a_sampled_recording_has_exact_owners() {
    check_before_by_owner(&["-r", "200", "--owners=1"]);
}

#[test]
#[ignore = "takes long, and holders sees owners: scripts/test.sh --all runs it"]
fn memory_older_than_an_exact_recording_has_exact_owners() {
    check_before_by_owner(&["--exact", "--owners=1"]);
}

#[test]
#[ignore = "the same is seen of an exact recording: scripts/test.sh --all runs it"]
fn memory_older_than_a_followed_recording_has_exact_owners() {
    check_before_by_owner(&["--owners=1"]);
}

fn check_before_by_owner(mode: &[&str]) {
    let mut target = sim::start("holders_truth.py", &[]);
    let mut recording = Recording::start(target.pid(), mode);
    wait_until("the first snapshot", || snapshots(&recording) >= 1);
    target.say("more 5");
    let most: u64 = target.line().parse().unwrap();
    wait_for_level(&recording, most);
    recording.interrupt();
    let first = records(&recording).into_iter().find_map(|record| match record {
        Record::Ownership(snapshot) => Some(snapshot),
        _ => None,
    });
    let device = &first.unwrap().devices[0];
    let mut expected: BTreeMap<Option<String>, u64> = BTreeMap::new();
    for held in &device.held {
        *expected.entry(Some(format!("[{}]", held.category.name()))).or_default() += held.bytes;
    }
    for (cause, bytes) in
        [("[rounding]", device.rounding), ("[in no tensor]", device.without_tensor)]
    {
        expected.insert(Some(cause.to_owned()), bytes);
    }
    expected.retain(|_, bytes| *bytes > 0);
    let peak = collapsed(recording.trace(), &[]);
    assert_eq!(total(&peak), most);
    assert_eq!(before_by_category(&peak), expected, "{mode:?}");
    let group = |path: &str| path == "[before recording];[parameters];embed.weight";
    assert!(peak.iter().any(|(path, bytes)| group(path) && *bytes == 64 * 64 * 4), "{peak:?}");
    // The same moment as lines.
    let lines = memspy(&["lines", recording.trace().to_str().unwrap()]).ok().out;
    let said = lines.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("[before recording], "), "{said}");
    for category in ["[parameters]", "[optimizer state]", "[gradients]"] {
        assert!(said.contains(category), "{category}: {said}");
    }
}

#[test]
#[ignore = "takes long: scripts/test.sh --all runs it"]
fn without_owners_it_is_said_how_they_become_known() {
    let mut target = sim::start("holders_truth.py", &[]);
    let mut recording = Recording::start(target.pid(), &[]);
    target.say("more 5");
    let most: u64 = target.line().parse().unwrap();
    wait_for_level(&recording, most);
    recording.interrupt();
    let peak = collapsed(recording.trace(), &[]);
    let sums = before_by_category(&peak);
    assert_eq!(sums.keys().collect::<Vec<_>>(), [&None]);
    let trace = recording.trace().to_str().unwrap();
    let text = memspy(&["flame", "--text", trace]).ok().out;
    assert!(text.contains("record --owners names the owners of [before recording]"), "{text}");
    assert!(memspy(&["lines", trace]).ok().out.contains("record with --owners"));
}
