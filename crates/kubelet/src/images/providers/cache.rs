//! What providers said, for as long as it holds (upstream pkg/credentialprovider/plugin/plugin.go). Pure.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::protocol::{Answer, Reach};
use crate::images::keyring::{Coordinates, DockerConfig};

/// How often what no longer holds is looked for.
const PURGE: Duration = Duration::from_secs(15 * 60);
/// Entries at most: what comes then is used and not kept.
const MAX_ENTRIES: usize = 10_000;
/// Key of what holds for every image. No image has such a name.
const GLOBAL: &str = "<global>";

/// The account that credentials hold for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AccountKey {
    pub coordinates: Coordinates,
    pub annotations: BTreeMap<String, String>,
    /// The token's hash, where they hold for the token alone.
    pub token: Option<String>,
}

type Key = (String, Option<AccountKey>);

/// Credentials by image, registry or for all, and by account.
#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: HashMap<Key, (DockerConfig, Instant)>,
    purged: Option<Instant>,
}

/// Registry and port of a repository.
fn registry(repository: &str) -> &str {
    repository.split('/').next().unwrap_or_default()
}

impl Cache {
    /// What holds for a repository: for itself, its registry, or all.
    pub(super) fn get(&mut self, repository: &str, account: Option<&AccountKey>, now: Instant) -> Option<DockerConfig> {
        if now.duration_since(*self.purged.get_or_insert(now)) > PURGE {
            self.entries.retain(|_, (_, until)| now <= *until);
            self.purged = Some(now);
        }
        [repository, registry(repository), GLOBAL].into_iter().find_map(|key| {
            let (config, until) = self.entries.get(&(key.to_owned(), account.cloned()))?;
            (now <= *until).then(|| config.clone())
        })
    }

    /// Keeps an answer for as long as it says, or else for `default`; not at all for 0.
    pub(super) fn insert(&mut self, repository: &str, account: Option<AccountKey>, answer: &Answer, default: Duration, now: Instant) {
        let lifetime = match answer.duration {
            Some(duration) => Duration::try_from(duration).unwrap_or_default(),
            None => default,
        };
        // What holds longer than the clock goes holds for ever: a century will do.
        let until = now.checked_add(lifetime).or(now.checked_add(Duration::from_secs(100 * 365 * 86_400)));
        let Some(until) = until.filter(|_| !lifetime.is_zero()) else { return };
        let key = match answer.reach {
            Reach::Image => repository,
            Reach::Registry => registry(repository),
            Reach::Global => GLOBAL,
        };
        let key = (key.to_owned(), account);
        if self.entries.len() >= MAX_ENTRIES && !self.entries.contains_key(&key) {
            self.entries.retain(|_, (_, until)| now <= *until);
            if self.entries.len() >= MAX_ENTRIES {
                return;
            }
        }
        self.entries.insert(key, (answer.auth.clone(), until));
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::images::keyring::Login;

    fn answer(reach: Reach, seconds: Option<i64>) -> Answer {
        let auth = DockerConfig::from([("reg.io".to_owned(), Login::default())]);
        Answer { reach, duration: seconds.map(SignedDuration::from_secs), auth }
    }

    #[test]
    fn answers_reach_as_far_as_they_say_and_hold_as_long() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let minute = Duration::from_secs(60);
        for (reach, seconds, repository, after, is_held) in [
            (Reach::Image, Some(10), "reg.io/a", 10, true),
            (Reach::Image, Some(10), "reg.io/a", 11, false),
            (Reach::Image, Some(10), "reg.io/b", 0, false),
            (Reach::Registry, Some(10), "reg.io/b", 0, true),
            (Reach::Registry, Some(10), "reg.io:5000/b", 0, false),
            (Reach::Global, Some(10), "other.io/b", 0, true),
            (Reach::Image, None, "reg.io/a", 60, true),
            (Reach::Image, None, "reg.io/a", 61, false),
            (Reach::Image, Some(0), "reg.io/a", 0, false),
            (Reach::Image, Some(-5), "reg.io/a", 0, false),
            (Reach::Image, Some(i64::MAX), "reg.io/a", 86_400, true),
        ] {
            let mut cache = Cache::default();
            cache.insert("reg.io/a", None, &answer(reach, seconds), minute, begin);
            assert_eq!(cache.get(repository, None, at(after)).is_some(), is_held, "{reach:?} {seconds:?} {repository} {after}");
        }
        let mut cache = Cache::default();
        cache.insert("reg.io/a", None, &answer(Reach::Image, None), Duration::ZERO, begin);
        assert_eq!(cache.get("reg.io/a", None, begin), None, "a default of 0 keeps nothing");
    }

    #[test]
    fn accounts_are_kept_apart() {
        let now = Instant::now();
        let key = |name: &str, annotation: &str, token: Option<&str>| AccountKey {
            coordinates: Coordinates { uid: "u".into(), namespace: "ns".into(), name: name.into() },
            annotations: BTreeMap::from([("a".to_owned(), annotation.to_owned())]),
            token: token.map(str::to_owned),
        };
        let mut cache = Cache::default();
        cache.insert("reg.io/a", Some(key("x", "1", None)), &answer(Reach::Global, Some(60)), Duration::ZERO, now);
        cache.insert("reg.io/a", Some(key("y", "1", Some("t"))), &answer(Reach::Global, Some(60)), Duration::ZERO, now);
        for (account, is_held) in [
            (Some(key("x", "1", None)), true),
            (Some(key("x", "2", None)), false),
            (Some(key("x", "1", Some("t"))), false),
            (Some(key("y", "1", Some("t"))), true),
            (Some(key("y", "1", Some("u"))), false),
            (None, false),
        ] {
            assert_eq!(cache.get("reg.io/b", account.as_ref(), now).is_some(), is_held, "{account:?}");
        }
    }

    #[test]
    fn what_nobody_asks_for_goes_after_a_quarter_of_an_hour() {
        let begin = Instant::now();
        let mut cache = Cache::default();
        cache.insert("reg.io/a", None, &answer(Reach::Image, Some(1)), Duration::ZERO, begin);
        assert_eq!((cache.get("reg.io/b", None, begin), cache.entries.len()), (None, 1));
        cache.get("reg.io/b", None, begin + PURGE);
        assert_eq!(cache.entries.len(), 1);
        cache.get("reg.io/b", None, begin + PURGE + Duration::from_secs(1));
        assert_eq!(cache.entries.len(), 0);
    }

    #[test]
    fn a_full_cache_takes_nothing_but_what_it_has() {
        let now = Instant::now();
        let mut cache = Cache::default();
        for number in 0..=MAX_ENTRIES {
            cache.insert(&format!("reg.io/{number}"), None, &answer(Reach::Image, Some(60)), Duration::ZERO, now);
        }
        assert_eq!(cache.entries.len(), MAX_ENTRIES);
        let later = now + Duration::from_secs(61);
        cache.insert("reg.io/new", None, &answer(Reach::Image, Some(60)), Duration::ZERO, later);
        assert_eq!(cache.entries.len(), 1, "what no longer holds makes room");
    }
}
