//! NVML on a thread of its own: its list of processes takes milliseconds, which sampling must not wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::gpu::GpuReader;
use crate::model::{DeviceUsage, Nanos};

/// Between two looks. NVML holds a lock of the driver while it lists processes: never much faster.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long the thread may take to notice that it is to end.
const SLICE: Duration = Duration::from_millis(50);

/// One look at a device, or why there is none.
pub(super) type DeviceReading = Result<DeviceUsage, String>;

/// The thread that watches the devices.
pub(super) struct GpuWatch {
    looks: Receiver<DeviceReading>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl GpuWatch {
    /// Watches the devices `nvml_indices`.
    pub(super) fn start(gpu: Arc<GpuReader>, nvml_indices: Vec<u32>) -> std::io::Result<Self> {
        // A few looks may wait; a sampler that does not take them needs no more of them.
        let (sender, looks) = sync_channel(4 * nvml_indices.len().max(1));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("memspy-nvml".to_owned())
            .spawn(move || watch(&gpu, &nvml_indices, &sender, &stopped))?;
        Ok(GpuWatch { looks, stop, thread: Some(thread) })
    }

    /// A look that has come in; its time is for the sampler to set.
    pub(super) fn poll(&self) -> Option<DeviceReading> {
        self.looks.try_recv().ok()
    }
}

impl Drop for GpuWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its only failure is a panic, which has been printed by then.
            let _ = thread.join();
        }
    }
}

fn watch(gpu: &GpuReader, indices: &[u32], looks: &SyncSender<DeviceReading>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for &index in indices {
            let look = gpu.usage(index, Nanos(0)).map_err(|e| e.to_string());
            if matches!(looks.try_send(look), Err(std::sync::mpsc::TrySendError::Disconnected(_))) {
                return;
            }
        }
        let mut slept = Duration::ZERO;
        while slept < POLL_INTERVAL && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(SLICE);
            slept += SLICE;
        }
    }
}
