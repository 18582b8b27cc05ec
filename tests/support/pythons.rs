//! The CPythons to test: pyenv's, the system's, those of another root, and those without a GIL.

#![allow(clippy::print_stderr, reason = "what is not tested is said")]

use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Python {
    /// Its minor version: 12 for 3.12.
    pub minor: u32,
    /// Whether it was built without a GIL.
    pub free_threaded: bool,
    /// Its name in messages.
    pub label: String,
    program: PathBuf,
    /// The other root to run it in.
    root: Option<PathBuf>,
}

/// The root of `debootstrap --variant=minbase --include=python3.14,python3.15 unstable`.
const OTHER_ROOT: &str = "target/envs/debian-unstable";

/// `scripts/setup-freethreaded.sh` installs its builds there: `python-3.14t`.
const BUILT: &str = "target/envs";

/// Every CPython from 3.8 on, oldest first, one per minor version and place. Prints what is missing
/// to stderr.
pub fn all() -> Vec<Python> {
    let mut found = Vec::new();
    let home = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv")));
    for entry in
        home.iter().flat_map(|home| std::fs::read_dir(home.join("versions")).ok()).flatten()
    {
        let program = entry.unwrap().path().join("bin/python3");
        found.extend(Python::at(program, None));
    }
    for minor in 8..=20 {
        found.extend(Python::at(PathBuf::from(format!("/usr/bin/python3.{minor}")), None));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(OTHER_ROOT);
    if !root.exists() {
        eprintln!("no Pythons of another root are tested: {} is missing", root.display());
    } else if !nix::unistd::geteuid().is_root() {
        eprintln!("no Pythons of another root are tested: only root can chroot");
    } else {
        for minor in 8..=20 {
            let program = PathBuf::from(format!("/usr/bin/python3.{minor}"));
            found.extend(Python::at(program, Some(root.clone())));
        }
    }
    for minor in 13..=20 {
        let program = format!("{BUILT}/python-3.{minor}t/bin/python3.{minor}t");
        found.extend(Python::at(Path::new(env!("CARGO_MANIFEST_DIR")).join(program), None));
    }
    found.retain(|python| python.minor >= 8);
    found.sort_by_key(|python| (python.minor, python.free_threaded, python.label.clone()));
    for minor in 8..=15 {
        if !found.iter().any(|python| python.minor == minor && !python.free_threaded) {
            eprintln!("CPython 3.{minor} is not tested: none was found");
        }
    }
    if !found.iter().any(|python| python.free_threaded) {
        assert!(
            !super::everything_is_there(),
            "a CPython without a GIL was to be tested: none is there"
        );
        eprintln!("no CPython without a GIL is tested: scripts/setup-freethreaded.sh builds one");
    }
    found
}

/// One of each minor version, with and without a GIL.
pub fn one_per_version() -> Vec<Python> {
    let mut found = all();
    found.dedup_by_key(|python| (python.minor, python.free_threaded));
    found
}

/// For a slow test: all with `scripts/test.sh --all`, else the oldest, the newest, and 3.11, which
/// changed frames and code most.
pub fn some_versions() -> Vec<Python> {
    let mut found = one_per_version();
    if !super::everything_is_there() {
        let newest = found.iter().map(|python| python.minor).max();
        found.retain(|p| matches!(p.minor, 8 | 11) || Some(p.minor) == newest);
    }
    found
}

/// The newest with a GIL in memspy's own root.
pub fn newest_here() -> Python {
    let here = |python: &Python| python.root.is_none() && !python.free_threaded;
    all().into_iter().rfind(here).expect("a CPython to test against")
}

/// The interpreters without a GIL.
pub fn free_threaded() -> Vec<Python> {
    all().into_iter().filter(|python| python.free_threaded).collect()
}

impl Python {
    fn at(program: PathBuf, root: Option<PathBuf>) -> Option<Python> {
        let seen_from_here = match &root {
            Some(root) => root.join(program.strip_prefix("/").unwrap()),
            None => program.clone(),
        };
        if !seen_from_here.exists() {
            return None;
        }
        let mut python =
            Python { minor: 0, free_threaded: false, label: String::new(), program, root };
        let print_version = "import sys; print(*sys.version_info[:3], int('t' in sys.abiflags))";
        let output = python.command().args(["-c", print_version]).output().ok()?;
        if !output.status.success() {
            return None;
        }
        let text = String::from_utf8(output.stdout).ok()?;
        let numbers: Vec<u32> = text.split_whitespace().flat_map(str::parse).collect();
        let [3, minor, micro, free_threaded] = numbers[..] else { return None };
        (python.minor, python.free_threaded) = (minor, free_threaded == 1);
        let place = match (&python.root, python.free_threaded) {
            (Some(_), _) => " in another root",
            (None, true) => " without a GIL",
            (None, false) => "",
        };
        python.label = format!("CPython 3.{minor}.{micro}{place} ({})", python.program.display());
        Some(python)
    }

    pub fn command(&self) -> Command {
        let mut command = match &self.root {
            Some(root) => {
                let mut command = Command::new("chroot");
                command.arg(root).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Runs `tests/targets/<name>` outside its root, with the root's loader: a reader of other
    /// processes needs `/proc`, and their files under the names in it.
    pub fn watcher(&self, name: &str) -> Command {
        let mut command = match &self.root {
            Some(root) => {
                let mut command = Command::new(root.join("lib64/ld-linux-x86-64.so.2"));
                let libraries = root.join("usr/lib/x86_64-linux-gnu");
                command.arg("--library-path").arg(libraries).env("PYTHONHOME", root.join("usr"));
                command.arg(root.join(self.program.strip_prefix("/").unwrap()));
                command
            }
            None => Command::new(&self.program),
        };
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets").join(name));
        command
    }

    /// A command that runs `tests/targets/<name>` in it.
    pub fn target(&self, name: &str) -> Command {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/targets");
        let mut command = self.command();
        match &self.root {
            None => command.arg(here.join(name)),
            Some(_) => {
                let (copy, there) = self.folder();
                for file in [name, "handshake.py"] {
                    // Another target may be importing it, so replace it atomically.
                    let new = tempfile::NamedTempFile::new_in(&copy).unwrap();
                    std::fs::copy(here.join(file), new.path()).unwrap();
                    new.persist(copy.join(file)).unwrap();
                }
                command.arg(there.join(name))
            }
        };
        command
    }

    /// Builds the fake allocator into its targets' folder, one for each `purpose` because tests run
    /// in parallel. Returns its path for the target.
    pub fn fake_allocator(&self, purpose: &str) -> PathBuf {
        let (here, there) = self.folder();
        let name = format!("libc10_cuda_fake_{}_{purpose}.so", self.minor);
        let built = here.join(&name);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/cuda/workloads/fake_allocator.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-g", "-shared", "-fPIC", "-o"]).arg(&built).arg(source);
        assert!(compiler.arg("-lpthread").status().unwrap().success());
        there.join(name)
    }

    /// A folder for a target's files: its path here, and its path for the target.
    pub fn folder(&self) -> (PathBuf, PathBuf) {
        let there = Path::new("/tmp").join(format!("memspy-targets-{}", std::process::id()));
        let here = match &self.root {
            Some(root) => root.join(there.strip_prefix("/").unwrap()),
            None => there.clone(),
        };
        std::fs::create_dir_all(&here).unwrap();
        (here, there)
    }
}
