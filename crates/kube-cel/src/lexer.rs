//! Tokens of an expression.

use crate::ast::Literal;

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    Literal(Literal),
    /// An unsigned number without sign; the parser decides whether `-` belongs to it.
    Int(String),
    Float(String),
    Ident(String),
    /// A name between backticks.
    Escaped(String),
    Op(&'static str),
    End,
}

#[derive(Clone, Debug)]
pub struct Spanned {
    pub token: Token,
    /// Offset in characters.
    pub at: usize,
    pub text: String,
}

/// What is wrong at an offset.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub at: usize,
    pub message: String,
}

const OPERATORS: &[&str] =
    &["==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*", "/", "%"];

struct Lexer<'a> {
    chars: &'a [char],
    at: usize,
    problems: Vec<Problem>,
}

/// All tokens, the last of which is `End`, and what could not be read.
pub fn tokens(source: &str) -> (Vec<Spanned>, Vec<Problem>) {
    let chars: Vec<char> = source.chars().collect();
    let mut lexer = Lexer { chars: &chars, at: 0, problems: Vec::new() };
    let mut out = Vec::new();
    loop {
        lexer.skip_blanks();
        let at = lexer.at;
        if at >= chars.len() {
            out.push(Spanned { token: Token::End, at, text: "<EOF>".into() });
            return (out, lexer.problems);
        }
        if let Some(token) = lexer.next() {
            let text = chars[at..lexer.at].iter().collect();
            out.push(Spanned { token, at, text });
        }
    }
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn skip_blanks(&mut self) {
        while let Some(c) = self.peek(0) {
            if matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{c}') {
                self.at += 1;
            } else if c == '/' && self.peek(1) == Some('/') {
                while self.peek(0).is_some_and(|c| c != '\n') {
                    self.at += 1;
                }
            } else {
                return;
            }
        }
    }

    fn next(&mut self) -> Option<Token> {
        let c = self.peek(0)?;
        if let Some((raw, bytes, prefix)) = self.string_prefix() {
            return self.string(raw, bytes, prefix);
        }
        if c.is_ascii_alphabetic() || c == '_' {
            return Some(self.name());
        }
        if c.is_ascii_digit() || (c == '.' && self.peek(1).is_some_and(|c| c.is_ascii_digit())) {
            return self.number();
        }
        if c == '`' {
            return self.escaped();
        }
        for operator in OPERATORS {
            if operator.chars().enumerate().all(|(index, c)| self.peek(index) == Some(c)) {
                self.at += operator.len();
                return Some(Token::Op(operator));
            }
        }
        // The token that was begun takes the next character along, as upstream's lexer reports it.
        let width = if matches!(c, '=' | '&' | '|') && self.at + 1 < self.chars.len() { 2 } else { 1 };
        self.unrecognized(width)
    }

    fn unrecognized(&mut self, width: usize) -> Option<Token> {
        let text: String = self.chars[self.at..self.at + width].iter().collect();
        let text = text.replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r");
        let message = format!("Syntax error: token recognition error at: '{text}'");
        self.problems.push(Problem { at: self.at, message });
        self.at += width;
        None
    }

    fn name(&mut self) -> Token {
        let start = self.at;
        while self.peek(0).is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
            self.at += 1;
        }
        let name: String = self.chars[start..self.at].iter().collect();
        match name.as_str() {
            "true" => Token::Literal(Literal::Bool(true)),
            "false" => Token::Literal(Literal::Bool(false)),
            "null" => Token::Literal(Literal::Null),
            "in" => Token::Op("in"),
            _ => Token::Ident(name),
        }
    }

    fn escaped(&mut self) -> Option<Token> {
        let start = self.at + 1;
        let mut end = start;
        while self.chars.get(end).is_some_and(|&c| c.is_ascii_alphanumeric() || "_.-/ ".contains(c)) {
            end += 1;
        }
        if end == start || self.chars.get(end) != Some(&'`') {
            return self.unrecognized(1);
        }
        self.at = end + 1;
        Some(Token::Escaped(self.chars[start..end].iter().collect()))
    }

    fn digits(&mut self) {
        while self.peek(0).is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
    }

    fn number(&mut self) -> Option<Token> {
        let start = self.at;
        if self.peek(0) == Some('0') && matches!(self.peek(1), Some('x')) && self.peek(2).is_some_and(|c| c.is_ascii_hexdigit()) {
            self.at += 2;
            while self.peek(0).is_some_and(|c| c.is_ascii_hexdigit()) {
                self.at += 1;
            }
            let digits: String = self.chars[start + 2..self.at].iter().collect();
            return if matches!(self.peek(0), Some('u' | 'U')) {
                self.at += 1;
                self.unsigned(start, u64::from_str_radix(&digits, 16).ok())
            } else {
                Some(Token::Int(format!("0x{digits}")))
            };
        }
        self.digits();
        let mut float = false;
        if self.peek(0) == Some('.') && self.peek(1).is_some_and(|c| c.is_ascii_digit()) {
            float = true;
            self.at += 1;
            self.digits();
        }
        if matches!(self.peek(0), Some('e' | 'E')) {
            let sign = usize::from(matches!(self.peek(1), Some('+' | '-')));
            if self.peek(1 + sign).is_some_and(|c| c.is_ascii_digit()) {
                float = true;
                self.at += 1 + sign;
                self.digits();
            }
        }
        let text: String = self.chars[start..self.at].iter().collect();
        if float {
            return Some(Token::Float(text));
        }
        if matches!(self.peek(0), Some('u' | 'U')) {
            self.at += 1;
            return self.unsigned(start, text.parse().ok());
        }
        Some(Token::Int(text))
    }

    fn unsigned(&mut self, start: usize, value: Option<u64>) -> Option<Token> {
        if value.is_none() {
            self.problems.push(Problem { at: start, message: "invalid uint literal".into() });
        }
        Some(Token::Literal(Literal::Uint(value.unwrap_or_default())))
    }

    /// Whether a string begins here: raw, of bytes, and how long its prefix is.
    fn string_prefix(&self) -> Option<(bool, bool, usize)> {
        let quote = |c: Option<char>| matches!(c, Some('"' | '\''));
        let raw = |c: Option<char>| matches!(c, Some('r' | 'R'));
        match self.peek(0)? {
            '"' | '\'' => Some((false, false, 0)),
            'r' | 'R' if quote(self.peek(1)) => Some((true, false, 1)),
            'b' | 'B' if quote(self.peek(1)) => Some((false, true, 1)),
            'b' | 'B' if raw(self.peek(1)) && quote(self.peek(2)) => Some((true, true, 2)),
            _ => None,
        }
    }

    fn string(&mut self, raw: bool, bytes: bool, prefix: usize) -> Option<Token> {
        let start = self.at;
        let quote = self.peek(prefix)?;
        let triple = self.peek(prefix + 1) == Some(quote) && self.peek(prefix + 2) == Some(quote);
        let width = if triple { 3 } else { 1 };
        let mut at = start + prefix + width;
        let begin = at;
        let end = loop {
            let Some(&c) = self.chars.get(at) else {
                return self.unrecognized(self.chars.len() - start);
            };
            if c == quote && (0..width).all(|index| self.chars.get(at + index) == Some(&quote)) {
                break at;
            }
            if !triple && matches!(c, '\n' | '\r') {
                return self.unrecognized(at - start);
            }
            at += if c == '\\' && !raw { 2 } else { 1 };
        };
        let body: String = self.chars[begin..end].iter().collect();
        let body = body.replace("\r\n", "\n").replace('\r', "\n");
        self.at = end + width;
        let decoded = if raw { Ok(body.into_bytes()) } else { unescape(&body, bytes) };
        let decoded = decoded.unwrap_or_else(|message| {
            self.problems.push(Problem { at: start, message });
            Vec::new()
        });
        if bytes {
            return Some(Token::Literal(Literal::Bytes(decoded.into())));
        }
        let text = String::from_utf8_lossy(&decoded).into_owned();
        Some(Token::Literal(Literal::String(text.into())))
    }
}

