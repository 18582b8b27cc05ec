//! Runs NVML on a thread of its own: listing processes takes milliseconds, for which sampling must
//! not wait.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use super::worker::{StopSignal, Worker};
use crate::gpu::GpuReader;
use crate::model::{DeviceUsage, Nanos};

/// Interval between readings. NVML holds a driver lock while it lists processes, so never much
/// faster.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// One reading of a device, or why there is none.
pub(super) type DeviceReading = Result<DeviceUsage, String>;

pub(super) struct GpuWatch {
    looks: Receiver<DeviceReading>,
    _thread: Worker,
}

impl GpuWatch {
    /// Watches the devices `nvml_indices`.
    pub(super) fn start(gpu: Arc<GpuReader>, nvml_indices: Vec<u32>) -> std::io::Result<Self> {
        // A few readings may wait; a sampler that does not take them needs no more.
        let (sender, looks) = sync_channel(4 * nvml_indices.len().max(1));
        let thread = Worker::spawn("nvml", move |stop| watch(&gpu, &nvml_indices, &sender, stop))?;
        Ok(GpuWatch { looks, _thread: thread })
    }

    /// A new reading; the sampler sets its time.
    pub(super) fn poll(&self) -> Option<DeviceReading> {
        self.looks.try_recv().ok()
    }
}

fn watch(gpu: &GpuReader, indices: &[u32], looks: &SyncSender<DeviceReading>, stop: &StopSignal) {
    while !stop.is_set() {
        for &index in indices {
            let look = gpu.usage(index, Nanos(0)).map_err(|e| e.to_string());
            if matches!(looks.try_send(look), Err(std::sync::mpsc::TrySendError::Disconnected(_))) {
                return;
            }
        }
        stop.sleep(POLL_INTERVAL);
    }
}
