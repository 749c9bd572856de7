//! Calico's selectors: `has(rack)`, `rack == 'a'`, `rack in {'a', 'b'}`, `!(…)`, `… && …`, `… || …`, `all()`.

use std::collections::{BTreeMap, BTreeSet};

/// The longest selector that is read, in bytes.
const LONGEST: usize = 4096;
/// The deepest nesting.
const DEEPEST: usize = 32;

/// Which nodes are meant, by their labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Expression);

/// A text that is no selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("it is longer than {LONGEST} bytes")]
    TooLong,
    #[error("it is nested deeper than {DEEPEST} times")]
    TooDeep,
    #[error("{0:?} was not expected at byte {1}")]
    Unexpected(String, usize),
    #[error("it ends too early")]
    Ends,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expression {
    All,
    Has(String),
    Equal(String, String),
    In(String, BTreeSet<String>),
    Contains(String, String),
    StartsWith(String, String),
    EndsWith(String, String),
    Not(Box<Self>),
    And(Vec<Self>),
    Or(Vec<Self>),
}

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// Where the text is none.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > LONGEST {
            return Err(SelectorError::TooLong);
        }
        let mut parser = Parser { text, at: 0 };
        if parser.peek().is_none() {
            return Ok(Self(Expression::All));
        }
        let expression = parser.either(0)?;
        match parser.peek() {
            None => Ok(Self(expression)),
            Some(_) => Err(parser.unexpected()),
        }
    }

    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.holds(labels)
    }
}

impl Expression {
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = |key: &String| labels.get(key);
        match self {
            Self::All => true,
            Self::Has(key) => labels.contains_key(key),
            Self::Equal(key, wanted) => value(key) == Some(wanted),
            Self::In(key, wanted) => value(key).is_some_and(|value| wanted.contains(value)),
            Self::Contains(key, part) => value(key).is_some_and(|value| value.contains(part.as_str())),
            Self::StartsWith(key, part) => value(key).is_some_and(|value| value.starts_with(part.as_str())),
            Self::EndsWith(key, part) => value(key).is_some_and(|value| value.ends_with(part.as_str())),
            Self::Not(inner) => !inner.holds(labels),
            Self::And(all) => all.iter().all(|inner| inner.holds(labels)),
            Self::Or(any) => any.iter().any(|inner| inner.holds(labels)),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&mut self) -> Option<char> {
        self.at += self.rest().len() - self.rest().trim_start().len();
        self.rest().chars().next()
    }

