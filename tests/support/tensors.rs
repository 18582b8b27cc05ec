//! Compares tensors and autograd graphs, read from outside, with PyTorch's own answers.

use std::collections::{BTreeMap, BTreeSet};

use memspy::model::TensorInfo;
use memspy::python::InterpreterReader;
use memspy::target::{Addr, PageCache, Process, PtraceStop};
use memspy::torch::{AutogradGraph, TensorDecoder, TensorReader};
use serde_json::{Value, json};

use super::damaged::Damaged;
use super::target::Target;
use super::versions::Environment;

/// Compares everything that `tensors_truth.py` creates on a device.
pub fn check(environment: &Environment, device: &str) {
    compare(&environment.start("tensors_truth.py", &["--device", device]), true);
}

/// For a running target. If malloc does not give a node's size, leftovers of freed nodes may be
/// taken for its own: all that is saved is found, and perhaps more.
pub fn compare(target: &Target, sizes_are_known: bool) {
    let truth = serde_json::from_str(target.said.first().unwrap()).unwrap();
    with_tensors(target, |tensors, found| {
        check_tensors(tensors, found, &truth);
        check_graphs(tensors, found, &truth, sizes_are_known);
    });
}

/// Reads all tensors and their graphs from damaged memory; returns the number of readable tensors.
pub fn read_damaged(target: &Target, seed: u64) -> usize {
    let process = Process::open(target.pid()).unwrap();
    let python = InterpreterReader::attach_own(&process).unwrap();
    let reader = TensorReader::attach(&process).unwrap().unwrap();
    let pause = stopped(&process);
    let memory = PageCache::new(Box::new(process.memory()));
    let heap = python.heap(&memory).unwrap();
    drop(pause);
    let types = reader.types(&memory, python.object_head()).unwrap().unwrap();
    let objects = heap.objects().iter().filter(|object| object.class.is_a(types.base));
    let places: Vec<Addr> = objects.map(|object| object.at).collect();
    let damaged = PageCache::new(Box::new(Damaged { inner: process.memory(), seed, one_in: 8 }));
    // No layout may fit any more.
    let Ok(tensors) = reader.tensors(&damaged, python.object_head(), &places) else { return 0 };
    let impls = places.iter().filter_map(|object| tensors.impl_of(*object));
    let read: Vec<TensorInfo> = impls.filter_map(|at| tensors.tensor(at)).collect();
    let graph = tensors.graph(read.iter().filter_map(|tensor| tensor.grad_fn).map(Addr));
    for saved in graph.nodes.iter().flat_map(|node| &node.saved) {
        tensors.tensor(saved.tensor);
    }
    read.len()
}

/// On a busy machine a thread may take long to stop.
fn stopped(process: &Process) -> PtraceStop {
    (0..20).find_map(|_| PtraceStop::attach(process).ok()).expect("it stops")
}

