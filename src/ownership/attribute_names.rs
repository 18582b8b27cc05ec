//! Names as a program writes them: modules and what classes have as attributes.

const OF_MODULES: &str = "._modules[";
const OF_CLASSES: &str = ".__dict__[";

/// `model.layers[1].act` for `model._modules["layers"]._modules["1"]._modules["act"]`, and
/// `Tap.records` for `Tap.__dict__["records"]`.
pub fn with_attributes(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    let mut rest = name;
    let next = |rest: &str| {
        let found = [OF_MODULES, OF_CLASSES].map(|dict| Some((rest.find(dict)?, dict)));
        found.into_iter().flatten().min()
    };
    while let Some((at, dict)) = next(rest) {
        let (before, after) = (&rest[..at], &rest[at + dict.len()..]);
        text.push_str(before);
        let child = after.split_once(']').map(|(key, behind)| (key.trim_matches('"'), behind));
        let is_number = |child: &str| child == "*" || child.bytes().all(|b| b.is_ascii_digit());
        rest = match child {
            Some((child, behind)) if dict == OF_MODULES && is_number(child) => {
                text.push_str(&format!("[{child}]"));
                behind
            }
            Some((child, behind)) if dict == OF_MODULES || is_identifier(child) => {
                text.push_str(&format!(".{child}"));
                behind
            }
            _ => {
                text.push_str(dict);
                after
            }
        };
    }
    text + rest
}

fn is_identifier(word: &str) -> bool {
    word.chars().all(|c| c.is_alphanumeric() || c == '_')
        && !word.starts_with(|c: char| c.is_ascii_digit())
        && !word.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_of_modules_and_classes_are_attributes() {
        for (name, shown) in [
            ("m: model._modules[\"layers\"]._modules[\"1\"].weight", "m: model.layers[1].weight"),
            ("__main__.Tap.__dict__[\"records\"][*][1]", "__main__.Tap.records[*][1]"),
            ("__main__.Tap.__dict__[*]._modules[\"a\"]", "__main__.Tap.__dict__[*].a"),
            ("__main__.Tap.__dict__[\"a b\"]", "__main__.Tap.__dict__[\"a b\"]"),
            ("x._modules[", "x._modules["),
        ] {
            assert_eq!(with_attributes(name), shown);
        }
    }
}
