//! The rules of C++ structures, names, contexts and the host.

use super::*;

fn map_of(segments: Vec<Segment>) -> AllocatorSnapshot {
    AllocatorSnapshot {
        time: Nanos(1),
        device: CudaIndex(0),
        retries: 0,
        consistency: SnapshotConsistency::Consistent,
        segments,
    }
}

/// Blocks of 1 MiB, from `address`.
fn allocated(address: u64, mib: u64, stream: u64) -> Segment {
    let (size, state) = (mib * MIB, BlockState::Allocated);
    Segment {
        address,
        size,
        stream,
        small: false,
        expandable: false,
        granule: 0,
        retired: false,
        pool: PoolId::default(),
        blocks: vec![Block { address, size, requested: size, state }],
    }
}

fn kept(keeper: CppKeeper, data: u64, of: u64) -> CppMemory {
    CppMemory { keeper, device: CUDA, data, of }
}

/// Casts of two weights, in snapshots of 2 s; `graphs`: whether autograd records.
fn with_casts(graphs: bool, versions: [u32; 2], stay: bool) -> Vec<Finding> {
    with_casts_of(graphs, versions, stay, TensorCategory::Other)
}

fn with_casts_of(
    graphs: bool,
    versions: [u32; 2],
    stay: bool,
    category: TensorCategory,
) -> Vec<Finding> {
    let snapshot_at = |time: usize| {
        let segments = vec![allocated(0x1000, 2, 0), allocated(0x4000_0000, 2, 0)];
        let mut weight = tensor(77, 4, 4, TensorCategory::Parameter, "w");
        weight.tensor.version = Some(versions[time]);
        let at = |number| if time == 1 && !stay { 0x9999 } else { number };
        let cpp = vec![
            kept(CppKeeper::AutocastCache, at(0x1000), 77),
            kept(CppKeeper::AutocastCache, at(0x4000_0000), 78),
        ];
        let node = || GraphNode {
            at: 1,
            class: "AddBackward0".into(),
            next: Vec::new(),
            outputs: Vec::new(),
            packed: 0,
            variable: None,
        };
        let nodes = graphs.then(node).into_iter().collect();
        let tensors = vec![weight, tensor(79, 1, 1, category, "step: h")];
        OwnershipSnapshot { cpp, nodes, blocks: vec![map_of(segments)], ..snapshot(tensors) }
    };
    let mut lasting = LastingCopies::default();
    lasting.add(0.0, &snapshot_at(0));
    lasting.add(2.0, &snapshot_at(1));
    let last = snapshot_at(1);
    let facts =
        FindingFacts { snapshot: Some(&last), lasting: Some(&lasting), ..FindingFacts::default() };
    findings(&facts)
}

#[test]
fn autocast_around_a_loop_is_found_and_that_of_a_step_is_not() {
    let cache = [("autocast cache", 4 * MIB, Some(4 * MIB))];
    assert_eq!(seen(&with_casts(false, [0, 0], true)), cache);
    assert_eq!(with_casts(false, [0, 0], false), []);
    // A long forward pass; the weights learn, and their copies do not.
    assert_eq!(with_casts(true, [0, 0], true), []);
    assert_eq!(seen(&with_casts(true, [0, 1], true)), cache);
    // Two steps, each seen in its forward pass; the copies of the second took the same addresses.
    assert_eq!(with_casts_of(true, [0, 1], true, TensorCategory::Saved), []);
}

#[test]
fn memory_of_cpp_structures_is_found() {
    let segments = (1..=4).map(|stream| allocated(stream << 32, 8, stream)).collect::<Vec<_>>();
    let of = |used: u64, keeper| {
        let cpp = (1..=used).map(|stream| kept(keeper, stream << 32, stream)).collect();
        found(&OwnershipSnapshot {
            cpp,
            blocks: vec![map_of(segments.clone())],
            ..OwnershipSnapshot::default()
        })
    };
    assert_eq!(seen(&of(4, CppKeeper::Cublas)), [("cublas streams", 32 * MIB, Some(32 * MIB))]);
    assert_eq!(of(2, CppKeeper::Cublas), []);
    assert_eq!(seen(&of(3, CppKeeper::DdpBuckets)), [("ddp buckets", 24 * MIB, Some(24 * MIB))]);
}

