//! The devices of a JAX array, by its sharding.
//!
//! A sharding has its device, or its mesh and which axes of it divide the array. A `Device` of
//! jaxlib points to a C++ device, which has its own name: `CudaDevice(id=0)`.

use std::collections::BTreeSet;

use super::jax_arrays::last;
use crate::model::TensorDevice;
use crate::python::ObjectHeap;
use crate::target::{Addr, Memory};

/// Words of a sharding, and of a C++ device.
const SHARDING_WORDS: usize = 16;
const DEVICE_WORDS: usize = 40;
/// In a `Device`, behind head and client.
const CPP_DEVICE: u64 = 32;
const MAX_NAME: u64 = 64;
/// `TensorDevice` has 8 bits for it.
const MAX_DEVICES: usize = 256;
const CPU: u8 = 0;
const CUDA: u8 = 1;
/// The beginning of a device's name.
const KINDS: [(&str, u8); 4] = [
    ("CpuDevice", CPU),
    ("CudaDevice", CUDA),
    ("StreamExecutorGpuDevice", CUDA),
    ("RocmDevice", CUDA),
];

/// Where an array is.
#[derive(Debug, Default)]
pub(super) struct Spread {
    /// None: not known.
    pub(super) devices: Vec<TensorDevice>,
    /// Into how many parts it is divided; each device has one.
    pub(super) parts: u64,
}

pub(super) fn spread(heap: &ObjectHeap<'_>, memory: &dyn Memory, sharding: Addr) -> Spread {
    let Ok(bytes) = memory.vec(sharding, SHARDING_WORDS * 8) else { return Spread::default() };
    let objects = words(&bytes).into_iter().skip(2).map(Addr).filter(|at| at.is_plausible());
    let (mut mesh, mut spec) = (None, None);
    for object in objects {
        let Some(class) = heap.class_of(object) else { continue };
        match last(&class.name) {
            "Device" => {
                let device = device(memory, object);
                return Spread { devices: device.into_iter().collect(), parts: 1 };
            }
            "Mesh" => mesh = mesh.or(Some(object)),
            "PartitionSpec" | "P" => spec = spec.or(Some(object)),
            _ => {}
        }
    }
    let of_mesh = mesh.and_then(|mesh| of_mesh(heap, memory, mesh, spec?));
    of_mesh.unwrap_or_default()
}

fn of_mesh(heap: &ObjectHeap<'_>, memory: &dyn Memory, mesh: Addr, spec: Addr) -> Option<Spread> {
    let [devices, shape] = heap.attributes_called(mesh, ["_flat_devices_tuple", "shape"]);
    let devices = heap.items(devices?);
    if devices.is_empty() || devices.len() > MAX_DEVICES {
        return None;
    }
    let devices: Option<Vec<TensorDevice>> =
        devices.into_iter().map(|at| device(memory, at)).collect();
    // Since jax 0.9 no tuple itself.
    let axes = heap.attribute(spec, "_partitions").unwrap_or(spec);
    let mut dividing = BTreeSet::new();
    for axis in heap.items(axes) {
        let several = heap.items(axis);
        let all = if several.is_empty() { vec![axis] } else { several };
        dividing.extend(all.into_iter().filter_map(|axis| heap.text(axis)));
    }
    let sizes = heap.named_entries(shape?);
    let mut parts = 1u64;
    for axis in dividing {
        let (_, size) = sizes.iter().find(|(name, _)| *name == axis)?;
        parts = parts.checked_mul(heap.integer(*size)?)?;
    }
    Some(Spread { devices: devices?, parts })
}

/// By the name in its C++ part.
fn device(memory: &dyn Memory, device: Addr) -> Option<TensorDevice> {
    let at = memory.pointer(device + CPP_DEVICE).ok().filter(|at| at.is_plausible())?;
    let words = words(&memory.vec_up_to(at, DEVICE_WORDS * 8));
    words.windows(2).find_map(|pair| {
        let &[text, length] = pair else { return None };
        if !Addr(text).is_plausible() || length == 0 || length > MAX_NAME {
            return None;
        }
        let name = String::from_utf8(memory.vec(Addr(text), length as usize).ok()?).ok()?;
        named(&name)
    })
}

/// `CudaDevice(id=0)`.
fn named(name: &str) -> Option<TensorDevice> {
    let (kind, rest) = name.split_once('(')?;
    let number: u8 = rest.strip_suffix(')')?.strip_prefix("id=")?.parse().ok()?;
    let kind = KINDS.iter().find(|(known, _)| *known == kind)?.1;
    // The host's devices share its memory.
    Some(TensorDevice { kind, index: (kind != CPU).then_some(number) })
}

pub(super) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(u64::from_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_known_by_their_names() {
        assert_eq!(named("CudaDevice(id=3)"), Some(TensorDevice { kind: CUDA, index: Some(3) }));
        assert_eq!(named("CpuDevice(id=0)"), Some(TensorDevice { kind: CPU, index: None }));
        assert_eq!(named("cuda:0"), None);
        assert_eq!(named("SomeDevice(id=0)"), None);
    }
}
