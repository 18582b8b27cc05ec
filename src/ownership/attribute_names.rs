//! Names as a program writes them: modules as attributes.

/// `model.layers[1].act` for `model._modules["layers"]._modules["1"]._modules["act"]`.
pub fn with_attributes(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once("._modules[") {
        text.push_str(before);
        let Some((key, behind)) = after.split_once(']') else {
            text.push_str("._modules[");
            rest = after;
            continue;
        };
        let child = key.trim_matches('"');
        match child == "*" || child.bytes().all(|b| b.is_ascii_digit()) {
            true => text.push_str(&format!("[{child}]")),
            false => text.push_str(&format!(".{child}")),
        }
        rest = behind;
    }
    text + rest
}
