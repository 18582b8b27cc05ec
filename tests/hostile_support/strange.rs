//! Names that mean harm, and what of them must not be seen again.

/// What a string may have in it that is no harm in a string, and is where the string is printed.
pub const HOSTILE: [&str; 14] = [
    "\x1b]0;PWNED\x07",
    "\x1b[2J\x1b[31m",
    "\u{9b}2J",
    "a\nGPU 0 (fake): peak allocated 1 B 7",
    "\r\u{8}\u{7f}\0",
    ";x;y",
    "<script>alert(1)</script>&\"']]>",
    "\u{202e}gnp.\u{2066}\u{200f}",
    "\u{200b}\u{feff}\u{2028}\u{2029}\u{85}",
    "=cmd|'/c calc'!A0",
    "@+-1",
    "\t=1",
    " 42",
    "\u{ffff}\u{fffe}",
];

/// Characters that must not come out of memspy, wherever they came in.
pub fn strange(text: &str) -> Vec<char> {
    let is = |c: &char| {
        *c != '\n' && c.is_control()
            || "\u{61c}\u{200b}\u{200e}\u{200f}\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}"
                .contains(*c)
            || ('\u{202a}'..='\u{202e}').contains(c)
            || ('\u{2066}'..='\u{2069}').contains(c)
    };
    text.chars().filter(is).collect()
}
