//! The state of processes forked after CUDA began is a copy.

use crate::target::{LoadedObject, Memory, Process};

/// Reads an array by device type (torch/csrc/utils/device_lazy_init.h, 2.5+).
const IN_BAD_FORK: &str = "_ZN5torch5utils21is_device_in_bad_forkEN3c1010DeviceTypeE";
const LEA_RAX: [u8; 3] = [0x48, 0x8d, 0x05];
const READ: usize = 32;
const CUDA: u64 = 1;

/// `torch.cuda._is_in_bad_fork()`; `None`: not recorded.
pub fn is_in_bad_fork(process: &Process) -> Option<bool> {
    let memory = process.memory();
    let memory: &dyn Memory = &memory;
    let mappings = process.mappings().ok()?;
    let wanted = |name: &str| name.starts_with("libtorch_python.so");
    let library = LoadedObject::find(memory, &mappings, wanted)?.ok()?;
    let function = library.exported(memory, IN_BAD_FORK).ok()??;
    let code = memory.vec(function, READ).ok()?;
    let lea = code.windows(LEA_RAX.len()).position(|window| window == LEA_RAX)?;
    let end = lea + LEA_RAX.len() + 4;
    let offset = i32::from_le_bytes(*code.get(end - 4..end)?.first_chunk()?);
    let array = function + (end as u64).wrapping_add(offset as i64 as u64);
    match memory.bytes::<1>(array + CUDA).ok()? {
        [0] => Some(false),
        [1] => Some(true),
        _ => None,
    }
}
