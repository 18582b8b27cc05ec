//! Compiles cuda/probe.bpf.c for the kernel if clang is installed. Otherwise memspy is built
//! without it, and `--exact` says what is missing.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "cuda/probe.bpf.c";

fn main() {
    println!("cargo::rerun-if-changed=cuda");
    println!("cargo::rerun-if-env-changed=CLANG");
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    let object = out.join("probe.bpf.o");
    let why = compile(&object).err().unwrap_or_default();
    if !why.is_empty() {
        println!("cargo::warning=memspy is built without exact mode: {why}");
        // An empty object means that there is no program.
        let _ = fs::write(&object, []);
    }
    let _ = fs::write(out.join("probe.bpf.why"), why);
}

fn compile(object: &Path) -> Result<(), String> {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let output = Command::new(&clang)
        .args([
            "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Werror", "-Icuda", "-c", SOURCE,
        ])
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|error| {
            format!("{clang} could not be started ({error}); install clang and libbpf-dev")
        })?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let first = text.lines().find(|line| line.contains("error:")).unwrap_or("it gave no reason");
    let hint = if first.contains("bpf_helpers.h") { "; install libbpf-dev" } else { "" };
    Err(format!("{clang} could not compile {SOURCE}: {first}{hint}"))
}
