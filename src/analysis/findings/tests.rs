//! The rules, with and without evidence.

use super::*;
use crate::analysis::blocks::FreeBlocks;
use crate::analysis::live::ObservedDevice;
use crate::analysis::owners::{GrowthWatch, groups, owner_groups};
use crate::analysis::{FailureCount, ReservedGrowth};
use crate::model::{
    AllocatorSnapshot, Block, BlockState, CudaIndex, GarbageCycle, GraphNode, NamedModule, Nanos,
    Optimizer, OwnershipSnapshot, PoolId, RootModule, SavedBy, SavedIn, Segment,
    SnapshotConsistency, Storage, TensorCategory, TensorDevice, TensorInfo, TensorRow,
};
use crate::ownership::fixture;

const MIB: u64 = 1 << 20;
const CUDA: TensorDevice = TensorDevice { kind: 1, index: Some(0) };

/// A tensor of `mib` MiB in a storage of `of` MiB.
fn tensor(at: u64, mib: u64, of: u64, category: TensorCategory, name: &str) -> TensorRow {
    let plain = fixture::row(at);
    TensorRow {
        tensor: TensorInfo {
            storage: Some(Storage { at: at + 1, data: at << 32, bytes: Some(of * MIB) }),
            shape: Some(vec![(mib * MIB / 4) as i64]),
            strides: Some(vec![1]),
            numel: Some((mib * MIB / 4) as i64),
            device: Some(CUDA),
            version: Some(0),
            ..plain.tensor
        },
        object: Some(at),
        python_class: Some("Tensor".into()),
        category,
        names: (!name.is_empty()).then(|| name.into()).into_iter().collect(),
        ..plain
    }
}

fn found(snapshot: &OwnershipSnapshot) -> Vec<Finding> {
    let groups = owner_groups(snapshot);
    findings(&FindingFacts { snapshot: Some(snapshot), groups: &groups, ..FindingFacts::default() })
}

fn snapshot(tensors: Vec<TensorRow>) -> OwnershipSnapshot {
    OwnershipSnapshot { tensors, ..OwnershipSnapshot::default() }
}

fn found_on(gpu: GpuFacts) -> Vec<Finding> {
    findings(&FindingFacts { gpus: &[gpu], ..FindingFacts::default() })
}

/// Regression: the sum was 20 GiB below the device.
#[test]
fn free_and_reserved_memory_are_of_one_moment() {
    let gpu = GpuFacts {
        total: Some(100),
        outside: Some(10),
        free: Some(50),
        reserved_then: Some(40),
        ..GpuFacts::default()
    };
    let segment = Segment {
        address: 0x1000,
        size: 0,
        stream: 0,
        small: false,
        expandable: false,
        granule: 0,
        retired: false,
        pool: PoolId(0, 0),
        blocks: Vec::new(),
    };
    let mut map = AllocatorSnapshot {
        time: Nanos(0),
        device: CudaIndex(0),
        retries: 0,
        consistency: SnapshotConsistency::Consistent,
        segments: vec![segment],
    };
    for (reserved, free) in [(40, 50), (70, 20), (10, 80), (95, 50)] {
        map.segments[0].size = reserved;
        let moved = gpu.with_blocks(&map);
        assert_eq!((moved.reserved, moved.free), (Some(reserved), Some(free)));
    }
    let moved = GpuFacts { outside: None, ..gpu }.with_blocks(&map);
    assert_eq!(moved.free, Some(50));
}

#[test]
fn nothing_is_found_without_evidence() {
    assert_eq!(found(&OwnershipSnapshot::default()), []);
    assert_eq!(found_on(GpuFacts::default()), []);
    let plain = snapshot(vec![
        tensor(16, 4, 4, TensorCategory::Parameter, "w"),
        tensor(32, 4, 4, TensorCategory::Other, "f: x"),
    ]);
    assert_eq!(found(&plain), []);
}

#[test]
fn owner_is_found_if_it_grows_fast_enough() {
    let of = |step: u64| {
        let mut watch = GrowthWatch::default();
        for time in 0..4 {
            watch.add_owners(time as f64, groups(&[("f: cache".to_owned(), 1 + time * step)]));
        }
        let growth = watch.owners();
        findings(&FindingFacts { growth: &growth, ..FindingFacts::default() }).len()
    };
    assert_eq!((of(MIB), of(64), of(0)), (1, 0, 0));
}

#[test]
fn two_kept_graphs_are_found_and_one_is_not() {
    let of = |losses: u64| {
        let mut snapshot = OwnershipSnapshot::default();
        for loss in 0..losses {
            let node = 1000 + loss;
            let (class, outputs) = ("GeluBackward0".into(), Vec::new());
            let next = Vec::new();
            let node_of = GraphNode { at: node, class, next, outputs, packed: 0, variable: None };
            snapshot.nodes.push(node_of);
            let mut root =
                tensor(2000 + loss, 0, 0, TensorCategory::Other, &format!("f: l[{loss}]"));
            root.tensor.grad_fn = Some(node);
            snapshot.tensors.push(root);
            let mut saved = tensor(3000 + loss, 8, 8, TensorCategory::Saved, "");
            let (by, is_output, version) = (SavedIn::Field, false, 0);
            saved.saved = vec![SavedBy { node: loss as usize, by, is_output, version }];
            snapshot.tensors.push(saved);
        }
        found(&snapshot)
    };
    assert_eq!(of(1), []);
    let [Finding::GraphsKept { group }] = &of(3)[..] else { panic!("{:?}", of(3)) };
    assert_eq!((group.owner.as_str(), group.members, group.size.bytes), ("f: l[*]", 3, 24 * MIB));
}

