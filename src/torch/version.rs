//! The version of the target's PyTorch, from the `version.py` of its package.

use std::io::Read;
use std::path::Path;

use crate::target::Process;

/// More than any `version.py` has.
const LONGEST: u64 = 64 << 10;

/// The version, such as `2.11.0+cu130`, of the package that `library` (`…/torch/lib/libc10_cuda.so`,
/// as the target names it) belongs to. `None` when there is no readable `version.py` beside it.
pub(super) fn of(process: &Process, library: &Path) -> Option<String> {
    let package = library.parent()?.parent()?;
    let file = process.open_file(&package.join("version.py")).ok()?;
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    parse(&text)
}

/// The value of `__version__` in the text of torch/version.py (written by PyTorch's
/// tools/generate_torch_version.py).
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
    fn the_version_is_the_value_of_its_variable() {
        let text = "from typing import Optional\n\n__all__ = ['__version__', 'debug']\n__version__ = '2.11.0+cu130'\ndebug = False\n";
        assert_eq!(parse(text).as_deref(), Some("2.11.0+cu130"));
        assert_eq!(parse("__version__: str = \"2.6.0\"").as_deref(), Some("2.6.0"));
        assert_eq!(parse("debug = False"), None);
    }
}
