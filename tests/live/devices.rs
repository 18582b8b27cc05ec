//! `memspy devices` compared with what PyTorch says of its device and blocks.

use std::collections::BTreeMap;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::memspy::{Done, command, document, run, wait_until};
use crate::support::sim;
use crate::support::target::Target;
use crate::support::terminal::Terminal;
use memspy::render::json::DevicesJson;

const KEYS: &str = "timestamp,name,pci.bus_id,driver_version,pstate,pcie.link.gen.max,pcie.link.gen.current,\
                    temperature.gpu,utilization.gpu,utilization.memory,memory.total,memory.free,memory.used";

fn truth(target: &Target) -> Value {
    serde_json::from_str(target.said.last().unwrap()).unwrap()
}

fn devices(target: &Target, words: &[&str]) -> Done {
    run(command(Some(target.pid())).arg("devices").args(words)).ok()
}

/// `memspy devices --json -p` of a target.
fn look(target: &Target) -> Value {
    let pid = target.pid().to_string();
    document::<DevicesJson>(&devices(target, &["--json", "-p", &pid]).out)
}

/// `memspy COMMAND --json` of a target.
fn holders_of(target: &Target, name: &str) -> Value {
    let pid = target.pid().to_string();
    let done = run(command(Some(target.pid())).args([name, "--json", "-p", &pid])).ok();
    serde_json::from_str(&done.out).unwrap()
}

/// A target on the card of another one.
fn start_beside(target: &Target, mode: &str) -> Target {
    let environment = std::fs::read(format!("/proc/{}/environ", target.pid())).unwrap();
    let state = environment.split(|b| *b == 0).find_map(|e| e.strip_prefix(b"SIM_CUDA_STATE="));
    let mut command = sim::command("allocator_truth.py", &[mode]);
    command.env("SIM_CUDA_STATE", String::from_utf8(state.unwrap().to_vec()).unwrap());
    Target::start(command)
}

fn rows(out: &str) -> Vec<BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_reader(out.as_bytes());
    reader.deserialize().map(Result::unwrap).collect()
}

#[test]
fn csv_has_the_keys_of_nvidia_smi_and_pytorchs_memory() {
    let target = sim::start("allocator_truth.py", &["two_devices"]);
    let truth = truth(&target);
    let out = devices(&target, &["--format", "csv"]).out;
    assert_eq!(out.lines().next(), Some(KEYS));
    let rows = rows(&out);
    assert_eq!(rows.len(), 2);
    for (row, device) in rows.iter().zip(truth["devices"].as_array().unwrap()) {
        let bytes = |key: &str| row[key].parse::<u64>().unwrap();
        assert_eq!(bytes("memory.free"), device["free"]);
        assert_eq!(bytes("memory.total"), device["total"]);
        assert_eq!(bytes("memory.used") + bytes("memory.free"), bytes("memory.total"));
        assert_eq!(row["driver_version"], "580.00.00");
        assert_eq!((&*row["pstate"], &*row["temperature.gpu"]), ("P0", "30"));
        assert_eq!((&*row["pcie.link.gen.max"], &*row["utilization.gpu"]), ("5", "0"));
        let time: Vec<char> = row["timestamp"].chars().collect();
        let at = |i: usize| time[i];
        assert_eq!((time.len(), at(4), at(10), at(13), at(19)), (23, '/', ' ', ':', '.'));
    }
    assert_eq!(rows[1]["pci.bus_id"], "00000000:02:00.0");
}

