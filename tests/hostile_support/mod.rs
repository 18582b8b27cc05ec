//! Recordings in which every string that a target can choose is chosen by somebody who means harm.

#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

pub mod strange;

use std::path::Path;
use std::sync::Arc;

use memspy::model::*;
use memspy::trace::TraceWriter;

use crate::analysis_script::{MIB, Script};
use crate::exact_script::Probed;

fn owners(time: u64) -> Record {
    let held = |category, owner: &str, bytes| OwnedStorages {
        category,
        owner: owner.into(),
        bytes,
        count: 1,
    };
    Record::Ownership(OwnershipBreakdown {
        time: Nanos(time),
        pause: Some(Nanos(1_000_000)),
        age: Nanos(0),
        devices: vec![DeviceOwners {
            device: CudaIndex(0),
            allocated: 900 * MIB,
            rounding: 0,
            without_tensor: MIB,
            results: Some(0),
            held: vec![
                held(TensorCategory::Parameter, "model.weight", 300 * MIB),
                held(TensorCategory::Gradient, "model.weight.grad", 300 * MIB),
                held(TensorCategory::Other, "batch", 299 * MIB),
            ],
        }],
        unnamed_blocks: Vec::new(),
        blocks: Vec::new(),
        retained: Vec::new(),
    })
}

fn opening(s: &mut Script, rank: Option<u32>) {
    for record in &mut s.records {
        if let Record::Start(start) = record {
            start.rank = rank;
        }
    }
    s.records.push(Record::Device(GpuDevice {
        cuda_index: Some(CudaIndex(0)),
        nvml_index: Some(2),
        uuid: Some("GPU-1".into()),
        pci_bus_id: Some("00000000:17:00.0".into()),
        name: Some("NVIDIA H200".into()),
        total: Some(150_000 * MIB),
    }));
    s.records.push(Record::Runtime(TargetRuntime {
        time: Nanos(1),
        python: Some("3.12.1".into()),
        torch: Some("2.9.0".into()),
        allocator: AllocatorBackend::Native,
    }));
}

fn further(time: u64) -> Vec<Record> {
    let time = Nanos(time);
    vec![
        Record::Usage(DeviceUsage {
            time,
            nvml_index: 2,
            total: 150_000 * MIB,
            used: 2000 * MIB,
            free: 148_000 * MIB,
            reserved: None,
            process: ProcessUsage::Unknown("another pid namespace".into()),
        }),
        Record::Missed(MissedObservation {
            time,
            reader: ReaderKind::Gpu,
            why: MissReason::Failed("the driver said no".into()),
            count: 1,
        }),
        Record::TriggerFired(TriggerFired {
            time,
            condition: "retry".into(),
            seen: "PyTorch's allocator had to free its cache".into(),
        }),
        Record::OomException(OomException {
            time,
            error: Some(RaisedError {
                thread: Some(ThreadId(0)),
                stack: Some(StackId(1)),
                text: "CUDA out of memory. Tried to allocate 2.00 GiB.".into(),
            }),
        }),
    ]
}

/// Steps of training, sampled.
pub fn sampled(rank: Option<u32>) -> Vec<Record> {
    let mut s = Script::new(200);
    opening(&mut s, rank);
    s.thread("MainThread", true);
    s.thread("pt_autograd_0", false);
    s.enter(1, "Thread.run", 4);
    s.enter(0, "<module>", 40);
    s.enter(0, "train", 10);
    s.alloc(0, 0, 300 * MIB);
    s.tick();
    s.map(0);
    for step in 0..4 {
        let time = Nanos(s.now);
        s.records.push(Record::Step(TrainingStep { time, step, ..TrainingStep::default() }));
        let mut freed = Vec::new();
        for layer in 0..3 {
            s.line(0, 11);
            s.enter(0, "Net.forward", 20 + layer);
            s.tick();
            freed.push(s.alloc(0, 0, (64 + 16 * u64::from(layer)) * MIB));
            s.tick();
            s.leave(0);
        }
        s.map(0);
        let time = s.now;
        s.records.push(owners(time));
        for block in freed {
            s.free(0, block);
        }
        s.line(0, 13);
        s.tick();
    }
    let train = s.function("train", "/home/me/job/train.py");
    s.define();
    s.records.push(Record::Source(SourceText {
        function: train,
        first_line: 8,
        text: Arc::from("def train(model):\n    # one epoch\n    for batch in data:\n        step()\n\n    end()"),
    }));
    s.map(0);
    let time = s.now;
    s.records.extend(further(time));
    s.end();
    for record in &mut s.records {
        if let Record::End(end) = record {
            end.reason = EndReason::Failed("it could not go on".into());
        }
    }
    s.records
}

