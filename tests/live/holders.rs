//! Owners: names, categories and sums, compared with the job's own figures and with older tools.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::everything_is_there;
use crate::support::memspy::{document, memspy_at};
use crate::support::sim;
use crate::support::target::Target;
use memspy::render::json::{DumpJson, OwnershipJson};
use serde_json::Value;

fn start(script: &str, words: &[&str]) -> (Target, Value) {
    let target = sim::start(script, words);
    let truth = serde_json::from_str(target.said.first().unwrap()).unwrap();
    (target, truth)
}

fn tensors(target: &Target, words: &[&str]) -> Value {
    let done = memspy_at(target.pid(), &[&["tensors", "--json"], words].concat()).ok();
    document::<OwnershipJson>(&done.out)
}

fn by_id(snapshot: &Value) -> BTreeMap<u64, &Value> {
    let rows = snapshot["tensors"].as_array().unwrap();
    rows.iter().filter_map(|row| Some((row["id"].as_u64()?, row))).collect()
}

fn names(row: &Value) -> Vec<&str> {
    row["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

/// All allocated bytes have an owner or a cause.
fn check_sums(snapshot: &Value, allocated: u64) {
    let sums = &snapshot["devices"]["cuda:0"];
    assert_eq!(sums["allocated"], allocated);
    let parts = [
        "parameters",
        "buffers",
        "gradients",
        "optimizer_state",
        "saved_for_backward",
        "other_tensors",
        "rounding",
        "in_no_tensor",
    ];
    let parts: u64 = parts.iter().map(|part| sums[part].as_u64().unwrap()).sum();
    let in_cpp = sums["in_cpp"].as_object().unwrap().values();
    assert_eq!(parts + in_cpp.map(|bytes| bytes.as_u64().unwrap()).sum::<u64>(), allocated);
}

#[test]
fn every_tensor_has_its_names_and_the_categories_add_up() {
    let (target, truth) = start("holders_truth.py", &[]);
    let snapshot = tensors(&target, &[]);
    let rows = by_id(&snapshot);
    for (name, id) in truth["names"].as_object().unwrap() {
        let row = rows.get(&id.as_u64().unwrap()).unwrap_or_else(|| panic!("{name} is missing"));
        assert!(names(row).contains(&name.as_str()), "{name}: {:?}", names(row));
    }
    // Shared weights are one tensor with two names.
    assert_eq!(
        &names(rows[&truth["names"]["head.weight"].as_u64().unwrap()])[..2],
        ["embed.weight", "head.weight"]
    );
    let sums = &snapshot["devices"]["cuda:0"];
    for category in ["parameters", "buffers", "gradients", "optimizer_state"] {
        assert_eq!(sums[category], truth[category], "{category}");
    }
    check_sums(&snapshot, truth["allocated"].as_u64().unwrap());
    assert_eq!(snapshot["unreadable"], 0);
    assert!(snapshot["pause_seconds"].as_f64().unwrap() > 0.0);
    // The graph keeps whatever is in no variable.
    assert_eq!(sums["unnamed"], 0);

    let dump = memspy_at(target.pid(), &["dump", "--json"]).ok();
    let dump = document::<DumpJson>(&dump.out);
    assert_eq!(dump["owners"]["devices"]["cuda:0"], snapshot["devices"]["cuda:0"]);
    let text = memspy_at(target.pid(), &["tensors", "--each", "--limit", "0"]).ok().out;
    for said in
        ["embed.weight", "= head.weight", "main: in_list[1][1][0]", "the process was stopped for"]
    {
        assert!(text.contains(said), "{said}\n{text}");
    }
}

#[test]
fn memory_freed_by_a_collection_or_the_cache_is_shown() {
    let (mut target, _) = start("holders_truth.py", &[]);
    let before = &tensors(&target, &[])["devices"]["cuda:0"];
    assert_eq!(before["garbage"], 0);
    target.say("more 40");
    target.line();
    target.say("less");
    target.line();
    target.say("leak");
    target.line();
    let snapshot = tensors(&target, &[]);
    let sums = &snapshot["devices"]["cuda:0"];
    let dump = memspy_at(target.pid(), &["dump"]).ok().out;
    target.say("collect");
    let freed: Vec<u64> = serde_json::from_str(&target.line()).unwrap();
    // Whole blocks are freed, with their rounding.
    let garbage = sums["garbage"].as_u64().unwrap();
    assert!(garbage > 2_000_000 && garbage <= freed[0], "{garbage} of {freed:?}");
    assert!(freed[0] - garbage < 64 * 512, "{garbage} of {freed:?}");
    // Plus segments that a collection frees whole.
    let releasable = sums["releasable"].as_u64().unwrap();
    assert!(releasable > 0 && releasable <= freed[1], "{releasable} {freed:?}");
    for said in ["gc.collect() would free", "empty_cache() would return"] {
        assert!(dump.contains(said), "{said}: {dump}");
    }
    let after = tensors(&target, &[]);
    assert_eq!(after["devices"]["cuda:0"]["garbage"], 0);
    assert_eq!(after["devices"]["cuda:0"]["releasable"], 0);
}

/// At a running job; each takes up to a second in this build.
const LOOKS: u32 = 8;
/// With `--all`.
const MANY_LOOKS: u32 = 60;

#[test]
#[ignore = "takes long, and leaks reads a busy job many times: scripts/test.sh --all runs it"]
fn a_busy_job_survives_repeated_snapshots() {
    let (mut target, _) = start("holders_truth.py", &[]);
    let pid = target.pid();
    target.say("train");
    let mut snapshots = 0;
    let wanted = if everything_is_there() { MANY_LOOKS } else { LOOKS };
    let looking = std::thread::spawn(move || {
        let mut snapshots = Vec::new();
        for _ in 0..wanted {
            let done = memspy_at(pid, &["tensors", "--json"]);
            snapshots.push(serde_json::from_str::<Value>(&done.ok().out).unwrap());
        }
        snapshots
    });
    for snapshot in looking.join().unwrap() {
        // Whatever the moment: figures are consistent, or not shown.
        check_sums(&snapshot, snapshot["devices"]["cuda:0"]["allocated"].as_u64().unwrap());
        assert!(by_id(&snapshot).len() > 20);
        snapshots += 1;
    }
    assert_eq!(snapshots, wanted);
    target.say("more 3");
    let _: Value = serde_json::from_str(&target.line()).unwrap();
    let allocated: u64 = target.line().parse().unwrap();
    check_sums(&tensors(&target, &[]), allocated);
    let running = tensors(&target, &["--no-stop"]);
    assert_eq!(running["pause_seconds"], Value::Null);
    check_sums(&running, allocated);
}

#[test]
#[ignore = "takes half a minute: scripts/test.sh --all runs it"]
fn what_memlabs_reporter_says_is_said_from_outside() {
    for scene in ["linear", "backward", "tied", "lstm"] {
        let (target, truth) = start("memlab_reporter.py", &[scene]);
        let snapshot = tensors(&target, &[]);
        let mut seen: BTreeMap<(String, u64), i64> = BTreeMap::new();
        let mut storages: BTreeMap<u64, u64> = BTreeMap::new();
        let mut by_name: BTreeMap<&str, &Value> = BTreeMap::new();
        for row in by_id(&snapshot).values().filter(|row| row["device"] == "cuda:0") {
            // Its rules: no empty tensors, scalars have size 1, storages in blocks of 512 bytes.
            let numel = row["numel"].as_u64().unwrap();
            let shape = match row["shape"].to_string() {
                empty if empty == "[]" => "[1]".to_owned(),
                shape => shape,
            };
            *seen.entry((shape, numel)).or_default() += 1;
            let bytes = row["storage_bytes"].as_u64().unwrap();
            storages.insert(row["data_ptr"].as_u64().unwrap(), bytes.next_multiple_of(512));
            by_name.extend(names(row).into_iter().map(|name| (name, *row)));
        }
        let mut memory = 0;
        for row in truth["rows"].as_array().unwrap() {
            let numel = row[2].as_u64().unwrap();
            *seen.entry((row[1].to_string(), numel)).or_default() -= 1;
            memory += row[3].as_u64().unwrap();
            let name = row[0].as_str().unwrap().split('(').next().unwrap();
            if !name.starts_with("Tensor") && !name.starts_with("Parameter") {
                let found = by_name.get(name).unwrap_or_else(|| panic!("{scene}: {name}"));
                assert_eq!(found["numel"], numel, "{scene}: {name}");
            }
        }
        assert!(seen.values().all(|count| *count == 0), "{scene}: {seen:?}");
        assert_eq!(storages.values().sum::<u64>(), memory, "{scene}");
        assert_eq!(snapshot["devices"]["cuda:0"]["allocated"], truth["allocated"], "{scene}");
    }
}

/// Rows by gpu_mem_track's rule: type, size, count of this size and element type, MiB, element
/// type.
fn tracked(snapshot: &Value) -> BTreeSet<String> {
    let all = by_id(snapshot);
    let rows: Vec<&&Value> =
        all.values().filter(|row| row["device"].as_str().unwrap().starts_with("cuda")).collect();
    let like = |a: &Value, b: &Value| a["shape"] == b["shape"] && a["dtype"] == b["dtype"];
    let row = |row: &&&Value| {
        let count = rows.iter().filter(|other| like(other, row)).count();
        let mib = row["bytes"].as_u64().unwrap() as f64 / 1_048_576.0;
        let dtype = format!("torch.{}", row["dtype"].as_str().unwrap());
        serde_json::json!([row["class"], row["shape"], count, mib, dtype]).to_string()
    };
    rows.iter().map(row).collect()
}

#[test]
fn lines_of_gpu_mem_track_are_seen_from_outside() {
    let (mut target, mut truth) = start("memtrack.py", &[]);
    let mut last = BTreeSet::new();
    let mut points = 0;
    while truth["last"].is_null() {
        let snapshot = tensors(&target, &[]);
        let now = tracked(&snapshot);
        let lines = |rows: &Value| -> BTreeSet<String> {
            rows.as_array().unwrap().iter().map(ToString::to_string).collect()
        };
        let difference = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
            a.difference(b).cloned().collect::<BTreeSet<_>>()
        };
        assert_eq!(difference(&now, &last), lines(&truth["came"]), "point {points}");
        assert_eq!(difference(&last, &now), lines(&truth["went"]), "point {points}");
        let cuda = |row: &&&Value| row["device"].as_str().unwrap().starts_with("cuda");
        let used: u64 =
            by_id(&snapshot).values().filter(cuda).map(|r| r["bytes"].as_u64().unwrap()).sum();
        assert_eq!(used, truth["used"].as_u64().unwrap());
        if points > 0 {
            assert_eq!(snapshot["devices"]["cuda:0"]["allocated"], truth["allocated"]);
        }
        last = now;
        points += 1;
        target.say("go");
        truth = serde_json::from_str(target.read_until_ready().last().unwrap()).unwrap();
    }
    assert_eq!(points, 5);
}

#[test]
fn new_and_gone_tensors_are_listed_with_the_current_line() {
    let (mut target, _) = start("holders_truth.py", &[]);
    let mut command = crate::support::memspy::command(Some(target.pid()));
    command.args([
        "tensors",
        "--each",
        "--every",
        "0.3",
        "--limit",
        "5",
        "-p",
        &target.pid().to_string(),
    ]);
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(watch.stdout.take().unwrap());
    let mut until = |text: &str| loop {
        let mut line = String::new();
        assert!(said.read_line(&mut line).unwrap() > 0, "no '{text}'");
        if line.contains(text) {
            return line;
        }
    };
    until("the process was stopped for");
    target.say("more 3");
    target.line();
    // A snapshot may fall between two of the three.
    let mut all_three = |sign: char| {
        let mut seen = 0;
        while seen < 3 {
            let line = until("x 3.81 MiB");
            let mut words = line.split_whitespace();
            assert_eq!(words.next(), Some(&*sign.to_string()), "{line}");
            seen += words.next().unwrap().parse::<u32>().unwrap();
            assert!(line.contains("other tensors") && line.contains("[1000, 1000]"), "{line}");
            if seen == 3 {
                return line;
            }
        }
        panic!("{seen} of 3");
    };
    assert!(all_three('+').contains("main: kept["));
    target.say("less");
    target.line();
    all_three('-');
    target.say("more 1");
    target.line();
    // Wherever it is by then, it is a line of the job.
    let place = until(" at ");
    assert!(place.contains("tests/targets/") && place.contains(" in "), "{place}");
    // The watch ends with the job, with success.
    drop(target);
    assert!(watch.wait().unwrap().success());
}

#[test]
fn what_cannot_be_looked_at_is_refused_in_one_line() {
    let python = crate::support::pythons::newest_here();
    let mut command = python.command();
    command.args(["-c", "print('READY', flush=True)\nimport time\ntime.sleep(600)"]);
    let target = Target::start(command);
    memspy_at(target.pid(), &["tensors"]).refused(&["PyTorch is not loaded", "imported torch"]);
    let dump = memspy_at(target.pid(), &["dump"]).ok();
    assert!(dump.out.contains("No GPU memory is known"), "{}", dump.out);
}

/// A process with a mapped file of that package, and an object of that class, as of another JAX.
#[test]
fn unknown_arrays_of_jax_are_an_error_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("jaxlib/_jax.so");
    std::fs::create_dir(library.parent().unwrap()).unwrap();
    std::fs::write(&library, [0; 4096]).unwrap();
    let mut command = crate::support::pythons::newest_here().command();
    command.arg("-c").arg(
        "import mmap, sys, time\nfile = open(sys.argv[1])\nheld = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n\
         array = type('ArrayImpl', (), {'__module__': 'jaxlib._jax'})()\narray.itself = array\n\
         print('READY', flush=True)\ntime.sleep(600)",
    );
    command.arg(&library);
    let target = Target::start(command);
    memspy_at(target.pid(), &["tensors"]).refused(&["it uses a JAX whose", "memspy devices"]);
    let summary = memspy_at(target.pid(), &["summary", "--for", "0.2s"]).ok().out;
    assert!(summary.contains("its owners are unknown: it uses a JAX"), "{summary}");
    assert!(!summary.contains("what PyTorch has allocated"), "{summary}");
}

