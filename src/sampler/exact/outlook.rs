//! What an exact recording of a process would see, and by which way: for `doctor`.

use crate::model::ExactWay;
use crate::probe::{Offer, ProbeError, offer, try_way};
use crate::target::Process;
use crate::torch::{BackwardError, backward_walk};

/// The outlook.
pub struct ExactOutlook {
    /// The ways to place probes, the best first, and why they are not open.
    pub ways: Vec<(ExactWay, Result<(), ProbeError>)>,
    /// What the process offers to be probed.
    pub offer: Result<Offer, ProbeError>,
    /// Whether the backward pass can be followed; `None` without PyTorch.
    pub backward: Option<Result<(), BackwardError>>,
}

impl ExactOutlook {
    /// Looks at `process` and tries the ways on memspy itself.
    pub fn of(process: &Process) -> ExactOutlook {
        let ways = [ExactWay::UprobeMulti, ExactWay::PerfUprobes, ExactWay::PerfSamples];
        ExactOutlook {
            ways: ways.map(|way| (way, try_way(process, way))).into(),
            offer: offer(process),
            backward: match backward_walk(process) {
                Ok(None) => None,
                Ok(Some(_)) => Some(Ok(())),
                Err(error) => Some(Err(error)),
            },
        }
    }
}