#[test]
fn garbage_is_found_with_what_a_collection_frees() {
    let garbage =
        |mib| TensorRow { garbage: true, ..tensor(16, mib, mib, TensorCategory::Other, "") };
    let none_known = Finding::Garbage { bytes: 3 * MIB, storages: 1, cycles: Vec::new() };
    assert_eq!(found(&snapshot(vec![garbage(3)])), [none_known]);
    let of = |class: &str, at| GarbageCycle {
        class: class.into(),
        way: format!("{class}.a → {class}"),
        cycles: 2,
        tensors: vec![at],
    };
    let two = vec![
        garbage(3),
        TensorRow { garbage: true, ..tensor(32, 5, 5, TensorCategory::Gradient, "") },
    ];
    let two = OwnershipSnapshot { garbage: vec![of("Fold", 16), of("Other", 32)], ..snapshot(two) };
    let [Finding::Garbage { bytes, cycles, .. }] = &found(&two)[..] else { panic!() };
    let holding: Vec<_> = cycles.iter().map(|cycle| (cycle.class.as_str(), cycle.bytes)).collect();
    assert_eq!((*bytes, holding), (8 * MIB, vec![("Other", 5 * MIB), ("Fold", 3 * MIB)]));
    assert_eq!(found(&snapshot(vec![garbage(0)])), []);
}

#[test]
fn optimizers_with_state_for_the_same_parameters_are_found() {
    let state = |at| tensor(at, 4, 4, TensorCategory::OptimizerState, "AdamW.exp_avg[w]");
    let optimizer = |variable: &str, parameter, state| Optimizer {
        variable: Some(variable.into()),
        class: "AdamW".into(),
        parameters: vec![parameter],
        state: vec![state],
    };
    let of = |second| OwnershipSnapshot {
        optimizers: vec![optimizer("f: new", 7, 16), optimizer("f: old", second, 32)],
        ..snapshot(vec![state(16), state(32)])
    };
    let names = vec!["f: new".to_owned(), "f: old".to_owned()];
    assert_eq!(found(&of(7)), [Finding::OptimizersTwice { names, bytes: 4 * MIB }]);
    assert_eq!(found(&of(8)), []);
}

fn model(name: &str, parameter: u64, is_training: bool) -> RootModule {
    let module = |path: &str, parameters| NamedModule {
        path: path.into(),
        class: "Linear".into(),
        is_of_torch: true,
        parameters,
        has_children: false,
        inplace: false,
    };
    RootModule {
        name: name.into(),
        modules: vec![module("", Vec::new()), module("fc", vec![parameter])],
        is_training: Some(is_training),
    }
}

#[test]
fn copied_model_is_found_and_a_different_one_is_not() {
    let weight = |at| tensor(at, 4, 4, TensorCategory::Parameter, "fc.weight");
    let mut of = OwnershipSnapshot {
        models: vec![model("main: model", 16, true), model("main: ema", 32, true)],
        ..snapshot(vec![weight(16), weight(32)])
    };
    let [Finding::ModelsTwice { bytes, names }] = &found(&of)[..] else { panic!() };
    assert_eq!((*bytes, names.len()), (4 * MIB, 2));
    of.models[1].modules[1].path = "other".into();
    assert_eq!(found(&of), []);
}

#[test]
fn gradients_are_reported_only_for_a_model_in_eval() {
    let of = |is_training| {
        let mut weight = tensor(16, 4, 4, TensorCategory::Parameter, "fc.weight");
        weight.tensor.grad = Some(32);
        let gradient = tensor(32, 4, 4, TensorCategory::Gradient, "fc.weight.grad");
        let models = vec![model("main: model", 16, is_training)];
        OwnershipSnapshot { models, ..snapshot(vec![weight, gradient]) }
    };
    let gradients = Finding::GradientsInEval { model: "main: model".into(), bytes: 4 * MIB };
    assert_eq!(found(&of(false)), [gradients]);
    assert_eq!(found(&of(true)), []);
}

