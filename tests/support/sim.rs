//! Targets on the simulated CUDA device.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::target::Target;

/// Runs `tests/targets/SCRIPT` with PyTorch on its own simulated card. Panics, naming the setup
/// script, if there is none.
pub fn command(script: &str, arguments: &[&str]) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = std::env::var("MEMSPY_SIM").unwrap_or_else(|_| "torch-2.11".to_owned());
    let libraries = name.split("-py").next().unwrap();
    let built: PathBuf = root.join("target/sim").join(libraries).join(".built");
    assert!(built.exists(), "{} is missing: run scripts/setup.sh env first", built.display());
    let mut command = Command::new(root.join("scripts/with-sim"));
    command.arg("python").arg(root.join("tests/targets").join(script)).args(arguments);
    command
}

/// Starts such a target and waits until it is READY.
pub fn start(script: &str, arguments: &[&str]) -> Target {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets").join(script);
    if begins_with_torch(&file, arguments) {
        Target::fork(&file, arguments)
    } else {
        Target::start(command(script, arguments))
    }
}

/// Whether nothing before the target's import of PyTorch matters, so that it may be forked from a
/// process that has imported it. With `--all` no target is forked.
fn begins_with_torch(script: &Path, arguments: &[&str]) -> bool {
    let text =
        std::fs::read_to_string(script).unwrap_or_else(|e| panic!("{}: {e}", script.display()));
    let imports = text.lines().any(|line| line.trim_start() == "import torch");
    // PyTorch reads it while loading.
    let sets_allocator = text.contains("PYTORCH_CUDA_ALLOC_CONF")
        && !["plain", "two_devices", "none"].iter().any(|mode| arguments == [*mode]);
    // The import itself is tested.
    let is_watched =
        ["late_cuda.py", "renamed.py", "uneven.py"].iter().any(|name| script.ends_with(name));
    let is_default = std::env::var_os("MEMSPY_SIM").is_none();
    imports && !sets_allocator && !is_watched && is_default && !super::everything_is_there()
}

/// The Python of the simulated device's PyTorch, without the device.
pub fn python() -> Command {
    let name = std::env::var("MEMSPY_SIM").unwrap_or_else(|_| "torch-2.11".to_owned());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    Command::new(root.join("target/envs").join(name).join("bin/python"))
}

/// Where memspy keeps the simulated device's libraries; the first test that needs them builds them.
pub fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("dry-run-cache")
}
