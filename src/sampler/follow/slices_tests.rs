//! Simulated jobs: the budget is kept, and intervals hold the truth.

use super::*;

const STEP: f64 = 100e-6;

/// A simulated job: phases of blocks a second for so many seconds, which make an iteration.
struct Job {
    phases: Vec<(f64, f64)>,
    /// Standard deviations of an iteration's pace, and of some milliseconds'.
    noise: f64,
    /// Seconds that it loses for each delta.
    lost: f64,
}

struct Run {
    cost: JobCost,
    /// The share of the time that the job lost, of all and of each second.
    lost: f64,
    by_second: Vec<f64>,
    followed: f64,
}

fn normal(lot: &mut Lot) -> f64 {
    (0..12).map(|_| lot.draw()).sum::<f64>() - 6.0
}

/// Records `job` for so many seconds: polls see most blocks one by one, rests one delta a pause.
fn record(job: &Job, budget: Option<f64>, seconds: f64, seed: u64) -> Run {
    let mut lot = Lot(seed);
    let mut slices = Slices { lot: Lot(seed ^ 0xabcd), ..Slices::new(budget) };
    let (mut phase, mut left) = (0, job.phases[0].1);
    let (mut slow, mut quick, mut pace) = (0.0, 0.0, 1.0);
    let (mut blocks, mut deltas, mut lost, mut followed) = (0.0, 0.0, 0.0, 0.0);
    let mut by_second = vec![0.0; seconds.ceil() as usize];
    for step in 0..(seconds / STEP) as u64 {
        let now = Duration::from_secs_f64(step as f64 * STEP);
        let rests = slices.rests(now, blocks as u64, deltas as u64);
        if step % 50 == 0 {
            quick = 0.9 * quick + 0.436 * job.noise * normal(&mut lot);
        }
        let rate = job.phases[phase].0 * (pace + quick).max(0.1);
        let seen = if rests { rate.min(1.0 / slices.pause().as_secs_f64()) } else { 0.8 * rate };
        let wasted = (seen * STEP * job.lost).min(0.9 * STEP);
        blocks += rate * (STEP - wasted);
        deltas += seen * STEP;
        lost += wasted;
        by_second[now.as_secs() as usize] += wasted;
        followed += if rests { 0.0 } else { STEP };
        left -= (STEP - wasted) * (pace + quick).max(0.1);
        if left <= 0.0 {
            phase = (phase + 1) % job.phases.len();
            left += job.phases[phase].1;
            if phase == 0 {
                slow = 0.8 * slow + 0.6 * normal(&mut lot);
                pace = (1.0 + 0.7 * job.noise * (slow + normal(&mut lot))).max(0.2);
            }
        }
    }
    let cost = slices.cost().unwrap();
    Run { cost, lost: lost / seconds, by_second, followed: followed / seconds }
}

fn even(rate: f64) -> Job {
    Job { phases: vec![(rate, 0.02)], noise: 0.02, lost: 1.4e-6 }
}

fn training(noise: f64) -> Job {
    let phases = vec![(90e3, 0.007), (60e3, 0.009), (180e3, 0.004)];
    Job { phases, noise, lost: 1.4e-6 }
}

#[test]
fn a_busy_job_keeps_its_budget_from_the_first_second() {
    for rate in [20e3, 40e3, 92e3, 300e3] {
        let run = record(&even(rate), Some(0.02), 10.0, 1);
        assert!((0.017..0.022).contains(&run.lost), "{rate}: {}", run.lost);
        assert!(run.by_second.iter().all(|lost| *lost < 0.027), "{rate}: {:?}", run.by_second);
    }
}

#[test]
fn a_cheap_job_and_one_without_a_budget_are_followed_always() {
    let harmless = record(&even(2e3), Some(0.02), 5.0, 1);
    assert!(harmless.followed > 0.98 && harmless.cost.measured.is_none(), "{}", harmless.followed);
    let any = record(&even(92e3), None, 5.0, 1);
    assert!(any.followed > 0.999, "{}", any.followed);
}

#[test]
fn a_job_below_the_budget_rests_only_to_be_measured() {
    let short = record(&even(10e3), Some(0.02), 5.0, 1);
    assert!(short.followed > 0.9 && short.cost.measured.is_some(), "{}", short.followed);
    let long = record(&even(10e3), Some(0.02), 60.0, 1);
    assert!(long.followed > 0.98, "{}", long.followed);
    let harmed = record(&Job { lost: 6e-6, ..even(10e3) }, Some(0.02), 60.0, 1);
    let last = harmed.by_second[30..].iter().sum::<f64>() / 30.0;
    assert!(last < 0.03, "{last}: {:?}", harmed.by_second);
}

