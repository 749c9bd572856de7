//! Bootstrap tokens as their bearers write them: `abcdef.0123456789abcdef`.

use std::fmt;
use std::str::FromStr;

use kube_rules::bootstrap_token;
use ring::rand::{SecureRandom as _, SystemRandom};

const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// Id and secret. Nothing prints the secret but [`BootstrapToken::reveal`].
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    id: String,
    secret: String,
}

/// A text that is no token. It is not shown: it may be a token with one letter too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bootstrap token is not of the form abcdef.0123456789abcdef: 6 and 16 lower-case letters or digits; make one with mullion token create")]
pub struct NotAToken;

/// The system gave no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot make a bootstrap token: the system gives no random numbers")]
pub struct NoRandomness;

impl FromStr for BootstrapToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let (id, secret) = bootstrap_token::parse(text).ok_or(NotAToken)?;
        Ok(Self { id: id.to_owned(), secret: secret.to_owned() })
    }
}

impl fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootstrapToken({})", self.id)
    }
}

impl BootstrapToken {
    /// A new one.
    ///
    /// # Errors
    /// [`NoRandomness`].
    pub fn random() -> Result<Self, NoRandomness> {
        Ok(Self { id: letters(6)?, secret: letters(16)? })
    }

    /// The part that is no secret.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// The whole token, to be given to whoever joins.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

/// Random letters and digits, each as likely as any other.
fn letters(count: usize) -> Result<String, NoRandomness> {
    let (random, mut text) = (SystemRandom::new(), String::new());
    while text.len() < count {
        let mut bytes = [0; 32];
        random.fill(&mut bytes).map_err(|_| NoRandomness)?;
        let fair = bytes.iter().filter(|byte| usize::from(**byte) < 252);
        text.extend(fair.map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).take(count - text.len()));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_tokens_are_tokens_and_differ() {
        let (first, second) = (BootstrapToken::random().unwrap(), BootstrapToken::random().unwrap());
        assert_ne!(first, second);
        assert_eq!(first.reveal().parse::<BootstrapToken>().unwrap(), first);
    }

    #[test]
    fn the_secret_is_in_no_text() {
        let token: BootstrapToken = "abcdef.0123456789abcdef".parse().unwrap();
        assert_eq!(format!("{token:?}"), "BootstrapToken(abcdef)");
        let error = "abcdef.0123456789abcdeX".parse::<BootstrapToken>().unwrap_err().to_string();
        assert!(!error.contains("0123456789abcdeX"), "{error}");
    }
}
