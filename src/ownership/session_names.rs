//! Names of what an interactive session keeps for its user: results of cells, the last error.

/// IPython's `Out[6]`, and its other name in IPython's `user_ns`.
const OUTPUTS: [&str; 2] = ["Out[", "_oh["];
/// IPython's formatter of errors keeps the last traceback (IPython/core/ultratb.py).
const LAST_TRACEBACK: &str = ".InteractiveTB.tb";

/// Whether the name is of a result that IPython keeps: `Out[6].x`, `_6`, `_`, `__`.
pub fn is_session_output(name: &str) -> bool {
    let name = name.strip_prefix("__main__.").unwrap_or(name);
    let variable = name.split(['.', '[']).next().unwrap_or(name);
    let is_last = variable.strip_prefix('_').is_some_and(|rest| {
        rest.bytes().all(|b| b.is_ascii_digit()) || rest.bytes().all(|b| b == b'_')
    });
    is_last || OUTPUTS.iter().any(|of| name.starts_with(of))
}

/// Whether the name passes through the last error's traceback.
pub fn is_of_last_error(name: &str) -> bool {
    let rest = name.split_once(LAST_TRACEBACK).map(|(_, rest)| rest);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '\u{2026}']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sessions_names_are_told_from_the_programs() {
        for name in ["__main__.Out[4][0]", "__main__._4.weight", "__main__._", "_oh[3]"] {
            assert!(is_session_output(name), "{name}");
        }
        for name in ["__main__._cache[4]", "__main__.x", "f: Out_of"] {
            assert!(!is_session_output(name), "{name}");
        }
        let last = "__main__.get_ipython.__self__.InteractiveTB.tb.tb_next.tb_frame.<locals>.x";
        assert!(is_of_last_error(last));
        assert!(is_of_last_error("__main__.get_ipython.__self__.InteractiveTB.tb\u{2026}.x"));
        assert!(!is_of_last_error("__main__.InteractiveTB.tbs[3]"));
    }
}
