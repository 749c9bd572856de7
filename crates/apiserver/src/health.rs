//! The checks of `/healthz`, `/livez` and `/readyz`, by upstream's names (apiserver/pkg/server/{healthz.go,healthz/healthz.go}).

use std::sync::atomic::{AtomicU32, Ordering};

/// A step of the start that a check reports, as upstream's post-start hook that does the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hook {
    Admission,
    ResourceDefinitions,
    ResourceDefinitionsSynced,
    SystemNamespaces,
    ClusterAuthentication,
    ServiceAddresses,
    Roles,
    PriorityClasses,
    KubernetesService,
    ServiceCidr,
}

impl Hook {
    /// In upstream's order.
    pub const ALL: [Self; 10] = [
        Self::Admission,
        Self::ResourceDefinitions,
        Self::ResourceDefinitionsSynced,
        Self::SystemNamespaces,
        Self::ClusterAuthentication,
        Self::ServiceAddresses,
        Self::Roles,
        Self::PriorityClasses,
        Self::KubernetesService,
        Self::ServiceCidr,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Admission => "poststarthook/start-apiserver-admission-initializer",
            Self::ResourceDefinitions => "poststarthook/start-apiextensions-controllers",
            Self::ResourceDefinitionsSynced => "poststarthook/crd-informer-synced",
            Self::SystemNamespaces => "poststarthook/start-system-namespaces-controller",
            Self::ClusterAuthentication => "poststarthook/start-cluster-authentication-info-controller",
            Self::ServiceAddresses => "poststarthook/start-service-ip-repair-controllers",
            Self::Roles => "poststarthook/rbac/bootstrap-roles",
            Self::PriorityClasses => "poststarthook/scheduling/bootstrap-system-priority-classes",
            Self::KubernetesService => "poststarthook/bootstrap-controller",
            Self::ServiceCidr => "poststarthook/start-kubernetes-service-cidr-controller",
        }
    }
}

/// The steps of the start that are done.
#[derive(Default)]
pub struct Started(AtomicU32);

impl Started {
    pub fn finish(&self, hook: Hook) {
        self.0.fetch_or(1 << hook as u8, Ordering::AcqRel);
    }

    pub fn is_finished(&self, hook: Hook) -> bool {
        self.0.load(Ordering::Acquire) & (1 << hook as u8) != 0
    }

    pub fn is_complete(&self) -> bool {
        Hook::ALL.into_iter().all(|hook| self.is_finished(hook))
    }
}

/// What the checks look at.
#[derive(Clone, Copy)]
pub struct State<'a> {
    pub started: &'a Started,
    pub store_is_open: bool,
    pub is_ending: bool,
}

/// A check's name and what it found.
type Check = (&'static str, Result<(), &'static str>);

/// The endpoints by their first segment.
pub const ENDPOINTS: [&str; 3] = ["healthz", "livez", "readyz"];

/// The checks of an endpoint, in upstream's order; none for an unknown one.
fn checks(endpoint: &str, state: State<'_>) -> Vec<Check> {
    let store = if state.store_is_open { Ok(()) } else { Err("etcd client connection not yet established") };
    // Lines of the log are written where they arise: nothing can be waiting.
    let mut all: Vec<Check> = vec![("ping", Ok(())), ("log", Ok(())), ("etcd", store)];
    if endpoint == "readyz" {
        all.push(("etcd-readiness", store));
    }
    // Upstream's delay of liveness during the start is 0 by default: hooks count at once.
    all.extend(Hook::ALL.map(|hook| (hook.name(), if state.started.is_finished(hook) { Ok(()) } else { Err("not finished") })));
    if endpoint == "readyz" {
        all.push(("shutdown", if state.is_ending { Err("process is shutting down") } else { Ok(()) }));
    }
    if ENDPOINTS.contains(&endpoint) { all } else { Vec::new() }
}

/// The paths of all endpoints and checks.
pub fn paths() -> Vec<String> {
    let started = Started::default();
    let state = State { started: &started, store_is_open: true, is_ending: false };
    let mut paths = Vec::new();
    for endpoint in ENDPOINTS {
        paths.push(format!("/{endpoint}"));
        paths.extend(checks(endpoint, state).into_iter().map(|(name, _)| format!("/{endpoint}/{name}")));
    }
    paths
}

