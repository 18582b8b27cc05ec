//! Divides a device's memory among its users.

use crate::model::DeviceProcesses;

use crate::analysis::live::process_snapshot::{DeviceSnapshot, OutsideTorch};

/// Used bytes; `None` is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceBreakdown {
    /// Of the process, by the driver.
    pub process: Option<u64>,
    /// The part reserved by PyTorch.
    pub torch: Option<u64>,
    /// The part outside PyTorch: context, kernels, NCCL.
    pub outside: Option<u64>,
    /// Of other processes that the driver lists.
    pub others: Option<u64>,
    /// Number of other processes.
    pub other_processes: Option<usize>,
    /// In no listed process: the driver, or hidden processes.
    pub unlisted: Option<u64>,
}

impl DeviceBreakdown {
    /// For process `pid` among those `listed`; if `paused`, its memory is on the host.
    pub fn new(
        device: &DeviceSnapshot,
        listed: &DeviceProcesses,
        pid: u32,
        paused: bool,
    ) -> DeviceBreakdown {
        let outside = match device.outside {
            OutsideTorch::Bytes(bytes) => Some(bytes),
            OutsideTorch::Unknown(_) => None,
        };
        // Without counters, `outside` is known only without PyTorch.
        let is_mapped = device.unmapped.is_none_or(|unmapped| unmapped == 0);
        let torch = device.reserved.or(outside.map(|_| 0)).filter(|_| is_mapped);
        let unknown = DeviceBreakdown {
            process: None,
            torch,
            outside,
            others: None,
            other_processes: None,
            unlisted: None,
        };
        let Ok(listed) = listed else { return unknown };
        let own = listed.iter().find(|p| p.pid == Some(pid));
        let (process, torch, outside) = match own {
            Some(own) => (own.bytes, torch, outside),
            // Paused and not listed: all on the host.
            None if paused => (Some(0), Some(0), Some(0)),
            // It may be any of the others.
            None => return unknown,
        };
        let others: Vec<_> = listed.iter().filter(|p| p.pid != Some(pid)).collect();
        let bytes = others.iter().map(|p| p.bytes).sum::<Option<u64>>();
        let known = process.zip(bytes).map(|(process, others)| process + others);
        DeviceBreakdown {
            process,
            torch,
            outside,
            others: bytes,
            other_processes: Some(others.len()),
            unlisted: device.used.zip(known).map(|(used, known)| used.saturating_sub(known)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DeviceProcess;

    fn process(pid: Option<u32>, bytes: Option<u64>) -> DeviceProcess {
        DeviceProcess {
            listed: 1,
            pid,
            pid_inside: None,
            command: None,
            compute: true,
            graphics: false,
            bytes,
        }
    }

    fn device(outside: OutsideTorch) -> DeviceSnapshot {
        DeviceSnapshot {
            cuda_index: None,
            nvml_index: Some(0),
            name: None,
            total: Some(1000),
            used: Some(900),
            free: Some(90),
            driver_reserved: Some(10),
            allocated: Some(200),
            reserved: Some(300),
            cached: Some(100),
            fragmentation: None,
            outside,
            unmapped: Some(0),
            tags: Ok(Vec::new()),
            others: None,
            snapshot: None,
            counters: None,
        }
    }

    #[test]
    fn parts_sum_to_the_used_memory() {
        let listed = Ok(vec![
            process(Some(7), Some(500)),
            process(Some(8), Some(100)),
            process(None, Some(250)),
        ]);
        let shares = DeviceBreakdown::new(&device(OutsideTorch::Bytes(200)), &listed, 7, false);
        assert_eq!((shares.torch, shares.outside), (Some(300), Some(200)));
        assert_eq!(shares.process, Some(500));
        assert_eq!((shares.others, shares.other_processes), (Some(350), Some(2)));
        assert_eq!(shares.unlisted, Some(50));
    }

    #[test]
    fn a_paused_process_has_nothing_on_the_device() {
        let listed = Ok(vec![process(Some(8), Some(850))]);
        let unknown = device(OutsideTorch::Unknown("not listed".into()));
        let shares = DeviceBreakdown::new(&unknown, &listed, 7, true);
        assert_eq!((shares.torch, shares.outside), (Some(0), Some(0)));
        assert_eq!((shares.others, shares.unlisted), (Some(850), Some(50)));
    }

    #[test]
    fn missing_figures_stay_unknown() {
        let listed = Ok(vec![process(Some(7), Some(500)), process(Some(8), None)]);
        let shares = DeviceBreakdown::new(&device(OutsideTorch::Bytes(200)), &listed, 7, false);
        assert_eq!((shares.others, shares.unlisted, shares.other_processes), (None, None, Some(1)));

        let unreadable =
            DeviceSnapshot { reserved: None, ..device(OutsideTorch::Unknown("rights".into())) };
        let listed = Ok(vec![process(Some(7), Some(500)), process(Some(8), Some(100))]);
        let shares = DeviceBreakdown::new(&unreadable, &listed, 7, false);
        assert_eq!((shares.process, shares.torch, shares.outside), (Some(500), None, None));
        assert_eq!((shares.others, shares.unlisted), (Some(100), Some(300)));

        let hidden = Ok(vec![process(None, Some(500))]);
        let unknown = device(OutsideTorch::Unknown("hidden".into()));
        let shares = DeviceBreakdown::new(&unknown, &hidden, 7, false);
        let nothing = (shares.outside, shares.others, shares.other_processes, shares.unlisted);
        assert_eq!(nothing, (None, None, None, None));
        assert_eq!(shares.torch, Some(300));
        let shares =
            DeviceBreakdown::new(&device(OutsideTorch::Bytes(1)), &Err("no".into()), 7, false);
        assert_eq!((shares.others, shares.unlisted), (None, None));
    }
}