/// Every event seen, by sites of all kinds.
pub fn exact() -> Vec<Record> {
    let mut s = Probed::new();
    s.exact.uncovered = vec!["nothing is told of cuMemAllocAsync".into()];
    opening(&mut s, Some(3));
    s.enter(0, "main", 1);
    s.malloc(0, 0, 7 * MIB);
    s.begin();
    for line in 11..15 {
        s.enter(0, "work", line);
        s.malloc(0, 0, 2 * MIB);
        let site = s.site(0);
        for source in [StackSource::Backward, StackSource::NoPython, StackSource::Own] {
            let node = Some("AddmmBackward0".into());
            s.malloc_at(0, 0, MIB, AllocationSite { source, node, ..site.clone() });
        }
        s.leave(0);
    }
    s.poll();
    let time = s.now;
    s.records.extend(further(time));
    s.finish();
    std::mem::take(&mut s.records)
}

/// The same recording with every string changed by `change`; source text line by line.
pub fn with_strings(records: Vec<Record>, change: &dyn Fn(&str) -> String) -> Vec<Record> {
    let arc = |text: &mut Arc<str>| *text = change(text).into();
    let option = |text: &mut Option<String>| {
        if let Some(text) = text {
            *text = change(text);
        }
    };
    let mut records = records;
    for record in &mut records {
        match record {
            Record::Start(start) => {
                start.memspy = change(&start.memspy);
                start.host = change(&start.host);
                start.command.iter_mut().for_each(|word| *word = change(word));
                option(&mut start.directory);
            }
            Record::Runtime(runtime) => {
                option(&mut runtime.python);
                option(&mut runtime.torch);
                match &mut runtime.allocator {
                    AllocatorBackend::Pluggable(name) | AllocatorBackend::Unknown(name) => {
                        *name = change(name);
                    }
                    _ => {}
                }
            }
            Record::Definition(Definition::Function(_, function)) => {
                arc(&mut function.name);
                arc(&mut function.file);
            }
            Record::Definition(Definition::Thread(_, thread)) => {
                thread.name.iter_mut().for_each(arc);
            }
            Record::Definition(Definition::Site(_, site)) => site.node.iter_mut().for_each(arc),
            Record::Source(source) => {
                let lines = source.text.lines().map(|line| change(line).replace(['\n', '\r'], " "));
                source.text = lines.collect::<Vec<_>>().join("\n").into();
            }
            Record::Device(device) => {
                option(&mut device.uuid);
                option(&mut device.pci_bus_id);
                option(&mut device.name);
            }
            Record::Usage(usage) => {
                if let ProcessUsage::Unknown(why) = &mut usage.process {
                    *why = change(why);
                }
            }
            Record::Missed(missed) => {
                if let MissReason::Failed(why) = &mut missed.why {
                    *why = change(why);
                }
            }
            Record::ExactSettings(exact) => {
                exact.probes.iter_mut().chain(&mut exact.uncovered).for_each(arc);
            }
            Record::Ownership(snapshot) => {
                let held = snapshot.devices.iter_mut().flat_map(|device| &mut device.held);
                // Gradients are known by the end of their name.
                held.for_each(|held| {
                    let (name, end) = match held.owner.strip_suffix(".grad") {
                        Some(name) => (name.to_owned(), ".grad"),
                        None => (held.owner.to_string(), ""),
                    };
                    held.owner = format!("{}{end}", change(&name)).into();
                });
            }
            Record::TriggerFired(triggered) => {
                triggered.condition = change(&triggered.condition);
                triggered.seen = change(&triggered.seen);
            }
            Record::OomException(oom_exception) => {
                if let Some(error) = &mut oom_exception.error {
                    error.text = change(&error.text);
                }
            }
            Record::End(end) => match &mut end.reason {
                EndReason::Failed(why) | EndReason::Condition(why) => *why = change(why),
                _ => {}
            },
            _ => {}
        }
    }
    records
}

/// Writes a trace.
pub fn save(path: &Path, records: &[Record]) {
    let mut writer = TraceWriter::create(path, true).unwrap();
    for record in records {
        writer.record(record).unwrap();
    }
    writer.finish().unwrap();
}