/// The sums of PyTorch's snapshot.
fn fragmentation_of(snapshot: &Value) -> BTreeMap<&'static str, u64> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for segment in snapshot.as_array().unwrap() {
        let blocks = segment["blocks"].as_array().unwrap();
        let free: Vec<u64> = blocks
            .iter()
            .filter(|b| b["state"] == "inactive")
            .map(|b| b["size"].as_u64().unwrap())
            .collect();
        let size = segment["total_size"].as_u64().unwrap();
        let private = segment["segment_pool_id"] != serde_json::json!([0, 0]);
        let expands = segment["is_expandable"] == true;
        *sums.entry("segments").or_default() += 1;
        *sums.entry("free").or_default() += free.iter().sum::<u64>();
        *sums.entry("blocks").or_default() += free.len() as u64;
        let largest = sums.entry("largest").or_default();
        *largest = free.iter().copied().chain([*largest]).max().unwrap();
        let wholly = free.len() == blocks.len() && !private && !expands;
        *sums.entry("wholly").or_default() += if wholly { size } else { 0 };
        *sums.entry("private").or_default() += if private { size } else { 0 };
        *sums.entry("expandable").or_default() += if expands { size } else { 0 };
    }
    sums
}

#[test]
#[ignore = "takes long, and export sees snapshots: scripts/test.sh --all runs it"]
fn a_jobs_cache_is_fragmented_as_its_own_snapshot_says() {
    for mode in ["plain", "expandable", "graph_pool", "two_devices", "streams"] {
        let target = sim::start("allocator_truth.py", &[mode]);
        let truth = truth(&target);
        let look = look(&target);
        let process = &look["processes"][0];
        assert_eq!(process["pid"], target.pid());
        assert_eq!(process["not_read"], serde_json::json!([]), "{mode}");
        let seen = process["devices"].as_array().unwrap();
        let true_devices = truth["devices"].as_array().unwrap();
        assert_eq!(seen.len(), true_devices.len(), "{mode}");
        for (seen, truth) in seen.iter().zip(true_devices) {
            let stat = |key: &str| truth["stats"][key].as_u64().unwrap();
            assert_eq!(seen["reserved"], stat("reserved_bytes.all.current"), "{mode}");
            assert_eq!(seen["allocated"], stat("allocated_bytes.all.current"), "{mode}");
            assert_eq!(seen["free"], truth["free"], "{mode}");
            let cut = &seen["fragmentation"];
            let expected = fragmentation_of(&truth["snapshot"]);
            let private = cut["private_pools"].as_array().unwrap();
            let sum = |of: &[Value], key: &[&str]| -> u64 {
                of.iter().map(|v| key.iter().fold(v, |v, k| &v[k]).as_u64().unwrap()).sum()
            };
            let by_size = cut["free_by_size"].as_array().unwrap();
            for (name, value) in [
                ("segments", cut["all"]["segments"].as_u64().unwrap()),
                ("free", cut["all"]["free"].as_u64().unwrap()),
                ("free", sum(by_size, &["bytes"])),
                ("blocks", sum(by_size, &["blocks"])),
                ("largest", cut["largest_free"].as_u64().unwrap()),
                ("wholly", cut["wholly_free"]["bytes"].as_u64().unwrap()),
                ("private", sum(private, &["sums", "bytes"])),
                ("expandable", cut["expandable"]["bytes"].as_u64().unwrap()),
            ] {
                assert_eq!(value, expected[name], "{mode}: {name}");
            }
        }
        let of = |name: &str| fragmentation_of(&true_devices[0]["snapshot"])[name];
        assert!(of("free") > 0, "{mode} has something to tell");
        assert_eq!(of("private") > 0, mode == "graph_pool");
        assert_eq!(of("expandable") > 0, mode == "expandable");
    }
}

