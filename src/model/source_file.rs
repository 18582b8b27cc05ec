//! Tells the program's files from those of libraries.

/// Generated code: frozen modules, attrs, decorator, NumPy, torch.fx.
const GENERATED_PREFIXES: [&str; 5] =
    ["<frozen ", "<attrs generated ", "<decorator-gen-", "<__array_function__ ", "<eval_with_key>"];

/// Whether a file is of a package, the standard library or the interpreter.
pub fn is_library(file: &str) -> bool {
    file.contains("/site-packages/")
        || file.contains("/dist-packages/")
        || in_standard_library(file).is_some()
        || GENERATED_PREFIXES.iter().any(|made| file.starts_with(made))
}

const STANDARD_LIBRARY: &str = "/lib/python3.";

/// Where `/lib/python3.N/` begins.
pub(super) fn standard_library_root(file: &str) -> Option<usize> {
    in_standard_library(file).and_then(|_| file.rfind(STANDARD_LIBRARY))
}

/// The part after `lib/python3.N/`.
pub(crate) fn in_standard_library(file: &str) -> Option<&str> {
    let rest = &file[file.rfind(STANDARD_LIBRARY)? + STANDARD_LIBRARY.len()..];
    let (minor, rest) = rest.split_once('/')?;
    // Free-threaded: python3.13t.
    let minor = minor.strip_suffix('t').unwrap_or(minor);
    let is_number = !minor.is_empty() && minor.bytes().all(|b| b.is_ascii_digit());
    (is_number && !rest.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_separated_from_the_program() {
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