#[test]
fn a_larger_budget_follows_more() {
    let followed = [0.005, 0.02, 0.05, 0.2].map(|budget| {
        let run = record(&even(92e3), Some(budget), 10.0, 1);
        assert!(run.lost < 1.15 * budget, "{budget}: {}", run.lost);
        run.followed
    });
    assert!(followed.is_sorted() && followed[3] > 0.9 && followed[0] > 0.01, "{followed:?}");
}

#[test]
fn a_job_that_suffers_more_than_usual_is_followed_less() {
    let sensitive = Job { lost: 4.0e-6, ..even(92e3) };
    let run = record(&sensitive, Some(0.02), 20.0, 1);
    let last: f64 = run.by_second[10..].iter().sum::<f64>() / 10.0;
    assert!((0.015..0.027).contains(&last), "{last} {:?}", run.by_second);
}

#[test]
fn bursts_may_spend_what_a_quiet_time_saved() {
    let phases = vec![(0.0, 1.0), (92e3, 0.1)];
    let run = record(&Job { phases, noise: 0.0, lost: 1.4e-6 }, Some(0.02), 20.0, 1);
    assert!(run.lost < 0.021 && run.followed > 0.9, "{} {}", run.lost, run.followed);
}

#[test]
fn a_stopped_memspy_is_not_counted() {
    let mut slices = Slices::new(Some(0.02));
    let mut blocks = 0;
    for step in 0..40_000 {
        // Each second is over after a tenth.
        let now = Duration::from_secs_f64((step / 1000) as f64 + f64::from(step % 1000) * 1e-4);
        blocks += 9;
        slices.rests(now, blocks, blocks);
    }
    assert!(slices.credit < 0.0, "{}: the time in between saved nothing", slices.credit);
}

/// How often the truth lies in the interval, and how wide that is, in points.
fn coverage(job: &Job, budget: f64, seconds: f64, runs: u64) -> (f64, f64) {
    let (mut right, mut width) = (0, 0.0);
    for seed in 0..runs {
        let run = record(job, Some(budget), seconds, 7919 * seed + 17);
        let measured = run.cost.measured.unwrap();
        let [least, most] = [measured.least, measured.most].map(|it| f64::from(it) / 1e6);
        right += u32::from((least..=most).contains(&run.lost));
        width += 100.0 * (most - least) / runs as f64;
    }
    (f64::from(right) / runs as f64, width)
}

#[test]
fn nine_of_ten_intervals_hold_the_truth() {
    for noise in [0.01, 0.12] {
        let (right, width) = coverage(&training(noise), 0.02, 10.0, 60);
        assert!(right > 0.82, "{noise}: {right}, {width} points wide");
        assert!(width < 2.0, "{noise}: {width} points wide");
    }
}

#[test]
fn intervals_hold_costs_of_nothing_one_and_five_per_cent() {
    for (cost, lost, rate, budget) in
        [(0.0, 0.0, 92e3, 0.02), (0.01, 1.4e-6, 9e3, 0.02), (0.05, 1.4e-6, 92e3, 0.05)]
    {
        for noise in [0.02, 0.08] {
            let job = Job { phases: vec![(rate, 0.02), (0.5 * rate, 0.005)], noise, lost };
            let real = record(&job, Some(budget), 10.0, 1).lost;
            assert!((real - cost).abs() <= 0.2 * cost, "{real} instead of {cost}");
            let (right, width) = coverage(&job, budget, 10.0, 100);
            assert!(right > 0.82, "{cost} {noise}: {right}, {width} points wide");
        }
    }
}

/// `cargo test --release --lib intervals_of_many_jobs -- --ignored --nocapture`
#[test]
#[ignore = "a table to read: two minutes"]
fn intervals_of_many_jobs() {
    let jobs = [
        ("even", vec![(92e3, 0.02)]),
        ("20 ms", training(0.0).phases),
        ("60 ms with waits", vec![(110e3, 0.02), (60e3, 0.02), (200e3, 0.008), (0.0, 0.012)]),
        ("300 ms", vec![(110e3, 0.09), (50e3, 0.14), (220e3, 0.04), (5e3, 0.03)]),
        ("1 s", vec![(100e3, 0.3), (40e3, 0.45), (200e3, 0.2), (0.0, 0.05)]),
        ("30,000 a second", vec![(30e3, 0.02), (45e3, 0.01)]),
    ];
    for (name, phases) in jobs {
        for noise in [0.01, 0.05, 0.12] {
            for seconds in [10.0, 20.0, 60.0] {
                let job = Job { phases: phases.clone(), noise, lost: 1.4e-6 };
                let (right, width) = coverage(&job, 0.02, seconds, 200);
                println!("{name:18} {noise:4} {seconds:3} s: {right:.2}, {width:.2} points wide");
            }
        }
    }
}
