//! Splits a name such as `sessions["a"].layers[3].keys` into parts.

/// A part of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamePart<'a> {
    /// Its text: `.layers`, `[3]`, `["a"]`.
    pub text: &'a str,
    /// What an index, key or number becomes in a pattern.
    pub wildcard: Option<&'static str>,
}

impl<'a> NamePart<'a> {
    /// Its text in a pattern.
    pub fn in_pattern(&self) -> &'a str {
        self.wildcard.unwrap_or(self.text)
    }
}

/// The parts, which concatenate to the name. A label (`[result of AddBackward0]`) is one part.
pub fn name_parts(name: &str) -> Vec<NamePart<'_>> {
    let mut parts = Vec::new();
    if name.starts_with('[') {
        parts.push(NamePart { text: name, wildcard: None });
        return parts;
    }
    // `function: variable`; a key may contain the same.
    let scope = name.find(": ").filter(|&at| !name[..at].contains(['[', '"', '\'']));
    let mut from = 0;
    let mut at = scope.map_or(0, |at| at + 2);
    let bytes = name.as_bytes();
    while at < bytes.len() {
        let end = match bytes[at] {
            b'[' => end_of_brackets(bytes, at),
            _ => end_of_word(bytes, at),
        };
        let text = &name[from..end];
        let is_first = parts.is_empty();
        if let Some(number) = number_at_end(text).filter(|_| !is_first || scope.is_none()) {
            parts.push(NamePart { text: &text[..number], wildcard: None });
            parts.push(NamePart { text: &text[number..], wildcard: Some("*") });
            (from, at) = (end, end);
            continue;
        }
        let wildcard = match text.strip_prefix('.') {
            _ if is_first && !text.bytes().all(|b| b.is_ascii_digit()) => None,
            _ if is_first => Some("*"),
            Some(number) if number.bytes().all(|b| b.is_ascii_digit()) => Some(".*"),
            Some(_) => None,
            // Submodules' names, not the program's keys.
            None if is_dict_of_module(parts.last().map(|part: &NamePart<'_>| part.text))
                && !text
                    .trim_matches(['[', ']', '"', '\''])
                    .bytes()
                    .all(|b| b.is_ascii_digit()) =>
            {
                None
            }
            None => text.starts_with('[').then_some("[*]"),
        };
        parts.push(NamePart { text, wildcard });
        (from, at) = (end, end);
    }
    if from < bytes.len() {
        parts.push(NamePart { text: &name[from..], wildcard: None });
    }
    parts
}

fn is_dict_of_module(part: Option<&str>) -> bool {
    matches!(part, Some("._modules" | "._parameters" | "._buffers"))
}

/// Indices, keys and numbers become `*`.
pub fn name_pattern(name: &str) -> String {
    name_parts(name).iter().map(NamePart::in_pattern).collect()
}

/// Start of a trailing number (`queue_17`, `kv12`). A single digit belongs to the name (`conv1`,
/// `l2`).
fn number_at_end(word: &str) -> Option<usize> {
    let stem = word.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = word.len() - stem.len();
    let is_word = !stem.trim_start_matches('.').is_empty() && !stem.starts_with('[');
    (is_word && (digits > 1 || digits == 1 && stem.ends_with('_'))).then_some(stem.len())
}

/// Index after the closing bracket; brackets in strings do not count.
fn end_of_brackets(name: &[u8], at: usize) -> usize {
    let (mut depth, mut quote, mut escaped) = (0_u32, None, false);
    for (index, &byte) in name.iter().enumerate().skip(at) {
        match (quote, byte) {
            _ if escaped => escaped = false,
            (Some(_), b'\\') => escaped = true,
            (Some(open), byte) if open == byte => quote = None,
            (Some(_), _) => {}
            (None, b'"' | b'\'') => quote = Some(byte),
            (None, b'[') => depth += 1,
            (None, b']') => {
                depth -= 1;
                if depth == 0 {
                    return index + 1;
                }
            }
            (None, _) => {}
        }
    }
    name.len()
}

/// The end of `.attribute`, `.<locals>`, `.method()` or the first word.
fn end_of_word(name: &[u8], at: usize) -> usize {
    let ends = |byte: &u8| matches!(byte, b'.' | b'[');
    name.iter().skip(at + 1).position(ends).map_or(name.len(), |end| at + 1 + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_keys_and_numbers_of_layers_become_stars() {
        for (name, pattern) in [
            (r#"server: sessions["u: [1]"].layers[3].keys"#, "server: sessions[*].layers[*].keys"),
            ("layers.0.self_attn.q_proj.weight", "layers.*.self_attn.q_proj.weight"),
            ("0.weight", "*.weight"),
            ("AdamW.exp_avg[layers.0.weight]", "AdamW.exp_avg[*]"),
            (r#"__main__.CACHE[(1, "]")][0]"#, "__main__.CACHE[*][*]"),
            (
                r#"main: m._modules["fc"]._modules["3"].seen[0]"#,
                r#"main: m._modules["fc"]._modules[*].seen[*]"#,
            ),
            ("main: tasks[0]._coro.<locals>.held", "main: tasks[*]._coro.<locals>.held"),
            ("[result of AddBackward0]", "[result of AddBackward0]"),
            ("main: x", "main: x"),
            ("main: bank.queue_17", "main: bank.queue_*"),
            ("main: bank.kv3.a", "main: bank.kv3.a"),
            ("main: bank.kv12.layers.10.b", "main: bank.kv*.layers.*.b"),
            ("queue_0", "queue_*"),
            ("main: x_1.grad", "main: x_1.grad"),
            ("__main__.x_1", "__main__.x_*"),
            ("conv1.weight", "conv1.weight"),
            ("main: var.get()", "main: var.get()"),
            ("", ""),
            ("main: broken[", "main: broken[*]"),
        ] {
            assert_eq!(name_pattern(name), pattern);
            let whole: String = name_parts(name).iter().map(|part| part.text).collect();
            assert_eq!(whole, name);
        }
    }
}
