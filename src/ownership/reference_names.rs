//! Which references names pass through, and which one a group stands for.

use super::name_pattern::name_parts;

/// References that a name passes through, outermost first: what a program can delete. None is
/// behind a step whose key is unknown.
pub fn references_in(name: &str) -> Vec<&str> {
    let mut found = Vec::new();
    if !is_variable(name) {
        return found;
    }
    let mut end = 0;
    for part in name_parts(name) {
        // The number in `x_1` belongs to the word.
        if end > 0 && part.text.starts_with(['.', '[']) {
            found.push(&name[..end]);
        }
        if let Some(unclear) = part.text.find(['{', '…']) {
            // A member of a set, or any number of steps.
            let cut = &name[..end + unclear];
            found.extend((!cut.ends_with('[') && !found.contains(&cut)).then_some(cut));
            return found;
        }
        end += part.text.len();
    }
    found.push(name);
    found
}

/// The reference in a group's name: `server: sessions` of `server: sessions[*].keys`. `None`: these
/// are several variables.
pub fn reference_of(owner: &str) -> Option<&str> {
    if !is_variable(owner) {
        return None;
    }
    let cuts = ["[*]", ".*", "{…}", "[…]", "…"].iter().filter_map(|mark| owner.find(mark)).min();
    let reference = cuts.map_or(owner, |cut| &owner[..cut]);
    (!reference.is_empty() && !reference.contains('*')).then_some(reference)
}

/// Labels in brackets, nodes and objects without a variable are none.
fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.starts_with(['[', '<']) && !name.starts_with("no variable: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_passes_through_what_can_be_deleted() {
        for (name, references) in [
            (
                r#"server: sessions["u: [1]"].layers[3].keys"#,
                &[
                    "server: sessions",
                    r#"server: sessions["u: [1]"]"#,
                    r#"server: sessions["u: [1]"].layers"#,
                    r#"server: sessions["u: [1]"].layers[3]"#,
                    r#"server: sessions["u: [1]"].layers[3].keys"#,
                ][..],
            ),
            ("__main__.x", &["__main__", "__main__.x"]),
            ("main: x_1", &["main: x_1"]),
            ("main: kept{…}.x", &["main: kept"]),
            ("main: head.next….buf", &["main: head", "main: head.next"]),
            ("main: cache[…].x", &["main: cache"]),
            ("main: m.0.weight", &["main: m", "main: m.0", "main: m.0.weight"]),
            ("[result of AddBackward0]", &[]),
            ("no variable: <list>[0]", &[]),
            ("", &[]),
        ] {
            assert_eq!(references_in(name), references, "{name}");
        }
    }

    #[test]
    fn a_group_stands_for_one_reference() {
        for (owner, reference) in [
            ("server: sessions[*].layers[*].keys", Some("server: sessions")),
            ("main: losses[*]", Some("main: losses")),
            ("main: model", Some("main: model")),
            ("main: kept{…}", Some("main: kept")),
            ("main: bank.queue_*", None),
            ("[a Tensor without a name]", None),
            ("", None),
        ] {
            assert_eq!(reference_of(owner), reference, "{owner}");
        }
    }
}
