//! `&&` and `||` for Wine's `cmd`.
//!
//! Wine 8's `cmd` takes both for `&`: what follows runs whatever came of the command before. Its `if errorlevel` works, so the operators are
//! spelled out by that. `A && B` becomes `call& A& (if errorlevel 0 if not errorlevel 1 (B))`: `call` alone sets the error level to 0, which
//! commands such as `echo` leave as it is; and what stands behind an `if` belongs to it, up to the end of a block.
//!
//! The meaning of the operators is that of Windows: `&&` binds closer than `||`, and `||` closer than `&`;
//! what follows the `do` of a `for`, or the condition of an `if`, belongs to it up to the end of the line or of the block around.
//!
//! A command that is not understood to its end stays as it is.

/// Runs what follows where the last command was well.
const THEN: &str = "(if errorlevel 0 if not errorlevel 1";
/// Runs what follows where the last command failed. Crashes have negative exit codes: the first part makes them positive.
const ELSE: &str = "(if not errorlevel 0 cd *: >nul 2>nul)& (if errorlevel 1";
/// Sets the error level to 0.
const RESET: &str = "call& ";
/// `cmd` reads no line that is longer.
const LONGEST: usize = 8191;
/// Blocks, `if`s and `for`s within each other that are followed.
const DEEPEST: usize = 32;

