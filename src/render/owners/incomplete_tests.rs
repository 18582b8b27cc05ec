//! What an incomplete snapshot lacks is named; no partial figure looks like a total.

use std::time::Duration;

use serde_json::Value;

use crate::model::{
    AllocatorSnapshot, Block, BlockState, CudaIndex, GraphNode, IncompleteSnapshot, NamedModule,
    Nanos, OwnershipSnapshot, PoolId, ReachedLimit, RootModule, SavedBy, SavedIn, Segment,
    SnapshotConsistency, Storage, TensorCategory, TensorDevice, TensorInfo, TensorRow,
};
use crate::ownership::fixture;
use crate::render::{
    TensorsOptions, graph_text, like_modelsize_json, like_modelsize_text, like_trumpy_json,
    like_trumpy_text, tensors_text,
};

const MIB: u64 = 1 << 20;

/// A parameter, a loss whose graph saves 2 MiB, a block in no tensor; `missing` was not read.
fn snapshot(missing: &[&'static str]) -> OwnershipSnapshot {
    let tensor = |at: u64, mib: u64| TensorInfo {
        storage: Some(Storage { at: at + 1, data: at << 24, bytes: Some(mib * MIB) }),
        shape: Some(vec![(mib * MIB / 4) as i64]),
        numel: Some((mib * MIB / 4) as i64),
        device: Some(TensorDevice { kind: 1, index: Some(0) }),
        ..fixture::row(at).tensor
    };
    let parameter = TensorRow {
        tensor: tensor(1, 1),
        object: Some(11),
        category: TensorCategory::Parameter,
        names: vec!["weight".into()],
        ..fixture::row(1)
    };
    let saved = TensorRow {
        tensor: tensor(2, 2),
        object: None,
        category: TensorCategory::Saved,
        saved: vec![SavedBy { node: 0, by: SavedIn::Field, is_output: false, version: 0 }],
        ..fixture::row(2)
    };
    let mut loss = TensorRow { names: vec!["main: loss".into()], ..fixture::row(3) };
    loss.tensor = TensorInfo { grad_fn: Some(50), ..tensor(3, 1) };
    let node = GraphNode {
        at: 50,
        class: "GeluBackward0".into(),
        next: Vec::new(),
        outputs: vec![Some(8)],
        packed: 0,
        variable: None,
    };
    let module = NamedModule {
        path: String::new(),
        class: "Net".into(),
        is_of_torch: false,
        parameters: vec![11],
        has_children: false,
        inplace: false,
    };
    let block = |address: u64, mib: u64| Block {
        address,
        size: mib * MIB,
        requested: mib * MIB,
        state: BlockState::Allocated,
    };
    let segment = Segment {
        address: 1 << 24,
        size: 80 * MIB,
        stream: 0,
        small: false,
        expandable: false,
        granule: 0,
        retired: false,
        pool: PoolId(0, 0),
        blocks: vec![block(1 << 24, 1), block(2 << 24, 2), block(3 << 24, 1), block(5 << 24, 7)],
    };
    OwnershipSnapshot {
        tensors: vec![parameter, saved, loss],
        nodes: vec![node],
        models: vec![RootModule {
            name: "main: net".into(),
            modules: vec![module],
            is_training: Some(true),
        }],
        blocks: vec![AllocatorSnapshot {
            time: Nanos(0),
            device: CudaIndex(0),
            retries: 0,
            consistency: SnapshotConsistency::Consistent,
            segments: vec![segment],
        }],
        incomplete: (!missing.is_empty()).then(|| IncompleteSnapshot {
            limit: ReachedLimit::Time(Duration::from_secs(5)),
            missing: missing.to_vec(),
        }),
        ..OwnershipSnapshot::default()
    }
}

fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).unwrap()
}

/// Regression: unread tensors were reported as "3.34 GiB [in no tensor: work spaces, C++]".
#[test]
fn unread_tensors_are_not_memory_in_no_tensor() {
    let wanted = TensorsOptions { most: 25, ..TensorsOptions::default() };
    let of = |missing: &[&'static str]| {
        text(|out| tensors_text(out, &snapshot(missing), wanted).unwrap())
    };
    let cut = of(&[IncompleteSnapshot::GRAPH]);
    assert!(cut.contains("7.00 MiB   63.6 %"), "{cut}");
    assert!(cut.contains("[not read (limit of 5 s)]") && !cut.contains("in no tensor"), "{cut}");
    for missing in [&[][..], &[IncompleteSnapshot::GARBAGE]] {
        let whole = of(missing);
        assert!(whole.contains("[in no tensor: work spaces, C++]"), "{whole}");
        assert!(!whole.contains("not read ("), "{whole}");
    }
}

/// Regression: the JSON of an incomplete snapshot had a wrong figure without `incomplete`.
#[test]
fn figures_of_an_incomplete_graph_are_unknown() {
    let json = |missing: &[&'static str]| -> [Value; 2] {
        let snapshot = snapshot(missing);
        let sizes = text(|out| like_modelsize_json(out, &snapshot).unwrap());
        let backward = text(|out| like_trumpy_json(out, &snapshot, &[2]).unwrap());
        [sizes, backward].map(|json| serde_json::from_str(&json).unwrap())
    };
    let [sizes, backward] = json(&[IncompleteSnapshot::GRAPH]);
    for document in [&sizes, &backward] {
        assert_eq!(document["incomplete"]["missing"][0], "the autograd graph", "{document}");
    }
    let model = &sizes["models"][0];
    assert_eq!(
        (&model["parameter_elements"], &model["intermediate_elements"]),
        (&Value::Null, &Value::Null)
    );
    assert!(model["why_unknown"].as_str().unwrap().contains("not read (limit of 5 s)"), "{model}");
    assert_eq!(backward["losses"][0]["figures"][0]["memory_for_backward"], Value::Null);
    let cut = snapshot(&[IncompleteSnapshot::GRAPH]);
    let cut = text(|out| {
        like_trumpy_text(out, &cut, &[2]).unwrap();
        like_modelsize_text(out, &cut).unwrap();
    });
    assert!(cut.contains("not known") && cut.contains("INCOMPLETE"), "{cut}");
    for missing in [&[][..], &[IncompleteSnapshot::GARBAGE, IncompleteSnapshot::FAR]] {
        let [sizes, backward] = json(missing);
        assert_eq!((&sizes["incomplete"], &backward["incomplete"]), (&Value::Null, &Value::Null));
        assert_eq!(sizes["models"][0]["parameter_elements"], MIB / 4);
        assert_eq!(backward["losses"][0]["figures"][0]["memory_for_backward"], 2 * MIB);
        let graph = text(|out| graph_text(out, &snapshot(missing)).unwrap());
        assert!(!graph.contains("INCOMPLETE"), "{graph}");
    }
}
