//! The simulated CUDA device: its libraries, and the environment of a process that runs on it.

mod folder;
mod interpreter;
mod libraries;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::model::Card;

pub(super) use folder::RunFolder;
pub(super) use interpreter::TorchPython;
pub(super) use libraries::SimulatedLibraries;

/// Nearly all that the simulated device has addresses for (`DEVICE_SPAN`).
pub(super) const BOUNDLESS: u64 = 480 << 30;

impl SimulatedLibraries {
    /// Lets `command` run on `gpus` fresh cards, whose state is in `folder`.
    pub(super) fn set_up(&self, command: &mut Command, card: &Card, gpus: u32, folder: &Path) {
        command
            // The cards are simulated: which real ones are visible means nothing.
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", [&self.folder]))
            .env("SIM_CUDA_STATE", folder.join("cards"))
            .env("SIM_CUDA_DEVICES", gpus.to_string())
            .env("SIM_CUDA_TOTAL_BYTES", card.memory.to_string())
            .env("SIM_CUDA_CC", card.capability)
            .env("SIM_CUDA_SMS", card.processors.to_string())
            .env("SIM_CUDA_CTX_BYTES", card.context.to_string())
            .env("SIM_CUDA_NAME", format!("{} (simulated)", card.title));
        if !self.preloaded.is_empty() {
            command.env("LD_PRELOAD", before("LD_PRELOAD", &self.preloaded));
        }
    }
}

/// PyTorch's settings of its allocator, by their old and their new name.
pub(super) fn set_allocator(command: &mut Command, settings: &str) {
    command.env("PYTORCH_CUDA_ALLOC_CONF", settings).env("PYTORCH_ALLOC_CONF", settings);
}

/// The variable with `paths` first.
pub(super) fn before<'a>(name: &str, paths: impl IntoIterator<Item = &'a PathBuf>) -> OsString {
    let mut joined = OsString::new();
    for path in paths {
        joined.push(path);
        joined.push(":");
    }
    if let Some(old) = std::env::var_os(name) {
        joined.push(old);
    }
    // An empty entry would be the working directory.
    let text = joined.to_string_lossy();
    OsString::from(text.trim_end_matches(':'))
}
