//! The rules, with and without evidence.

mod kinds;

use super::*;
use crate::analysis::blocks::FreeBlocks;
use crate::analysis::live::{HostUse, ObservedDevice, PageLocked};
use crate::analysis::owners::{GrowthWatch, groups, owner_groups};
use crate::analysis::{FailureCount, HighWater, ReservedGrowth};
use crate::model::{
    AllocatorSnapshot, Block, BlockState, CppKeeper, CppMemory, CudaIndex, DType, FreedBytes,
    GarbageCycle, GpuNeighbour, GraphNode, HandledError, JAX_ARRAY, JobThreads, NamedModule, Nanos,
    NeighbourRole, Optimizer, OwnershipSnapshot, PoolId, RecorderState, RetainedReference,
    RootModule, SavedBy, SavedIn, Segment, SnapshotConsistency, Storage, TensorCategory,
    TensorDevice, TensorInfo, TensorRow,
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

/// Kind, bytes, what the change gives back.
type Seen = (&'static str, u64, Option<u64>);

fn seen(found: &[Finding]) -> Vec<Seen> {
    found.iter().map(|it| (it.kind, it.bytes, it.frees)).collect()
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
fn a_deque_that_has_room_until_it_is_full_does_not_grow() {
    let mut watch = GrowthWatch::default();
    for time in 0..4 {
        let mut held = groups(&[("f: memory[*]".to_owned(), MIB * (1 + time))]);
        held[0].full_at = Some(100 * MIB);
        watch.add_owners(time as f64, held);
    }
    let growth = watch.owners();
    let of = |free: Option<u64>| {
        let (allocated, reserved) = (Some(4 * MIB), Some(4 * MIB));
        let gpus = [GpuFacts { allocated, reserved, free, ..GpuFacts::default() }];
        findings(&FindingFacts { growth: &growth, gpus: &gpus, ..FindingFacts::default() })
    };
    assert!(of(Some(96 * MIB)).is_empty());
    for free in [Some(95 * MIB), None] {
        let found = of(free).remove(0);
        assert!(
            found.problem.ends_with(", to about 100.00 MiB when its deque is full"),
            "{found:?}"
        );
    }
}

#[test]
fn what_says_why_an_owner_grows_is_one_finding_with_it() {
    let growth = |owner: &str| {
        let mut watch = GrowthWatch::default();
        for time in 0..4 {
            watch.add_owners(time as f64, groups(&[(owner.to_owned(), MIB * (1 + time))]));
        }
        watch.owners()
    };
    let kept = || {
        let change = "store .item()";
        let found = Finding::new("graphs kept", 4 * MIB, "3 results in f: l[*] keep graphs".into());
        found.change(change).frees(4 * MIB).of("f: l[*]")
    };
    let add = |owner: &str, cause: Finding| {
        let (growth, mut all) = (growth(owner), vec![cause]);
        grows::add(&FindingFacts { growth: &growth, ..FindingFacts::default() }, &mut all);
        all
    };
    let joined = add("f: l[*]", kept());
    assert_eq!(joined.len(), 1);
    let text = joined[0].text();
    assert!(text.contains(", growing by 1.00 MiB a second") && text.ends_with("store .item()"));
    assert_eq!(add("f: l", kept()).len(), 1);
    // Another owner, or a small part of what grows.
    assert_eq!(add("f: other", kept()).len(), 2);
    assert_eq!(add("f: l", kept().frees(MIB)).len(), 2);
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
    assert_eq!(seen(&of(3)), [("graphs kept", 24 * MIB, Some(24 * MIB))]);
    assert!(of(3)[0].text().starts_with("3 results in f: l[*] keep"), "{:?}", of(3));
}

#[test]
fn garbage_is_found_with_what_a_collection_frees() {
    let garbage =
        |mib| TensorRow { garbage: true, ..tensor(16, mib, mib, TensorCategory::Other, "") };
    let none_known = [("garbage", 3 * MIB, Some(3 * MIB))];
    assert_eq!(seen(&found(&snapshot(vec![garbage(3)]))), none_known);
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
    assert_eq!(seen(&found(&two)), [("garbage", 8 * MIB, Some(8 * MIB))]);
    let text = found(&two)[0].text();
    let of_class = |class: &str| text.find(&format!("cycles of class {class}")).unwrap();
    assert!(of_class("Other") < of_class("Fold"), "{text}");
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
    assert_eq!(seen(&found(&of(7))), [("optimizers twice", 4 * MIB, Some(4 * MIB))]);
    // A checkpoint has the old one's state, too.
    let retained = |name: &str, mib| RetainedReference {
        name: name.into(),
        frees: vec![FreedBytes { device: CUDA, at_once: mib * MIB, after_collect: 0 }],
        is_least: false,
    };
    let retained = vec![retained("f: new", 4), retained("f: old", 0)];
    let shared = OwnershipSnapshot { retained, ..of(7) };
    assert_eq!(seen(&found(&shared)), [("optimizers twice", 4 * MIB, None)]);
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
    let weight = |at| {
        let mut weight = tensor(at, 4, 4, TensorCategory::Parameter, "fc.weight");
        weight.tensor.requires_grad = true;
        weight
    };
    let mut of = OwnershipSnapshot {
        models: vec![model("main: model", 16, true), model("main: before", 32, true)],
        ..snapshot(vec![weight(16), weight(32)])
    };
    assert_eq!(seen(&found(&of)), [("models twice", 4 * MIB, Some(4 * MIB))]);
    let mut frozen = of.clone();
    frozen.tensors[1].tensor.requires_grad = false;
    assert_eq!(found(&frozen), []);
    let mut average = of.clone();
    average.models[1].name = "main: ema".into();
    assert_eq!(found(&average), []);
    let mut wrappers = of.clone();
    wrappers.models[1].modules[1].parameters = vec![16];
    assert_eq!(found(&wrappers), []);
    let mut clients = of.clone();
    clients.models[0].name = "main: clients[0].model".into();
    clients.models[1].name = "main: clients[1].model".into();
    assert_eq!(found(&clients), []);
    let mut both_learn = of.clone();
    both_learn.optimizers = [16, 32]
        .map(|parameter| Optimizer {
            variable: None,
            class: "SGD".into(),
            parameters: vec![parameter],
            state: Vec::new(),
        })
        .into();
    assert_eq!(found(&both_learn), []);
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
    assert_eq!(seen(&found(&of(false))), [("gradients in eval", 4 * MIB, Some(4 * MIB))]);
    assert_eq!(found(&of(true)), []);
}

#[test]
fn a_storage_much_larger_than_its_tensor_is_found() {
    let large = [("large storages", 7 * MIB, Some(7 * MIB))];
    let row = snapshot(vec![tensor(16, 1, 8, TensorCategory::Other, "f: row")]);
    assert_eq!(seen(&found(&row)), large);
    assert_eq!(found(&snapshot(vec![tensor(16, 6, 8, TensorCategory::Other, "f: most")])), []);
    // z[::64] of 8 MiB: only the slice holds its base.
    let slice = tensor(16, 1, 8, TensorCategory::Other, "f: z[0]");
    let storage = slice.tensor.storage;
    let mut whole = tensor(32, 8, 8, TensorCategory::Other, "");
    (whole.tensor.storage, whole.only_in_cpp) = (storage, true);
    let held = snapshot(vec![slice.clone(), whole.clone()]);
    assert_eq!(seen(&found(&held)), large);
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
    assert_eq!(seen(&found_on(gpu(30 * MIB))), [("fragmented", 600 * MIB, None)]);
    assert_eq!(found_on(gpu(500 * MIB)), []);
    assert_eq!(found_on(GpuFacts { cache: None, ..gpu(30 * MIB) }), []);
    // What each step needs is no waste.
    let at_peak = |bytes: u64| {
        let peak = Some(HighWater::first(0, (bytes * MIB) as i64, Nanos(0)));
        let devices = [ObservedDevice { peak, ..observed() }];
        let gpus = [gpu(30 * MIB)];
        findings(&FindingFacts { gpus: &gpus, devices: &devices, ..FindingFacts::default() })
    };
    assert_eq!(at_peak(900), []);
    assert_eq!(seen(&at_peak(500)), [("fragmented", 500 * MIB, None)]);
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
    assert_eq!(
        seen(&found_on(gpu(Some(3 << 30), Some(bytes)))),
        [("other processes", bytes, None), ("outside PyTorch", 3 << 30, None)]
    );
}

#[test]
fn memory_that_jax_takes_in_advance_is_told_with_the_option() {
    let mut array = tensor(8, 6, 6, TensorCategory::Other, "main: params");
    array.tensor.class = JAX_ARRAY.into();
    let snapshot = OwnershipSnapshot { tensors: vec![array], ..OwnershipSnapshot::default() };
    let gpus = [GpuFacts { outside: Some(30 << 30), ..GpuFacts::default() }];
    let facts = FindingFacts { gpus: &gpus, snapshot: Some(&snapshot), ..FindingFacts::default() };
    let found = findings(&facts);
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert!(finding.problem.contains("holds 30.00 GiB, and JAX's arrays are 6.00 MiB of it"));
    assert!(finding.change.contains("XLA_PYTHON_CLIENT_PREALLOCATE=false"));
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

fn observed() -> ObservedDevice {
    ObservedDevice {
        gpu: 0,
        peak: None,
        until: Nanos(1),
        ooms: FailureCount::default(),
        retries: FailureCount::default(),
        reserved: None,
        full: None,
        seconds: 2.0,
        taken_by: Vec::new(),
        least: None,
    }
}

#[test]
fn cache_of_idle_streams_is_found() {
    let device = ObservedDevice {
        reserved: Some(ReservedGrowth { bytes: 22 * MIB }),
        taken_by: vec!["load (a.py:7)".to_owned()],
        ..observed()
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
    let grown = "reserved grew by 22.00 MiB in 2.0 s, taken by load (a.py:7)";
    let kinds = |all: &[Finding]| -> Vec<&'static str> { all.iter().map(|it| it.kind).collect() };
    let all = of(&snapshot, std::slice::from_ref(&device));
    let streams_found = all.iter().find(|it| it.kind == "idle streams").unwrap();
    assert_eq!((streams_found.bytes, streams_found.frees), (88 * MIB, Some(88 * MIB)));
    assert!(streams_found.text().contains("4 streams") && streams_found.text().contains(grown));
    assert!(kinds(&all).contains(&"fragmented"), "{all:?}");
    assert!(!kinds(&of(&streams(9), &[])).contains(&"fragmented"));
    let all = of(&streams(2), std::slice::from_ref(&device));
    assert!(all.iter().any(|it| it.kind == "reserved grows" && it.text().contains(grown)));
    assert!(!kinds(&all).contains(&"idle streams"), "{all:?}");
}
