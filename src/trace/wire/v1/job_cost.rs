//! What the recording cost the job, at the trailer's end.

use bincode::{Decode, Encode};

use crate::model;

#[derive(Encode, Decode)]
pub(crate) struct WireJobCost {
    calculated: Option<u32>,
    /// Share, least, most, variation.
    measured: Option<(u32, u32, u32, u32)>,
    budget: Option<u32>,
    followed: Option<u32>,
}

impl From<&model::JobCost> for WireJobCost {
    fn from(cost: &model::JobCost) -> Self {
        let measured = cost.measured.map(|it| (it.share, it.least, it.most, it.variation));
        let model::JobCost { calculated, budget, followed, .. } = *cost;
        WireJobCost { calculated, measured, budget, followed }
    }
}

impl From<WireJobCost> for model::JobCost {
    fn from(cost: WireJobCost) -> Self {
        let measured = cost.measured.map(|(share, least, most, variation)| model::MeasuredCost {
            share,
            least,
            most,
            variation,
        });
        let WireJobCost { calculated, budget, followed, .. } = cost;
        model::JobCost { calculated, measured, budget, followed }
    }
}