#[test]
#[ignore = "takes half a minute: scripts/test.sh --all runs it"]
fn what_tbds_profiler_looks_for_is_seen_at_every_iteration() {
    let (mut target, mut truth) = start("oracle_tbd.py", &[]);
    let mut records = 0;
    while truth["point"] != "last" {
        let snapshot = tensors(&target, &[]);
        if truth["point"] == "forward" {
            // Its feature maps: all that the graph keeps.
            assert_eq!(snapshot["saved_for_backward"]["all"], truth["graph"]["bytes"]);
        } else {
            for (category, bytes) in truth["true"]["cuda:0"].as_object().unwrap() {
                assert_eq!(&snapshot["devices"]["cuda:0"][category], bytes, "{category}");
            }
            // The gradients, which it does not find on PyTorch 2.
            for (parameter, bytes) in truth["true_gradients"].as_object().unwrap() {
                let name = serde_json::json!(format!("{parameter}.grad"));
                let rows = snapshot["tensors"].as_array().unwrap();
                let row = rows.iter().find(|r| r["names"].as_array().unwrap().contains(&name));
                assert_eq!(&row.unwrap()["storage_bytes"], bytes, "{parameter}");
            }
            records += 1;
        }
        target.say("go");
        truth = serde_json::from_str(target.read_until_ready().last().unwrap()).unwrap();
    }
    assert_eq!(records, 4);
}

