//! Targets on the simulated CUDA device.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::target::Target;

/// A command that runs `tests/targets/SCRIPT` with PyTorch on a simulated card of its own. Panics
/// when that is not set up, naming the script that does it.
pub fn command(script: &str, arguments: &[&str]) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = std::env::var("MEMSPY_SIM").unwrap_or_else(|_| "torch-2.11".to_owned());
    let libraries = name.split("-py").next().unwrap();
    let built: PathBuf = root.join("target/sim").join(libraries).join(".built");
    assert!(built.exists(), "{} is missing: run scripts/setup-env.sh first", built.display());
    let mut command = Command::new(root.join("scripts/with-sim"));
    command.arg("python").arg(root.join("tests/targets").join(script)).args(arguments);
    command
}

/// Starts such a target and waits until it is READY.
pub fn start(script: &str, arguments: &[&str]) -> Target {
    Target::start(command(script, arguments))
}

/// The Python of the simulated device's PyTorch, without the device.
pub fn python() -> Command {
    let name = std::env::var("MEMSPY_SIM").unwrap_or_else(|_| "torch-2.11".to_owned());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    Command::new(root.join("target/envs").join(name).join("bin/python"))
}
