//! The kept part of an exact recording, limited by size.

use std::time::Duration;

use crate::analysis_script::{MIB, folded};
use crate::flight_support::{FAST, SLOW, kept, probed, profile, read, spelled};
use memspy::analysis::{FoldOptions, Moment, Profile, ThreadChoice, flame};
use memspy::files::FileCreation;
use memspy::flight::RingRecorder;
use memspy::model::*;
use memspy::trace::{Retention, RetentionLimit};

#[test]
fn exact_recordings_keep_the_stack_of_every_block() {
    for seed in 0..5 {
        let s = probed(seed, 1000, SLOW);
        let whole = s.profile();
        let (kept, (begun, _)) = kept(&s.records, Retention::Time(Duration::from_secs(4)));
        assert!(begun > 5, "{begun}");
        let spelled_kept = kept.clone();
        let kept = profile(&kept);
        let begins = kept.begins().unwrap();
        assert!(begins > Nanos(10_000_000_000));
        assert_eq!(spelled(&spelled_kept, begins), spelled(&s.records, begins));
        let end = |profile: &Profile| {
            let fold =
                flame::fold(profile, CudaIndex(0), Moment::End, FoldOptions::default()).unwrap();
            (folded(profile, 0, Moment::End), fold.total, fold.left_out)
        };
        assert_eq!(end(&kept), end(&whole), "seed {seed}");
        assert_eq!(memspy::render::warnings(&kept), Vec::<String>::new());
        // The peak of the time kept, from every event.
        let levels = s.records.iter().filter_map(|record| match record {
            Record::Events(batch) => Some(&batch.events),
            _ => None,
        });
        let top = levels.flatten().filter(|event| event.time >= begins).filter_map(|event| {
            match event.change {
                EventKind::Allocated { levels, .. } => levels.map(|levels| levels.allocated),
                _ => None,
            }
        });
        let high = kept.exact().unwrap().peak(CudaIndex(0)).unwrap();
        assert!(high.1 as i64 >= top.max().unwrap(), "{high:?}");
        assert!(high.0 >= begins);
        let peak = folded(&kept, 0, Moment::Peak);
        assert_eq!(peak.values().sum::<u64>(), high.1);
        assert!(!peak.contains_key("[no event]"), "{peak:?}");
        assert_eq!(peak["[before recording]"], 7 * MIB);
        assert_eq!(peak["main:1>make_weights:12"], 2 * MIB + 12 * 512);
        // Earlier allocations are no churn of this recording.
        let churn = FoldOptions { churn: true, ..FoldOptions::default() };
        let fold =
            |profile: &Profile| flame::fold(profile, CudaIndex(0), Moment::End, churn).unwrap();
        assert!(fold(&kept).allocations < fold(&whole).allocations);
    }
}

#[test]
fn a_ring_stays_within_its_size() {
    for (limit, lasting) in [(64 << 10, SLOW), (100_000, SLOW), (64 << 10, FAST), (200_000, FAST)] {
        let s = probed(1, 6000, lasting);
        let (kept, (begun, most)) = kept(&s.records, Retention::Bytes(limit));
        assert!(begun > 10, "{begun} segments for {limit} bytes");
        assert!(most <= limit + limit / 4, "{most} bytes of {limit}");
        assert!(most >= limit / 2, "{most} bytes of {limit}: that much could have been kept");
        let kept = profile(&kept);
        let whole = s.profile();
        assert_eq!(folded(&kept, 0, Moment::End), folded(&whole, 0, Moment::End));
    }
}

/// A ring with these bounds at the end: the share of time kept, most bytes, and the bound that
/// counted.
fn bounded(records: &[Record], keep: Retention) -> (Duration, u64, Option<RetentionLimit>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.bin");
    let mut flight =
        RingRecorder::new(&path, keep, FileCreation::default(), ThreadChoice::default()).unwrap();
    for record in records {
        flight.record(record).unwrap();
    }
    let (most, _) = flight.size();
    let bound = flight.bound();
    flight.write(None, &mut |_| {}).unwrap();
    flight.finish().unwrap();
    let kept = profile(&read(&path));
    let length = kept.duration().0 - kept.begins().unwrap_or_default().0;
    (Duration::from_nanos(length), most, bound)
}

#[test]
fn of_two_bounds_the_one_that_is_reached_first_counts() {
    let s = probed(1, 6000, SLOW);
    let (whole, all, none) = bounded(&s.records, Retention::Time(Duration::from_secs(3600)));
    assert_eq!(none, None, "all of it is kept");
    let long = Duration::from_secs(3600);
    let (by_size, most, bound) = bounded(&s.records, Retention::Either(long, 64 << 10));
    assert_eq!(bound, Some(RetentionLimit::Bytes));
    assert!(
        most <= (64 << 10) * 5 / 4 && by_size < whole / 2,
        "{most} bytes, {by_size:?} of {whole:?}"
    );
    // Each recording's random number compresses to other bytes, so segments end elsewhere.
    let alike = |one: Duration, other: Duration| one.abs_diff(other) < whole / 20;
    let alone = bounded(&s.records, Retention::Bytes(64 << 10)).0;
    assert!(alike(by_size, alone), "{by_size:?}, {alone:?} with one bound");
    let short = whole / 8;
    let (by_time, most, bound) = bounded(&s.records, Retention::Either(short, 1 << 30));
    assert_eq!(bound, Some(RetentionLimit::Time));
    assert!(by_time >= short && most < all, "{by_time:?} of {short:?}");
    let alone = bounded(&s.records, Retention::Time(short)).0;
    assert!(alike(by_time, alone), "{by_time:?}, {alone:?} with one bound");
}