#[test]
fn outputs_and_exceptions_that_keep_tensors_are_found() {
    let of = |names: &[&str]| {
        let mut row = tensor(16, 8, 8, TensorCategory::Other, "");
        row.names = names.iter().map(|&name| name.into()).collect();
        snapshot(vec![row])
    };
    let output = [("notebook outputs", 8 * MIB, Some(8 * MIB))];
    assert_eq!(seen(&found(&of(&["__main__.Out[4][0]", "__main__._4", "__main__._"]))), output);
    assert_eq!(found(&of(&["__main__.Out[4]", "__main__.x"])), []);
    assert_eq!(found(&of(&["__main__._cache[4]"])), []);
    let kept = of(&["no variable: <ValueError>.__traceback__.tb_next.tb_frame.<locals>.x"]);
    let threads = JobThreads {
        threads: Vec::new(),
        handled: vec![HandledError {
            class: "ValueError".into(),
            thread: Some("loader".into()),
            handler: Some(("run".into(), "/a/b.py".into(), 7)),
        }],
    };
    let facts =
        FindingFacts { snapshot: Some(&kept), threads: Some(&threads), ..FindingFacts::default() };
    let all = findings(&facts);
    assert_eq!(seen(&all), [("exception kept", 8 * MIB, Some(8 * MIB))]);
    let text = all[0].text();
    assert!(
        text.contains("ValueError is being handled by thread loader in run (b.py:7)"),
        "{text}"
    );
    let kept = of(&["f: error.__traceback__.tb_frame.<locals>.x"]);
    assert!(found(&kept)[0].text().starts_with("f: error keeps an exception"));
}

#[test]
fn weights_that_nobody_needs_are_found() {
    let weight = |at, name: &str| tensor(at, 4, 4, TensorCategory::Parameter, name);
    let saved = |at, key: &str| tensor(at, 4, 4, TensorCategory::Other, key);
    let of = |dict: &str| {
        let mut model = model("main: model", 16, true);
        let mut second = model.modules[1].clone();
        (second.path, second.parameters) = ("out".into(), vec![32]);
        model.modules.push(second);
        OwnershipSnapshot {
            models: vec![model],
            ..snapshot(vec![
                weight(16, "fc.weight"),
                weight(32, "out.weight"),
                saved(48, &format!("{dict}[\"fc.weight\"]")),
                saved(64, &format!("{dict}[\"out.weight\"]")),
            ])
        }
    };
    let kept = [("checkpoint kept", 8 * MIB, Some(8 * MIB))];
    let checkpoint = found(&of("main: checkpoint[\"model\"]"));
    assert_eq!(seen(&checkpoint), kept);
    assert!(checkpoint[0].change.starts_with("keep checkpoint on the CPU"), "{checkpoint:?}");
    assert_eq!(found(&of("main: ema.shadow")), []);
    let name = "main: optimizer.state.keys()";
    let state = tensor(48, 4, 4, TensorCategory::OptimizerState, &format!("SGD.buffer[{name}]"));
    let mut of_kept = tensor(64, 4, 4, TensorCategory::OptimizerState, "SGD.buffer[fc.weight]");
    of_kept.names.push("main: optimizer.state[0][\"buffer\"]".into());
    let optimizer = Optimizer {
        variable: Some("main: optimizer".into()),
        class: "SGD".into(),
        parameters: vec![16, 32],
        state: vec![48, 64],
    };
    let removed = OwnershipSnapshot {
        models: vec![model("main: model", 16, true)],
        optimizers: vec![optimizer],
        ..snapshot(vec![weight(16, "fc.weight"), weight(32, name), state, of_kept])
    };
    let expected = [("state of removed parameters", 8 * MIB, Some(8 * MIB))];
    assert_eq!(seen(&found(&removed)), expected);
}

#[test]
fn stray_context_is_found_beside_a_used_gpu() {
    let gpu = |gpu, reserved| GpuFacts {
        gpu,
        allocated: Some(reserved / 2),
        reserved: Some(reserved),
        outside: Some(500 * MIB),
        ..GpuFacts::default()
    };
    let of = |reserved| {
        let gpus = [gpu(0, 2 * MIB), gpu(1, reserved)];
        findings(&FindingFacts { gpus: &gpus, ..FindingFacts::default() })
    };
    assert_eq!(seen(&of(64 * MIB)), [("stray context", 502 * MIB, Some(502 * MIB))]);
    assert_eq!(of(16 * MIB), []);
}

#[test]
fn host_side_is_found() {
    let of = |asked, max_entries| {
        let page_locked = PageLocked { in_use: 512 * MIB, asked, cached: 0 };
        let history = RecorderState { is_on: true, max_entries, entries: 50_000, bytes: 6 * MIB };
        let host = HostUse {
            page_locked: Some(page_locked),
            history: Some(history),
            ..HostUse::default()
        };
        findings(&FindingFacts { host: Some(&host), ..FindingFacts::default() })
    };
    let expected = [
        ("page-locked rounding", 212 * MIB, Some(212 * MIB)),
        ("memory history", 6 * MIB, Some(6 * MIB)),
    ];
    assert_eq!(seen(&of(300 * MIB, u64::MAX)), expected);
    assert_eq!(of(500 * MIB, 100_000), []);
}

