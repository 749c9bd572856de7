//! `/healthz` and a path for each of its checks, in the words of upstream's k8s.io/apiserver/pkg/server/healthz.

use http::{Response, StatusCode};

use super::{Body, text};
use crate::agent::Agent;

/// A check: its name, and whether it passes.
pub(super) type Check = (&'static str, bool);

/// Passes as soon as something answers.
pub(super) const PING: Check = ("ping", true);

/// The checks of the agent's own server. The log is written at once, so that it never lags behind.
pub(super) fn checks(agent: &Agent) -> [Check; 3] {
    [PING, ("log", true), ("syncloop", agent.turns())]
}

/// The answer to a path at or below `/healthz`. `verbose` shows each check; `exclude=NAME` leaves one out.
pub(super) fn answer(path: &str, query: &str, checks: &[Check]) -> Response<Body> {
    let (status, body) = decide(path, query, checks);
    text(status, body)
}

fn decide(path: &str, query: &str, checks: &[Check]) -> (StatusCode, String) {
    let below = match path.strip_prefix("/healthz") {
        Some("" | "/") => None,
        Some(below) if below.starts_with('/') => Some(&below[1..]),
        _ => return (StatusCode::NOT_FOUND, "404 page not found".to_owned()),
    };
    if let Some(name) = below {
        return match checks.iter().find(|(known, _)| *known == name) {
            Some((_, true)) => (StatusCode::OK, "ok".to_owned()),
            Some((_, false)) => (StatusCode::INTERNAL_SERVER_ERROR, "internal server error: it takes longer than expected\n".to_owned()),
            None => (StatusCode::NOT_FOUND, "404 page not found".to_owned()),
        };
    }
    let pairs = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let excluded: Vec<&str> = pairs().filter(|(name, _)| *name == "exclude").map(|(_, value)| value).collect();
    let (mut lines, mut passes) = (String::new(), true);
    for (name, passed) in checks {
        if excluded.contains(name) {
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
        } else if *passed {
            lines.push_str(&format!("[+]{name} ok\n"));
        } else {
            // The log says why.
            lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
            passes = false;
        }
    }
    let unknown: Vec<&str> = excluded.into_iter().filter(|name| !checks.iter().any(|(known, _)| known == name)).collect();
    if !unknown.is_empty() {
        lines.push_str(&format!(
            "warn: some health checks cannot be excluded: no matches for {}\n",
            unknown.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(",")
        ));
    }
    if !passes {
        tracing::warn!("the agent is not healthy:\n{lines}");
        return (StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}healthz check failed\n"));
    }
    match pairs().any(|(name, _)| name == "verbose") {
        true => (StatusCode::OK, format!("{lines}healthz check passed\n")),
        false => (StatusCode::OK, "ok".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_shown_as_upstream_shows_them() {
        let well: &[Check] = &[PING, ("log", true), ("syncloop", true)];
        let ill: &[Check] = &[PING, ("log", true), ("syncloop", false)];
        for (path, query, checks, status, body) in [
            ("/healthz", "", well, 200, "ok"),
            ("/healthz", "verbose", well, 200, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n"),
            ("/healthz", "verbose=true&exclude=log", well, 200, "[+]ping ok\n[+]log excluded: ok\n[+]syncloop ok\nhealthz check passed\n"),
            ("/healthz", "", ill, 500, "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n"),
            ("/healthz", "exclude=syncloop", ill, 200, "ok"),
            ("/healthz/syncloop", "", well, 200, "ok"),
            ("/healthz/syncloop", "", ill, 500, "internal server error: it takes longer than expected\n"),
            ("/healthz/ping", "", ill, 200, "ok"),
            ("/healthz/other", "", well, 404, "404 page not found"),
            ("/healthzy", "", well, 404, "404 page not found"),
        ] {
            assert_eq!(decide(path, query, checks), (StatusCode::from_u16(status).unwrap(), body.to_owned()), "{path}?{query}");
        }
        let (_, body) = decide("/healthz", "verbose&exclude=x", &[PING]);
        assert_eq!(body, "[+]ping ok\nwarn: some health checks cannot be excluded: no matches for \"x\"\nhealthz check passed\n");
        let (_, body) = decide("/healthz", "exclude=x", &[("syncloop", false)]);
        let lines: Vec<&str> = body.lines().collect();
        let warning = "warn: some health checks cannot be excluded: no matches for \"x\"";
        assert_eq!(lines, ["[-]syncloop failed: reason withheld", warning, "healthz check failed"]);
    }
}
