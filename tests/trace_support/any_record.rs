//! Proptest strategies for any sequence of records that keeps the model's invariants.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use memspy::model::{
    AllocatorBackend, AllocatorCounters, AllocatorSnapshot, Block, BlockState, CudaIndex,
    Definition, DeviceUsage, EndReason, Frame, FrameId, Function, FunctionId, GpuDevice, JobCost,
    MeasuredCost, MissReason, MissedObservation, Nanos, NativeFrames, PoolId, ProcessUsage,
    ReaderKind, Record, RecordingEnd, RecordingGap, RecordingStart, RecordingTotals, Segment,
    SiteId, SnapshotConsistency, SourceText, StackId, StackNode, StackSample, Stat, TargetRuntime,
    Thread, ThreadActivity, ThreadId, ThreadSample,
};

use super::any_exact;
use super::any_followed;
use super::any_holders;
use super::any_inherited;
use super::numbers::bring_into_range;

pub fn number() -> impl Strategy<Value = u64> + Clone {
    (any::<u64>(), 0..64u32).prop_map(|(v, shift)| v >> shift)
}

pub fn text() -> impl Strategy<Value = String> + Clone {
    prop_oneof![Just(String::new()), "[a-z./:<>]{1,12}", "\\PC{0,6}"]
}

fn start() -> impl Strategy<Value = Record> {
    (
        text(),
        any::<u32>(),
        text(),
        vec(text(), 0..4),
        option::of(text()),
        (number(), any::<u32>(), option::of(any::<u32>())),
    )
        .prop_map(|(memspy, pid, host, command, directory, (unix_nanos, rate, rank))| {
            Record::Start(RecordingStart {
                memspy,
                pid,
                host,
                command,
                directory,
                unix_nanos,
                rate,
                rank,
            })
        })
}

fn runtime() -> impl Strategy<Value = Record> {
    let allocator = prop_oneof![
        Just(AllocatorBackend::NotLoaded),
        Just(AllocatorBackend::NotInitialized),
        Just(AllocatorBackend::Native),
        Just(AllocatorBackend::CudaMallocAsync),
        text().prop_map(AllocatorBackend::Pluggable),
        text().prop_map(AllocatorBackend::Unknown),
    ];
    (number(), option::of(text()), option::of(text()), allocator).prop_map(
        |(time, python, torch, allocator)| {
            Record::Runtime(TargetRuntime { time: Nanos(time), python, torch, allocator })
        },
    )
}

fn device() -> impl Strategy<Value = Record> {
    (
        option::of(any::<u32>().prop_map(CudaIndex)),
        option::of(any::<u32>()),
        option::of(text()),
        option::of(text()),
        option::of(text()),
        option::of(number()),
    )
        .prop_map(|(cuda_index, nvml_index, uuid, pci_bus_id, name, total)| {
            Record::Device(GpuDevice { cuda_index, nvml_index, uuid, pci_bus_id, name, total })
        })
}

fn usage() -> impl Strategy<Value = Record> {
    let process =
        prop_oneof![number().prop_map(ProcessUsage::Bytes), text().prop_map(ProcessUsage::Unknown)];
    let sizes = (number(), number(), number(), option::of(number()));
    (number(), any::<u32>(), sizes, process).prop_map(
        |(time, nvml_index, (total, used, free, reserved), process)| {
            Record::Usage(DeviceUsage {
                time: Nanos(time),
                nvml_index,
                total,
                used,
                free,
                reserved,
                process,
            })
        },
    )
}

fn missed() -> impl Strategy<Value = Record> {
    use ReaderKind::{Counters, Events, Gpu, Owners, Snapshots, Stacks};
    let why = prop_oneof![
        Just(MissReason::Torn),
        Just(MissReason::Late),
        text().prop_map(MissReason::Failed)
    ];
    (number(), 0..6usize, why, number()).prop_map(|(time, reader, why, count)| {
        Record::Missed(MissedObservation {
            time: Nanos(time),
            reader: [Stacks, Counters, Snapshots, Gpu, Events, Owners][reader],
            why,
            count,
        })
    })
}

fn gap() -> impl Strategy<Value = Record> {
    (number(), number(), text()).prop_map(|(from, to, why)| {
        Record::Gap(RecordingGap { from: Nanos(from), to: Nanos(to), why })
    })
}