#[test]
fn what_refers_to_a_tensor_is_what_the_collector_says() {
    let (target, truth) = start("holders_truth.py", &[]);
    for name in [
        "embed.weight",
        "main: in_list[1][1][0]",
        "main: generator.<locals>.kept",
        "main: model._modules[\"blocks\"]._modules[\"1\"].cache",
    ] {
        let referrers = &truth["referrers"][name];
        let said = memspy_at(target.pid(), &["referrers", name, "--json"]).ok().out;
        let said = document::<OwnershipJson>(&said);
        let [found] = &said["referrers"].as_array().unwrap()[..] else { panic!("{name}: {said}") };
        assert_eq!(found["object"], truth["names"][name], "{name}");
        let ids = |all: &mut dyn Iterator<Item = &Value>| {
            all.filter_map(Value::as_u64).collect::<BTreeSet<u64>>()
        };
        let referrers = ids(&mut referrers.as_array().unwrap().iter());
        let all = found["referrers"].as_array().unwrap();
        let seen = ids(&mut all.iter().map(|referrer| &referrer["address"]));
        assert_eq!(seen, referrers, "{name}: {all:?}");
        // All Python references are counted; C++ holds more.
        let count = found["reference_count"].as_u64().unwrap();
        assert!(count >= all.len() as u64, "{name}: {count}: {all:?}");
    }
    let said = |name: &str| memspy_at(target.pid(), &["referrers", name]).ok().out;
    let text = said("main: in_list[1][0]");
    assert!(text.contains("  tuple          main: in_list[1][0]\n"), "{text}");
    let text = said("main: loss");
    assert!(text.contains("  local variable main: loss\n"), "{text}");
    let text = said("embed.weight.grad");
    assert!(text.contains("  C++            .grad of embed.weight\n"), "{text}");
    memspy_at(target.pid(), &["referrers", "nobody"]).refused(&["no tensor called 'nobody'"]);
}

#[test]
fn a_nodes_tensors_are_kept_alive_by_its_result() {
    let (target, _) = start("trumpy_scenes.py", &["mlp"]);
    let snapshot: Value =
        serde_json::from_str(&memspy_at(target.pid(), &["graph", "--json"]).ok().out).unwrap();
    let rows = snapshot["tensors"].as_array().unwrap();
    let saved = |row: &&Value| {
        let is_saved = row["saved_by"].as_array().is_some_and(|saved| !saved.is_empty());
        is_saved && !row["id"].is_null()
    };
    let row = rows.iter().find(saved).unwrap();
    let address = format!("{:#x}", row["id"].as_u64().unwrap());
    let text = memspy_at(target.pid(), &["referrers", &address]).ok().out;
    assert!(text.contains("  autograd       ") && text.contains(", alive by "), "{text}");
}
