//! The JSON of `memspy pause` and `memspy resume`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::JsonFormat;

/// `memspy pause --json` and `memspy resume --json`: what moved, in one line. Sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CheckpointJson {
    /// The job.
    pub pid: u32,
    /// What it is now: `paused` or `running`.
    pub state: String,
    /// The GPUs that it uses.
    pub devices: Vec<MovedDeviceJson>,
    /// Host memory of the job before.
    pub process_host_before: Option<u64>,
    /// Host memory of the job after.
    pub process_host_after: Option<u64>,
    /// Host memory that the job may still take, before.
    pub host_available_before: Option<u64>,
    /// Host memory that the job may still take, after.
    pub host_available_after: Option<u64>,
    /// Seconds that each step took: `lock`, `transfer`, `unlock`.
    pub seconds: BTreeMap<String, f64>,
}

impl JsonFormat for CheckpointJson {
    const FORMAT: &'static str = "memspy-pause";
    const VERSION: u32 = 1;
}

/// A GPU before and after its memory moved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MovedDeviceJson {
    /// Its number in nvidia-smi.
    pub index: u32,
    /// Its UUID.
    pub uuid: Option<String>,
    /// Its model.
    pub name: Option<String>,
    /// In use by all processes before.
    pub used_before: u64,
    /// In use by all processes after.
    pub used_after: u64,
    /// In use by the job before; `null` where the driver does not say.
    pub process_before: Option<u64>,
    /// In use by the job after; `null` where the driver does not say.
    pub process_after: Option<u64>,
}
