//! The measured cost of made-up pairs.

use super::*;

fn tally(seconds: f64, blocks: f64, deltas: f64) -> Tally {
    Tally { seconds, blocks, deltas, paced: 0.0 }
}

/// Pairs of a job whose pace varies, that loses `lost` seconds for each delta.
fn pairs(lost: f64, count: u32, pace: impl Fn(u32) -> f64) -> HarmMeter {
    let mut meter = HarmMeter::default();
    for nth in 0..count {
        let part = |seconds: f64, deltas: f64, pace: f64| {
            let paced = pace * deltas;
            Tally { paced, ..tally(seconds, pace * (seconds - lost * deltas), deltas) }
        };
        let followed = part(0.03, 2_400.0, pace(2 * nth));
        let rested = part(0.15, 500.0, pace(2 * nth + 1));
        meter.pass(followed, true);
        meter.pass(rested, false);
        meter.pair(followed, rested);
    }
    meter
}

#[test]
fn an_even_job_shows_what_each_delta_costs() {
    let meter = pairs(3e-6, 40, |_| 90e3);
    let cost = meter.cost(Some(0.02)).unwrap();
    let measured = cost.measured.unwrap();
    // 2,900 deltas in 0.18 seconds.
    let truth = 3e-6 * 2_900.0 / 0.18 * 1e6;
    assert!((f64::from(measured.share) / truth - 1.0).abs() < 1e-3, "{cost:?}");
    assert!(measured.most - measured.least < 100 && measured.variation < 100, "{cost:?}");
    assert_eq!((cost.budget, cost.followed), (Some(20_000), Some(166_667)));
    assert!((meter.of_one_delta() - 3e-6).abs() < 1e-8);
}

#[test]
fn an_uneven_job_has_a_wide_interval_and_the_usual_cost() {
    let uneven = |nth: u32| f64::from(20_000 + nth.wrapping_mul(0x9e37_79b9) % 180_000);
    let meter = pairs(1.4e-6, 42, uneven);
    let measured = meter.cost(None).unwrap().measured.unwrap();
    assert!(measured.most - measured.least > 20_000, "{measured:?}");
    assert!(measured.variation > 300_000, "{measured:?}");
    assert!((meter.of_one_delta() / USUAL - 1.0).abs() < 0.6, "{}", meter.of_one_delta());
}

#[test]
fn few_pairs_measure_nothing() {
    let meter = pairs(1.4e-6, 7, |_| 90e3);
    let cost = meter.cost(Some(0.02)).unwrap();
    assert_eq!(cost.measured, None);
    let calculated = f64::from(cost.calculated.unwrap());
    assert!((calculated / (1.4 * 2_900.0 / 0.18) - 1.0).abs() < 1e-3, "{cost:?}");
    assert_eq!(HarmMeter::default().cost(None), None);
}

#[test]
fn pairs_without_blocks_say_nothing() {
    let mut meter = pairs(1.4e-6, 20, |_| 90e3);
    let before = meter.of_one_delta();
    (0..100).for_each(|_| meter.pair(tally(0.03, 0.0, 0.0), tally(0.1, 0.0, 0.0)));
    assert!((meter.of_one_delta() / before - 1.0).abs() < 1e-9);
    meter.pair(tally(0.0, 0.0, 0.0), tally(0.1, 5.0, 5.0));
    assert!((meter.of_one_delta() / before - 1.0).abs() < 1e-9, "one part did not happen");
}
