//! The simulated CUDA libraries for a PyTorch, built on first use into the user's cache.

use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use include_dir::{Dir, File, include_dir};
use rustc_hash::FxHasher;

use super::interpreter::TorchPython;
use crate::cli::eprint_line;
use crate::files::{create_folder, is_own_folder};

/// cuda/sim, as it was when memspy was built.
static SOURCES: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/cuda/sim");
/// Written last.
const FINISHED: &str = "finished";

/// Where they lie.
#[derive(Debug, Clone)]
pub(in crate::cli) struct SimulatedLibraries {
    pub(in crate::cli) folder: PathBuf,
    /// Python code that runs in the program of a dry run.
    pub(in crate::cli) observer: PathBuf,
    /// The program that replays a recording.
    pub(in crate::cli) replay: PathBuf,
    /// To load before all others: PyTorch would find NVIDIA's own first.
    pub(in crate::cli) preloaded: Vec<PathBuf>,
}

impl SimulatedLibraries {
    /// Builds them if they are not there.
    pub(in crate::cli) fn prepare(python: &TorchPython) -> Result<SimulatedLibraries> {
        let cache = cache_folder()?;
        let key = format!("torch-{}-{:016x}", python.torch.version, fingerprint());
        let home = cache.join(key.replace('/', "-"));
        if !home.join(FINISHED).is_file() {
            eprint_line(&format!(
                "building the simulated CUDA libraries for PyTorch {} into {} (once)",
                python.torch.version,
                home.display()
            ));
            build(python, &cache, &home)?;
        }
        if !is_own_folder(&home) {
            bail!("{} can be written by others: delete it, and run this again", home.display());
        }
        let folder = home.join("libraries");
        let mut preloaded = Vec::new();
        if python.torch.has_nvidia {
            let entries = std::fs::read_dir(&folder);
            let entries = entries.with_context(|| format!("cannot read {}", folder.display()))?;
            let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
            preloaded.extend(paths.filter(|path| path.to_string_lossy().contains(".so.")));
            preloaded.sort();
        }
        let source = home.join("source");
        let (observer, replay) = (source.join("observer"), source.join("replay/memspy_replay.py"));
        Ok(SimulatedLibraries { folder, observer, replay, preloaded })
    }
}

fn build(python: &TorchPython, cache: &Path, home: &Path) -> Result<()> {
    let folder = cache.join(format!("building-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    create_folder(&folder)?;
    let built = build_in(python, &folder).and_then(|()| match std::fs::rename(&folder, home) {
        // Another memspy was faster, or an earlier one was interrupted.
        Err(_) if home.join(FINISHED).is_file() => Ok(()),
        moved => moved.with_context(|| format!("cannot create {}", home.display())),
    });
    if folder.exists() {
        let _ = std::fs::remove_dir_all(&folder);
    }
    built
}

fn build_in(python: &TorchPython, folder: &Path) -> Result<()> {
    let source = folder.join("source");
    for file in sources() {
        let path = source.join(file.path());
        let parent = path.parent().unwrap_or(&source);
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::write(&path, file.contents()))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let output = Command::new(&python.python)
        .arg(source.join("build.py"))
        .arg(&python.torch.libraries)
        .arg(folder.join("libraries"))
        .output()
        .with_context(|| format!("cannot run {}", python.python.display()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.trim().lines().last().unwrap_or("it said nothing");
        let last = last.strip_prefix("build.py: ").unwrap_or(last);
        bail!("cannot build the simulated CUDA libraries: {last}");
    }
    std::fs::write(folder.join(FINISHED), "").context("cannot finish the build")
}

/// The files that are needed, in order.
fn sources() -> Vec<&'static File<'static>> {
    fn collect(folder: &'static Dir<'static>, into: &mut Vec<&'static File<'static>>) {
        into.extend(folder.files().filter(|file| is_needed(file.path())));
        folder.dirs().for_each(|inner| collect(inner, into));
    }
    let mut files = Vec::new();
    collect(&SOURCES, &mut files);
    files.sort_by_key(|file| file.path());
    files
}

fn is_needed(path: &Path) -> bool {
    let is_code = path.extension().is_some_and(|it| it == "c" || it == "h");
    let is_python = path.extension().is_some_and(|it| it == "py");
    let is_run = path.starts_with("observer") || path.starts_with("replay");
    is_code || path.ends_with("build.py") || is_run && is_python
}

/// Changes with the sources.
fn fingerprint() -> u64 {
    let mut hasher = FxHasher::default();
    for file in sources() {
        file.path().to_string_lossy().hash(&mut hasher);
        file.contents().hash(&mut hasher);
    }
    hasher.finish()
}

/// By the XDG base directory specification.
fn cache_folder() -> Result<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let home = || of("HOME").map(|home| home.join(".cache"));
    let root = of("XDG_CACHE_HOME").or_else(home);
    let root = root.context("no place for a cache: neither XDG_CACHE_HOME nor HOME is set")?;
    let folder = root.join("memspy/dry-run");
    std::fs::create_dir_all(&folder).with_context(|| {
        let folder = folder.display();
        format!(
            "cannot create the cache {folder}: set XDG_CACHE_HOME to a folder that can be written"
        )
    })?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sources_are_packed() {
        let packed: Vec<String> =
            sources().iter().map(|file| file.path().to_string_lossy().into_owned()).collect();
        for needed in [
            "build.py",
            "driver/device.h",
            "libraries/libcudnn.c",
            "nvml/nvml.c",
            "observer/memspy_observer.py",
            "observer/sitecustomize.py",
            "replay/memspy_replay.py",
            "runtime/memory.c",
        ] {
            assert!(packed.iter().any(|path| path == needed), "{needed} of {packed:?}");
        }
        assert!(!packed.iter().any(|path| path.contains("ladder") || path.ends_with(".md")));
    }
}
