//! The Python of a command, and its PyTorch.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// Says where PyTorch is without importing it, which takes seconds.
const QUESTION: &str = r#"
import importlib.util, json, os, re, sys
spec = importlib.util.find_spec("torch")
answer = {"python": sys.executable, "torch": None}
if spec and spec.origin:
    folder = os.path.dirname(spec.origin)
    found = re.search(r"__version__ = '([^']*)'", open(os.path.join(folder, "version.py")).read())
    around = [os.path.join(os.path.dirname(folder), "nvidia"), os.path.join(sys.prefix, "lib", "libcudart.so")]
    answer["torch"] = {"libraries": os.path.join(folder, "lib"), "version": found.group(1) if found else "",
                       "has_cuda": os.path.exists(os.path.join(folder, "lib", "libc10_cuda.so")),
                       "has_nvidia": any(map(os.path.exists, around))}
print(json.dumps(answer))
"#;

/// A PyTorch that is installed.
#[derive(Debug, Clone, Deserialize)]
pub(in crate::cli) struct InstalledTorch {
    pub(in crate::cli) libraries: PathBuf,
    pub(in crate::cli) version: String,
    has_cuda: bool,
    /// NVIDIA's own libraries lie where PyTorch looks first.
    pub(in crate::cli) has_nvidia: bool,
}

/// An interpreter and its PyTorch.
#[derive(Debug, Clone)]
pub(in crate::cli) struct TorchPython {
    pub(in crate::cli) python: PathBuf,
    pub(in crate::cli) torch: InstalledTorch,
}

#[derive(Debug, Deserialize)]
struct PythonAnswer {
    python: PathBuf,
    torch: Option<InstalledTorch>,
}

impl TorchPython {
    /// The interpreter that runs `program`.
    pub(in crate::cli) fn of(program: &[String]) -> Result<TorchPython> {
        let name = program.first().context("no program to start after --")?;
        let path = find(name).with_context(|| {
            format!("cannot start {name}: there is no such program; is it spelled right?")
        })?;
        let python = interpreter_of(&path)
            .or_else(|| find("python"))
            .or_else(|| find("python3"))
            .with_context(|| {
            format!("{name} is no Python program, and no python is in PATH")
        })?;
        let asked = Command::new(&python).args(["-c", QUESTION]).output();
        let output = asked.with_context(|| format!("cannot run {}", python.display()))?;
        let answer = serde_json::from_slice::<PythonAnswer>(&output.stdout);
        let Ok(PythonAnswer { python, torch }) = answer else {
            let error = String::from_utf8_lossy(&output.stderr);
            let last = error.trim().lines().last().unwrap_or("it said nothing").to_owned();
            bail!("cannot ask {} for its PyTorch: {last}", python.display());
        };
        let Some(torch) = torch else {
            bail!(
                "{} has no PyTorch: name the Python that has it, such as /path/to/env/bin/python",
                python.display()
            );
        };
        if !torch.has_cuda {
            bail!(
                "the PyTorch {} of {} is built without CUDA, so it has no CUDA allocator to run: install a CUDA build (it needs no GPU)",
                torch.version,
                python.display()
            );
        }
        Ok(TorchPython { python, torch })
    }
}

/// As a shell finds it.
fn find(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The program itself, or what its first line names.
fn interpreter_of(path: &Path) -> Option<PathBuf> {
    let is_python = |path: &Path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"))
    };
    if is_python(path) {
        return Some(path.to_owned());
    }
    let text = head_of(path)?;
    let mut lines = text.lines();
    let first = lines.next()?.strip_prefix("#!")?;
    // A long path is in the second line: '''exec' "/path/python" "$0" "$@"
    let second = lines.next().filter(|line| line.starts_with("'''exec'")).unwrap_or_default();
    let words = first.split_whitespace().chain(second.split_whitespace());
    words.map(|word| word.trim_matches('"')).find_map(|word| {
        let path = Path::new(word);
        if !is_python(path) { None } else { find(word) }
    })
}

fn head_of(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut head = Vec::new();
    std::fs::File::open(path).ok()?.take(1024).read_to_end(&mut head).ok()?;
    Some(String::from_utf8_lossy(&head).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_is_that_of_the_first_line() {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join("python3.11");
        std::fs::write(&python, "").unwrap();
        let script = |text: &str| {
            let path = folder.path().join("torchrun");
            std::fs::write(&path, text.replace("DIR", &folder.path().to_string_lossy())).unwrap();
            interpreter_of(&path)
        };
        assert_eq!(interpreter_of(&python), Some(python.clone()));
        assert_eq!(script("#!DIR/python3.11\nimport sys\n"), Some(python.clone()));
        let long = "#!/bin/sh\n'''exec' \"DIR/python3.11\" \"$0\" \"$@\"\n' '''\n";
        assert_eq!(script(long), Some(python));
        assert_eq!(script("#!/bin/sh\npython3.11 train.py\n"), None);
        assert_eq!(script("\x7fELF"), None);
    }
}
