//! Finds PyTorch and the driver in a process.

use std::fs::File;
use std::sync::Arc;

use super::constants::MAX_SITES;
use super::error::PlacementError;
use crate::target::usdt::{self, ArgumentOperand, StaticProbe};
use crate::target::{Addr, LoadedObject, Mapping, Mappings, Process};

/// The driver's name ends with its version (`libcuda.so.580.65.06`).
pub(super) const TORCH: &str = "libc10_cuda";
pub(super) const DRIVER: &str = "libcuda.so";

pub(super) struct ProbeTargets {
    mappings: Arc<Mappings>,
    pub(super) torch: Option<(Mapping, Vec<StaticProbe>, Vec<StaticProbe>)>,
    pub(super) driver: Option<LoadedObject>,
}

impl ProbeTargets {
    pub(super) fn in_process(process: &Process) -> Result<ProbeTargets, PlacementError> {
        let mappings = process.mappings()?;
        let memory = process.memory();
        let torch = match mappings.object(library(TORCH)).cloned() {
            Some(mapping) => {
                let path = || mapping.path.clone().unwrap_or_default().display().to_string();
                let file = open(process, &mapping)?;
                let notes = process.work_on_file(move || Ok(usdt::notes(&file)));
                let unreadable = |why: String| PlacementError::Unreadable { path: path(), why };
                let all = notes.map_err(|e| unreadable(e.to_string()))?;
                let all = all.map_err(|e| unreadable(e.to_string()))?;
                let of = |name: &str| -> Vec<StaticProbe> {
                    let wanted =
                        |site: &&StaticProbe| site.provider == "pytorch" && site.name == name;
                    all.iter().filter(wanted).take(MAX_SITES).cloned().collect()
                };
                let (mallocs, frees) = (of("malloc"), of("free"));
                if mallocs.iter().any(is_before_allocation) {
                    return Err(PlacementError::BeforeAllocation { path: path() });
                }
                Some((mapping, mallocs, frees))
            }
            None => None,
        };
        let driver = LoadedObject::find(&memory, &mappings, library(DRIVER)).transpose()?;
        if torch.is_none() && driver.is_none() {
            return Err(PlacementError::NothingToProbe { pid: process.pid() });
        }
        Ok(ProbeTargets { mappings, torch, driver })
    }

    pub(super) fn in_file(&self, at: Addr) -> Option<(&Mapping, u64)> {
        let mapping = self.mappings.find(at).filter(|m| m.path.is_some())?;
        Some((mapping, at.0 - mapping.start.0 + mapping.offset))
    }
}

/// PyTorch 2.1 has the site before the allocation: with the variable that will get the address,
/// without the stream (`NativeCachingAllocator::allocate`, c10/cuda/CUDACachingAllocator.cpp).
fn is_before_allocation(site: &StaticProbe) -> bool {
    let stream = site.arguments.get(3);
    stream.is_some_and(|stream| matches!(stream.operand, ArgumentOperand::Constant(_)))
}

pub(super) fn open(process: &Process, mapping: &Mapping) -> Result<File, PlacementError> {
    process.open_mapped(mapping).map_err(|error| PlacementError::Unreadable {
        path: mapping.path.clone().unwrap_or_default().display().to_string(),
        why: error.to_string(),
    })
}

pub(super) fn library(stem: &'static str) -> impl Fn(&str) -> bool {
    move |name| name.starts_with(stem) && name.contains(".so")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::usdt::{ProbeArgument, Register};

    /// Its addresses are of stack variables: no free would match.
    #[test]
    fn the_probe_of_pytorch_2_1_is_refused() {
        let argument = |operand| ProbeArgument { size: 8, signed: true, operand };
        let register = |name| ArgumentOperand::Register(Register::named(name).unwrap());
        let site = |stream| StaticProbe {
            provider: "pytorch".to_owned(),
            name: "malloc".to_owned(),
            offset: 0,
            semaphore: None,
            arguments: [register("r14"), register("edi"), register("r13"), stream]
                .map(argument)
                .to_vec(),
        };
        assert!(is_before_allocation(&site(ArgumentOperand::Constant(0))));
        assert!(!is_before_allocation(&site(register("rbx"))));
    }
}
