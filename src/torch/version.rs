//! PyTorch's version, from `version.py`.

use std::path::Path;

use crate::target::Process;

const MAX_READ_LEN: u64 = 64 << 10;

/// `library`: `…/torch/lib/libc10_cuda.so`.
pub(super) fn read(process: &Process, library: &Path) -> Option<String> {
    let package = library.parent()?.parent()?;
    let text = process.read_file(&package.join("version.py"), MAX_READ_LEN).ok()?;
    parse(&String::from_utf8_lossy(&text))
}

/// `__version__` (tools/generate_torch_version.py).
fn parse(text: &str) -> Option<String> {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("__version__")?.split_once('='))?
        .1
        .trim()
        .trim_matches(['\'', '"']);
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_as_version_py_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("torch/version.py");
        std::fs::create_dir_all(folder.path().join("torch/lib")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let library = folder.path().join("torch/lib/libc10_cuda.so");
        let (done, wait) = std::sync::mpsc::channel();
        let find = move || read(&Process::open(std::process::id()).unwrap(), &library);
        std::thread::spawn(move || done.send(find()));
        let found = wait.recv_timeout(std::time::Duration::from_secs(30));
        assert_eq!(found, Ok(None), "it hangs");
        std::fs::remove_file(&pipe).unwrap();
        std::fs::write(&pipe, "__version__ = '2.11.0'\n").unwrap();
        let library = folder.path().join("torch/lib/libc10_cuda.so");
        let own = Process::open(std::process::id()).unwrap();
        assert_eq!(read(&own, &library).as_deref(), Some("2.11.0"));
    }

    #[test]
    fn the_version_is_parsed_from_its_variable() {
        let text = "from typing import Optional\n\n__all__ = ['__version__', 'debug']\n__version__ = '2.11.0+cu130'\ndebug = False\n";
        assert_eq!(parse(text).as_deref(), Some("2.11.0+cu130"));
        assert_eq!(parse("__version__: str = \"2.6.0\"").as_deref(), Some("2.6.0"));
        assert_eq!(parse("debug = False"), None);
    }
}
