//! Tokens of streaming URLs, each valid once and for a minute.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const LIFE: Duration = Duration::from_secs(60);
/// Requests that may wait for their connection (upstream's `maxInFlight`).
const MOST: usize = 1000;

#[derive(Debug)]
pub(super) struct Tokens<T>(Mutex<HashMap<String, (T, Instant)>>);

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Tokens<T> {
    /// A token for `what`; None when too many wait.
    pub(super) fn insert(&self, what: T) -> Option<String> {
        self.insert_at(what, Instant::now())
    }

    /// What a token stands for; it is handed out once, in time.
    pub(super) fn take(&self, token: &str) -> Option<T> {
        self.take_at(token, Instant::now())
    }

    fn insert_at(&self, what: T, now: Instant) -> Option<String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.retain(|_, (_, since)| now.duration_since(*since) < LIFE);
        }
        if all.len() >= MOST {
            return None;
        }
        let token = uuid::Uuid::new_v4().simple().to_string();
        all.insert(token.clone(), (what, now));
        Some(token)
    }

    fn take_at(&self, token: &str, now: Instant) -> Option<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (what, since) = all.remove(token)?;
        (now.duration_since(since) < LIFE).then_some(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_valid_once_and_for_a_minute() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        let token = tokens.insert_at(7, now).unwrap();
        assert_eq!(tokens.take_at("other", now), None);
        assert_eq!((tokens.take_at(&token, now), tokens.take_at(&token, now)), (Some(7), None));
        let late = tokens.insert_at(8, now).unwrap();
        assert_eq!(tokens.take_at(&late, now + LIFE), None);
    }

    #[test]
    fn expired_tokens_make_room() {
        let (tokens, now) = (Tokens::default(), Instant::now());
        assert!((0..MOST).all(|n| tokens.insert_at(n, now).is_some()));
        assert_eq!(tokens.insert_at(0, now), None);
        assert!(tokens.insert_at(0, now + LIFE).is_some());
    }
}