/// PyTorch unmaps free granules of expandable segments, waits for other streams and empties unused
/// pools.
#[test]
#[ignore = "takes half a minute, and holders sees what the cache would return: scripts/test.sh --all runs it"]
fn empty_cache_would_return_what_it_then_returns() {
    for setting in [
        &[][..],
        &["expandable_segments:True"],
        &["expandable_segments:True,large_segment_size_mb:40"],
    ] {
        let mut target = sim::start("empty_cache.py", setting);
        let mut said = std::mem::take(&mut target.said);
        let mut patterns = 0;
        loop {
            let truth: Value = serde_json::from_str(said.last().unwrap()).unwrap();
            let Some(pattern) = truth["pattern"].as_str() else { break };
            let label = format!("{setting:?} {pattern}");
            let device = &look(&target)["processes"][0]["devices"][0];
            assert_eq!(device["reserved"], truth["reserved"], "{label}");
            let mut told = vec![device["fragmentation"]["releasable"].clone()];
            // All commands read it in one place.
            if patterns == 0 {
                for (command, path) in [("tensors", "/devices"), ("dump", "/owners/devices")] {
                    let all = holders_of(&target, command);
                    told.push(all.pointer(path).unwrap()["cuda:0"]["releasable"].clone());
                }
            }
            target.say("empty the cache");
            let returned: u64 = target.line().parse().unwrap();
            assert!(told.iter().all(|told| *told == returned), "{label}: {told:?} for {returned}");
            patterns += 1;
            said = target.read_until_ready();
        }
        assert_eq!(patterns, 9);
    }
}

#[test]
fn what_two_jobs_use_of_a_card_adds_up() {
    let one = sim::start("allocator_truth.py", &["plain"]);
    let other = start_beside(&one, "expandable");
    let (first, second) = (look(&one), look(&other));
    let used = first["devices"][0]["memory"]["used"].as_u64().unwrap();
    let listed = first["devices"][0]["processes"].as_array().unwrap();
    let bytes_of = |pid: u32| {
        let process = listed.iter().find(|p| p["pid"] == pid).unwrap();
        assert!(process["command"].as_str().unwrap().contains("allocator_truth.py"));
        process["bytes"].as_u64().unwrap()
    };
    assert_eq!(bytes_of(one.pid()) + bytes_of(other.pid()), used);
    for (look, own, beside) in [(&first, &one, &other), (&second, &other, &one)] {
        let device = &look["processes"][0]["devices"][0];
        let part = |key: &str| device[key].as_u64().unwrap();
        assert_eq!(part("other_processes"), bytes_of(beside.pid()));
        assert_eq!(part("reserved_on_device") + part("outside_pytorch"), bytes_of(own.pid()));
        let sum = part("reserved_on_device") + part("outside_pytorch") + part("other_processes");
        assert_eq!((sum + part("no_process"), part("no_process")), (used, 0));
        // The context, as the simulated card counts it; this job runs no kernel.
        assert_eq!(part("outside_pytorch"), 552_402_944);
    }
    let pids = [one.pid(), other.pid()].map(|pid| pid.to_string());
    let text = devices(&one, &["-p", &pids[0], "-p", &pids[1]]).out;
    for pid in &pids {
        assert!(text.contains(&format!("Process {pid}: python ")), "{text}");
    }
    assert_eq!(text.matches("1 other process ").count(), 2, "{text}");
    let rows = rows(&devices(&one, &["--format", "csv", "-p", &pids[0], "-p", &pids[1]]).out);
    assert_eq!(rows.iter().map(|row| &row["pid"]).collect::<Vec<_>>(), [&pids[0], &pids[1]]);
    assert_eq!(rows[0]["other_processes"], bytes_of(other.pid()).to_string());
}

#[test]
fn parts_belong_to_one_moment_even_in_a_busy_job() {
    let mut target = sim::start("allocator_load.py", &[]);
    // Longer than the snapshots; killed after them.
    for request in ["hold 10", "churn 600 1500"] {
        target.say(request);
        target.read_until_ready();
    }
    let mut allocated = Vec::new();
    for attempt in 0.. {
        let look = look(&target);
        let device = &look["processes"][0]["devices"][0];
        // On a busy machine the job may change during every attempt: what is not of one moment is
        // left out.
        if device["outside_pytorch"].is_null() {
            let why = &device["outside_pytorch_unknown_because"];
            assert!(
                attempt < 60,
                "{} of {attempt} looks were of one moment: {why}",
                allocated.len()
            );
            continue;
        }
        let part = |key: &str| device[key].as_u64().unwrap();
        let parts = ["reserved_on_device", "outside_pytorch", "other_processes", "no_process"];
        assert_eq!(parts.map(part).iter().sum::<u64>(), part("used"));
        // The context; memory taken between two reads would change this.
        assert_eq!(part("outside_pytorch"), 552_402_944);
        allocated.push(part("allocated"));
        if allocated.len() == 15 {
            break;
        }
    }
    assert!(allocated.iter().max() > allocated.iter().min(), "it was at work: {allocated:?}");
}