/// Versions of weight and gradient in four snapshots.
fn with_versions(versions: [(u32, u32); 4], bucket: bool) -> Vec<Finding> {
    let mut lasting = LastingGradients::default();
    let mut last = OwnershipSnapshot::default();
    for (of_weight, of_gradient) in versions {
        let mut weight = tensor(16, 4, 4, TensorCategory::Parameter, "w");
        (weight.tensor.version, weight.tensor.grad) = (Some(of_weight), Some(32));
        let mut gradient = tensor(32, 4, 4, TensorCategory::Gradient, "w.grad");
        gradient.tensor.version = Some(of_gradient);
        let cpp = bucket.then(|| kept(CppKeeper::DdpBuckets, 32 << 32, 0));
        last = snapshot(vec![weight, gradient]);
        last.cpp = cpp.into_iter().collect();
        lasting.add(&last);
    }
    findings(&FindingFacts {
        snapshot: Some(&last),
        gradients: Some(&lasting),
        ..FindingFacts::default()
    })
    .into_iter()
    .filter(|found| found.kind == "gradients between steps")
    .collect()
}

#[test]
fn gradients_as_old_as_their_weights_are_found() {
    let kept = [("gradients between steps", 4 * MIB, Some(4 * MIB))];
    let zeroed = [(100, 200), (105, 210), (110, 219), (120, 240)];
    assert_eq!(seen(&with_versions(zeroed, false)), kept);
    assert_eq!(with_versions(zeroed, true), [], "views of buckets");
    // A new gradient in each step of 32 passes.
    assert_eq!(with_versions([(100, 3), (105, 9), (110, 15), (120, 31)], false), []);
    assert_eq!(with_versions([(100, 3), (105, 2), (110, 0), (120, 1)], false), []);
    // No step meanwhile.
    assert_eq!(with_versions([(100, 200), (100, 200), (100, 200), (100, 200)], false), []);
}

#[test]
fn float32_copy_of_logits_is_found_by_the_size_of_the_vocabulary() {
    let of = |class: &str, dtype, matrices: u64| {
        let row = |at, name: &str, category, shape: [i64; 2], dtype| {
            let mut row = tensor(at, 8, 8, category, name);
            (row.tensor.shape, row.tensor.dtype) = (Some(shape.to_vec()), DType(dtype));
            row
        };
        let mut model = model("main: model", 100, true);
        model.modules[1].class = class.into();
        let weight = |at| row(at, "w", TensorCategory::Parameter, [32_000, 64], 5);
        let mut rows: Vec<TensorRow> = (0..matrices).map(|number| weight(100 + number)).collect();
        rows.push(row(16, "f: scores", TensorCategory::Other, [64, 32_000], 6));
        rows.push(row(32, "f: logits", TensorCategory::Other, [64, 32_000], dtype));
        let models = vec![model];
        found(&OwnershipSnapshot { models, ..snapshot(rows) })
    };
    let copy = [("logits in float32", 8 * MIB, Some(8 * MIB))];
    assert_eq!(seen(&of("Embedding", 15, 2)), copy);
    assert_eq!(of("Embedding", 6, 2), [], "no half-precision original");
    assert_eq!(of("Linear", 15, 2), []);
    assert_eq!(of("Embedding", 15, 3), [], "hidden layers have that size, too");
}

#[test]
fn processes_that_nobody_needs_are_found() {
    let process = |pid, role| GpuNeighbour {
        pid,
        command: Some("python a.py".to_owned()),
        gpus: vec![0],
        bytes: Some(500 * MIB),
        role,
    };
    let neighbours = [
        process(7, NeighbourRole::IdleWorker),
        process(8, NeighbourRole::IdleWorker),
        process(9, NeighbourRole::Orphan { launcher: 3, is_job: false }),
    ];
    let all = findings(&FindingFacts { neighbours: &neighbours, ..FindingFacts::default() });
    let expected =
        [("idle contexts", 1000 * MIB, Some(1000 * MIB)), ("orphans", 500 * MIB, Some(500 * MIB))];
    assert_eq!(seen(&all), expected);
    assert!(all[1].text().contains("process 9 (python a.py)"), "{}", all[1].text());
    assert!(all[1].text().ends_with("kill 9"), "{}", all[1].text());
}

#[test]
fn profiler_is_found_if_the_host_grows() {
    let of = |grown| {
        let host = HostUse { grown: Some((grown, 2.0)), is_profiled: true, ..HostUse::default() };
        findings(&FindingFacts { host: Some(&host), ..FindingFacts::default() })
    };
    assert_eq!(seen(&of(16 << 20)), [("profiler", 480 * MIB, None)]);
    assert_eq!(of(0), []);
}

#[test]
fn findings_that_give_back_most_come_first() {
    let gpu = GpuFacts { total: Some(80 << 30), others: Some(70 << 30), ..GpuFacts::default() };
    let garbage =
        snapshot(vec![TensorRow { garbage: true, ..tensor(16, 4, 4, TensorCategory::Other, "") }]);
    let gpus = &[gpu][..];
    let all = findings(&FindingFacts { gpus, snapshot: Some(&garbage), ..FindingFacts::default() });
    let kinds: Vec<_> = all.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, ["garbage", "other processes"]);
    assert!(kinds.iter().all(|kind| KINDS.contains(kind)));
}