#[test]
fn a_storage_much_larger_than_its_tensor_is_found() {
    let large = Finding::LargeStorages { name: "f: row".into(), storages: 1, bytes: 7 * MIB };
    assert_eq!(found(&snapshot(vec![tensor(16, 1, 8, TensorCategory::Other, "f: row")])), [large]);
    assert_eq!(found(&snapshot(vec![tensor(16, 6, 8, TensorCategory::Other, "f: most")])), []);
    // z[::64] of 8 MiB: only the slice holds its base.
    let slice = tensor(16, 1, 8, TensorCategory::Other, "f: z[0]");
    let storage = slice.tensor.storage;
    let mut whole = tensor(32, 8, 8, TensorCategory::Other, "");
    (whole.tensor.storage, whole.only_in_cpp) = (storage, true);
    let held = snapshot(vec![slice.clone(), whole.clone()]);
    let large = Finding::LargeStorages { name: "f: z[0]".into(), storages: 1, bytes: 7 * MIB };
    assert_eq!(found(&held), [large]);
    whole.only_in_cpp = false;
    assert_eq!(found(&snapshot(vec![slice, whole])), []);
}

#[test]
fn fragmented_cache_is_found_and_one_large_block_is_not() {
    let gpu = |largest| GpuFacts {
        reserved: Some(1000 * MIB),
        allocated: Some(400 * MIB),
        cache: Some(CacheFacts {
            general: FreeBlocks { blocks: 90, bytes: 600 * MIB, largest },
            private: 0,
            releasable: 20 * MIB,
        }),
        ..GpuFacts::default()
    };
    assert!(matches!(found_on(gpu(30 * MIB))[..], [Finding::Fragmented { blocks: 90, .. }]));
    assert_eq!(found_on(gpu(500 * MIB)), []);
    assert_eq!(found_on(GpuFacts { cache: None, ..gpu(30 * MIB) }), []);
}

#[test]
fn large_memory_of_others_or_outside_pytorch_is_found() {
    let gpu = |outside, others| GpuFacts {
        total: Some(80 << 30),
        outside,
        others,
        ..GpuFacts::default()
    };
    assert_eq!(found_on(gpu(Some(600 * MIB), Some(MIB))), []);
    assert_eq!(found_on(gpu(None, None)), []);
    let bytes = 5 << 30;
    let total = 80 << 30;
    assert_eq!(
        found_on(gpu(Some(3 << 30), Some(bytes))),
        [
            Finding::OtherProcesses { gpu: 0, bytes, total },
            Finding::Outside { gpu: 0, bytes: 3 << 30 }
        ]
    );
}

/// `idle` streams with 22 MiB of free cache each; the default stream is in use.
fn streams(idle: u64) -> OwnershipSnapshot {
    let block = |state| Block { address: 0, size: 22 * MIB, requested: 22 * MIB, state };
    let segment = |stream, state| Segment {
        address: stream << 40,
        size: 22 * MIB,
        stream,
        small: false,
        expandable: false,
        granule: 0,
        retired: false,
        pool: PoolId::default(),
        blocks: vec![block(state)],
    };
    let idle = (1..=idle).map(|stream| segment(stream, BlockState::Inactive));
    let used = [segment(0, BlockState::Allocated)];
    let map = AllocatorSnapshot {
        time: Nanos(1),
        device: CudaIndex(0),
        retries: 0,
        consistency: SnapshotConsistency::Consistent,
        segments: used.into_iter().chain(idle).collect(),
    };
    OwnershipSnapshot { blocks: vec![map], ..OwnershipSnapshot::default() }
}

#[test]
fn cache_of_idle_streams_is_found() {
    let device = ObservedDevice {
        gpu: 0,
        peak: None,
        until: Nanos(1),
        ooms: FailureCount::default(),
        retries: FailureCount::default(),
        reserved: Some(ReservedGrowth { bytes: 22 * MIB, rises: 1 }),
        full: None,
        seconds: 2.0,
        taken_by: vec!["load (a.py:7)".to_owned()],
    };
    let snapshot = streams(4);
    let gpu = GpuFacts {
        reserved: Some(300 * MIB),
        allocated: Some(22 * MIB),
        cache: Some(CacheFacts {
            general: FreeBlocks { blocks: 12, bytes: 278 * MIB, largest: 22 * MIB },
            private: 0,
            releasable: 0,
        }),
        ..GpuFacts::default()
    };
    let of = |snapshot: &OwnershipSnapshot, devices: &[ObservedDevice]| {
        let (gpus, snapshot) = (&[gpu][..], Some(snapshot));
        findings(&FindingFacts { gpus, snapshot, devices, ..FindingFacts::default() })
    };
    let grown =
        |gpu| ReservedIn { gpu, bytes: 22 * MIB, seconds: 2.0, taken_by: device.taken_by.clone() };
    let streams_found =
        Finding::IdleStreams { gpu: 0, streams: 4, bytes: 88 * MIB, grown: Some(grown(0)) };
    let all = of(&snapshot, std::slice::from_ref(&device));
    assert!(all.contains(&streams_found), "{all:?}");
    assert!(all.iter().any(|it| matches!(it, Finding::Fragmented { .. })), "{all:?}");
    assert!(!of(&streams(9), &[]).iter().any(|it| matches!(it, Finding::Fragmented { .. })));
    let all = of(&streams(2), std::slice::from_ref(&device));
    assert_eq!(all[0], Finding::ReservedGrows { grown: grown(0) });
    assert!(!all.iter().any(|it| matches!(it, Finding::IdleStreams { .. })), "{all:?}");
}
