//! CUDA's device numbers (CUDA C++ Programming Guide, "CUDA Environment Variables"):
//! `CUDA_DEVICE_ORDER` sorts; `CUDA_VISIBLE_DEVICES` picks, up to the first entry that names no
//! device.

use crate::model::{CudaIndex, GpuDevice};
use crate::target::{Process, environment};

/// CUDA's order of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceOrder {
    /// The default. From outside known only for devices of one kind: by PCI bus id.
    FastestFirst,
    /// The order of NVML and nvidia-smi.
    PciBusId,
}

/// The target's two variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaVisibility {
    /// `CUDA_DEVICE_ORDER`.
    pub order: DeviceOrder,
    /// `CUDA_VISIBLE_DEVICES`.
    pub visible: Option<String>,
}

impl CudaVisibility {
    /// From the current environment, else the initial one.
    pub fn of_process(process: &Process) -> Self {
        let memory = process.memory();
        let live = process.mappings().ok().and_then(|maps| environment::read(&memory, &maps));
        let variable = |name: &str| match &live {
            Some(variables) => environment::variable(variables, name),
            None => process.environment(name).ok().flatten(),
        };
        CudaVisibility::new(
            variable("CUDA_DEVICE_ORDER").as_deref(),
            variable("CUDA_VISIBLE_DEVICES"),
        )
    }

    /// From the two variables.
    pub fn new(device_order: Option<&str>, visible_devices: Option<String>) -> Self {
        let order = match device_order {
            Some("PCI_BUS_ID") => DeviceOrder::PciBusId,
            _ => DeviceOrder::FastestFirst,
        };
        CudaVisibility { order, visible: visible_devices }
    }

    /// Numbers `devices`, all of the machine in NVML's order. Invisible or unknown ones get `None`.
    pub fn number(&self, devices: &mut [GpuDevice]) {
        for device in devices.iter_mut() {
            device.cuda_index = None;
        }
        let one_kind = devices.windows(2).all(|pair| pair[0].name == pair[1].name);
        let order_known = one_kind || self.order == DeviceOrder::PciBusId;
        let Some(visible) = &self.visible else {
            if order_known {
                for (i, device) in devices.iter_mut().enumerate() {
                    device.cuda_index = Some(CudaIndex(i as u32));
                }
            }
            return;
        };
        for (cuda, entry) in visible.split(',').map(str::trim).enumerate() {
            let found = if let Ok(number) = entry.parse::<usize>() {
                // In an unknown order, all further entries are unknown.
                if !order_known {
                    return;
                }
                devices.get_mut(number)
            } else if entry.starts_with("GPU-") || entry.starts_with("MIG-") {
                // CUDA accepts any unambiguous beginning of a UUID.
                let mut matching = devices
                    .iter_mut()
                    .filter(|d| d.uuid.as_deref().is_some_and(|u| u.starts_with(entry)));
                matching.next().filter(|_| matching.next().is_none())
            } else {
                None
            };
            match found {
                // A repeated device invalidates the whole list.
                Some(device) if device.cuda_index.is_none() => {
                    device.cuda_index = Some(CudaIndex(cuda as u32));
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(names: &[&str]) -> Vec<GpuDevice> {
        let device = |(i, name): (usize, &&str)| GpuDevice {
            cuda_index: None,
            nvml_index: Some(i as u32),
            uuid: Some(format!("GPU-{i}{i}{i}")),
            pci_bus_id: None,
            name: Some((*name).to_owned()),
            total: None,
        };
        names.iter().enumerate().map(device).collect()
    }

    fn numbers(order: Option<&str>, visible: Option<&str>, names: &[&str]) -> Vec<Option<u32>> {
        let mut devices = devices(names);
        CudaVisibility::new(order, visible.map(str::to_owned)).number(&mut devices);
        devices.iter().map(|d| d.cuda_index.map(|c| c.0)).collect()
    }

    #[test]
    fn without_variables_devices_of_one_kind_keep_their_order() {
        assert_eq!(numbers(None, None, &["H200", "H200"]), [Some(0), Some(1)]);
    }

    #[test]
    fn devices_of_several_kinds_are_unknown_unless_ordered_by_bus() {
        assert_eq!(numbers(None, None, &["T4", "H200"]), [None, None]);
        assert_eq!(numbers(None, Some("1"), &["T4", "H200"]), [None, None]);
        assert_eq!(numbers(Some("PCI_BUS_ID"), Some("1"), &["T4", "H200"]), [None, Some(0)]);
        assert_eq!(numbers(None, Some("GPU-111"), &["T4", "H200"]), [None, Some(0)]);
    }

    #[test]
    fn visible_devices_reorder_and_end_at_the_first_wrong_entry() {
        let four = ["H200"; 4];
        assert_eq!(numbers(None, Some("2, 0"), &four), [Some(1), None, Some(0), None]);
        assert_eq!(numbers(None, Some("3,-1,0"), &four), [None, None, None, Some(0)]);
        assert_eq!(numbers(None, Some("1,GPU-33"), &four), [None, Some(0), None, Some(1)]);
        assert_eq!(numbers(None, Some(""), &four), [None; 4]);
    }
}