/// While `cudaMalloc` runs, the driver counts memory that PyTorch does not count yet.
#[test]
fn what_an_allocation_under_way_takes_is_not_outside_pytorch() {
    let mut command = sim::command("allocator_load.py", &[]);
    // 40 times 26 MiB and more.
    command.env("SIM_CUDA_ALLOC_MS", "500");
    let mut target = Target::start(command);
    for request in ["hold 10", "churn 600 200"] {
        target.say(request);
        target.read_until_ready();
    }
    let mut told = Vec::new();
    for _ in 0..10 {
        let device = &look(&target)["processes"][0]["devices"][0];
        match device["outside_pytorch"].as_u64() {
            Some(bytes) => assert_eq!(bytes, 552_402_944),
            None => told.push(device["outside_pytorch_unknown_because"].to_string()),
        }
    }
    assert!(told.iter().any(|why| why.contains("during each query")), "{told:?}");
}

#[test]
fn a_process_without_gpu_memory_is_said_so() {
    let target = sim::start("allocator_truth.py", &["none"]);
    let text = devices(&target, &["-p", &target.pid().to_string()]).out;
    assert!(text.contains("The driver lists no process."), "{text}");
    assert!(text.contains("has no memory on any GPU"), "{text}");
}

#[test]
fn a_process_without_pytorch_has_its_memory_outside_of_it() {
    let mut target = sim::start("driver_only.py", &[]);
    target.say("go");
    assert_eq!(target.line(), "HELD");
    let bytes = 552_402_944 + (300 << 20);
    let device = &look(&target)["processes"][0]["devices"][0];
    assert_eq!((&device["process"], &device["outside_pytorch"]), (&bytes.into(), &bytes.into()));
    assert_eq!((&device["reserved"], &device["reserved_on_device"]), (&Value::Null, &0.into()));
    let pid = target.pid().to_string();
    let text = devices(&target, &["-p", &pid]).out;
    assert!(text.contains("no PyTorch") && !text.contains("unknown"), "{text}");
    for command_word in ["pause", "resume"] {
        let mut memspy = command(Some(target.pid()));
        run(memspy.args([command_word, "-p", &pid])).ok();
    }
    assert_eq!(look(&target)["processes"][0]["devices"][0]["process"], bytes);
}

#[test]
fn unanswered_driver_queries_are_unknown_not_0() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let absent = "nvmlDeviceGetTemperature,nvmlDeviceGetUtilizationRates,nvmlDeviceGetMemoryInfo_v2,\
                  nvmlDeviceGetComputeRunningProcesses,nvmlDeviceGetPerformanceState";
    let with = |words: &[&str]| {
        let mut command = command(Some(target.pid()));
        run(command.arg("devices").args(words).env("SIM_NVML_ABSENT", absent)).ok().out
    };
    let rows = rows(&with(&["--format", "csv"]));
    for key in ["temperature.gpu", "utilization.gpu", "memory.total", "memory.used", "pstate"] {
        assert_eq!(rows[0][key], "", "{key}");
    }
    assert_eq!(rows[0]["pcie.link.gen.max"], "5");
    let text = with(&[]);
    assert_eq!(text.lines().nth(2).unwrap().matches("unknown").count(), 7, "{text}");
    assert!(text.contains("Who uses it is unknown. GPU 0: NVML does not list processes"), "{text}");
    let pid = target.pid().to_string();
    let json: Value = serde_json::from_str(&with(&["--json", "-p", &pid])).unwrap();
    assert_eq!(json["devices"][0]["memory"], Value::Null);
    assert_eq!(json["devices"][0]["processes"], Value::Null);
    let device = &json["processes"][0]["devices"][0];
    assert_eq!((&device["used"], &device["outside_pytorch"]), (&Value::Null, &Value::Null));
    assert_eq!(
        device["reserved"],
        truth(&target)["devices"][0]["stats"]["reserved_bytes.all.current"]
    );
}

