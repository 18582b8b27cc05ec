//! Recordings by state of the allocator: its kinds, devices, and jobs that use it late or never.

use crate::support::memspy::{Recording, collapsed, lines, memspy, memspy_at, total, wait_until};
use crate::support::target::Target;
use crate::support::{pythons, sim};
use serde_json::Value;

fn stat(target: &[String], device: usize, key: &str) -> u64 {
    let truth: Value = serde_json::from_str(target.last().unwrap()).unwrap();
    truth["devices"][device]["stats"][key].as_u64().unwrap()
}

/// Lets the target allocate while recorded, and waits until the trace shows that.
fn grow(target: &mut Target, devices: usize) -> (Recording, Vec<String>) {
    let mut recording = Recording::start(target.pid(), &[]);
    recording.wait_for_block();
    target.say("again");
    let said = target.read_until_ready();
    for device in 0..devices {
        let allocated = stat(&said, device, "allocated_bytes.all.current");
        let gpu = device.to_string();
        wait_until("the device's last state in the trace", || {
            total(&collapsed(recording.trace(), &["--at", "end", "--gpu", &gpu])) == allocated
        });
    }
    recording.interrupt();
    (recording, said)
}

#[test]
fn expandable_segments() {
    let mut target = sim::start("allocator_truth.py", &["expandable"]);
    let before = stat(&target.said, 0, "allocated_bytes.all.current");
    let (recording, said) = grow(&mut target, 1);
    let report = lines(recording.trace(), &[]);
    assert_eq!(report["peak_allocated"]["bytes"], stat(&said, 0, "allocated_bytes.all.peak"));
    assert_eq!(report["peak_reserved"]["bytes"], stat(&said, 0, "reserved_bytes.all.peak"));
    let stacks = collapsed(recording.trace(), &["--at", "end"]);
    let old = stacks.iter().find(|s| s.0 == "[before recording]").unwrap().1;
    assert!(old <= before, "{old} bytes from before, of {before}");
    target.finish();
}

#[test]
fn the_fuller_of_two_devices_is_shown_by_default() {
    let mut target = sim::start("allocator_truth.py", &["two_devices"]);
    let (recording, said) = grow(&mut target, 2);
    let peaks = [0, 1].map(|device| stat(&said, device, "allocated_bytes.all.peak"));
    assert_ne!(peaks[0], peaks[1]);
    let fuller = usize::from(peaks[1] > peaks[0]);
    let report = lines(recording.trace(), &[]);
    assert_eq!(report["device"], fuller);
    assert_eq!(report["peak_allocated"]["bytes"], peaks[fuller]);
    for (device, peak) in peaks.into_iter().enumerate() {
        let report = lines(recording.trace(), &["--gpu", &device.to_string()]);
        assert_eq!(report["device"], device);
        assert_eq!(report["peak_allocated"]["bytes"], peak);
    }
    let trace = recording.trace().to_str().unwrap();
    memspy(&["lines", trace, "--gpu", "7"]).refused(&["GPU 7"]);
    memspy(&["flame", trace, "--gpu", "7", "-o", "-"]).refused(&["GPU 7"]);
    target.finish();
}

#[test]
fn the_async_backend_keeps_no_counters_and_memspy_says_so() {
    let target = sim::start("allocator_truth.py", &["async_backend"]);
    let mut recording = Recording::start(target.pid(), &["-d", "1.5"]);
    let done = recording.wait().ok();
    assert!(done.err.contains("backend:cudaMallocAsync"), "{}", done.err);
    assert!(done.err.contains("stacks and the driver's totals"), "{}", done.err);
    assert!(done.err.contains("not followed, but sampled 200 times a second"), "{}", done.err);
    let words = ["record", "--follow", "-o", "/dev/null", "--force"];
    memspy_at(target.pid(), &words).refused(&["cannot be followed", "cudaMallocAsync"]);
    let trace = recording.trace().to_str().unwrap();
    memspy(&["flame", trace, "-o", "-"]).refused(&["cudaMallocAsync"]);
    memspy(&["lines", trace]).refused(&["cudaMallocAsync"]);
    target.finish();
}

#[test]
fn a_job_that_comes_to_cuda_after_memspy() {
    let mut target = sim::start("late_cuda.py", &[]);
    let mut recording = Recording::start(target.pid(), &[]);
    target.say("import");
    target.read_until_ready();
    recording.wait_for_block();
    let trace = recording.trace().to_str().unwrap().to_owned();
    memspy(&["lines", &trace]).refused_last(&["no GPU memory"]);
    target.say("use");
    target.read_until_ready();
    wait_until("the counters in the trace", || memspy(&["lines", &trace]).status.success());
    recording.interrupt();
    assert_eq!(lines(recording.trace(), &[])["peak_allocated"]["bytes"], 48 << 20);
    target.finish();
}

#[test]
fn a_python_without_pytorch_gives_stacks_and_reports_say_why() {
    let mut command = pythons::newest_here().target("busy_stacks.py");
    command.args(["--steady", "--threads", "1"]);
    let target = Target::start(command);
    let mut recording = Recording::start(target.pid(), &["-d", "1.2"]);
    let done = recording.wait().ok();
    assert!(done.err.contains("PyTorch's CUDA part is not loaded"), "{}", done.err);
    assert!(done.err.contains("no GPU memory of PyTorch was seen"), "{}", done.err);
    assert!(
        done.err.contains("the allocator was not followed, as nothing used it"),
        "{}",
        done.err
    );
    let words = ["record", "--follow", "-d", "0.1", "-o", "/dev/null", "--force"];
    let asked = memspy_at(target.pid(), &words);
    asked.refused_last(&["was not followed", "without --follow that is no error"]);
    assert!(!done.err.contains("memspy flame"), "no use of advising it: {}", done.err);
    let trace = recording.trace().to_str().unwrap();
    for command in ["flame", "lines"] {
        memspy(&[command, trace, "-o", "-"]).refused(&["no GPU memory", "PyTorch", "not loaded"]);
    }
    target.finish();
}

#[test]
fn a_job_that_resets_its_peak() {
    let mut target = sim::start("allocator_load.py", &[]);
    let ask = |request: &str, target: &mut Target| {
        target.say(request);
        target.read_until_ready()
    };
    ask("hold 4000", &mut target);
    let highest = stat(&ask("truth", &mut target), 0, "allocated_bytes.all.peak");
    ask("hold 10", &mut target);
    let mut recording = Recording::start(target.pid(), &[]);
    recording.wait_for_block();
    ask("reset_peak", &mut target);
    let low = stat(&ask("truth", &mut target), 0, "allocated_bytes.all.peak");
    assert!(low < highest);
    // The reset must be seen before the next rise hides it.
    let resets = || lines(recording.trace(), &[])["peak_allocated"]["resets"] == 1;
    wait_until("the reset in the trace", resets);
    ask("hold 2000", &mut target);
    let again = stat(&ask("truth", &mut target), 0, "allocated_bytes.all.peak");
    wait_until("the rise in the trace", || {
        total(&collapsed(recording.trace(), &["--at", "end"])) == again
    });
    let done = recording.interrupt();
    assert!(done.err.contains("reset 1 times by the job"), "{}", done.err);
    let report = lines(recording.trace(), &[]);
    let peak = &report["peak_allocated"];
    assert_eq!(peak["older_mark"], highest, "the job's own mark from before the recording");
    assert_eq!(peak["bytes"], again);
    target.finish();
}
