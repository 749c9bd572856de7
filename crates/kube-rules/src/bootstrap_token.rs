//! Bootstrap tokens: what their Secrets say, when they expire, what they are good for (cluster-bootstrap's token/api and util/secrets).

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;

/// The type of the Secrets.
pub const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";
/// What their names begin with; the token's id follows.
pub const SECRET_NAME: &str = "bootstrap-token-";
/// What the user name of who brings a token begins with; the token's id follows.
pub const USER: &str = "system:bootstrap:";
/// The group of all of them.
pub const GROUP: &str = "system:bootstrappers";
/// The group of the tokens that kubeadm makes, to which its roles for nodes that join are bound.
pub const NODE_GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
/// What the members of the ConfigMap cluster-info begin with that are its signatures; the token's id follows.
pub const SIGNATURE: &str = "jws-kubeconfig-";

/// What a token's Secret says.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Token {
    pub id: String,
    pub secret: String,
    expiration: String,
    may_sign: bool,
    may_authenticate: bool,
    groups: String,
}

/// When a token ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    Never,
    Within(Duration),
    Over,
}

/// Id and secret of a token as its bearer writes it.
pub fn parse(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    (plain(id, 6) && plain(secret, 16)).then_some((id, secret))
}

fn plain(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

impl Token {
    /// Reads a Secret by its members; one that is absent is "".
    pub fn new(member: impl Fn(&str) -> String) -> Self {
        Self {
            id: member("token-id"),
            secret: member("token-secret"),
            expiration: member("expiration"),
            may_sign: member("usage-bootstrap-signing") == "true",
            may_authenticate: member("usage-bootstrap-authentication") == "true",
            groups: member("auth-extra-groups"),
        }
    }

    /// A time that cannot be read is over.
    pub fn expiry(&self, now: Timestamp) -> Expiry {
        if self.expiration.is_empty() {
            return Expiry::Never;
        }
        let Ok(end) = self.expiration.parse::<Timestamp>() else { return Expiry::Over };
        match Duration::try_from(end.duration_since(now)) {
            Ok(left) if !left.is_zero() => Expiry::Within(left),
            _ => Expiry::Over,
        }
    }

    /// Id and secret, when the token in the Secret `name` is good for signatures.
    pub fn for_signing(&self, name: &str, now: Timestamp) -> Option<(&str, &str)> {
        let named = name.strip_prefix(SECRET_NAME).filter(|id| plain(id, 6))?;
        let good = named == self.id && !self.secret.is_empty() && self.may_sign && self.expiry(now) != Expiry::Over;
        good.then_some((self.id.as_str(), self.secret.as_str()))
    }

    /// The groups of who brings the token, when it is good for requests. Its secret is for the caller to compare.
    pub fn for_requests(&self, id: &str, now: Timestamp) -> Option<BTreeSet<String>> {
        if self.id != id || self.secret.is_empty() || !self.may_authenticate || self.expiry(now) == Expiry::Over {
            return None;
        }
        let mut groups = BTreeSet::from([GROUP.to_owned()]);
        for group in self.groups.split(',').filter(|_| !self.groups.is_empty()) {
            if !is_group(group) {
                return None;
            }
            groups.insert(group.to_owned());
        }
        Some(groups)
    }
}

/// Whether a token may give the group: `system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]`.
fn is_group(group: &str) -> bool {
    let Some(name) = group.strip_prefix(GROUP).and_then(|rest| rest.strip_prefix(':')) else { return false };
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let last = name.bytes().next_back();
    name.len() <= 256 && last.is_some_and(letter) && name.bytes().all(|byte| letter(byte) || matches!(byte, b':' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Token {
        let (id, secret) = ("abcdef".to_owned(), "0123456789abcdef".to_owned());
        Token { id, secret, expiration: String::new(), may_sign: true, may_authenticate: true, groups: String::new() }
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn tokens_have_two_parts_of_fixed_length() {
        assert_eq!(parse("abcdef.0123456789abcdef"), Some(("abcdef", "0123456789abcdef")));
        for wrong in ["", "abcdef", "abcdef.", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcdef.x", "a.b.c"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_good_tokens_sign() {
        let name = "bootstrap-token-abcdef";
        assert_eq!(good().for_signing(name, now()), Some(("abcdef", "0123456789abcdef")));
        for (why, name, token) in [
            ("another name", "token-abcdef", good()),
            ("another id", "bootstrap-token-abcdee", good()),
            ("a long id", "bootstrap-token-abcdefg", Token { id: "abcdefg".into(), ..good() }),
            ("a wrong id", "bootstrap-token-ABCDEF", Token { id: "ABCDEF".into(), ..good() }),
            ("no secret", name, Token { secret: String::new(), ..good() }),
            ("another use", name, Token { may_sign: false, ..good() }),
            ("expired", name, Token { expiration: "2026-01-01T00:00:00Z".into(), ..good() }),
        ] {
            assert_eq!(token.for_signing(name, now()), None, "{why}");
        }
    }

    #[test]
    fn only_good_tokens_authenticate() {
        let groups = |groups: &str| Token { groups: groups.into(), ..good() }.for_requests("abcdef", now());
        let set = |all: &[&str]| Some(all.iter().map(ToString::to_string).collect::<BTreeSet<_>>());
        assert_eq!(groups(""), set(&["system:bootstrappers"]));
        let two = "system:bootstrappers:kubeadm:default-node-token,system:bootstrappers:b";
        assert_eq!(groups(two), set(&["system:bootstrappers", "system:bootstrappers:b", "system:bootstrappers:kubeadm:default-node-token"]));
        for wrong in ["system:masters", "system:bootstrappers:", "system:bootstrappers:a-", "system:bootstrappers:A", "system:bootstrappers:a,"] {
            assert_eq!(groups(wrong), None, "{wrong}");
        }
        for (why, id, token) in [
            ("another id", "abcdee", good()),
            ("another use", "abcdef", Token { may_authenticate: false, ..good() }),
            ("no secret", "abcdef", Token { secret: String::new(), ..good() }),
            ("expired", "abcdef", Token { expiration: "2025-12-31T00:00:00Z".into(), ..good() }),
        ] {
            assert_eq!(token.for_requests(id, now()), None, "{why}");
        }
    }

    #[test]
    fn tokens_expire() {
        for (expiration, expected) in [
            ("", Expiry::Never),
            ("2026-01-01T00:01:00Z", Expiry::Within(Duration::from_secs(60))),
            ("2026-01-01T01:01:00+01:00", Expiry::Within(Duration::from_secs(60))),
            ("2026-01-01T00:00:00Z", Expiry::Over),
            ("2025-01-01T00:00:00Z", Expiry::Over),
            ("soon", Expiry::Over),
        ] {
            assert_eq!(Token { expiration: expiration.into(), ..good() }.expiry(now()), expected, "{expiration}");
        }
    }
}
