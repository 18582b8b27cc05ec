//! What would come back if a reference went.

use std::sync::Arc;

use super::tensors::TensorDevice;

/// Memory that would come back on one device: of the allocator's blocks, else of storages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreedBytes {
    /// The device.
    pub device: TensorDevice,
    /// Bytes that come back with the reference.
    pub at_once: u64,
    /// Further bytes, held by cycles: they come back after `gc.collect()`.
    pub after_collect: u64,
}

/// What one reference alone keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetainedReference {
    /// The reference, as in names: `server: sessions`, `__main__.trainer.history`.
    pub name: Arc<str>,
    /// By device, only those with memory.
    pub frees: Vec<FreedBytes>,
    /// An object of C that goes with it may hold more.
    pub is_least: bool,
}

impl RetainedReference {
    /// The name for all results of cells that a notebook keeps.
    pub const SESSION_OUTPUTS: &str = "outputs of the session";
    /// The name for the traceback of a notebook's last error.
    pub const LAST_ERROR: &str = "the last error of the session";

    /// On all GPUs, at once and after `gc.collect()`.
    pub fn on_gpus(&self) -> u64 {
        let on_gpus = self.frees.iter().filter(|freed| freed.device.is_cuda());
        on_gpus.map(|freed| freed.at_once.saturating_add(freed.after_collect)).sum()
    }

    /// The name for all gradients of a model.
    pub fn of_gradients(model: &str) -> String {
        format!("gradients of {model}")
    }

    /// On one device.
    pub fn on(&self, device: TensorDevice) -> FreedBytes {
        let known = self.frees.iter().find(|freed| freed.device == device);
        known.copied().unwrap_or(FreedBytes { device, at_once: 0, after_collect: 0 })
    }
}

/// How a variable leads to a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeptWay {
    /// The tensor's `TensorImpl`.
    pub tensor: u64,
    /// From the variable on.
    pub steps: Vec<WayStep>,
    /// What comes back if all known references to the tensor's object and its memory go.
    pub all_names: Option<RetainedReference>,
    /// References to the tensor of no known object: temporary values, C and C++.
    pub unknown_holders: u64,
}

/// One reference of a way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WayStep {
    /// This step only: `["model"]`.
    pub step: String,
    /// Class of the object that it leads to.
    pub class: Arc<str>,
    /// Bytes that this object leads to, shared ones too, but not over modules and classes; on GPUs,
    /// or without any on the CPU.
    pub holds: u64,
    /// What it alone keeps; its name is the way so far. `None`: unknown.
    pub retained: Option<RetainedReference>,
}