fn counters() -> impl Strategy<Value = Record> {
    let signed = number().prop_map(|v| v as i64);
    let stat = vec(signed.clone(), 4).prop_map(|v| Stat {
        current: v[0],
        peak: v[1],
        allocated: v[2],
        freed: v[3],
    });
    let optional = vec(option::of(signed.clone()), 4);
    (number(), 0..3u32, vec(stat, 29), signed.clone(), signed, optional).prop_map(
        |(time, device, stats, retries, ooms, optional)| {
            let mut counters = AllocatorCounters {
                num_alloc_retries: retries,
                num_ooms: ooms,
                oversize_allocations: stats[27],
                oversize_segments: stats[28],
                num_sync_all_streams: optional[0],
                num_device_alloc: optional[1],
                num_device_free: optional[2],
                max_split_size: optional[3],
                ..AllocatorCounters::default()
            };
            for (slot, stat) in counters.stats.iter_mut().flatten().zip(&stats) {
                *slot = *stat;
            }
            Record::Counters {
                time: Nanos(time),
                device: CudaIndex(device),
                counters: Box::new(counters),
            }
        },
    )
}

fn map() -> impl Strategy<Value = Record> {
    use BlockState::{Allocated, Inactive, PendingFree};
    let block =
        (number(), number(), number(), 0..3usize).prop_map(|(address, size, requested, state)| {
            Block { address, size, requested, state: [Allocated, PendingFree, Inactive][state] }
        });
    let segment = (
        (number(), number(), number()),
        any::<(bool, bool, bool)>(),
        (number(), number(), number()),
        vec(block, 0..5),
    )
        .prop_map(
            |((address, size, stream), (small, expandable, retired), (a, b, granule), blocks)| {
                let pool = PoolId(a, b);
                Segment { address, size, stream, small, expandable, granule, retired, pool, blocks }
            },
        );
    let consistency = prop_oneof![
        Just(SnapshotConsistency::Consistent),
        (number(), number()).prop_map(|(allocated_in_blocks, allocated_counter)| {
            SnapshotConsistency::Degraded { allocated_in_blocks, allocated_counter }
        })
    ];
    (number(), 0..2u32, any::<u32>(), consistency, vec(segment, 0..5)).prop_map(
        |(time, device, retries, consistency, segments)| {
            Record::Snapshot(AllocatorSnapshot {
                time: Nanos(time),
                device: CudaIndex(device),
                retries,
                consistency,
                segments,
            })
        },
    )
}

fn end() -> impl Strategy<Value = Record> {
    let reason = prop_oneof![
        Just(EndReason::Duration),
        Just(EndReason::Interrupted),
        Just(EndReason::TargetExited),
        Just(EndReason::TargetExecuted),
        text().prop_map(EndReason::Failed),
        text().prop_map(EndReason::Condition),
        (text(), text())
            .prop_map(|(condition, process)| EndReason::OtherProcess { condition, process })
    ];
    (
        number(),
        reason,
        vec(number(), 6),
        option::of(any_exact::totals()),
        option::of(any_followed::totals()),
        option::of(job_cost()),
    )
        .prop_map(|(time, reason, n, exact, follow, cost)| {
            Record::End(RecordingEnd {
                time: Nanos(time),
                reason,
                totals: RecordingTotals {
                    ticks: n[0],
                    late: n[1],
                    stacks: n[2],
                    torn: n[3],
                    snapshots_consistent: n[4],
                    snapshots_degraded: n[5],
                    exact,
                    follow,
                    cost,
                },
            })
        })
}

fn job_cost() -> impl Strategy<Value = JobCost> {
    let measured = any::<(u32, u32, u32, u32)>()
        .prop_map(|(share, least, most, variation)| MeasuredCost { share, least, most, variation });
    let share = || option::of(any::<u32>());
    (share(), option::of(measured), share(), share()).prop_map(
        |(calculated, measured, budget, followed)| JobCost {
            calculated,
            measured,
            budget,
            followed,
        },
    )
}

/// Records whose numbers must be defined earlier.
fn numbered() -> impl Strategy<Value = Record> {
    let numbers = any::<(u32, u32, bool)>();
    let function = (text(), text(), numbers).prop_map(|(name, file, (a, b, is_native))| {
        let (name, file) = (name.into(), file.into());
        let function = Function { name, file, first_line: a, last_line: b, is_native };
        Record::Definition(Definition::Function(FunctionId(0), function))
    });
    let frame = any::<(u32, u32)>().prop_map(|(function, line)| {
        let function = FunctionId(function);
        Record::Definition(Definition::Frame(FrameId(0), Frame { function, line }))
    });
    let numbers = (option::of(any::<u32>()), any::<u32>(), option::of(any::<u32>()));
    let stack = numbers.prop_map(|(parent, frame, module)| {
        let (parent, module) = (parent.map(StackId), module.map(FunctionId));
        let node = StackNode { parent, frame: FrameId(frame), module };
        Record::Definition(Definition::Stack(StackId(0), node))
    });
    let thread = (any::<u32>(), option::of(number()), number(), option::of(text()), any::<bool>())
        .prop_map(|(id, os_id, python_id, name, main)| {
            let thread = Thread { os_id, python_id, name: name.map(Into::into), main };
            Record::Definition(Definition::Thread(ThreadId(id), thread))
        });
    let source = (any::<u32>(), any::<u32>(), text()).prop_map(|(function, first_line, text)| {
        Record::Source(SourceText { function: FunctionId(function), first_line, text: text.into() })
    });
    prop_oneof![function, frame, stack, thread, source, any_exact::site()]
}

