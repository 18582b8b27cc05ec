//! A weight, an activation and a gradient: the peak and a refusal.

use std::collections::BTreeMap;

use super::*;
use crate::model::{
    DType, HistoryAction, HistoryEvent, HistoryStack, RunMarkKind, Storage, TensorCategory,
};
use crate::ownership::fixture;

const MIB: u64 = 1 << 20;

fn event(action: HistoryAction, address: u64, size: u64, stack: Option<u32>) -> HistoryEvent {
    HistoryEvent {
        action,
        address,
        size,
        stream: 0,
        time_us: 0,
        stack,
        pool: None,
        compile_context: None,
        user_metadata: None,
    }
}

fn frame(file: &str, name: &str, line: u32) -> HistoryFrame {
    HistoryFrame { name: name.into(), file: file.into(), line }
}

/// A weight of 4 MiB, an activation of 2 MiB made by a module, a gradient of 4 MiB.
fn history() -> AllocationHistory {
    use HistoryAction::{Alloc, FreeRequested, Oom};
    let events = vec![
        event(Alloc, 0x1000, 4 * MIB, Some(0)),
        event(Alloc, 0x2000, 2 * MIB - 5, Some(1)),
        event(Alloc, 0x3000, 4 * MIB, None),
        event(FreeRequested, 0x2000, 2 * MIB - 5, None),
        event(Oom, 0, 7 * MIB, None),
    ];
    let device = DeviceHistory {
        device: CudaIndex(0),
        max_entries: 100,
        events,
        overwritten: 0,
        beyond_limit: 0,
        snapshot: None,
        block_stacks: BTreeMap::new(),
        segment_stacks: BTreeMap::new(),
    };
    AllocationHistory {
        devices: vec![device],
        stacks: vec![
            HistoryStack { frames: vec![0], ..HistoryStack::default() },
            HistoryStack { frames: vec![1, 2, 3], ..HistoryStack::default() },
        ],
        frames: vec![
            frame("/job/train.py", "main", 3),
            frame("/v/site-packages/torch/nn/functional.py", "relu", 99),
            frame("/job/model.py", "forward", 20),
            frame("/v/site-packages/torch/nn/modules/module.py", "Module._call_impl", 5),
        ],
        ..AllocationHistory::default()
    }
}

fn mark(kind: RunMarkKind, before: u64, stack: Vec<HistoryFrame>) -> RunMark {
    RunMark { kind, allocations: BTreeMap::from([(CudaIndex(0), before)]), stack }
}

fn marks() -> Vec<RunMark> {
    let caller = vec![
        frame("/v/site-packages/torch/_tensor.py", "backward", 1),
        frame("/job/train.py", "main", 9),
    ];
    vec![mark(RunMarkKind::Backward, 2, caller)]
}

fn owners() -> OwnershipSnapshot {
    let row = |data, category| {
        let mut row = fixture::row(data + 1);
        row.tensor.storage = Some(Storage { at: data + 2, data, bytes: Some(4 * MIB) });
        row.tensor.dtype = DType(6);
        row.category = category;
        row
    };
    OwnershipSnapshot {
        tensors: vec![
            row(0x1000, TensorCategory::Parameter),
            row(0x3000, TensorCategory::Gradient),
        ],
        ..OwnershipSnapshot::default()
    }
}

#[test]
fn the_peak_is_named_and_shared_out() {
    let (history, marks, owners) = (history(), marks(), owners());
    let facts =
        RunFacts { history: &history, marks: &marks, owners: Some(&owners), allocations: 3 };
    let peak = run_moment(facts, CudaIndex(0), RunInstant::Peak).unwrap();
    assert_eq!((peak.phase, peak.step, peak.allocated), (RunPhase::Backward, 1, 10 * MIB));
    assert_eq!(peak.place, Some(frame("/job/train.py", "main", 9)), "the call of backward()");
    let holders: Vec<(RunOwner, u64)> =
        peak.holders.into_iter().map(|holder| (holder.owner, holder.bytes)).collect();
    assert_eq!(
        holders,
        [
            (RunOwner::Category(TensorCategory::Parameter), 4 * MIB),
            (RunOwner::Category(TensorCategory::Gradient), 4 * MIB),
            (RunOwner::Line(frame("/job/model.py", "forward", 20), RunPhase::Forward), 2 * MIB),
        ]
    );
}

#[test]
fn an_out_of_memory_error_names_what_was_asked_and_what_was_live() {
    let (history, marks) = (history(), marks());
    let facts = RunFacts { history: &history, marks: &marks, owners: None, allocations: 3 };
    let oom = run_moment(facts, CudaIndex(0), RunInstant::OutOfMemory).unwrap();
    assert_eq!((oom.asked, oom.allocated), (Some(7 * MIB), 8 * MIB));
    assert_eq!(oom.place, Some(frame("/job/train.py", "main", 9)));
    let lines: Vec<&RunOwner> = oom.holders.iter().map(|holder| &holder.owner).collect();
    assert_eq!(lines.len(), 2, "without owners all is told by line: {lines:?}");
}

#[test]
fn allocations_before_the_history_move_the_marks() {
    let (history, marks) = (history(), vec![mark(RunMarkKind::Backward, 12, Vec::new())]);
    let facts = RunFacts { history: &history, marks: &marks, owners: None, allocations: 13 };
    let peak = run_moment(facts, CudaIndex(0), RunInstant::Peak).unwrap();
    assert_eq!(peak.phase, RunPhase::Backward);
    let unmoved = RunFacts { allocations: 3, ..facts };
    let peak = run_moment(unmoved, CudaIndex(0), RunInstant::Peak).unwrap();
    assert_eq!(peak.phase, RunPhase::Forward);
}
