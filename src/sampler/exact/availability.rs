//! What an exact recording can see.

use std::io;

use crate::model::ProbeBackend;
use crate::probe::{Availability, PlacementError, detect, try_keeper, try_way};
use crate::target::Process;
use crate::torch::{BackwardError, autograd_info};

/// What an exact recording of one process can see.
pub struct ExactAvailability {
    /// The ways to place probes, best first.
    pub ways: Vec<(ProbeBackend, Result<(), PlacementError>)>,
    /// Whether a separate process can keep the probes.
    pub keeper: io::Result<()>,
    /// What can be probed in the process.
    pub offer: Result<Availability, PlacementError>,
    /// Whether the backward pass can be traced; `None` without PyTorch.
    pub backward: Option<Result<(), BackwardError>>,
}

impl ExactAvailability {
    pub(in crate::sampler) fn detect(process: &Process) -> ExactAvailability {
        let ways =
            [ProbeBackend::UprobeMulti, ProbeBackend::PerfUprobes, ProbeBackend::PerfSamples];
        ExactAvailability {
            ways: ways.map(|way| (way, try_way(process, way))).into(),
            keeper: try_keeper(),
            offer: detect(process),
            backward: match autograd_info(process) {
                Ok(None) => None,
                Ok(Some(_)) => Some(Ok(())),
                Err(error) => Some(Err(error)),
            },
        }
    }
}