/// Code and text for an endpoint as a whole. Why a check fails is not said: the endpoint is public.
pub fn whole<'q>(endpoint: &str, state: State<'_>, excluded: impl Iterator<Item = &'q str>, verbose: bool) -> (u16, String) {
    let excluded: std::collections::BTreeSet<&str> = excluded.collect();
    let (mut unknown, mut failed, mut lines) = (excluded.clone(), false, String::new());
    for (name, found) in checks(endpoint, state) {
        if excluded.contains(name) {
            unknown.remove(name);
            lines += &format!("[+]{name} excluded: ok\n");
        } else if found.is_ok() {
            lines += &format!("[+]{name} ok\n");
        } else {
            failed = true;
            lines += &format!("[-]{name} failed: reason withheld\n");
        }
    }
    if !unknown.is_empty() {
        let names: Vec<String> = unknown.into_iter().map(|name| format!("{name:?}")).collect();
        lines += &format!("warn: some health checks cannot be excluded: no matches for {}\n", names.join(","));
    }
    match (failed, verbose) {
        (true, _) => (500, format!("{lines}{endpoint} check failed\n")),
        (false, true) => (200, format!("{lines}{endpoint} check passed\n")),
        (false, false) => (200, "ok".to_owned()),
    }
}

/// Code and text for one check; none when the endpoint has no such check.
pub fn one(endpoint: &str, state: State<'_>, name: &str) -> Option<(u16, String)> {
    let (_, found) = checks(endpoint, state).into_iter().find(|(own, _)| *own == name)?;
    Some(match found {
        Ok(()) => (200, "ok".to_owned()),
        Err(why) => (500, format!("internal server error: {why}\n")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(started: &Started) -> State<'_> {
        State { started, store_is_open: true, is_ending: false }
    }

    fn all_started() -> Started {
        let started = Started::default();
        Hook::ALL.into_iter().for_each(|hook| started.finish(hook));
        started
    }

    #[test]
    fn failed_checks_are_named_and_their_reasons_withheld() {
        let started = all_started();
        assert!(started.is_complete());
        let ending = State { is_ending: true, store_is_open: false, ..state(&started) };
        let (code, text) = whole("readyz", ending, [].into_iter(), false);
        assert_eq!(code, 500);
        assert!(
            text.starts_with("[+]ping ok\n[+]log ok\n[-]etcd failed: reason withheld\n[-]etcd-readiness failed: reason withheld\n[+]post"),
            "{text}"
        );
        assert!(text.ends_with("[-]shutdown failed: reason withheld\nreadyz check failed\n"), "{text}");
        let (code, text) = whole("livez", State { is_ending: true, ..state(&started) }, [].into_iter(), false);
        assert_eq!((code, text.as_str()), (200, "ok"), "an ending server lives");
        let shutdown = one("readyz", ending, "shutdown");
        assert_eq!(shutdown, Some((500, "internal server error: process is shutting down\n".to_owned())));
        assert_eq!(one("livez", ending, "shutdown"), None);
    }

    #[test]
    fn steps_of_the_start_are_checks() {
        let started = Started::default();
        let role = "poststarthook/rbac/bootstrap-roles";
        assert_eq!(one("livez", state(&started), role), Some((500, "internal server error: not finished\n".to_owned())));
        started.finish(Hook::Roles);
        assert_eq!(one("livez", state(&started), role), Some((200, "ok".to_owned())));
        assert_eq!(whole("healthz", state(&started), [].into_iter(), false).0, 500, "others are not done");
        assert!(!started.is_complete());
    }

    #[test]
    fn checks_can_be_excluded_by_name() {
        let started = all_started();
        let broken = State { store_is_open: false, ..state(&started) };
        let (code, text) = whole("livez", broken, ["etcd", "zzz", "other"].into_iter(), true);
        assert_eq!(code, 200);
        assert!(text.contains("[+]log ok\n[+]etcd excluded: ok\n"), "{text}");
        let end = "warn: some health checks cannot be excluded: no matches for \"other\",\"zzz\"\nlivez check passed\n";
        assert!(text.ends_with(end), "{text}");
    }
}
