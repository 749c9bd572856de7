//! Which pods may use an image that is there (upstream pkg/kubelet/images/pullmanager). Pure.

use jiff::Timestamp;
use kube_rules::{Reference, ReferenceError};

use super::document::{PullAccount, PullCredentials, PullSecret, PulledRecord};

/// So many secrets of an image are recorded by looking alone; more only by pulls.
const MAX_NOTED: usize = 100;

/// `imagePullCredentialsVerificationPolicy`: the images whose pods must show that they may pull them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// No records are kept, and every pod may use every image (`KubeletEnsureSecretPulledImages` off).
    Off,
    /// `NeverVerify`
    Never,
    /// `NeverVerifyPreloadedImages`: those that the agent pulled.
    #[default]
    NotPreloaded,
    /// `NeverVerifyAllowlistedImages`
    NotAllowlisted(Allowlist),
    /// `AlwaysVerify`
    Always,
}

impl Verification {
    fn is_asked(&self, image: &str, pulled_by_us: bool) -> bool {
        match self {
            Verification::Off | Verification::Never => false,
            Verification::NotPreloaded => pulled_by_us,
            Verification::NotAllowlisted(list) => !list.has(image),
            Verification::Always => true,
        }
    }
}

/// Why a pattern of `preloadedImagesVerificationAllowlist` is refused, in upstream's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("leading/trailing spaces are not allowed: {0}")]
    Spaces(String),
    #[error("the supplied pattern is too short: {0}")]
    Short(String),
    #[error("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {0}")]
    Wildcard(String),
    #[error("at least registry hostname is required")]
    NoHost,
    #[error("failed to parse as an image name")]
    Name(#[from] ReferenceError),
    #[error("neither tag nor digest is accepted in an image reference: {0}")]
    Tag(String),
}

/// `preloadedImagesVerificationAllowlist`: names of images, and beginnings of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowlist {
    names: Vec<String>,
    beginnings: Vec<String>,
}

impl Allowlist {
    /// Reads patterns: names without tag and digest, or `REGISTRY/…/*`.
    ///
    /// # Errors
    /// The first pattern that is neither.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a str>) -> Result<Self, PatternError> {
        let mut list = Self::default();
        for pattern in patterns {
            let text = || pattern.to_owned();
            if pattern.trim() != pattern {
                return Err(PatternError::Spaces(text()));
            }
            let beginning = pattern.strip_suffix('*').filter(|beginning| beginning.ends_with('/'));
            match beginning.unwrap_or(pattern) {
                "" => return Err(PatternError::Short(text())),
                rest if rest.contains('*') => return Err(PatternError::Wildcard(text())),
                "/" if beginning.is_some() => return Err(PatternError::NoHost),
                rest if beginning.is_some() => list.beginnings.push(rest.to_owned()),
                name if Reference::untagged(name)? != name => return Err(PatternError::Tag(text())),
                name => list.names.push(name.to_owned()),
            }
        }
        Ok(list)
    }

    fn has(&self, image: &str) -> bool {
        let name = Reference::untagged(image).unwrap_or(image);
        self.names.iter().any(|known| known == name) || self.beginnings.iter().any(|beginning| name.starts_with(beginning))
    }
}

/// What is known of an image that is there.
#[derive(Debug)]
pub(super) enum Known {
    /// It came without the agent, as far as is known.
    Nothing,
    /// The agent pulls it, or has begun to.
    Intended,
    Pulled(PulledRecord),
}

/// Whether a pod may use an image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every pod may.
    Allowed(Why),
    /// A pod with credentials like these may.
    Like(PullCredentials),
    /// It has to be pulled, with the pod's credentials.
    Pull,
}

/// Why it may; what the metric is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Policy,
    Record,
}

pub(super) fn verdict(policy: &Verification, image: &str, known: &Known) -> Verdict {
    if !policy.is_asked(image, !matches!(known, Known::Nothing)) {
        return Verdict::Allowed(Why::Policy);
    }
    let (Known::Pulled(record), Ok(name)) = (known, Reference::untagged(image)) else { return Verdict::Pull };
    match record.credential_mapping.get(name) {
        Some(credentials) if credentials.node_pods_accessible => Verdict::Allowed(Why::Record),
        Some(credentials) if !credentials.is_empty() => Verdict::Like(credentials.clone()),
        _ => Verdict::Pull,
    }
}

/// Whether the credentials of a pod are among those of a record, and what is to be recorded when they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    None,
    Found(Option<PullSecret>),
}

