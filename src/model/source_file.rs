//! Which source files are the program's own, and which those of libraries.

/// How the names of files begin that there are none of: frozen modules, and code that attrs, decorator, NumPy and torch.fx make at
/// run time.
const MADE_BY_LIBRARIES: [&str; 5] =
    ["<frozen ", "<attrs generated ", "<decorator-gen-", "<__array_function__ ", "<eval_with_key>"];

/// Whether a file belongs to an installed package, to the standard library or to the interpreter, not to the program itself.
pub fn is_library(file: &str) -> bool {
    file.contains("/site-packages/")
        || file.contains("/dist-packages/")
        || in_standard_library(file).is_some()
        || MADE_BY_LIBRARIES.iter().any(|made| file.starts_with(made))
}

/// What follows `lib/python3.N/` in the name of a file.
pub(crate) fn in_standard_library(file: &str) -> Option<&str> {
    const ROOT: &str = "/lib/python3.";
    let rest = &file[file.rfind(ROOT)? + ROOT.len()..];
    let (minor, rest) = rest.split_once('/')?;
    // Free-threaded builds are called python3.13t.
    let minor = minor.strip_suffix('t').unwrap_or(minor);
    let is_number = !minor.is_empty() && minor.bytes().all(|b| b.is_ascii_digit());
    (is_number && !rest.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_told_from_the_program() {
        for file in [
            "/v/lib/python3.12/site-packages/torch/nn/x.py",
            "/usr/lib/python3/dist-packages/a.py",
            "/usr/lib/python3.11/json/decoder.py",
            "<frozen importlib._bootstrap>",
            "<attrs generated init job.Batch>",
            "<eval_with_key>.7",
        ] {
            assert!(is_library(file), "{file}");
        }
        for file in ["/home/me/job/train.py", "train.py", "<string>", "/tmp/ipykernel_1/2.py"] {
            assert!(!is_library(file), "{file}");
        }
    }
}