#[test]
fn pids_of_another_namespace_are_never_taken_for_processes_here() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let pid = target.pid();
    let with = |words: &[&str]| {
        let mut command = command(Some(pid));
        command.arg("devices").args(words).env("SIM_NVML_PID_OFFSET", "1000000000");
        run(&mut command).ok().out
    };
    let text = with(&["-p", &pid.to_string()]);
    assert!(text.contains(&format!("[{}]", pid + 1_000_000_000)), "{text}");
    assert!(text.contains("hides these processes"), "{text}");
    assert!(text.contains("what it uses outside PyTorch is unknown"), "{text}");
    let json: Value = serde_json::from_str(&with(&["--json", "-p", &pid.to_string()])).unwrap();
    let listed = &json["devices"][0]["processes"][0];
    assert_eq!((&listed["pid"], &listed["command"]), (&Value::Null, &Value::Null));
    let device = &json["processes"][0]["devices"][0];
    for key in ["outside_pytorch", "other_processes", "no_process"] {
        assert_eq!(device[key], Value::Null, "{key}");
    }
    assert!(device["reserved"].as_u64().unwrap() > 0);
}

#[test]
fn a_jobs_memory_on_an_unidentified_gpu_is_shown() {
    let mut job = sim::command("allocator_truth.py", &["plain"]);
    job.env("CUDA_VISIBLE_DEVICES", "MIG-of-another-machine");
    let target = Target::start(job);
    let look = look(&target);
    let devices_seen = look["processes"][0]["devices"].as_array().unwrap();
    let device = devices_seen.iter().find(|d| d["cuda_index"] == 0).unwrap();
    assert_eq!((&device["index"], &device["used"]), (&Value::Null, &Value::Null));
    let stats = &truth(&target)["devices"][0]["stats"];
    assert_eq!(device["reserved"], stats["reserved_bytes.all.current"]);
    assert!(device["fragmentation"]["free_blocks"].as_u64().unwrap() > 0);
    // The driver's figures are there as well, not joined by guessing.
    let other = devices_seen.iter().find(|d| d["index"] == 0).unwrap();
    assert_eq!((&other["cuda_index"], &other["reserved"]), (&Value::Null, &Value::Null));
    let pid = target.pid().to_string();
    let rows = rows(&devices(&target, &["--format", "csv", "-p", &pid]).out);
    let row = rows.iter().find(|row| row["cuda_index"] == "0").unwrap();
    assert_eq!((&*row["memory.used"], &*row["name"]), ("", ""));
    assert_eq!(row["reserved"], device["reserved"].to_string());
}

#[test]
fn mig_devices_are_listed_below_their_gpu() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let with = |words: &[&str]| {
        let mut command = command(Some(target.pid()));
        run(command.arg("devices").args(words).env("SIM_CUDA_MIG", "2")).ok().out
    };
    let json: Value = serde_json::from_str(&with(&["--json"])).unwrap();
    let mig = json["devices"][0]["mig"].as_array().unwrap();
    assert_eq!(mig.len(), 2);
    for (part, used) in mig.iter().zip([true, false]) {
        assert!(part["uuid"].as_str().unwrap().starts_with("MIG-"));
        assert_eq!(part["memory"]["total"], 40u64 << 30);
        assert_eq!(part["memory"]["used"].as_u64().unwrap() > 0, used);
        assert_eq!(part["processes"].as_array().unwrap().len(), usize::from(used));
    }
    assert_eq!(mig[0]["processes"][0]["pid"], target.pid());
    let text = with(&[]);
    assert_eq!(text.lines().filter(|line| line.contains("MIG-")).count(), 2, "{text}");
    assert!(!devices(&target, &[]).out.contains("MIG"));
}

