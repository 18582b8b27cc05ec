//! What the recording cost the job.

use crate::model::{JobCost, MeasuredCost};

/// In a wider interval (four points) the estimate says too little.
const WIDEST: u32 = 40_000;

/// Above this share of the time nobody misses the rest.
const ALMOST_ALL: u32 = 850_000;

/// `cost to the job: 1.3 % (0.4 to 2.2 %); followed 31 % of the time to keep it within 2 %`.
pub(crate) fn job_cost_line(cost: &JobCost) -> String {
    let calculated = cost.calculated.map(about);
    let (text, least) = match (cost.measured, calculated) {
        (Some(it), _) if it.most - it.least.min(it.most) <= WIDEST => (measured(&it), it.least),
        (Some(it), calculated) => {
            let varies = format!("{:.0} %", per_cent(it.variation));
            let calculated = calculated.map(|share| format!("; by calculation {share}"));
            let calculated = calculated.unwrap_or_default();
            let text = format!("cannot be told: the job's pace varies by {varies}{calculated}");
            (text, it.least)
        }
        (None, Some(share)) => {
            (format!("{share}, by calculation"), cost.calculated.unwrap_or_default())
        }
        (None, None) => ("not known".to_owned(), 0),
    };
    // Beyond what is rounded away.
    let above = cost.budget.filter(|budget| u64::from(least) * 20 > u64::from(*budget) * 21);
    let above = above.map(|budget| format!(", more than the budget of {}", about(budget)));
    let rests = cost.followed.filter(|followed| *followed < ALMOST_ALL).map(|followed| {
        let budget = cost.budget.map(|budget| format!(" to keep it within {}", about(budget)));
        format!("; followed {} of the time{}", about(followed), budget.unwrap_or_default())
    });
    let [above, rests] = [above, rests].map(Option::unwrap_or_default);
    format!("cost to the job: {text}{above}{rests}")
}

/// The warning about exact stacks above the budget.
pub(crate) fn exact_cost_warning(cost: &JobCost) -> Option<String> {
    let (share, budget) = cost.calculated.zip(cost.budget).filter(|(share, most)| share > most)?;
    Some(format!(
        "exact recording cost the job about {} (budget {}): --follow costs less",
        about(share),
        about(budget)
    ))
}

fn measured(cost: &MeasuredCost) -> String {
    let [share, least, most] = [cost.share, cost.least, cost.most].map(per_cent);
    format!("{share:.1} % ({least:.1} to {most:.1} %)")
}

fn about(share: u32) -> String {
    match per_cent(share) {
        little if little < 0.05 => "less than 0.1 %".to_owned(),
        whole if whole.fract().abs() < 0.05 => format!("{whole:.0} %"),
        some => format!("{some:.1} %"),
    }
}

fn per_cent(parts: u32) -> f64 {
    f64::from(parts) / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(calculated: u32, measured: Option<[u32; 4]>) -> String {
        let measured = measured.map(|[share, least, most, variation]| MeasuredCost {
            share,
            least,
            most,
            variation,
        });
        let cost = JobCost {
            calculated: Some(calculated),
            measured,
            budget: Some(20_000),
            followed: None,
        };
        job_cost_line(&cost)
    }

    #[test]
    fn a_cost_has_its_interval_or_a_reason() {
        let measured = line(15_000, Some([13_000, 4_000, 22_000, 30_000]));
        assert_eq!(measured, "cost to the job: 1.3 % (0.4 to 2.2 %)");
        let uneven = line(19_000, Some([10_000, 0, 60_000, 123_000]));
        assert_eq!(
            uneven,
            "cost to the job: cannot be told: the job's pace varies by 12 %; by calculation 1.9 %"
        );
        assert_eq!(line(6_000, None), "cost to the job: 0.6 %, by calculation");
        assert_eq!(line(20, None), "cost to the job: less than 0.1 %, by calculation");
    }

    #[test]
    fn rests_are_reported_if_they_are_long() {
        let of = |followed| JobCost {
            calculated: Some(15_000),
            measured: None,
            budget: Some(20_000),
            followed: Some(followed),
        };
        let line = "cost to the job: 1.5 %, by calculation";
        let rests = "; followed 31 % of the time to keep it within 2 %";
        assert_eq!(job_cost_line(&of(310_000)), format!("{line}{rests}"));
        assert_eq!(job_cost_line(&of(930_000)), line);
    }

    #[test]
    fn a_cost_above_the_budget_says_so() {
        let above = line(30_000, Some([30_000, 25_000, 35_000, 30_000]));
        assert_eq!(above, "cost to the job: 3.0 % (2.5 to 3.5 %), more than the budget of 2 %");
        assert!(!line(30_000, Some([30_000, 15_000, 35_000, 30_000])).contains("more"));
        let cost = JobCost { calculated: Some(90_400), budget: Some(20_000), ..JobCost::default() };
        assert_eq!(
            exact_cost_warning(&cost).unwrap(),
            "exact recording cost the job about 9 % (budget 2 %): --follow costs less"
        );
        assert_eq!(exact_cost_warning(&JobCost { budget: None, ..cost }), None);
    }
}
