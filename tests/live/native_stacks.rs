//! `memspy dump --native`: C frames are in the right places between Python frames, in every
//! CPython.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use memspy::target::Process;
use serde_json::Value;

use crate::support::core_file::write_core_of;
use crate::support::memspy::{memspy_at, run};
use crate::support::pythons::{self, Python};
use crate::support::target::Target;

/// A target whose main thread is in usleep; it says READY just before.
fn start(python: &Python) -> Target {
    let target = Target::start(python.target("native_stack.py"));
    let process = Process::open(target.pid()).unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while process.is_asleep(target.pid()) != Some(true) {
        assert!(Instant::now() < until, "{}: it never sleeps", python.label);
        std::thread::yield_now();
    }
    target
}

/// The main thread's frames: `py:NAME` or a C function's name (`?`: none).
fn main_stack(dump: &Value) -> Vec<String> {
    let main = dump["threads"].as_array().unwrap().iter().find(|it| it["main"] == true).unwrap();
    let stack = &main["mixed"];
    assert_eq!(stack["apart_because"], Value::Null, "{stack:#}");
    assert_eq!(stack["incomplete_because"], Value::Null, "{stack:#}");
    let word = |frame: &Value| {
        let name = frame["function"].as_str().unwrap_or("?");
        if frame["kind"] == "python" { format!("py:{name}") } else { name.to_owned() }
    };
    stack["frames"].as_array().unwrap().iter().map(word).collect()
}

/// The position of `name` in the stack, after `from`.
#[track_caller]
fn at(stack: &[String], from: usize, name: &str) -> usize {
    let found = stack[from..].iter().position(|frame| frame == name);
    from + found.unwrap_or_else(|| panic!("no {name} after {from} in {stack:#?}"))
}

fn is_as_the_program_says(stack: &[String]) {
    let sleep = stack
        .iter()
        .position(|it| it.ends_with("nanosleep"))
        .unwrap_or_else(|| panic!("{stack:#?}"));
    assert!(sleep <= 1, "{stack:#?}");
    let helper = at(stack, sleep, "py:helper");
    assert_eq!(
        at(stack, helper, "py:key"),
        helper + stack[helper..].iter().position(|it| it == "py:key").unwrap()
    );
    let key = at(stack, helper, "py:key");
    // The C caller is between it and its Python caller.
    let middle = at(stack, key, "py:middle");
    assert!(middle > key + 1, "C frames lie between: {stack:#?}");
    let named: Vec<&String> = stack[key + 1..middle].iter().collect();
    if named.iter().any(|name| name.starts_with("list_sort") || name.starts_with("builtin_sorted"))
    {
        assert!(named.iter().all(|name| !name.starts_with("py:")), "{stack:#?}");
    } else {
        assert!(named.iter().any(|name| *name == "?"), "its symbols are stripped: {stack:#?}");
    }
    let outer = at(stack, middle, "py:outer");
    let module = at(stack, outer, "py:<module>");
    let python: Vec<&String> = stack.iter().filter(|it| it.starts_with("py:")).collect();
    assert_eq!(python, ["py:helper", "py:key", "py:middle", "py:outer", "py:<module>"]);
    assert!(module < stack.len() - 1, "C code called the module: {stack:#?}");
    assert!(!stack.iter().any(|name| name.starts_with("_PyEval_EvalFrameDefault")), "{stack:#?}");
}

#[test]
fn c_frames_are_between_python_frames_in_every_version() {
    let (mut whole, mut apart) = (0, Vec::new());
    for python in pythons::one_per_version() {
        let target = start(&python);
        let done = memspy_at(target.pid(), &["dump", "--native", "--json"]).ok();
        let dump: Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!(dump["native"]["unknown_because"], Value::Null, "{}", python.label);
        assert!(dump["native"]["stopped_seconds"].as_f64().unwrap() > 0.0);
        let main = dump["threads"].as_array().unwrap().iter().find(|it| it["main"] == true);
        let main = &main.unwrap()["mixed"];
        if let Some(why) = main["apart_because"].as_str() {
            apart.push(format!("{}: {why}", python.label));
            continue;
        }
        eprintln!("{}", python.label);
        is_as_the_program_says(&main_stack(&dump));
        whole += 1;
    }
    eprintln!("apart: {apart:#?}");
    // The order is unknown only where the interpreter's function has no name.
    assert!(apart.iter().all(|why| why.contains("stripped")), "{apart:#?}");
    assert!(whole >= 1, "{apart:#?}");
}

#[test]
fn a_core_file_has_the_same_native_frames_in_order() {
    let target = start(&pythons::newest_here());
    let folder = tempfile::tempdir().unwrap();
    let core = folder.path().join("core");
    write_core_of(target.pid(), &core);
    let memspy = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memspy"));
        run(command.arg("dump").args(words).arg::<&Path>(&core)).ok().out
    };
    let dump: Value = serde_json::from_str(&memspy(&["--native", "--json"])).unwrap();
    assert_eq!(dump["native"]["stopped_seconds"], Value::Null, "nothing was stopped");
    is_as_the_program_says(&main_stack(&dump));
    let text = memspy(&["-n"]);
    let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what}: {text}"));
    assert!(
        place("usleep (libc") < place("helper (") && place("key (") < place("middle ("),
        "{text}"
    );
    assert!(!text.contains("was stopped"), "{text}");
    // Without the option, no C frames.
    let dump: Value = serde_json::from_str(&memspy(&["--json"])).unwrap();
    assert_eq!(dump["native"], Value::Null);
}

#[test]
fn a_job_whose_stacks_were_copied_goes_on() {
    let mut target = start(&pythons::newest_here());
    let text = memspy_at(target.pid(), &["dump", "--native"]).ok().out;
    assert!(text.contains("the process was stopped for"), "{text}");
    // Its other thread still runs and ends the program on request.
    target.say("end");
    assert!(target.wait().success());
}
