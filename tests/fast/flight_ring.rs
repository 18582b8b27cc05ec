//! The kept part of a long recording equals that part of the whole, and never exceeds its limit.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::analysis_script::{MIB, Script, folded};
use crate::flight_support::{SLOW, kept, probed, profile, read, spelled};
use crate::trace_support::{Dice, Loop};
use memspy::analysis::{FoldOptions, Moment, Profile, ThreadChoice, flame, lines};
use memspy::files::FileCreation;
use memspy::flight::RingRecorder;
use memspy::model::*;
use memspy::trace::{Retention, segments};

#[test]
fn the_kept_part_is_the_recordings_end_record_by_record() {
    for seed in 0..4 {
        let whole = Loop::story(seed, 6000);
        let keep = Duration::from_secs(3);
        let (kept, (begun, _)) = kept(&whole, Retention::Time(keep));
        assert!(begun > 20, "{begun} segments of 30 s");
        let begins = profile(&kept).begins().unwrap();
        let end = whole.last().unwrap().time().unwrap();
        let length = Duration::from_nanos(end.0 - begins.0);
        assert!(length >= keep && length < 2 * keep, "{length:?} of {keep:?}");
        let (expected, found) = (spelled(&whole, begins), spelled(&kept, begins));
        assert!(expected.len() > 1000);
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(found, expected);
        }
        assert_eq!(found.len(), expected.len());
        // Functions last used long ago are not carried along.
        let Some(Record::End(end)) = kept.last() else { panic!("no end") };
        let samples = found.iter().filter(|text| text.contains("Active")).count() as u64;
        assert!(end.totals.ticks >= samples && end.totals.ticks < 1500, "{:?}", end.totals);
    }
}

/// A training loop: weights at the beginning, activations of every step, a cache that changes
/// sometimes. The same on each of `gpus` devices, whose snapshots are read one after the other.
fn training(steps: u32, gpus: u32) -> Script {
    let mut s = Script::new(200);
    let mut dice = Dice(7);
    s.thread("MainThread", true);
    s.enter(0, "main", 1);
    for gpu in 0..gpus {
        s.gpus.entry(gpu).or_default();
    }
    s.tick();
    (0..gpus).for_each(|gpu| s.map(gpu));
    s.enter(0, "make_weights", 10);
    for line in 11..15 {
        s.line(0, line);
        s.tick();
        for gpu in 0..gpus {
            s.alloc(0, gpu, 5 * MIB + u64::from(line) * 512);
        }
        s.tick();
    }
    (0..gpus).for_each(|gpu| s.map(gpu));
    s.leave(0);
    let mut cache = Vec::new();
    for step in 0..steps {
        s.line(0, 2);
        s.enter(0, "forward", 20);
        let mut activations = Vec::new();
        for line in 21..26 {
            s.line(0, line);
            s.tick();
            for gpu in 0..gpus {
                activations.push((gpu, s.alloc(0, gpu, (dice.roll(4) + 1) * MIB)));
            }
            s.tick();
        }
        for gpu in 0..gpus {
            s.map(gpu);
            s.tick();
        }
        s.leave(0);
        s.line(0, 3);
        s.tick();
        s.enter(0, "remember", 30 + step % 10);
        s.tick();
        // Between two lines: half of it goes to each.
        cache.push(s.alloc(0, 0, 2 * MIB + u64::from(step) * 512));
        s.line(0, 50 + step % 10);
        s.tick();
        s.leave(0);
        if cache.len() > 60 {
            s.free(0, cache.remove(0));
        }
        for (gpu, address) in activations {
            s.free(gpu, address);
        }
        s.tick();
        (0..gpus).for_each(|gpu| s.map(gpu));
    }
    s.end();
    s
}

#[test]
fn each_device_keeps_its_blocks() {
    let script = training(150, 3);
    let whole = script.profile();
    let (kept, (begun, _)) = kept(&script.records, Retention::Time(Duration::from_secs(2)));
    assert!(begun > 5, "{begun}");
    let kept = profile(&kept);
    for gpu in 0..3 {
        let found = folded(&kept, gpu, Moment::End);
        assert_eq!(found, folded(&whole, gpu, Moment::End), "GPU {gpu}");
        assert_eq!(found["main:1>make_weights:12"], 5 * MIB + 12 * 512);
        assert_eq!(kept.counters(CudaIndex(gpu)), whole.counters(CudaIndex(gpu)));
    }
}

