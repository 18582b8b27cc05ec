//! A job's own recorded history, read from outside, equals `torch.cuda.memory._snapshot()` event by
//! event.

use crate::support::damaged::Damaged;
use crate::support::memspy::memspy;
use crate::support::sim;
use crate::support::target::Target;
use memspy::model::CudaIndex;
use memspy::target::{LiveMemory, LoadedObject, Process};
use memspy::torch::AllocatorReader;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// The job and memspy measure the clocks' rates at two moments.
const MAX_MICROSECONDS_APART: i64 = 1000;

fn history(target: &Target) -> Value {
    let pid = target.pid().to_string();
    serde_json::from_str(&memspy(&["history", "-p", &pid, "--json", "-o", "-"]).ok().out).unwrap()
}

fn truth(target: &mut Target) -> Value {
    target.say("truth");
    serde_json::from_str(target.read_until_ready().last().unwrap()).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

/// Python frames only, as memspy names no others.
fn of_python(frames: &Value) -> Vec<&Value> {
    let is_python = |frame: &&Value| {
        let file = frame["filename"].as_str().unwrap();
        file.ends_with(".py") || file.starts_with('<')
    };
    list(frames).iter().filter(is_python).collect()
}

/// How many events and blocks with frames were compared.
fn equals(seen: &Value, truth: &Value) -> (usize, usize) {
    let (mut events, mut blocks) = (0, 0);
    assert_eq!(list(&seen["device_traces"]).len(), list(&truth["device_traces"]).len());
    for (seen, truth) in list(&seen["device_traces"]).iter().zip(list(&truth["device_traces"])) {
        assert_eq!(list(seen).len(), list(truth).len(), "events of a device");
        for (seen, truth) in list(seen).iter().zip(list(truth)) {
            for (key, value) in truth.as_object().unwrap() {
                match key.as_str() {
                    "time_us" => {
                        let [a, b] = [seen, truth].map(|event| event[key].as_i64().unwrap());
                        assert!((a - b).abs() <= MAX_MICROSECONDS_APART, "{a} and {b}");
                    }
                    "frames" => assert_eq!(of_python(&seen[key]), of_python(value), "{truth}"),
                    _ => assert_eq!(&seen[key], value, "{key} of {truth}"),
                }
            }
            assert_eq!(seen.get("frames").is_some(), truth.get("frames").is_some(), "{truth}");
            events += 1;
        }
    }
    let by_address = |snapshot: &Value| {
        let mut segments = list(&snapshot["segments"]).to_vec();
        segments.sort_by_key(|segment| segment["address"].as_u64());
        segments
    };
    let (seen, truth) = (by_address(seen), by_address(truth));
    assert_eq!(seen.len(), truth.len(), "segments");
    for (seen, truth) in seen.iter().zip(&truth) {
        for key in ["device", "address", "total_size", "stream", "segment_type", "is_expandable"] {
            assert_eq!(seen[key], truth[key], "{key}");
        }
        assert_eq!(of_python(&seen["frames"]), of_python(&truth["frames"]), "{truth}");
        assert_eq!(list(&seen["blocks"]).len(), list(&truth["blocks"]).len());
        for (seen, truth) in list(&seen["blocks"]).iter().zip(list(&truth["blocks"])) {
            for key in ["address", "size", "state"] {
                assert_eq!(seen[key], truth[key], "{key}");
            }
            // The allocator keeps a stale number for free blocks.
            if truth["state"] != "inactive" {
                assert_eq!(seen["requested_size"], truth["requested_size"]);
            }
            let frames = of_python(&truth["frames"]);
            assert_eq!(of_python(&seen["frames"]), frames, "{truth}");
            blocks += usize::from(!frames.is_empty());
        }
    }
    (events, blocks)
}

/// Compares a job in this mode; returns how many events and blocks with frames there were.
fn mode_is_equal(mode: &str) -> (usize, usize) {
    let mut target = sim::start("recorded_history.py", &[mode]);
    let seen = history(&target);
    let compared = equals(&seen, &truth(&mut target));
    target.finish();
    eprintln!("{mode}: {} events and {} blocks with frames are equal", compared.0, compared.1);
    compared
}

#[test]
fn python_stacks_are_those_of_the_snapshot() {
    let (events, blocks) = mode_is_equal("python");
    assert!(events > 90 && blocks > 10, "{events}, {blocks}");
}

#[test]
#[ignore = "the other modes of PyTorch are read always: scripts/test.sh --all runs it"]
fn of_stacks_with_cpp_frames_those_of_python_are_told() {
    let mut target = sim::start("recorded_history.py", &["all"]);
    let pid = target.pid().to_string();
    let done = memspy(&["history", "-p", &pid, "--json", "-o", "-"]).ok();
    assert!(done.err.contains("frames of C++ or TorchScript"), "{}", done.err);
    let seen = serde_json::from_str(&done.out).unwrap();
    let (events, _) = equals(&seen, &truth(&mut target));
    assert!(events > 90, "{events}");
    target.finish();
}

#[test]
fn a_wrapped_ring_is_read_from_its_oldest_event() {
    assert_eq!(mode_is_equal("ring").0, 100);
}

#[test]
#[ignore = "the other modes of PyTorch are read always: scripts/test.sh --all runs it"]
fn stacks_of_live_blocks_alone() {
    assert!(mode_is_equal("state").1 > 10);
}

#[test]
#[ignore = "the other modes of PyTorch are read always: scripts/test.sh --all runs it"]
fn expandable_segments_have_map_events() {
    mode_is_equal("expandable");
}

#[test]
#[ignore = "takes long, and the others see the ring of one device: scripts/test.sh --all runs it"]
fn each_device_has_a_ring() {
    mode_is_equal("two_devices");
}

#[test]
fn an_oom_tells_what_was_free() {
    mode_is_equal("oom");
}

#[test]
fn blocks_keep_their_stacks_after_the_recording_ended() {
    let (events, blocks) = mode_is_equal("stopped");
    assert!(events == 0 && blocks > 10, "{events}, {blocks}");
}

#[test]
fn a_job_that_records_nothing_is_refused_in_one_line() {
    let target = sim::start("recorded_history.py", &["off"]);
    let pid = target.pid().to_string();
    memspy(&["history", "-p", &pid, "-o", "-"]).refused(&[
        "records no history",
        "_record_memory_history",
        "memspy record",
    ]);
    target.finish();
}

#[test]
fn a_stopped_job_is_read_and_stays_stopped() {
    let mut target = sim::start("recorded_history.py", &["python"]);
    let pid = Pid::from_raw(target.pid() as i32);
    kill(pid, Signal::SIGSTOP).unwrap();
    let seen = history(&target);
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    assert!(state.rsplit(')').next().unwrap().trim_start().starts_with('T'), "{state}");
    kill(pid, Signal::SIGCONT).unwrap();
    equals(&seen, &truth(&mut target));
    target.finish();
}

#[test]
fn a_busy_job_gives_whole_events_in_their_order() {
    let target = sim::start("recorded_history.py", &["busy", "5000"]);
    let (pid, mut compared) = (target.pid().to_string(), 0);
    let mut whole = 0;
    for attempt in 0.. {
        let done = memspy(&["history", "-p", &pid, "--json", "-o", "-"]);
        if done.err.contains("overwrote all of its events") {
            // On a busy machine the job may be quicker than memspy, which says so.
            assert!(attempt < 40, "{whole} of {attempt} histories were read");
            continue;
        }
        whole += 1;
        let seen: Value = serde_json::from_str(&done.ok().out).unwrap();
        let mut before = 0;
        for event in list(&seen["device_traces"][0]) {
            let time = event["time_us"].as_i64().unwrap();
            assert!(time >= before, "{time} after {before}");
            before = time;
            // All events come from its main module, or from a backward thread without Python.
            // PyTorch, too, omits the key if there is no stack.
            let frames = event["frames"].as_array().map_or(&[][..], Vec::as_slice);
            let last = frames.last().map_or(&Value::Null, |frame| &frame["name"]);
            assert!(frames.is_empty() || *last == json!("<module>"), "{event}");
            compared += usize::from(!frames.is_empty());
        }
        if whole == 5 {
            break;
        }
    }
    assert!(compared > 0);
    drop(target);
}

#[test]
fn torch_opens_the_pickle() {
    let mut target = sim::start("recorded_history.py", &["oom"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.pickle");
    let (pid, file) = (target.pid().to_string(), file.to_str().unwrap());
    let done = memspy(&["history", "-p", &pid, "-o", file]).ok();
    assert!(done.err.contains("98 events"), "{}", done.err);
    target.say(&format!("viz {file}"));
    let said: Value = serde_json::from_str(target.read_until_ready().last().unwrap()).unwrap();
    assert!(list(&said["lengths"]).iter().all(|length| length.as_u64() > Some(100)), "{said}");
    assert!(said["trace"].as_str().unwrap().contains("raise OutOfMemoryError"), "{said}");
    memspy(&["history", "-p", &pid, "-o", file]).refused(&["exists already", "--force"]);
    target.finish();
}

#[test]
fn a_damaged_ring_never_hangs() {
    let target = sim::start("recorded_history.py", &["ring"]);
    let process = Process::open(target.pid()).unwrap();
    let memory = LiveMemory::new(target.pid());
    let library =
        LoadedObject::find(&memory, &process.mappings().unwrap(), |n| n.starts_with("libc10_cuda"));
    let symbol = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";
    let variable = library.unwrap().unwrap().exported(&memory, symbol).unwrap().unwrap();
    let (mut whole, mut refused) = (0, 0);
    for seed in 1..100 {
        let damaged = Damaged { inner: memory, seed, one_in: 40 };
        let Ok(mut reader) = AllocatorReader::with_memory(Box::new(damaged), variable, None) else {
            continue;
        };
        match reader.history(CudaIndex(0), &mut |_| ()) {
            Ok((_, history)) => {
                assert!(history.events.len() <= 100, "{}", history.events.len());
                whole += 1;
            }
            Err(error) => {
                assert_eq!(error.to_string().lines().count(), 1, "{error}");
                refused += 1;
            }
        }
    }
    assert!(whole > 0 && refused > 0, "{whole} read, {refused} refused");
    target.finish();
}
