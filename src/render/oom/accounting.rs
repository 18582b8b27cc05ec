//! All bytes of a device at an out-of-memory error.

use std::io::{self, Write};

use crate::analysis::{OomDevice, OomReport, OwnerGroup, OwnerKind, recorded_owner_groups};
use crate::model::{ProcessUsage, TensorCategory};
use crate::render::owners::group_label;
use crate::render::shared::{bytes, percent};

/// PyTorch's allocated bytes when the allocation sites were known.
pub(super) fn allocated(device: &OomDevice) -> Option<u64> {
    let counted = || Some(device.counters.as_ref()?.allocated().max(0) as u64);
    device.live.as_ref().map(|live| live.total + live.left_out).or_else(counted)
}

/// Add up to the device's memory; `None` if that is unknown.
fn rows(device: &OomDevice) -> Option<Vec<(u64, &'static str)>> {
    let total = device.total?;
    let allocated = allocated(device)?;
    let reserved = device.counters.as_ref().map_or(0, |c| c.reserved().max(0) as u64);
    let mut left = total;
    // Figures of other moments may exceed the total.
    let mut take = |size: u64| {
        let taken = size.min(left);
        left -= taken;
        taken
    };
    let mut rows = vec![(take(allocated), "allocated by PyTorch: by line and by owner below")];
    let cached = reserved.saturating_sub(allocated);
    rows.push((
        take(cached),
        "in PyTorch's cache: free, in pieces between what is in use, or waiting for a stream",
    ));
    let usage = device.usage.as_ref();
    let own = usage.and_then(|usage| match usage.process {
        ProcessUsage::Bytes(own) => Some((own, usage.used)),
        ProcessUsage::Unknown(_) => None,
    });
    let rest = match own {
        Some((own, used)) => {
            let outside = own.saturating_sub(reserved.max(allocated));
            rows.push((take(outside), "this process outside PyTorch: CUDA context, libraries"));
            rows.push((take(used.saturating_sub(own)), "other processes"));
            "free"
        }
        None => {
            "free, of other processes, or of this one outside PyTorch: the driver does not separate these"
        }
    };
    let kept = usage.and_then(|usage| usage.reserved).unwrap_or(0);
    rows.push((take(kept), "kept by driver and firmware"));
    rows.push((left, rest));
    rows.retain(|(size, _)| *size > 0);
    Some(rows)
}

pub(super) fn write_accounting(out: &mut dyn Write, device: &OomDevice) -> io::Result<()> {
    let (Some(total), Some(rows)) = (device.total, rows(device)) else { return Ok(()) };
    writeln!(out, "  all {}:", bytes(total))?;
    for (size, what) in rows {
        writeln!(out, "    {:>12} {:>5.1} %  {what}", bytes(size), percent(size, total))?;
    }
    Ok(())
}

/// No part of a model or its training state.
fn can_be_given_up(group: &OwnerGroup) -> bool {
    match group.kind {
        OwnerKind::Model | OwnerKind::Optimizer | OwnerKind::NoTensor => false,
        OwnerKind::Graph | OwnerKind::UnknownGraph | OwnerKind::Garbage => true,
        OwnerKind::Variable => {
            matches!(group.category, TensorCategory::Other | TensorCategory::Saved)
        }
    }
}

/// The largest owner that can be freed.
pub(super) fn largest_holder(report: &OomReport, device: &OomDevice) -> Option<String> {
    let owners = report.owners.as_ref()?;
    let held = owners.devices.iter().find(|held| held.device == device.device)?;
    let groups = recorded_owner_groups(held);
    let largest =
        groups.iter().filter(|group| can_be_given_up(group)).max_by_key(|it| it.size.bytes)?;
    let since = allocated(device)?.saturating_sub(held.allocated);
    // Later allocations may be larger.
    if since > largest.size.bytes {
        return None;
    }
    let seconds = report.time.0.saturating_sub(owners.time.0) as f64 / 1e9;
    let all = held.allocated;
    let mut text = format!(
        "GPU {}: {} holds {}, {:.0} % of the {} allocated {seconds:.1} s before: the largest part that could be freed.",
        device.device.0,
        group_label(largest),
        bytes(largest.size.bytes),
        percent(largest.size.bytes, all),
        bytes(all)
    );
    if since > all / 10 {
        let since = bytes(since);
        text += &format!(" {since} more was allocated since; its owner is unknown.");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AllocatorCounters, CudaIndex, DeviceUsage, Metric, Nanos, Pool};

    fn device(process: ProcessUsage) -> OomDevice {
        let mut counters = AllocatorCounters::default();
        for (metric, mib) in [(Metric::AllocatedBytes, 1700), (Metric::ReservedBytes, 2000)] {
            counters.stats[metric as usize][Pool::All as usize].current = mib << 20;
        }
        OomDevice {
            device: CudaIndex(0),
            name: None,
            total: Some(3000 << 20),
            counters: Some(Box::new(counters)),
            usage: Some(DeviceUsage {
                time: Nanos(1),
                nvml_index: 0,
                total: 3000 << 20,
                used: 2900 << 20,
                free: 60 << 20,
                reserved: Some(40 << 20),
                process,
            }),
            cache: None,
            snapshot: None,
            counters_time: None,
            live: None,
        }
    }

    fn mib(device: &OomDevice) -> Vec<u64> {
        rows(device).unwrap().iter().map(|(size, _)| size >> 20).collect()
    }

    #[test]
    fn all_bytes_of_the_device_are_accounted_for() {
        let known = device(ProcessUsage::Bytes(2400 << 20));
        assert_eq!(mib(&known), [1700, 300, 400, 500, 40, 60]);
        let unknown = device(ProcessUsage::Unknown("no permission".into()));
        assert_eq!(mib(&unknown), [1700, 300, 40, 960]);
        // The driver's figure is older: the job had less then.
        let older = device(ProcessUsage::Bytes(100 << 20));
        assert_eq!(mib(&older).iter().sum::<u64>(), 3000);
        let none = OomDevice { usage: None, counters: None, ..known };
        assert_eq!(rows(&none), None);
    }
}