/// A command, what stood behind `cmd /c`, without `&&` and `||`. None where there is neither, or where it cannot be told what they mean.
pub(super) fn spelled_out(command: &str) -> Option<String> {
    let mut reader = Reader { text: command, at: 0, blocks: 0, nested: 0, found: false };
    let result = reader.sequence(false)?;
    (reader.found && reader.at == command.len() && result.len() <= LONGEST).then_some(result)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// Blocks around.
    blocks: usize,
    /// Blocks, `if`s and `for`s around.
    nested: usize,
    /// Whether one of the operators was met.
    found: bool,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn take(&mut self, count: usize) -> &'a str {
        let taken = &self.rest()[..count];
        self.at += count;
        taken
    }

    fn blanks(&mut self) -> &'a str {
        let rest = self.rest();
        self.take(rest.len() - rest.trim_start_matches([' ', '\t']).len())
    }

    /// Commands with `&` between, up to the end of the text or of the block. `in_block`: our own, or the user's.
    fn sequence(&mut self, in_block: bool) -> Option<String> {
        let mut result = self.alternatives()?;
        loop {
            match self.rest().chars().next() {
                None => return Some(result),
                Some(')') if in_block => return Some(result),
                Some('&') => result.push_str(self.take(1)),
                Some(_) => return None,
            }
            // `a &` is as good as `a`.
            result.push_str(self.blanks());
            if self.rest().is_empty() || (in_block && self.rest().starts_with(')')) {
                return Some(result);
            }
            result.push_str(&self.alternatives()?);
        }
    }

    /// `a || b || c`
    fn alternatives(&mut self) -> Option<String> {
        let (mut result, mut is_chain) = self.conjunction()?;
        while self.rest().starts_with("||") {
            self.operator();
            let (next, _) = self.conjunction()?;
            result = format!("{result}& {ELSE} ({RESET}{next}))");
            is_chain = true;
        }
        Some(if is_chain { format!("{RESET}{result}") } else { result })
    }

    /// `a && b && c`, and whether it is more than `a`.
    fn conjunction(&mut self) -> Option<(String, bool)> {
        let mut parts = vec![self.pipeline()?];
        while self.rest().starts_with("&&") {
            self.operator();
            parts.push(self.pipeline()?);
        }
        let is_chain = parts.len() > 1;
        let whole = parts.into_iter().rev().reduce(|later, part| format!("{part}& {THEN} ({later}))"))?;
        Some((whole, is_chain))
    }

    fn operator(&mut self) {
        self.found = true;
        self.take(2);
    }

    /// `a | b`
    fn pipeline(&mut self) -> Option<String> {
        let mut result = self.command()?;
        while self.rest().starts_with('|') && !self.rest().starts_with("||") {
            result.push_str(self.take(1));
            result.push_str(&self.command()?);
        }
        Some(result)
    }

    fn command(&mut self) -> Option<String> {
        let mut result = String::new();
        let begin = self.rest();
        let begin = begin.trim_start_matches([' ', '\t', '@']);
        result.push_str(self.take(self.rest().len() - begin.len()).trim_start());
        let word: String = begin.chars().take_while(char::is_ascii_alphabetic).collect::<String>().to_ascii_lowercase();
        let is_word = matches!(begin[word.len()..].chars().next(), None | Some(' ' | '\t' | '/' | '('));
        match word.as_str() {
            _ if begin.starts_with('(') => {
                result.push_str(&self.block()?);
                // Where its output goes.
                result.push_str(&self.simple()?);
            }
            "if" if is_word => result.push_str(&self.condition()?),
            "for" if is_word => result.push_str(&self.each()?),
            // A remark ends with its line, whatever is in it.
            "rem" if is_word => return None,
            _ => {
                let text = self.simple()?;
                if text.trim().is_empty() {
                    return None;
                }
                result.push_str(&text);
            }
        }
        Some(result)
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.nested += 1;
        if self.nested > DEEPEST {
            return None;
        }
        let result = read(self);
        self.nested -= 1;
        result
    }

    /// `( … )`
    fn block(&mut self) -> Option<String> {
        self.take(1);
        self.blocks += 1;
        let blanks = self.blanks();
        let inner = self.nested(|reader| reader.sequence(true))?;
        if !self.rest().starts_with(')') {
            return None;
        }
        self.take(1);
        self.blocks -= 1;
        Some(format!("({blanks}{inner})"))
    }

    /// A command that is no block, up to the operator behind it. Parentheses in it are part of its text, also in a block of ours.
    fn simple(&mut self) -> Option<String> {
        let (mut result, mut quoted, mut before) = (String::new(), false, ' ');
        while let Some(c) = self.rest().chars().next() {
            match c {
                '"' => quoted = !quoted,
                _ if quoted => {}
                '^' => {
                    // What follows has no meaning of its own.
                    let length = 1 + self.rest()[1..].chars().next()?.len_utf8();
                    result.push_str(self.take(length));
                    before = ' ';
                    continue;
                }
                // `2>&1`
                '&' if matches!(before, '<' | '>') => {}
                '&' | '|' => break,
                ')' if self.blocks > 0 => break,
                '(' | ')' => result.push('^'),
                _ => {}
            }
            result.push(c);
            before = c;
            self.take(c.len_utf8());
        }
        Some(result)
    }

    /// `if CONDITION COMMAND`, `if CONDITION ( … ) else COMMAND`
    fn condition(&mut self) -> Option<String> {
        let mut result = self.take(2).to_owned();
        loop {
            let word = self.word(&mut result)?.to_ascii_lowercase();
            match word.as_str() {
                "not" | "/i" => continue,
                "exist" | "defined" | "errorlevel" | "cmdextversion" => self.word(&mut result)?,
                _ if word.ends_with("==") => self.word(&mut result)?,
                _ if word.contains("==") => "",
                _ => match self.word(&mut result)?.to_ascii_lowercase().as_str() {
                    "==" | "equ" | "neq" | "lss" | "leq" | "gtr" | "geq" => self.word(&mut result)?,
                    second if second.starts_with("==") => "",
                    _ => return None,
                },
            };
            break;
        }
        self.body(&mut result)?;
        Some(result)
    }

    /// `for … in ( … ) do COMMAND`
    fn each(&mut self) -> Option<String> {
        let mut result = self.take(3).to_owned();
        loop {
            let blanks = self.blanks();
            result.push_str(blanks);
            if self.rest().starts_with('(') {
                break;
            }
            // `in(` is as good as `in (`.
            let end = self.rest().find([' ', '\t', '(', '"'])?;
            match self.rest()[end..].chars().next() {
                Some('"') => {
                    let close = end + 1 + self.rest()[end + 1..].find('"')? + 1;
                    result.push_str(self.take(close));
                }
                _ => result.push_str(self.take(end)),
            }
        }
        // What the loop goes over: no commands, or such as run by themselves.
        let (mut quoted, mut depth) = (false, 0_usize);
        let end = self.rest().char_indices().find_map(|(at, c)| {
            match c {
                '"' => quoted = !quoted,
                '(' if !quoted => depth += 1,
                ')' if !quoted => depth -= 1,
                _ => {}
            }
            (depth == 0).then_some(at + 1)
        })?;
        result.push_str(self.take(end));
        result.push_str(self.blanks());
        if !self.rest().get(..2)?.eq_ignore_ascii_case("do") {
            return None;
        }
        result.push_str(self.take(2));
        self.body(&mut result)?;
        Some(result)
    }

    /// What belongs to an `if` or `for`: a block, or all that follows.
    fn body(&mut self, result: &mut String) -> Option<()> {
        result.push(' ');
        self.blanks();
        let after_at = self.rest().trim_start_matches(['@', ' ', '\t']);
        if after_at.starts_with('(') {
            self.take(self.rest().len() - after_at.len());
            result.push_str(&self.block()?);
            let blanks = self.blanks();
            if self.rest().get(..4).is_some_and(|word| word.eq_ignore_ascii_case("else")) {
                result.push(' ');
                result.push_str(self.take(4));
                return self.body(result);
            }
            result.push_str(blanks);
            // Windows and Wine do not agree on whose command comes behind a block.
            return (self.rest().is_empty() || (self.blocks > 0 && self.rest().starts_with(')'))).then_some(());
        }
        let had = std::mem::take(&mut self.found);
        let in_block = self.blocks > 0;
        let all = self.nested(|reader| reader.sequence(in_block))?;
        if self.found {
            result.push_str(&format!("({all})"));
        } else {
            result.push_str(&all);
        }
        self.found |= had;
        Some(())
    }

    /// The next word of a condition, which is copied.
    fn word(&mut self, result: &mut String) -> Option<&'a str> {
        result.push_str(self.blanks());
        let mut quoted = false;
        let end = self.rest().char_indices().find_map(|(at, c)| {
            quoted ^= c == '"';
            (!quoted && matches!(c, ' ' | '\t')).then_some(at)
        });
        let word = self.take(end.unwrap_or(self.rest().len()));
        // An operator in it: no condition of ours.
        let mut quoted = false;
        let is_plain = !word.is_empty()
            && word.chars().all(|c| {
                quoted ^= c == '"';
                quoted || !matches!(c, '&' | '|' | '(' | ')' | '^')
            });
        result.push_str(word);
        is_plain.then_some(word)
    }
}

#[cfg(test)]
mod tests;
