//! Functions that `torch.compile` wrote, recognised by the names of their files.

use std::path::Path;

use crate::model::Function;

/// Characters of a name: a `c` and the beginning of a hash (`code_hash` in torch/_inductor/codecache.py).
const NAME_LEN: usize = 52;

/// Whether TorchInductor wrote this function to make buffers and launch kernels: `call` in a file named by the hash of its text.
pub(in crate::python) fn is_generated(function: &Function) -> bool {
    let file = Path::new(&*function.file);
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let is_hash = |name: &str| {
        name.len() == NAME_LEN
            && name.starts_with('c')
            && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7'))
    };
    let own = function.name.rsplit('.').next();
    own == Some("call") && file.extension().is_some_and(|end| end == "py") && is_hash(stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, file: &str) -> Function {
        Function {
            name: name.into(),
            file: file.into(),
            first_line: 1,
            last_line: 9,
            is_native: false,
        }
    }

    #[test]
    fn what_torch_compile_wrote_is_known_by_its_file() {
        let file =
            "/tmp/torchinductor_me/bx/cbxhn6n7ybhtojv4sjjrg4g3jqdqkqc3q6liqn4bdd4flhuyjsfu.py";
        assert!(is_generated(&function("Runner.call", file)));
        assert!(is_generated(&function("call", file)));
        assert!(!is_generated(&function("<module>", file)));
        assert!(!is_generated(&function("call", "/home/me/call.py")));
        assert!(!is_generated(&function("call", &file.replace("hn6n7", "hn-n7"))));
    }
}