#[test]
fn snapshots_repeat_until_ctrl_c_or_the_jobs_end() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let folder = tempfile::tempdir().unwrap();
    let start = |words: &[&str], name: &str| {
        let out = std::fs::File::create(folder.path().join(name)).unwrap();
        let mut command = command(Some(target.pid()));
        command.args(["devices", "--every", "0.1"]).args(words).stdout(out).spawn().unwrap()
    };
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let pid = target.pid().to_string();

    let mut forever = start(&["--format", "csv"], "csv");
    wait_until("three rows", || read("csv").lines().count() > 3);
    kill(Pid::from_raw(forever.id() as i32), Signal::SIGINT).unwrap();
    assert!(forever.wait().unwrap().success());
    let csv = read("csv");
    assert_eq!(csv.lines().filter(|line| *line == KEYS).count(), 1, "one head: {csv}");
    let rows = rows(&csv);
    assert!(rows.windows(2).all(|pair| pair[0]["timestamp"] < pair[1]["timestamp"]), "{csv}");

    let mut text = start(&["-p", &pid], "text");
    let mut json = start(&["--json", "-p", &pid], "json");
    let looks = |name: &str, mark: &str| read(name).matches(mark).count();
    wait_until("two tables", || looks("text", "bus id") > 1);
    wait_until("two lines of JSON", || looks("json", "\n") > 1);
    drop(target);
    assert!(text.wait().unwrap().success() && json.wait().unwrap().success());
    for line in read("json").lines() {
        let look = document::<DevicesJson>(line);
        assert_eq!(look["processes"][0]["pid"].to_string(), pid);
    }
}

#[test]
fn without_driver_or_process_there_is_one_clear_line() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut without = std::process::Command::new(root.join("scripts/with-sim"));
    without.args([env!("CARGO_BIN_EXE_memspy"), "devices"]).env("SIM_CUDA_DEVICES", "0");
    run(&mut without).refused(&["cannot read the GPUs", "NVML", "nvidia-smi"]);
    let target = sim::start("allocator_truth.py", &["none"]);
    let mut missing = command(Some(target.pid()));
    run(missing.args(["devices", "-p", "2147483000"])).refused(&["no process with pid 2147483000"]);
}

#[test]
fn memory_unmapped_under_the_allocator_is_shown() {
    let mut target = sim::start("asleep.py", &[]);
    let device = |target: &Target| holders_of(target, "dump")["devices"][0].clone();
    let awake = device(&target);
    let outside = awake["outside_pytorch"].as_u64().unwrap();
    assert_eq!(awake["unmapped_at_least"], 0);
    target.say("sleep");
    let slept: u64 = target.read_until_ready()[0].parse().unwrap();
    assert_eq!(awake["reserved"], slept);
    let asleep = device(&target);
    assert_eq!(asleep["reserved"], slept, "the allocator knows nothing of it");
    assert_eq!(asleep["outside_pytorch"], Value::Null);
    // What is outside (the context) cannot be told from what is still mapped: at least the rest is
    // gone.
    assert_eq!(asleep["unmapped_at_least"], slept - outside);
    let pid = target.pid().to_string();
    let text = devices(&target, &["-p", &pid]).out;
    for said in ["of c unmapped (asleep), at least", "unmapped under its allocator"] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let json = look(&target);
    assert!(
        json.to_string().contains(&format!("\"unmapped_at_least\":{}", slept - outside)),
        "{json}"
    );
}

