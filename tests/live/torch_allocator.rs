//! The allocator, read from outside, equals what PyTorch says of itself, to the number.

use crate::support::sim;
use crate::support::target::Target;
use memspy::model::{
    AllocatorBackend, AllocatorCounters, AllocatorSnapshot, BlockState, CudaIndex, Nanos,
    SnapshotConsistency, Stat, StatKey,
};
use memspy::target::Process;
use memspy::torch::{AllocatorError, AllocatorReader};
use serde_json::Value;

fn attach(target: &Target) -> AllocatorReader {
    AllocatorReader::attach(&Process::open(target.pid()).unwrap()).unwrap().unwrap()
}

fn truth(lines: &[String]) -> Value {
    serde_json::from_str(lines.last().expect("the target printed its truth")).unwrap()
}

fn ask(target: &mut Target, request: &str) -> Value {
    target.say(request);
    truth(&target.read_until_ready())
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn has_numbers(stats: &Value, name: &str, stat: Stat) {
    let expected =
        ["current", "peak", "allocated", "freed"].map(|f| number(&stats[format!("{name}.{f}")]));
    assert_eq!([stat.current, stat.peak, stat.allocated, stat.freed], expected, "{name}");
}

fn counters_equal(counters: &AllocatorCounters, stats: &Value) {
    let mut compared = 0;
    for key in StatKey::all() {
        assert_eq!(key.value_in(counters), number(&stats[key.to_string()]), "{key}");
        compared += 1;
    }
    has_numbers(stats, "oversize_allocations", counters.oversize_allocations);
    has_numbers(stats, "oversize_segments", counters.oversize_segments);
    compared += 8;
    let others = [
        ("num_alloc_retries", Some(counters.num_alloc_retries)),
        ("num_ooms", Some(counters.num_ooms)),
        ("num_sync_all_streams", counters.num_sync_all_streams),
        ("num_device_alloc", counters.num_device_alloc),
        ("num_device_free", counters.num_device_free),
        ("max_split_size", counters.max_split_size),
    ];
    for (name, value) in others {
        assert_eq!(value, stats[name].as_i64(), "{name}");
        compared += 1;
    }
    assert_eq!(compared, stats.as_object().unwrap().len(), "every key of memory_stats is compared");
}

fn map_equals(map: &AllocatorSnapshot, snapshot: &Value) {
    assert_eq!(map.consistency, SnapshotConsistency::Consistent);
    let mut expected: Vec<&Value> = snapshot.as_array().unwrap().iter().collect();
    expected.sort_by_key(|s| number(&s["address"]));
    assert_eq!(map.segments.len(), expected.len(), "segments");
    for (segment, truth) in map.segments.iter().zip(expected) {
        assert_eq!(segment.address as i64, number(&truth["address"]));
        assert_eq!(segment.size as i64, number(&truth["total_size"]));
        assert_eq!(segment.stream as i64, number(&truth["stream"]));
        assert_eq!(segment.small, truth["segment_type"] == "small");
        assert_eq!(Value::Bool(segment.expandable), truth["is_expandable"], "{truth}");
        assert_eq!(segment.pool.0 as i64, number(&truth["segment_pool_id"][0]));
        assert_eq!(segment.pool.1 as i64, number(&truth["segment_pool_id"][1]));
        let blocks = truth["blocks"].as_array().unwrap();
        assert_eq!(segment.blocks.len(), blocks.len(), "blocks of {truth}");
        for (block, truth) in segment.blocks.iter().zip(blocks) {
            assert_eq!(block.address as i64, number(&truth["address"]));
            assert_eq!(block.size as i64, number(&truth["size"]));
            let (state, requested) = match block.state {
                BlockState::Allocated => ("active_allocated", number(&truth["requested_size"])),
                BlockState::PendingFree => {
                    ("active_pending_free", number(&truth["requested_size"]))
                }
                BlockState::Inactive => ("inactive", 0),
            };
            assert_eq!(
                (state, requested),
                (truth["state"].as_str().unwrap(), block.requested as i64)
            );
        }
    }
}

/// Compares everything; returns the snapshots.
fn equals(reader: &mut AllocatorReader, truth: &Value) -> Vec<AllocatorSnapshot> {
    let devices = truth["devices"].as_array().unwrap();
    let mut counters = Vec::new();
    reader.counters(&mut counters).unwrap();
    assert_eq!(counters.len(), devices.len());
    let compare = |((index, counters), truth): (&(CudaIndex, AllocatorCounters), &Value)| {
        assert_eq!(i64::from(index.0), number(&truth["device"]));
        counters_equal(counters, &truth["stats"]);
        let map = reader.blocks(*index, &|| Nanos(7)).unwrap();
        map_equals(&map, &truth["snapshot"]);
        map
    };
    counters.iter().zip(devices).map(compare).collect()
}

/// Compares in a mode's first state, and after more has happened.
fn mode_is_equal(mode: &str) -> (Vec<AllocatorSnapshot>, Target, AllocatorReader) {
    let mut target = sim::start("allocator_truth.py", &[mode]);
    let mut reader = attach(&target);
    assert_eq!(*reader.backend(), AllocatorBackend::Native);
    equals(&mut reader, &truth(&target.said));
    let again = ask(&mut target, "again");
    let maps = equals(&mut reader, &again);
    (maps, target, reader)
}

#[test]
fn plain_segments_and_blocks() {
    let (maps, target, reader) = mode_is_equal("plain");
    assert!(maps[0].blocks().any(|(s, b)| s.small && b.state == BlockState::Inactive));
    assert!(reader.version().unwrap().starts_with("2."), "{:?}", reader.version());
    assert_eq!(maps[0].time, Nanos(7));
    target.finish();
}

#[test]
fn expandable_segments() {
    let (maps, target, _) = mode_is_equal("expandable");
    assert!(maps[0].segments.iter().all(|s| s.expandable) && !maps[0].segments.is_empty());
    target.finish();
}

#[test]
fn two_devices() {
    let (maps, target, reader) = mode_is_equal("two_devices");
    assert_eq!(reader.devices().collect::<Vec<_>>(), [CudaIndex(0), CudaIndex(1)]);
    assert_eq!(maps.len(), 2);
    target.finish();
}

#[test]
fn private_pools_of_graphs_and_mem_pools() {
    let (maps, target, _) = mode_is_equal("graph_pool");
    let pools: std::collections::BTreeSet<_> = maps[0].segments.iter().map(|s| s.pool).collect();
    assert!(pools.len() >= 3, "{pools:?}");
    target.finish();
}

#[test]
fn blocks_that_wait_for_another_stream() {
    let (maps, target, _) = mode_is_equal("streams");
    assert!(maps[0].blocks().any(|(_, b)| b.state == BlockState::PendingFree && b.requested > 0));
    assert!(maps[0].segments.iter().any(|s| s.stream != 0));
    target.finish();
}

#[test]
fn nothing_allocated_yet() {
    let (maps, target, _) = mode_is_equal("init_only");
    assert!(maps[0].segments.is_empty());
    target.finish();
}

#[test]
fn cuda_is_initialised_after_attaching() {
    let mut target = sim::start("allocator_load.py", &[]);
    let mut reader = attach(&target);
    assert_eq!(*reader.backend(), AllocatorBackend::NotInitialized);
    assert!(!reader.refresh().unwrap());
    assert!(matches!(reader.counters(&mut Vec::new()), Err(AllocatorError::NotInitialized)));
    assert!(matches!(
        reader.blocks(CudaIndex(0), &|| Nanos(0)),
        Err(AllocatorError::NotInitialized)
    ));
    target.say("hold 50");
    target.read_until_ready();
    assert!(reader.refresh().unwrap());
    assert!(!reader.refresh().unwrap());
    assert_eq!(*reader.backend(), AllocatorBackend::Native);
    equals(&mut reader, &ask(&mut target, "truth"));
    assert!(matches!(reader.blocks(CudaIndex(9), &|| Nanos(0)), Err(AllocatorError::NoDevice(_))));
    target.finish();
}

#[test]
fn counters_after_out_of_memory_and_resets() {
    let mut target = sim::start("allocator_load.py", &[]);
    let mut reader = attach(&target);
    for request in ["hold 200", "hold 30", "oom", "reset_peak", "reset_accumulated", "hold 500"] {
        target.say(request);
        target.read_until_ready();
        let truth = ask(&mut target, "truth");
        if request == "hold 200" {
            reader.refresh().unwrap();
        }
        if request == "oom" {
            assert_eq!(number(&truth["devices"][0]["stats"]["num_ooms"]), 1);
        }
        equals(&mut reader, &truth);
        // A reader that attaches only now finds it, too.
        equals(&mut attach(&target), &truth);
    }
    target.finish();
}

#[test]
fn other_backends_are_said_to_be_unreadable() {
    let target = sim::start("allocator_truth.py", &["async_backend"]);
    let mut reader = attach(&target);
    assert_eq!(*reader.backend(), AllocatorBackend::CudaMallocAsync);
    let error = reader.counters(&mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("cudaMallocAsync"), "{error}");
    let error = reader.blocks(CudaIndex(0), &|| Nanos(0)).unwrap_err();
    assert!(matches!(error, AllocatorError::NotSupported { .. }));
    target.finish();

    let mut target = sim::start("allocator_load.py", &[]);
    let mut reader = attach(&target);
    target.say("pluggable");
    target.read_until_ready();
    assert!(reader.refresh().unwrap());
    let AllocatorBackend::Pluggable(name) = reader.backend() else {
        panic!("{:?}", reader.backend());
    };
    assert!(name.ends_with("CUDAPluggableAllocator"), "{name}");
    assert!(matches!(reader.counters(&mut Vec::new()), Err(AllocatorError::NotSupported { .. })));
    target.kill();
}

#[test]
fn a_process_without_pytorch_has_no_allocator() {
    let own = Process::open(std::process::id()).unwrap();
    assert!(AllocatorReader::attach(&own).unwrap().is_none());
}

#[test]
fn a_target_that_ends_is_an_error() {
    let mut target = sim::start("allocator_truth.py", &["plain"]);
    let mut reader = attach(&target);
    target.kill();
    assert!(matches!(reader.counters(&mut Vec::new()), Err(AllocatorError::Memory { .. })));
    assert!(matches!(
        reader.blocks(CudaIndex(0), &|| Nanos(0)),
        Err(AllocatorError::Memory { .. })
    ));
    assert!(matches!(reader.refresh(), Err(AllocatorError::Memory { .. })));
}
