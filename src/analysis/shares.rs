//! Who has the memory that is in use on a device, from the side of one process.

use crate::model::DeviceProcesses;

use super::look::{LookDevice, OutsideTorch};

/// The parts of a device's memory in use. Bytes; `None` is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Reserved by the process's PyTorch.
    pub torch: Option<u64>,
    /// Of the process beside PyTorch: context, kernels, NCCL; without PyTorch all of it.
    pub outside: Option<u64>,
    /// Of the other processes that the driver lists.
    pub others: Option<u64>,
    /// How many these are.
    pub other_processes: Option<usize>,
    /// In use, and of no process that the driver lists: its own, or of processes it does not show.
    pub unlisted: Option<u64>,
}

impl Shares {
    /// Those of process `pid`, which `device` was looked at for; `listed` are the processes on it. `paused`:
    /// memspy has moved its memory to the host.
    pub fn of(device: &LookDevice, listed: &DeviceProcesses, pid: u32, paused: bool) -> Shares {
        let (torch, outside) = match device.outside {
            OutsideTorch::Bytes(bytes) => (device.reserved, Some(bytes)),
            // What the driver does not list any more is on the host.
            OutsideTorch::Unknown(_) if paused => (Some(0), Some(0)),
            OutsideTorch::Unknown(_) => (device.reserved, None),
        };
        let others = listed.as_ref().ok().map(|listed| {
            let others: Vec<_> = listed.iter().filter(|p| p.pid != Some(pid)).collect();
            (others.len(), others.iter().map(|p| p.bytes).sum::<Option<u64>>())
        });
        // A process that is not among those listed may be any of the others.
        let others = others.filter(|_| outside.is_some());
        let (other_processes, others) = (others.map(|o| o.0), others.and_then(|o| o.1));
        let own = outside.map(|outside| outside + torch.unwrap_or(0));
        let known = own.zip(others).map(|(own, others)| own + others);
        Shares {
            torch,
            outside,
            others,
            other_processes,
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

    fn device(outside: OutsideTorch) -> LookDevice {
        LookDevice {
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
            others: None,
            map: None,
            counters: None,
        }
    }

    #[test]
    fn the_parts_are_together_what_is_in_use() {
        let listed = Ok(vec![
            process(Some(7), Some(500)),
            process(Some(8), Some(100)),
            process(None, Some(250)),
        ]);
        let shares = Shares::of(&device(OutsideTorch::Bytes(200)), &listed, 7, false);
        assert_eq!((shares.torch, shares.outside), (Some(300), Some(200)));
        assert_eq!((shares.others, shares.other_processes), (Some(350), Some(2)));
        assert_eq!(shares.unlisted, Some(50));
    }

    #[test]
    fn a_paused_process_has_nothing_on_the_device() {
        let listed = Ok(vec![process(Some(8), Some(850))]);
        let unknown = device(OutsideTorch::Unknown("not listed".into()));
        let shares = Shares::of(&unknown, &listed, 7, true);
        assert_eq!((shares.torch, shares.outside), (Some(0), Some(0)));
        assert_eq!((shares.others, shares.unlisted), (Some(850), Some(50)));
    }

    #[test]
    fn what_is_not_told_stays_unknown() {
        let listed = Ok(vec![process(Some(7), Some(500)), process(Some(8), None)]);
        let shares = Shares::of(&device(OutsideTorch::Bytes(200)), &listed, 7, false);
        assert_eq!((shares.others, shares.unlisted, shares.other_processes), (None, None, Some(1)));

        let hidden = Ok(vec![process(None, Some(500))]);
        let unknown = device(OutsideTorch::Unknown("hidden".into()));
        let shares = Shares::of(&unknown, &hidden, 7, false);
        let nothing = (shares.outside, shares.others, shares.other_processes, shares.unlisted);
        assert_eq!(nothing, (None, None, None, None));
        assert_eq!(shares.torch, Some(300));
        let shares = Shares::of(&device(OutsideTorch::Bytes(1)), &Err("no".into()), 7, false);
        assert_eq!((shares.others, shares.unlisted), (None, None));
    }
}
