//! What PyTorch and the driver offer to be probed in a running process.

use std::fs::File;

use super::constants::MAX_SITES;
use super::error::ProbeError;
use crate::target::usdt::{self, UsdtProbe};
use crate::target::{Addr, LoadedObject, Mapping, Mappings, Process};

/// Begins of the names of the libraries probed; the driver's ends with its version (`libcuda.so.580.65.06`).
pub(super) const TORCH: &str = "libc10_cuda";
pub(super) const DRIVER: &str = "libcuda.so";

/// What PyTorch and the driver offer to be probed.
pub(super) struct ProbeTargets {
    mappings: Mappings,
    /// PyTorch's library, its sites of `malloc` and of `free`.
    pub(super) torch: Option<(Mapping, Vec<UsdtProbe>, Vec<UsdtProbe>)>,
    pub(super) driver: Option<LoadedObject>,
}

impl ProbeTargets {
    pub(super) fn in_process(process: &Process) -> Result<ProbeTargets, ProbeError> {
        let mappings = process.mappings()?;
        let memory = process.memory();
        let torch = match mappings.object(library(TORCH)).cloned() {
            Some(mapping) => {
                let path = || mapping.path.clone().unwrap_or_default().display().to_string();
                let file = open(process, &mapping)?;
                let notes = process.work_on_file(move || Ok(usdt::notes(&file)));
                let unreadable = |why: String| ProbeError::Unreadable { path: path(), why };
                let all = notes.map_err(|e| unreadable(e.to_string()))?;
                let all = all.map_err(|e| unreadable(e.to_string()))?;
                let of = |name: &str| -> Vec<UsdtProbe> {
                    let wanted =
                        |site: &&UsdtProbe| site.provider == "pytorch" && site.name == name;
                    all.iter().filter(wanted).take(MAX_SITES).cloned().collect()
                };
                let (mallocs, frees) = (of("malloc"), of("free"));
                Some((mapping, mallocs, frees))
            }
            None => None,
        };
        let driver = LoadedObject::find(&memory, &mappings, library(DRIVER)).transpose()?;
        if torch.is_none() && driver.is_none() {
            return Err(ProbeError::NothingToProbe { pid: process.pid() });
        }
        Ok(ProbeTargets { mappings, torch, driver })
    }

    /// The mapping and the offset in its file of an address.
    pub(super) fn in_file(&self, at: Addr) -> Option<(&Mapping, u64)> {
        let mapping = self.mappings.find(at).filter(|m| m.path.is_some())?;
        Some((mapping, at.0 - mapping.start.0 + mapping.offset))
    }
}

/// Opens the file behind a mapping.
pub(super) fn open(process: &Process, mapping: &Mapping) -> Result<File, ProbeError> {
    process.open_mapped(mapping).map_err(|error| ProbeError::Unreadable {
        path: mapping.path.clone().unwrap_or_default().display().to_string(),
        why: error.to_string(),
    })
}

/// Whether a file's name is that of a library whose name begins with `stem`.
pub(super) fn library(stem: &'static str) -> impl Fn(&str) -> bool {
    move |name| name.starts_with(stem) && name.contains(".so")
}
