//! Demangled function names.

use std::fmt;

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

const MAX_SHOWN: usize = 1000;
/// Against names that are slow to demangle.
const MAX_MANGLED: usize = 16 << 10;
const MAX_RECURSION: u32 = 96;

/// `_ZN2at6nativeL3addEv` → `at::native::add()`; C names unchanged.
pub(super) fn demangle(name: &str) -> String {
    // A part moved by the compiler: `name.cold`, `name.part.0`.
    let (mangled, rest) = match name.find('.').filter(|at| *at > 0) {
        Some(at) => name.split_at(at),
        None => (name, ""),
    };
    if mangled.len() > MAX_MANGLED {
        return cut(name.to_owned());
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return cut(format!("{rust:#}"));
    }
    let limits = ParseOptions::default().recursion_limit(MAX_RECURSION);
    let symbol = mangled.starts_with("_Z").then(|| Symbol::new_with_options(mangled, &limits));
    let Some(Ok(symbol)) = symbol else { return cut(name.to_owned()) };
    let options = DemangleOptions::default().no_params().recursion_limit(MAX_RECURSION);
    let mut text = BoundedText(String::new());
    match symbol.structured_demangle(&mut text, &options) {
        Ok(()) => cut(format!("{}{rest}", text.0)),
        Err(_) => cut(name.to_owned()),
    }
}

/// Short mangled names may expand to gigabytes.
struct BoundedText(String);

impl fmt::Write for BoundedText {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.0.len() + more.len() > MAX_MANGLED {
            return Err(fmt::Error);
        }
        self.0.push_str(more);
        Ok(())
    }
}

fn cut(mut name: String) -> String {
    if let Some((at, _)) = name.char_indices().nth(MAX_SHOWN) {
        name.truncate(at);
        name.push('…');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_cpp_and_rust_names_are_demangled() {
        assert_eq!(demangle("builtin_sorted"), "builtin_sorted");
        assert_eq!(demangle("_ZN2at6native3addERKNS_6TensorES3_"), "at::native::add");
        assert_eq!(demangle("list_sort.cold"), "list_sort.cold");
        assert_eq!(demangle("_ZN2at3addEv.cold"), "at::add.cold");
        assert_eq!(demangle("_RNvC6_123foo3bar"), "123foo::bar");
        assert_eq!(demangle("_Znonsense"), "_Znonsense");
        assert!(demangle(&"x".repeat(5000)).chars().count() <= MAX_SHOWN + 1);
        let hostile = format!("_Z{}", "P".repeat(10_000));
        assert!(demangle(&hostile).chars().count() <= MAX_SHOWN + 1);
    }
}