#[test]
fn a_process_whose_launcher_is_gone_is_named_an_orphan() {
    use std::os::unix::process::CommandExt;
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("card");
    // A launcher that ends and leaves its process behind, which keeps its pipes.
    let script =
        "exec 3<&0; scripts/with-sim python tests/targets/allocator_truth.py two_devices <&3 &";
    let mut launcher = std::process::Command::new("sh");
    launcher.args(["-c", script]).env("SIM_CUDA_STATE", &state).process_group(0);
    let target = Target::start(launcher);
    let left: Value = serde_json::from_str(target.said.last().unwrap()).unwrap();
    let devices = |words: &[&str]| {
        let mut memspy = std::process::Command::new("scripts/with-sim");
        memspy.env("SIM_CUDA_STATE", &state).arg(env!("CARGO_BIN_EXE_memspy")).arg("devices");
        run(memspy.args(words)).ok().out
    };
    let orphan = left["pid"].as_u64().unwrap();
    wait_until("the launcher's end", || {
        let json: Value = serde_json::from_str(&devices(&["--json"])).unwrap();
        json["left_behind"].as_array().unwrap().iter().any(|found| found["pid"] == orphan)
    });
    let text = devices(&[]);
    assert!(text.contains(&format!("Orphan: {orphan} (")), "{text}");
    // A process whose starter lives is no orphan.
    let kept = sim::start("allocator_truth.py", &["two_devices"]);
    let json: Value = serde_json::from_str(&self::devices(&kept, &["--json"]).out).unwrap();
    assert_eq!(json["left_behind"], serde_json::json!([]));
}

#[test]
fn dump_shows_a_thread_in_time_sleep_as_asleep() {
    let (mut target, _) = crate::support::oom::start(&[]);
    target.say("settle 60");
    let pid = target.pid().to_string();
    wait_until("a sleeping thread", || {
        let done = run(command(Some(target.pid())).args(["dump", "--no-pause", "-p", &pid]));
        done.out.contains("(asleep): \"MainThread\"")
    });
}

#[test]
#[ignore = "takes long: scripts/test.sh --all runs it"]
fn a_gpu_without_memory_of_the_process_is_one_line() {
    let mut command = sim::command("holders_truth.py", &["--device", "cuda:1"]);
    command.env("SIM_CUDA_DEVICES", "2");
    let target = Target::start(command);
    let pid = target.pid().to_string();
    let run = |words: &[&str]| run(&mut command_of(&target, words, &pid)).ok().out;
    let dump = run(&["dump"]);
    let of_first: Vec<&str> = dump.lines().filter(|line| line.contains("GPU 0")).collect();
    assert_eq!(of_first.len(), 1, "{dump}");
    assert!(of_first[0].contains("nothing of this process"), "{dump}");
    assert!(!dump.contains("of 0 B allocated"), "{dump}");
    assert_eq!(dump.matches("allocated through PyTorch").count(), 1, "{dump}");
    assert_eq!(dump.matches("the process was stopped for").count(), 1, "{dump}");
    let tensors = run(&["tensors"]);
    assert!(tensors.contains("cuda:0: nothing of this process\ncuda:1: "), "{tensors}");
    let summary = run(&["summary"]);
    assert!(summary.contains("GPU 1, ") && !summary.contains("GPU 0"), "{summary}");
}

fn command_of(target: &Target, words: &[&str], pid: &str) -> std::process::Command {
    let mut command = command(Some(target.pid()));
    command.args(words).args(["-p", pid]);
    command
}

#[test]
fn memspy_alone_on_a_terminal_asks_which_job() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let terminal = Terminal::start("choice", (100, 40));
    let memspy = command(Some(target.pid()));
    let words = [memspy.get_program()].into_iter().chain(memspy.get_args());
    let line: Vec<&str> = words.map(|word| word.to_str().unwrap()).collect();
    terminal.enter(&format!("clear; {}", line.join(" ")));
    let screen = terminal.wait_for("the question", |screen| screen.contains("Which one?"));
    let pid = target.pid().to_string();
    let is_listed =
        |line: &str| [&pid, "GPU 0", "MiB", "python"].iter().all(|it| line.contains(it));
    assert!(screen.lines().any(is_listed), "{screen}");
    terminal.enter("nonsense");
    terminal.wait_for("the answer", |screen| screen.contains("no such process"));
    terminal.press(&["Enter"]);
    terminal.wait_for("the summary", |screen| screen.contains(&format!("Process {pid}")));
    target.finish();
}
