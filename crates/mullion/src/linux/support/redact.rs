//! Redaction of values of Secrets, private keys, tokens and passwords. Pure.

use std::collections::BTreeSet;

/// What stands where a secret stood.
pub const REDACTED: &str = "REDACTED";
/// Shorter values would hit words everywhere.
const SHORTEST: usize = 4;
/// Names whose values are taken out, whatever they are.
const NAMES: [&str; 6] = ["password", "passwd", "secret", "token", "apikey", "api_key"];

/// Values that are known to be secret.
#[derive(Debug, Default)]
pub struct Secrets(BTreeSet<String>);

/// Whether a name says that its value is secret.
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.iter().any(|known| name.contains(known))
}

impl Secrets {
    /// Takes a value out of every text from now on, each of its lines too.
    pub fn know(&mut self, value: &str) {
        let whole = std::iter::once(value).chain(value.lines()).map(str::trim).filter(|text| text.len() >= SHORTEST);
        self.0.extend(whole.map(str::to_owned));
    }

    /// The text without secrets.
    pub fn redact(&self, text: &str) -> String {
        let mut text = keys(text);
        // Longest first: one may be part of another.
        let mut known: Vec<&String> = self.0.iter().collect();
        known.sort_by_key(|value| std::cmp::Reverse(value.len()));
        for value in known {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), REDACTED);
            }
        }
        words(&text)
    }
}

/// Without PEM blocks of private keys, also where their line ends are escaped.
fn keys(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(begin) = rest.find("-----BEGIN ") {
        let (before, block) = rest.split_at(begin);
        out += before;
        let label = block["-----BEGIN ".len()..].split("-----").next().unwrap_or_default();
        let end = format!("-----END {label}-----");
        let length = block.find(&end).map(|at| at + end.len());
        if label.ends_with("PRIVATE KEY") {
            out += REDACTED;
            // A block that was cut off hides all that follows.
            rest = length.map_or("", |length| &block[length..]);
        } else {
            let length = length.unwrap_or("-----BEGIN ".len());
            out += &block[..length];
            rest = &block[length..];
        }
    }
    out + rest
}

/// Without tokens (JSON web tokens, bootstrap tokens) and what follows `Bearer`, `password=` and the like.
fn words(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+' | '/' | '%');
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    let mut hide_next = false;
    while let Some(begin) = rest.find(is_part) {
        let (between, word) = rest.split_at(begin);
        // A secret's value follows its name on the same line.
        hide_next &= !between.contains(['\n', ',', ';', '{', '}']);
        out += between;
        let length = word.find(|c| !is_part(c)).unwrap_or(word.len());
        let (word, after) = word.split_at(length);
        let hidden = hide_next || is_web_token(word) || is_bootstrap_token(word);
        out += if hidden { REDACTED } else { word };
        hide_next = word == "Bearer"
            || (is_secret_name(word) && after.trim_start_matches(['"', '\'', ' ']).starts_with(['=', ':']) && !word.contains(['/', '.']));
        rest = after;
    }
    out + rest
}

/// Three parts in base64, the first of which is `{"…`.
fn is_web_token(word: &str) -> bool {
    word.starts_with("eyJ") && word.split('.').count() == 3 && word.len() > 40
}

/// `abcdef.0123456789abcdef`.
fn is_bootstrap_token(word: &str) -> bool {
    let of = |text: &str, length: usize| text.len() == length && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    word.split_once('.').is_some_and(|(id, secret)| of(id, 6) && of(secret, 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_go_wherever_they_stand() {
        let mut secrets = Secrets::default();
        secrets.know("hunter2\nsecond line");
        secrets.know("hunter22");
        secrets.know("abc");
        let text = "a hunter22 b=hunter2; second line, abc";
        assert_eq!(secrets.redact(text), "a REDACTED b=REDACTED; REDACTED, abc");
    }

    #[test]
    fn keys_go_certificates_stay() {
        let secrets = Secrets::default();
        let key =
            "x\n-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\ny -----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
        assert_eq!(secrets.redact(key), "x\nREDACTED\ny -----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n");
        assert_eq!(secrets.redact("a -----BEGIN PRIVATE KEY-----\\nMHcC"), "a REDACTED");
    }

    #[test]
    fn tokens_and_named_values_go() {
        let secrets = Secrets::default();
        let token = format!("eyJ{}.{}.{}", "a".repeat(20), "b".repeat(20), "c-_".repeat(8));
        let text = format!(
            "Authorization: Bearer abc.def\ntoken: {token}\n{token} 07401b.f395accd246ae52d\n{{\"password\": \"x y\", \"user\": \"me\"}}\nDB_PASSWORD=tops3cret rest"
        );
        let clean = secrets.redact(&text);
        assert!(
            !clean.contains("abc.def") && !clean.contains(&token) && !clean.contains("f395accd246ae52d") && !clean.contains("tops3cret"),
            "{clean}"
        );
        assert!(clean.contains("\"user\": \"me\"") && clean.contains("rest"), "{clean}");
        let harmless = "secrets \"a\" not found; token file /var/run/token: no such file\nsecret\nkind: Pod";
        assert_eq!(secrets.redact(harmless), harmless);
    }
}
