//! Query strings.

use crate::status::ApiError;
use std::num::{IntErrorKind, ParseIntError};

/// Decoded name-value pairs in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=b&c=d`.
    pub fn parse(query: &str) -> Self {
        let pair = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decode(&name.replace('+', " ")), decode(&value.replace('+', " ")))
        };
        Self(query.split('&').filter(|part| !part.is_empty()).map(pair).collect())
    }

    /// The first value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Every value of a name.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The first value of a name, "" when absent.
    pub fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_string()
    }

    /// Upstream's reading of booleans: absent, "false" and "0" are false, everything else is true.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !matches!(value.to_ascii_lowercase().as_str(), "false" | "0"))
    }

    /// An integer, when present.
    ///
    /// # Errors
    /// In the words of Go's `strconv` for anything else, the empty text too.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let refused = |text: &str, error: &ParseIntError| {
            let is_large = matches!(error.kind(), IntErrorKind::PosOverflow | IntErrorKind::NegOverflow);
            let why = if is_large { "value out of range" } else { "invalid syntax" };
            ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
        };
        self.get(name).map(|text| text.parse().map_err(|error| refused(text, &error))).transpose()
    }
}

/// Undoes percent-encoding.
pub fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded() {
        let query = Query::parse("labelSelector=a%3Db%2Cc+in+%28d%29&watch=1&x=false&n=5&d=All&d=B");
        assert_eq!(query.get("labelSelector"), Some("a=b,c in (d)"));
        assert!(query.flag("watch") && !query.flag("x") && !query.flag("y"));
        assert_eq!(query.integer("n"), Ok(Some(5)));
        assert_eq!(query.integer("m"), Ok(None));
        for (text, why) in [("x", "invalid syntax"), ("", "invalid syntax"), ("9223372036854775808", "value out of range")] {
            let error = Query::parse(&format!("n={text}")).integer("n").unwrap_err();
            assert_eq!((error.code, error.message), (400, format!("strconv.ParseInt: parsing {text:?}: {why}")));
        }
        assert_eq!(query.get("d"), Some("All"));
    }
}