#[test]
fn blocks_from_before_the_kept_part_keep_their_lines() {
    let script = training(200, 1);
    let (whole, keep) = (script.profile(), Retention::Time(Duration::from_secs(2)));
    let (kept, (begun, _)) = kept(&script.records, keep);
    assert!(begun > 5, "{begun}");
    let kept = profile(&kept);
    assert!(kept.begins().unwrap() > Nanos(5_000_000_000), "{:?}", kept.begins());
    let (expected, found) = (folded(&whole, 0, Moment::End), folded(&kept, 0, Moment::End));
    assert!(expected.keys().any(|stack| stack.starts_with("main:1>make_weights:11")));
    assert_eq!(found, expected);
    assert!(!found.contains_key("[before recording]"), "{found:?}");
    // The peak of the time kept.
    let begins = kept.begins().unwrap();
    let top = script.records.iter().filter(|r| r.time() >= Some(begins)).filter_map(|r| match r {
        Record::Snapshot(map) => Some(map.allocated()),
        _ => None,
    });
    let fold = flame::fold(&kept, CudaIndex(0), Moment::Peak, FoldOptions::default()).unwrap();
    let top = top.max().unwrap();
    assert!(fold.total <= top && fold.total >= top - top / 256, "{} of {top}", fold.total);
    let weights: u64 = (11..15).map(|line| 5 * MIB + line * 512).sum();
    let made: u64 = folded(&kept, 0, Moment::Peak)
        .iter()
        .filter(|(stack, _)| stack.contains("make_weights"))
        .map(|(_, bytes)| bytes)
        .sum();
    assert_eq!(made, weights);
}

#[test]
fn wherever_a_recording_is_cut_blocks_keep_their_sites() {
    let sampled = training(120, 2).records;
    let exact = probed(3, 700, SLOW).records.clone();
    let mut dice = Dice(5);
    for round in 0..24 {
        let records = if round % 2 == 0 { &sampled } else { &exact };
        let end = records.len() - dice.roll(records.len() as u64 / 4) as usize;
        let keep = Duration::from_millis(900 + dice.roll(900));
        let (kept, _) = kept(&records[..end], Retention::Time(keep));
        let (kept, whole) = (profile(&kept), profile(&records[..end]));
        assert!(kept.begins().is_some());
        let found = folded(&kept, 0, Moment::End);
        assert_eq!(found, folded(&whole, 0, Moment::End), "{end} records, {keep:?}");
    }
}

#[test]
fn each_batch_of_events_continues_the_previous_one() {
    for (stacks_every, frees) in
        [(0, FreeTracking::Events), (MIB, FreeTracking::Events), (0, FreeTracking::Snapshots)]
    {
        let mut records = probed(11, 400, SLOW).records.clone();
        for record in &mut records {
            if let Record::ExactSettings(exact) = record {
                (exact.stacks_every, exact.frees) = (stacks_every, frees);
            }
        }
        goes_on(&records);
    }
}

fn goes_on(records: &[Record]) {
    let definitions = || records.iter().filter(|r| matches!(r, Record::Definition(_)));
    let mut whole = Profile::new();
    for record in definitions() {
        whole.record(record).unwrap();
    }
    let mut compared = 0;
    for record in records.iter().filter(|r| !matches!(r, Record::Definition(_))) {
        if let Record::Events(batch) = record
            && whole.exact().is_some()
        {
            let mut next = Profile::new();
            let opening = definitions().cloned().chain(whole.state_records());
            let inherited = Record::Keyframe(whole.keyframe(batch.events[0].time));
            for record in opening.chain([inherited, record.clone()]) {
                next.record(&record).unwrap();
            }
            whole.record(record).unwrap();
            assert_eq!(folded(&next, 0, Moment::End), folded(&whole, 0, Moment::End));
            compared += 1;
        } else {
            whole.record(record).unwrap();
        }
    }
    assert!(compared > 300, "{compared}");
}