/// Compares a record with the credentials of a pod: the same login, or the same secret with another login, which it was changed to; or the
/// same account.
pub(super) fn compare(recorded: &PullCredentials, of_pod: &PullCredentials) -> Match {
    let few = recorded.kubernetes_secrets.len() < MAX_NOTED;
    for secret in &of_pod.kubernetes_secrets {
        for known in &recorded.kubernetes_secrets {
            let same_login = !known.credential_hash.is_empty() && known.credential_hash == secret.credential_hash;
            let same_secret = known.coordinates() == secret.coordinates();
            if same_login {
                return Match::Found((!same_secret && few).then(|| secret.clone()));
            }
            if same_secret && few {
                return Match::Found(Some(secret.clone()));
            }
        }
    }
    let account = of_pod.kubernetes_service_accounts.first();
    if account.is_some_and(|account| recorded.kubernetes_service_accounts.contains(account)) { Match::Found(None) } else { Match::None }
}

/// The record after a pull of the image `name` with these credentials; None when it says so already. Without credentials it is known only that
/// the agent pulled the image.
pub(super) fn merged(record: Option<PulledRecord>, reference: &str, name: &str, used: &PullCredentials, now: Timestamp) -> Option<PulledRecord> {
    let Some(mut record) = record else {
        let mut record = PulledRecord::new(reference, now);
        if !used.is_empty() {
            record.credential_mapping.insert(name.to_owned(), used.clone());
        }
        return Some(record);
    };
    if used.is_empty() {
        return None;
    }
    let known = record.credential_mapping.entry(name.to_owned()).or_default();
    let mut new = known.clone();
    if known.node_pods_accessible {
        return None;
    } else if used.node_pods_accessible {
        new = PullCredentials { node_pods_accessible: true, ..PullCredentials::default() };
    } else {
        for secret in &used.kubernetes_secrets {
            new.kubernetes_secrets.retain(|known| known.coordinates() != secret.coordinates());
            new.kubernetes_secrets.push(secret.clone());
        }
        new.kubernetes_secrets.sort_by(|a, b| a.coordinates().cmp(&b.coordinates()));
        let is_new = |account: &&PullAccount| !known.kubernetes_service_accounts.contains(account);
        new.kubernetes_service_accounts.extend(used.kubernetes_service_accounts.iter().filter(is_new).cloned());
        new.kubernetes_service_accounts.sort_by(|a, b| a.coordinates().cmp(&b.coordinates()));
    }
    if *known == new {
        return None;
    }
    *known = new;
    record.last_updated_time = Some(now);
    Some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, hash: &str) -> PullSecret {
        PullSecret { uid: format!("{name}-uid"), namespace: "ns".into(), name: name.into(), credential_hash: hash.into() }
    }

    fn account(name: &str) -> PullAccount {
        PullAccount { uid: format!("{name}-uid"), namespace: "ns".into(), name: name.into() }
    }

    fn secrets(all: &[(&str, &str)]) -> PullCredentials {
        PullCredentials { kubernetes_secrets: all.iter().map(|(name, hash)| secret(name, hash)).collect(), ..PullCredentials::default() }
    }

    fn accounts(all: &[&str]) -> PullCredentials {
        PullCredentials { kubernetes_service_accounts: all.iter().map(|name| account(name)).collect(), ..PullCredentials::default() }
    }

    fn node() -> PullCredentials {
        PullCredentials { node_pods_accessible: true, ..PullCredentials::default() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn record(credentials: &PullCredentials) -> PulledRecord {
        merged(None, "sha256:1", "reg.io/a", credentials, at(1)).unwrap()
    }

    #[test]
    fn policies_say_which_images_are_verified() {
        let list = Allowlist::new(["reg.io/a", "other.io/team/*"]).unwrap();
        let policies = [Verification::Never, Verification::NotPreloaded, Verification::NotAllowlisted(list), Verification::Always];
        let asked = |image: &str, pulled| policies.each_ref().map(|policy| policy.is_asked(image, pulled));
        assert_eq!(asked("x/y:1", false), [false, false, true, true]);
        assert_eq!(asked("x/y:1", true), [false, true, true, true]);
        assert_eq!(asked("reg.io/a:1", true), [false, true, false, true]);
        assert_eq!(asked("reg.io/a/b", true), [false, true, true, true]);
        assert_eq!(asked("other.io/team/x@sha256:1", true), [false, true, false, true], "though it is no image's name");
        assert_eq!(asked("other.io/teams/x", true), [false, true, true, true]);
    }

    #[test]
    fn patterns_are_refused_in_upstreams_words() {
        for (pattern, why) in [
            (" a", "leading/trailing spaces are not allowed:  a"),
            ("", "the supplied pattern is too short: "),
            ("a/*/*", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: a/*/*"),
            ("a*", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: a*"),
            ("*", "not a valid wildcard pattern, only patterns ending with '/*' are allowed: *"),
            ("/*", "at least registry hostname is required"),
            ("a:1", "neither tag nor digest is accepted in an image reference: a:1"),
            ("A/B", "failed to parse as an image name"),
        ] {
            assert_eq!(Allowlist::new(["ok", pattern]).unwrap_err().to_string(), why, "{pattern:?}");
        }
    }

    #[test]
    fn an_image_that_is_there_is_used_by_those_who_may() {
        let verdict = |known| verdict(&Verification::NotPreloaded, "reg.io/a:1", &known);
        assert_eq!(verdict(Known::Nothing), Verdict::Allowed(Why::Policy));
        assert_eq!(verdict(Known::Intended), Verdict::Pull);
        assert_eq!(verdict(Known::Pulled(record(&node()))), Verdict::Allowed(Why::Record));
        assert_eq!(verdict(Known::Pulled(record(&PullCredentials::default()))), Verdict::Pull, "nobody knows how it came");
        let known = secrets(&[("s", "h")]);
        assert_eq!(verdict(Known::Pulled(record(&known))), Verdict::Like(known));
        let other = merged(None, "sha256:1", "other.io/a", &node(), at(1)).unwrap();
        assert_eq!(verdict(Known::Pulled(other)), Verdict::Pull, "it was pulled under another name");
        assert_eq!(super::verdict(&Verification::Always, "reg.io/a", &Known::Nothing), Verdict::Pull);
        assert_eq!(super::verdict(&Verification::Never, "reg.io/a", &Known::Intended), Verdict::Allowed(Why::Policy));
    }

    #[test]
    fn a_pods_credentials_are_compared_by_login_then_by_secret_then_by_account() {
        let found = |recorded: &PullCredentials, of_pod: &PullCredentials| compare(recorded, of_pod);
        let one = secrets(&[("s", "h")]);
        assert_eq!(found(&one, &one), Match::Found(None));
        assert_eq!(found(&one, &secrets(&[("other", "h")])), Match::Found(Some(secret("other", "h"))), "the same login is noted");
        assert_eq!(found(&one, &secrets(&[("s", "new")])), Match::Found(Some(secret("s", "new"))), "the secret was changed");
        assert_eq!(found(&one, &secrets(&[("other", "other")])), Match::None);
        assert_eq!(found(&one, &PullCredentials::default()), Match::None);
        assert_eq!(found(&secrets(&[("s", "")]), &secrets(&[("other", "")])), Match::None, "no hash is no login");
        assert_eq!(found(&one, &secrets(&[("x", "y"), ("s", "h")])), Match::Found(None));
        assert_eq!(found(&accounts(&["a", "b"]), &accounts(&["b"])), Match::Found(None));
        assert_eq!(found(&accounts(&["a"]), &accounts(&["b"])), Match::None);
        let many: Vec<String> = (0..MAX_NOTED).map(|number| format!("s{number}")).collect();
        let many = secrets(&many.iter().map(|name| (name.as_str(), name.as_str())).collect::<Vec<_>>());
        assert_eq!(found(&many, &secrets(&[("new", "s5")])), Match::Found(None), "a full record is not written by looking");
        assert_eq!(found(&many, &secrets(&[("s5", "new")])), Match::None, "and what was changed is pulled again");
    }

    #[test]
    fn records_grow_by_pulls_and_say_everything_once() {
        let merge = |known: &PullCredentials, used: &PullCredentials| {
            merged(Some(record(known)), "sha256:1", "reg.io/a", used, at(9)).map(|record| (record.credential_mapping["reg.io/a"].clone(), record))
        };
        let grown = |known: &PullCredentials, used: &PullCredentials| merge(known, used).map(|(credentials, _)| credentials);
        let one = secrets(&[("s", "h")]);
        assert_eq!(grown(&one, &one), None);
        assert_eq!(grown(&one, &PullCredentials::default()), None);
        assert_eq!(grown(&one, &secrets(&[("b", "i")])), Some(secrets(&[("b", "i"), ("s", "h")])), "in order");
        assert_eq!(grown(&one, &secrets(&[("s", "i")])), Some(secrets(&[("s", "i")])));
        assert_eq!(grown(&one, &node()), Some(node()));
        assert_eq!(grown(&node(), &one), None, "everybody may already");
        let both = PullCredentials { kubernetes_service_accounts: vec![account("a")], ..one.clone() };
        assert_eq!(grown(&one, &accounts(&["a"])), Some(both));
        assert_eq!(grown(&accounts(&["b"]), &accounts(&["a"])), Some(accounts(&["a", "b"])));
        let (_, record) = merge(&one, &node()).unwrap();
        assert_eq!((record.last_updated_time, record.image_ref.as_str()), (Some(at(9)), "sha256:1"));
        let other = merged(Some(record), "sha256:1", "reg.io/b", &one, at(10)).unwrap();
        assert_eq!((other.credential_mapping["reg.io/a"].clone(), other.credential_mapping["reg.io/b"].clone()), (node(), one));
    }
}
