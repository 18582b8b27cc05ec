//! Looks at holders, tried again until the process stands in a place where they can be read.

use std::time::Duration;

use super::readers::{Readers, Torch};
use crate::holders::{HolderError, HolderReader, Pausing};
use crate::model::HolderMap;

/// Attempts; garbage collections and allocations take microseconds to some milliseconds.
const MOST_ATTEMPTS: u32 = 50;
/// Between two attempts the process runs: so much longer than it stood still that it is not slowed by a tenth.
const REST: Duration = Duration::from_millis(2);
/// A process that runs on is seen whole only by luck: more attempts, without a rest.
const MOST_RUNNING_ATTEMPTS: u32 = 200;

/// One look, and how often it was tried.
#[derive(Debug)]
pub struct HolderLook {
    /// What was seen.
    pub map: HolderMap,
    /// How often it was tried.
    pub attempts: u32,
}

/// Looks at the holders of the process that `readers` read.
pub fn look_at_holders(readers: &mut Readers, pausing: Pausing) -> Result<HolderLook, HolderError> {
    readers.refresh();
    let reader = HolderReader::attach(&readers.process)?.ok_or(HolderError::NoTorch)?;
    let Some(python) = &readers.python else { return Err(HolderError::NoTorch) };
    let most = match pausing {
        Pausing::Stop => MOST_ATTEMPTS,
        Pausing::Never => MOST_RUNNING_ATTEMPTS,
    };
    let mut attempts = 0;
    loop {
        attempts += 1;
        let torch = match &mut readers.torch {
            Torch::Attached(torch) => Some(&mut **torch),
            _ => None,
        };
        match reader.look(&readers.process, python, torch, pausing) {
            Ok(map) => return Ok(HolderLook { map, attempts }),
            Err(error) if error.is_transient() && attempts < most => {
                if pausing == Pausing::Stop {
                    std::thread::sleep(REST);
                }
            }
            Err(error) => return Err(error),
        }
    }
}