/// The bytes that escape sequences stand for; in strings a number is a code point, in bytes it is a byte.
fn unescape(body: &str, bytes: bool) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(body.len());
    let mut chars = body.chars();
    let push = |out: &mut Vec<u8>, c: char| out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    while let Some(c) = chars.next() {
        if c != '\\' {
            push(&mut out, c);
            continue;
        }
        let Some(escape) = chars.next() else {
            return Err("Syntax error: unable to unescape string, found '\\' as last character".into());
        };
        let plain = match escape {
            'a' => Some('\u{7}'),
            'b' => Some('\u{8}'),
            'f' => Some('\u{c}'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\u{b}'),
            '\\' | '\'' | '"' | '`' | '?' => Some(escape),
            _ => None,
        };
        if let Some(plain) = plain {
            push(&mut out, plain);
            continue;
        }
        let (radix, count, first) = match escape {
            'x' | 'X' => (16, 2, None),
            'u' if !bytes => (16, 4, None),
            'U' if !bytes => (16, 8, None),
            '0'..='3' => (8, 2, escape.to_digit(8)),
            _ => return Err("Syntax error: unable to unescape string".into()),
        };
        let mut number = first.unwrap_or(0);
        for _ in 0..count {
            let digit = chars.next().and_then(|c| c.to_digit(radix));
            let digit = digit.ok_or("Syntax error: unable to unescape string")?;
            number = number.wrapping_mul(radix) + digit;
        }
        if bytes {
            out.push(u8::try_from(number).map_err(|_| "Syntax error: unable to unescape string")?);
        } else {
            push(&mut out, char::from_u32(number).ok_or("Syntax error: invalid unicode code point")?);
        }
    }
    Ok(out)
}
