//! A small job for the live view: what it holds, and since when.

use memspy::analysis::{LiveProfile, ThreadChoice};
use memspy::model::*;

use super::{MIB, Script};

/// A file of a library.
pub const LINEAR: &str = "/v/lib/python3.12/site-packages/torch/nn/modules/linear.py";
/// The job's device.
pub const GPU: CudaIndex = CudaIndex(0);

/// A device of 2 GiB.
pub fn device(index: u32) -> Record {
    Record::Device(GpuDevice {
        cuda_index: Some(CudaIndex(index)),
        nvml_index: Some(index),
        uuid: None,
        pci_bus_id: None,
        name: Some("NVIDIA H200".into()),
        total: Some(2048 * MIB),
    })
}

/// What the driver tells of it.
pub fn usage(script: &Script, index: u32, process: ProcessUsage) -> Record {
    Record::Usage(DeviceUsage {
        time: Nanos(script.now),
        nvml_index: index,
        total: 2048 * MIB,
        used: 1200 * MIB,
        free: 848 * MIB,
        reserved: None,
        process,
    })
}

/// 300 MiB from before, 100 MiB by `load`, and 20 MiB by a line of the library that `forward`
/// called and that has gone again when the job is looked at last.
pub fn job() -> Script {
    let mut s = Script::new(200);
    s.records.push(device(0));
    s.records.push(Record::Runtime(TargetRuntime {
        time: Nanos(0),
        python: Some("3.12.1".into()),
        torch: Some("2.11.0+cu130".into()),
        allocator: AllocatorBackend::Native,
    }));
    s.thread("MainThread", true);
    s.enter(0, "<module>", 40);
    s.enter(0, "main", 10);
    s.alloc(0, 0, 300 * MIB);
    s.tick();
    s.map(0);
    s.enter(0, "load", 20);
    s.tick();
    s.alloc(0, 0, 100 * MIB);
    s.tick();
    s.map(0);
    s.leave(0);
    s.line(0, 11);
    s.enter(0, "Net.forward", 30);
    s.enter_in(0, "Linear.forward", LINEAR, 125);
    s.tick();
    let scratch = s.alloc(0, 0, 20 * MIB);
    s.alloc(0, 0, 7 * MIB);
    s.tick();
    s.map(0);
    let process = ProcessUsage::Bytes(1000 * MIB);
    let record = usage(&s, 0, process);
    s.records.push(record);
    s.free(0, scratch);
    s.leave(0);
    s.leave(0);
    s.line(0, 12);
    s.tick();
    s.map(0);
    s.tick();
    s.define();
    s
}

/// The live profile of these records.
pub fn live(script: &Script) -> LiveProfile {
    let mut live = LiveProfile::with_filter(ThreadChoice::default());
    for record in &script.records {
        live.record(record).unwrap();
    }
    live
}
