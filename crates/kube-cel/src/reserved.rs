//! The words that no name in an expression may be.

const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// Whether the language keeps the word for itself (cel-spec, upstream's `celReservedSymbols`).
pub fn is_reserved(word: &str) -> bool {
    RESERVED.contains(&word)
}
