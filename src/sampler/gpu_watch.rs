//! Runs NVML on a thread, as it takes milliseconds.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use super::worker::{StopSignal, Worker};
use crate::gpu::NvmlReader;
use crate::model::{DeviceUsage, Nanos};

/// NVML lists processes under a driver lock, so never much faster.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(super) type DeviceReading = Result<DeviceUsage, String>;

pub(super) struct GpuWatch {
    readings: Receiver<DeviceReading>,
    _thread: Worker,
}

impl GpuWatch {
    pub(super) fn start(gpu: Arc<NvmlReader>, nvml_indices: Vec<u32>) -> std::io::Result<Self> {
        let (sender, readings) = sync_channel(4 * nvml_indices.len().max(1));
        let thread = Worker::spawn("nvml", move |stop| watch(&gpu, &nvml_indices, &sender, stop))?;
        Ok(GpuWatch { readings, _thread: thread })
    }

    pub(super) fn poll(&self) -> Option<DeviceReading> {
        self.readings.try_recv().ok()
    }
}

fn watch(
    gpu: &NvmlReader,
    indices: &[u32],
    readings: &SyncSender<DeviceReading>,
    stop: &StopSignal,
) {
    while !stop.is_set() {
        for &index in indices {
            let reading = gpu.usage(index, Nanos(0)).map_err(|e| e.to_string());
            if matches!(
                readings.try_send(reading),
                Err(std::sync::mpsc::TrySendError::Disconnected(_))
            ) {
                return;
            }
        }
        stop.sleep(POLL_INTERVAL);
    }
}