fn sample() -> impl Strategy<Value = Record> {
    use ThreadActivity::{Active, Idle, Unknown};
    let entry =
        (0..3u32, 0..5u32, any::<bool>(), 0..3usize).prop_map(|(thread, stack, gil, activity)| {
            ThreadSample {
                thread: ThreadId(thread),
                stack: StackId(stack),
                gil,
                activity: [Active, Idle, Unknown][activity],
            }
        });
    (number(), vec(entry, 0..4))
        .prop_map(|(time, threads)| Record::Sample(StackSample { time: Nanos(time), threads }))
}

/// Any recording: all kinds of records in any order, using only defined numbers.
pub fn recording() -> impl Strategy<Value = Vec<Record>> {
    let any_record = prop_oneof![
        1 => start(),
        1 => runtime(),
        1 => device(),
        1 => usage(),
        1 => missed(),
        1 => gap(),
        2 => counters(),
        2 => map(),
        8 => numbered(),
        6 => sample(),
        1 => any_exact::exact(),
        1 => any_exact::counter_check(),
        1 => any_holders::owners(),
        1 => any_holders::step(),
        2 => any_inherited::inherited(),
        1 => any_inherited::triggered(),
        1 => any_inherited::oom_exception(),
        6 => any_exact::events(),
        4 => any_followed::followed(),
    ];
    (vec(any_record, 0..60), option::of(end())).prop_map(|(mut records, end)| {
        fit(&mut records);
        records.extend(end);
        records.iter_mut().for_each(bring_into_range);
        records
    })
}

/// Numbers definitions in order and maps every use into the defined range.
fn fit(records: &mut Vec<Record>) {
    let (mut functions, mut frames, mut stacks, mut threads) = (0u32, 0u32, 0u32, 0u32);
    let mut sites = 0u32;
    records.retain_mut(|record| match record {
        Record::Definition(Definition::Function(id, _)) => {
            id.0 = functions;
            functions += 1;
            true
        }
        Record::Definition(Definition::Frame(id, frame)) if functions > 0 => {
            frame.function.0 %= functions;
            id.0 = frames;
            frames += 1;
            true
        }
        Record::Definition(Definition::Stack(id, node)) if frames > 0 => {
            node.frame.0 %= frames;
            node.parent = node.parent.filter(|_| stacks > 0).map(|p| StackId(p.0 % stacks.max(1)));
            node.module = node.module.map(|m| FunctionId(m.0 % functions));
            id.0 = stacks;
            stacks += 1;
            true
        }
        Record::Definition(Definition::Thread(id, _)) => {
            id.0 %= threads + 1;
            threads += u32::from(id.0 == threads);
            true
        }
        Record::Definition(Definition::Site(id, site)) if threads > 0 => {
            site.thread.0 %= threads;
            for stack in [&mut site.stack, &mut site.forward] {
                *stack = stack.filter(|_| stacks > 0).map(|s| StackId(s.0 % stacks.max(1)));
            }
            if let NativeFrames::Stack(stack) = site.native {
                let number = stack.0.checked_rem(stacks).map(StackId);
                site.native = number.map_or(NativeFrames::Lost, NativeFrames::Stack);
            }
            id.0 = sites;
            sites += 1;
            true
        }
        Record::Definition(_) => false,
        Record::Events(batch) => {
            for event in &mut batch.events {
                event.site = event.site.filter(|_| sites > 0).map(|s| SiteId(s.0 % sites.max(1)));
            }
            true
        }
        Record::Followed(batch) => {
            for change in &mut batch.changes {
                any_followed::fit(change, threads, stacks);
            }
            true
        }
        Record::Keyframe(inherited) => {
            for allocation_source in &mut inherited.allocation_sources {
                any_inherited::fit(allocation_source, threads, stacks, sites);
            }
            true
        }
        Record::OomException(oom_exception) => {
            if let Some(error) = &mut oom_exception.error {
                let thread = error.thread.filter(|_| threads > 0);
                error.thread = thread.map(|t| ThreadId(t.0 % threads.max(1)));
                let stack = error.stack.filter(|_| stacks > 0);
                error.stack = stack.map(|s| StackId(s.0 % stacks.max(1)));
            }
            true
        }
        Record::Source(source) => {
            source.function.0 %= functions.max(1);
            functions > 0
        }
        Record::Sample(sample) => {
            for entry in &mut sample.threads {
                entry.thread.0 %= threads.max(1);
                entry.stack.0 %= stacks.max(1);
            }
            sample.threads.is_empty() || threads > 0 && stacks > 0
        }
        _ => true,
    });
}