    fn takes(&mut self, token: &str) -> bool {
        self.peek();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn unexpected(&mut self) -> SelectorError {
        match self.peek() {
            Some(_) => SelectorError::Unexpected(self.rest().chars().take(20).collect(), self.at),
            None => SelectorError::Ends,
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), SelectorError> {
        if self.takes(token) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn either(&mut self, depth: usize) -> Result<Expression, SelectorError> {
        let mut any = vec![self.both(depth)?];
        while self.takes("||") {
            any.push(self.both(depth)?);
        }
        Ok(if any.len() == 1 { any.remove(0) } else { Expression::Or(any) })
    }

    fn both(&mut self, depth: usize) -> Result<Expression, SelectorError> {
        let mut all = vec![self.one(depth)?];
        while self.takes("&&") {
            all.push(self.one(depth)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Expression::And(all) })
    }

    fn one(&mut self, depth: usize) -> Result<Expression, SelectorError> {
        if depth >= DEEPEST {
            return Err(SelectorError::TooDeep);
        }
        if self.takes("!") {
            return Ok(Expression::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.takes("(") {
            let inner = self.either(depth + 1)?;
            self.expect(")")?;
            return Ok(inner);
        }
        let name = self.name()?;
        if ["all", "global", "has"].contains(&name.as_str()) && self.takes("(") {
            let expression = if name == "has" { Expression::Has(self.name()?) } else { Expression::All };
            self.expect(")")?;
            return Ok(expression);
        }
        self.comparison(name)
    }

    fn comparison(&mut self, key: String) -> Result<Expression, SelectorError> {
        let not = |inner| Expression::Not(Box::new(inner));
        if self.takes("==") {
            return Ok(Expression::Equal(key, self.quoted()?));
        }
        if self.takes("!=") {
            return Ok(not(Expression::Equal(key, self.quoted()?)));
        }
        let start = self.at;
        match self.name()?.as_str() {
            "in" => Ok(Expression::In(key, self.set()?)),
            "not" => {
                self.expect("in")?;
                Ok(not(Expression::In(key, self.set()?)))
            }
            "contains" => Ok(Expression::Contains(key, self.quoted()?)),
            "starts" => {
                self.expect("with")?;
                Ok(Expression::StartsWith(key, self.quoted()?))
            }
            "ends" => {
                self.expect("with")?;
                Ok(Expression::EndsWith(key, self.quoted()?))
            }
            _ => {
                self.at = start;
                Err(self.unexpected())
            }
        }
    }

    /// A label's key, or a word.
    fn name(&mut self) -> Result<String, SelectorError> {
        self.peek();
        let rest = self.rest();
        let length = rest.find(|letter: char| !(letter.is_ascii_alphanumeric() || "_./-".contains(letter))).unwrap_or(rest.len());
        if length == 0 {
            return Err(self.unexpected());
        }
        self.at += length;
        Ok(rest[..length].to_owned())
    }

    fn quoted(&mut self) -> Result<String, SelectorError> {
        let quote = match self.peek() {
            Some(quote @ ('\'' | '"')) => quote,
            _ => return Err(self.unexpected()),
        };
        self.at += 1;
        let rest = self.rest();
        let length = rest.find(quote).ok_or(SelectorError::Ends)?;
        self.at += length + 1;
        Ok(rest[..length].to_owned())
    }

    fn set(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        self.expect("{")?;
        let mut set = BTreeSet::new();
        while !self.takes("}") {
            if !set.is_empty() {
                self.expect(",")?;
            }
            set.insert(self.quoted()?);
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selects(text: &str) -> bool {
        let labels = [("rack", "a1"), ("kubernetes.io/os", "windows"), ("empty", "")];
        let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Selector::parse(text).unwrap_or_else(|error| panic!("{text}: {error}")).selects(&labels)
    }

    #[test]
    fn selectors_are_calicos() {
        for text in [
            "",
            "all()",
            "global()",
            "has(rack)",
            "!has(zone)",
            "rack == 'a1'",
            "rack == \"a1\" && kubernetes.io/os == 'windows'",
            "rack != 'b'",
            "zone != 'b'",
            "rack in {'b', 'a1'}",
            "rack not in {'b'}",
            "zone not in {'b'}",
            "rack contains '1'",
            "rack starts with 'a'",
            "rack ends with '1'",
            "empty == ''",
            "has(zone) || has(rack)",
            "!(has(zone) && has(rack))",
            "has(zone) && has(zone) || has(rack)",
        ] {
            assert!(selects(text), "{text}");
        }
        for text in ["has(zone)", "rack == 'a'", "rack in {}", "zone in {'a1'}", "!all()", "has(zone) && (has(rack) || all())", "zone starts with ''"]
        {
            assert!(!selects(text), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_place() {
        let refused = |text: &str| Selector::parse(text).unwrap_err().to_string();
        assert_eq!(refused("rack = 'a'"), "\"= 'a'\" was not expected at byte 5");
        assert_eq!(refused("has(rack"), "it ends too early");
        assert_eq!(refused("rack == 'a"), "it ends too early");
        assert_eq!(refused("rack == a"), "\"a\" was not expected at byte 8");
        assert_eq!(refused("all() all()"), "\"all()\" was not expected at byte 6");
        assert_eq!(refused(&"!".repeat(100)), "it is nested deeper than 32 times");
        assert_eq!(refused(&"a".repeat(5000)), "it is longer than 4096 bytes");
    }
}