/// All tensors that Python knows, by `id()`, with their readers, while the target is stopped.
fn with_tensors(
    target: &Target,
    at: impl FnOnce(&TensorDecoder<'_>, &BTreeMap<u64, (TensorInfo, bool)>),
) {
    let process = Process::open(target.pid()).unwrap();
    let python = InterpreterReader::attach_own(&process).unwrap();
    let reader = TensorReader::attach(&process).unwrap().unwrap();
    let pause = stopped(&process);
    let memory = PageCache::new(Box::new(process.memory()));
    let heap = python.heap(&memory).unwrap();
    let types = reader.types(&memory, python.object_head()).unwrap().unwrap();
    let is_tensor = |class: &memspy::python::PyClass| class.is_a(types.base);
    let objects: Vec<_> = heap.objects().iter().filter(|o| is_tensor(&o.class)).collect();
    let places: Vec<Addr> = objects.iter().map(|object| object.at).collect();
    let tensors = reader.tensors(&memory, python.object_head(), &places).unwrap();
    let mut found = BTreeMap::new();
    for object in objects {
        let tensor = tensors.tensor(tensors.impl_of(object.at).unwrap()).unwrap();
        found.insert(object.at.0, (tensor, object.class.is_a(types.parameter)));
    }
    at(&tensors, &found);
    drop(pause);
}

/// Address and size; null without memory.
fn storage(tensor: &TensorInfo) -> Value {
    let known = tensor.storage.filter(|s| s.data != 0 && s.bytes.is_some());
    known.map_or(Value::Null, |s| json!([s.data, s.bytes]))
}

fn check_tensors(
    tensors: &TensorDecoder<'_>,
    found: &BTreeMap<u64, (TensorInfo, bool)>,
    truth: &Value,
) {
    let listed: Vec<&Value> = truth["tensors"].as_array().unwrap().iter().collect();
    let ids: BTreeSet<u64> = listed.iter().map(|t| t["id"].as_u64().unwrap()).collect();
    assert_eq!(found.keys().copied().collect::<BTreeSet<_>>(), ids);
    assert!(ids.len() > 100, "{}", ids.len());
    for said in listed {
        let (tensor, parameter) = &found[&said["id"].as_u64().unwrap()];
        let grad = tensor.grad.and_then(|grad| tensors.tensor(Addr(grad)));
        let node = tensor.grad_fn.map(|at| {
            let class = &tensors.graph([Addr(at)]).nodes[0].class;
            class.to_string()
        });
        let mut read = json!({
            "id": said["id"],
            "shape": tensor.shape,
            "stride": tensor.strides,
            "dtype": tensor.dtype.to_string(),
            "device": tensor.device.unwrap().to_string(),
            "storage": storage(tensor),
            "offset": tensor.offset,
            "nested": tensor.nested,
            "numel": tensor.numel,
            "version": tensor.version,
            "requires_grad": tensor.requires_grad,
            "is_leaf": tensor.grad_fn.is_none(),
            "grad": grad.as_ref().map_or(Value::Null, storage),
            "grad_fn": node,
            "parameter": parameter,
        });
        // Sparse tensors have no strides, offset or storage of their own; wrappers keep unused
        // ones.
        for what in ["stride", "offset"] {
            if said[what].is_null() {
                read[what] = Value::Null;
            }
        }
        assert_eq!(&read, said);
    }
}

fn saved(tensors: &TensorDecoder<'_>, graph: &AutogradGraph) -> BTreeSet<(u64, u64)> {
    let all = graph.nodes.iter().flat_map(|node| &node.saved);
    let storage = |tensor: Addr| tensors.tensor(tensor).unwrap().storage;
    all.filter_map(|saved| storage(saved.tensor))
        .filter(|s| s.data != 0)
        .map(|s| (s.data, s.bytes.unwrap()))
        .collect()
}

fn check_graphs(
    tensors: &TensorDecoder<'_>,
    found: &BTreeMap<u64, (TensorInfo, bool)>,
    truth: &Value,
    sizes_are_known: bool,
) {
    for (scene, said) in truth["graphs"].as_object().unwrap() {
        let (loss, _) = &found[&said["loss"].as_u64().unwrap()];
        let graph = tensors.graph([Addr(loss.grad_fn.unwrap())]);
        let mut classes: BTreeMap<&str, u64> = BTreeMap::new();
        for node in &graph.nodes {
            *classes.entry(&node.class).or_default() += 1;
        }
        assert_eq!(json!(classes), said["classes"], "{scene}");
        let kept = saved(tensors, &graph);
        let hooked: usize = graph.nodes.iter().map(|node| node.packed.len()).sum();
        match said["saved"].as_array() {
            Some(expected) => {
                let expected: BTreeSet<(u64, u64)> = expected
                    .iter()
                    .map(|s| (s[0].as_u64().unwrap(), s[1].as_u64().unwrap()))
                    .collect();
                if sizes_are_known {
                    assert_eq!((kept, hooked, graph.unsized_nodes), (expected, 0, 0), "{scene}");
                } else {
                    assert!(kept.is_superset(&expected), "{scene}: {kept:?}, not {expected:?}");
                    assert!(graph.unsized_nodes > 0, "{scene}");
                }
            }
            None if scene == "trained" => {
                assert!(!sizes_are_known || (kept.len(), hooked) == (0, 0), "{kept:?}");
            }
            // Nothing is unpacked; only what the hooks returned is kept.
            None => assert!(hooked >= 2, "{scene}: {hooked}"),
        }
        let leaves = graph.nodes.iter().filter(|node| node.variable.is_some()).count() as u64;
        assert_eq!(leaves, classes.get("AccumulateGrad").copied().unwrap_or(0), "{scene}");
    }
}