#[test]
fn lines_of_the_kept_part_have_that_times_figures() {
    let script = training(200, 1);
    let (kept, _) = kept(&script.records, Retention::Time(Duration::from_secs(2)));
    let kept = profile(&kept);
    let begins = kept.begins().unwrap();
    // The same time, as a recorder started then would have it.
    let mut late = Profile::new();
    let (mut opening, mut standing) = (true, None);
    for record in &script.records {
        if let Record::Sample(sample) = record
            && sample.time >= begins
        {
            opening = false;
        }
        match record {
            // It reads the counters with its first sample, changed or not.
            Record::Counters { device, counters, .. } if opening => {
                standing = Some((*device, counters.clone()));
            }
            _ if !opening || matches!(record, Record::Start(_) | Record::Definition(_)) => {
                late.record(record).unwrap();
                if let (Record::Sample(_), Some((device, counters))) = (record, standing.take()) {
                    let time = Nanos(begins.0 + 1000);
                    late.record(&Record::Counters { time, device, counters }).unwrap();
                }
            }
            _ => {}
        }
    }
    late.finish();
    let columns = lines::default_columns();
    let table = |profile: &Profile| -> BTreeMap<(String, u32), (i64, Option<i64>)> {
        let table = lines::table(profile, CudaIndex(0), &columns).unwrap();
        let mut rows = BTreeMap::new();
        for function in &table.functions {
            let name = profile.stacks().get_function(function.function).unwrap().name.to_string();
            for row in &function.rows {
                let value = row.cells[0].value;
                rows.insert((name.clone(), row.line), (value.value, value.upper));
            }
        }
        rows
    };
    let (mut found, expected) = (table(&kept), table(&late));
    // Sites of what is still live are listed, with no other facts.
    found.retain(|(name, _), _| name != "make_weights");
    assert!(expected.len() > 5);
    // Only the kept part knows both ends of the cut interval.
    let samples: Vec<&StackSample> = script
        .records
        .iter()
        .filter_map(|record| match record {
            Record::Sample(sample) => Some(sample),
            _ => None,
        })
        .collect();
    let first = samples.iter().position(|sample| sample.time >= begins).unwrap();
    let at_the_cut = |(name, line): &(String, u32)| {
        samples[first - 1..=first].iter().any(|sample| {
            script.table.frames(sample.threads[0].stack).any(|frame| {
                let function = script.table.get_function(frame.function).unwrap();
                *function.name == **name && frame.line == *line
            })
        })
    };
    let mut compared = 0;
    for (line, figures) in expected.iter().filter(|(line, _)| !at_the_cut(line)) {
        assert_eq!(&found[line], figures, "{line:?}");
        compared += 1;
    }
    assert!(compared > 20, "{compared} lines");
}

#[test]
fn numbers_that_begin_anew_make_no_difference() {
    // The second half with its own numbers.
    let s = training(100, 1);
    let middle = s.records.len() / 2;
    let middle =
        middle + s.records[middle..].iter().position(|r| matches!(r, Record::Sample(_))).unwrap();
    let mut names = memspy::trace::DefinitionTables::default();
    let mut rewriter = memspy::trace::Renumberer::new();
    let mut records = s.records[..middle].to_vec();
    for record in &records {
        names.on_definition(record);
    }
    records.push(Record::Definition(Definition::Reset));
    for record in &s.records[middle..] {
        if !names.on_definition(record) {
            rewriter.rewrite(&names, record, &mut records);
        }
    }
    let kept_of = |records: &[Record]| {
        let (kept, _) = kept(records, Retention::Time(Duration::from_secs(60)));
        profile(&kept)
    };
    let (expected, found) = (kept_of(&s.records), kept_of(&records));
    assert_eq!(folded(&found, 0, Moment::End), folded(&expected, 0, Moment::End));
    assert_eq!(found.samples(), expected.samples());
}

#[test]
fn segments_that_a_killed_recorder_left_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.bin");
    let keep = Retention::Time(Duration::from_secs(3));
    let whole = Loop::story(9, 3000);
    let mut flight =
        RingRecorder::new(&path, keep, FileCreation::default(), ThreadChoice::default()).unwrap();
    // Without its end, and with an unfinished last block.
    for record in &whole[..whole.len() - 150] {
        flight.record(record).unwrap();
    }
    let ring = flight.folder().to_owned();
    std::mem::forget(flight);
    let found = segments(&ring).unwrap();
    assert!(found.len() > 2, "{found:?}");
    // Each begins with the state at that time.
    for segment in &found {
        let alone = read(segment);
        assert!(matches!(alone[0], Record::Start(_)));
        assert!(profile(&alone).counters(CudaIndex(0)).is_some());
    }
    let mut joined = Vec::new();
    memspy::trace::join(&found, &mut joined).unwrap();
    let begins = profile(&joined).begins().unwrap();
    let (found, expected) = (spelled(&joined, begins), spelled(&whole, begins));
    assert!(found.len() > 500 && found.len() < expected.len());
    assert_eq!(found, expected[..found.len()]);
    // Another recording does not overwrite them.
    let again = RingRecorder::new(&path, keep, FileCreation::default(), ThreadChoice::default());
    assert!(again.is_err_and(|error| format!("{error:#}").contains("memspy join")));
}
