//! The pairs of PyTorch and CPython to compare, from `scripts/torch-versions.txt`.

#![allow(clippy::print_stderr, reason = "what is not tested is said")]

use std::path::Path;
use std::process::Command;

use super::target::Target;

const LIST: &str = include_str!("../../scripts/torch-versions.txt");

/// Names the pairs to test.
const ASKED: &str = "MEMSPY_VERSIONS";

/// An environment with one PyTorch on one CPython.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// `torch-2.6-py3.13`.
    pub name: String,
    /// Whether it has a simulated device.
    pub cuda: bool,
}

/// The environments to test besides the default one: this run's, or those in `MEMSPY_VERSIONS`
/// (`2.6.0/3.13 2.2.2/3.10`). Panics if one is not set up. Prints a note instead if this machine
/// has no such CPython and the pair was not requested.
pub fn environments() -> Vec<Environment> {
    let asked = std::env::var(ASKED).ok();
    let known = run("scripts/with-python", &["--list"]);
    let mut found = Vec::new();
    for line in LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let [torch, python, when, place] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("not four words: {line}");
        };
        let wanted = match &asked {
            Some(asked) => asked.split_whitespace().any(|one| one == format!("{torch}/{python}")),
            None => when == "always" || when == "nightly" && super::everything_is_there(),
        };
        if !wanted {
            continue;
        }
        let short = torch.rsplit_once('.').unwrap().0;
        let name = format!("torch-{short}-py{python}");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        if !root.join("target/envs").join(&name).join(".installed").exists() {
            assert!(
                asked.is_none() && !known.lines().any(|version| version == python),
                "{name} is missing: run scripts/setup-env.sh {torch} {python} first"
            );
            eprintln!("PyTorch {torch} on CPython {python} is not tested: no such CPython here");
            continue;
        }
        found.push(Environment { name, cuda: place == "cuda" });
    }
    let all = asked.map_or(0, |asked| asked.split_whitespace().count());
    assert!(found.len() >= all, "not all of these are listed: {found:?}");
    found
}

fn run(script: &str, arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let output = Command::new(script).args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

impl Environment {
    /// The environment of all other tests.
    pub fn default_one() -> Environment {
        let name = std::env::var("MEMSPY_SIM").unwrap_or_else(|_| "torch-2.11".to_owned());
        Environment { name, cuda: true }
    }

    /// Its devices; without the simulated one if `MEMSPY_DEVICES` is `cpu`.
    pub fn devices(&self) -> &'static [&'static str] {
        let simulated = self.cuda && std::env::var("MEMSPY_DEVICES").as_deref() != Ok("cpu");
        if simulated { &["cpu", "cuda"] } else { &["cpu"] }
    }

    /// The devices for all scenes, without those tested where the pair was requested.
    pub fn devices_for_scenes(&self) -> &'static [&'static str] {
        let devices = self.devices();
        match std::env::var_os(ASKED) {
            Some(_) => devices,
            None => &devices[devices.len() - 1..],
        }
    }

    /// Starts `tests/targets/SCRIPT` on its own simulated card.
    pub fn start(&self, script: &str, arguments: &[&str]) -> Target {
        let mut command = super::sim::command(script, arguments);
        command.env("MEMSPY_SIM", &self.name);
        Target::start(command)
    }
}
