//! Backend selector: rotation, session affinity and admission of clients (pure).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use crate::table::{BackendAddress, Unserved, Vip};

/// Most clients of one VIP that are remembered.
const MOST_CLIENTS: usize = 65_536;

/// How clients inside the cluster are distinguished from others.
#[derive(Clone, Debug, Default)]
pub struct Inside {
    /// Every pod's address lies in these.
    pub pods: Vec<IpNet>,
    pub node: Vec<IpAddr>,
}

impl Inside {
    /// Whether `client` is a pod or the node.
    pub fn has(&self, client: IpAddr) -> bool {
        client.is_loopback() || self.node.contains(&client) || self.pods.iter().any(|net| net.contains(&client))
    }
}

/// What happens to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This one answers.
    Backend(BackendAddress),
    /// No backend answers, and the client is refused.
    Refuse,
    /// The client gets no answer.
    Ignore,
}

/// Selects backends of one VIP: in turn, but for clients that stick.
#[derive(Debug)]
pub struct BackendSelector {
    vip: Arc<Vip>,
    own: Option<IpAddr>,
    turn: usize,
    sticky: HashMap<IpAddr, (BackendAddress, Instant)>,
}

impl BackendSelector {
    /// For a VIP, as it is now, with its address of this host: the node is the only client that comes from there.
    pub fn new(vip: Arc<Vip>, own: Option<IpAddr>) -> Self {
        Self { vip, own, turn: 0, sticky: HashMap::new() }
    }

    /// The VIP changed: clients of backends that went no longer stick.
    pub fn update(&mut self, vip: Arc<Vip>) {
        let stays = |backend: &BackendAddress| vip.backends.contains(backend) || vip.inside.as_deref().unwrap_or_default().contains(backend);
        self.sticky.retain(|_, (backend, _)| vip.affinity.is_some() && stays(backend));
        self.vip = vip;
    }

    /// The backend for `client`, where those in `failed` did not answer.
    pub fn choose(&mut self, client: IpAddr, inside: &Inside, now: Instant, failed: &[BackendAddress]) -> Choice {
        if self.vip.sources.as_ref().is_some_and(|nets| !nets.iter().any(|net| net.contains(&client))) {
            return Choice::Ignore;
        }
        let backends = self.list(client, inside);
        let Some(timeout) = self.vip.affinity.map(|seconds| Duration::from_secs(seconds.into())) else {
            return self.next(&backends, failed);
        };
        let known = self.sticky.get(&client).filter(|(backend, seen)| now.duration_since(*seen) < timeout && backends.contains(backend));
        let choice = match known {
            Some((backend, _)) if !failed.contains(backend) => Choice::Backend(*backend),
            _ => self.next(&backends, failed),
        };
        if let Choice::Backend(backend) = choice {
            if self.sticky.len() >= MOST_CLIENTS {
                self.sticky.retain(|_, (_, seen)| now.duration_since(*seen) < timeout);
            }
            self.sticky.insert(client, (backend, now));
        }
        choice
    }

    /// Whether `backend` may (still) answer `client`.
    pub fn admits(&self, client: IpAddr, inside: &Inside, backend: &BackendAddress) -> bool {
        self.list(client, inside).contains(backend)
    }

    fn list(&self, client: IpAddr, inside: &Inside) -> Arc<[BackendAddress]> {
        match &self.vip.inside {
            Some(everyone) if inside.has(client) || self.own == Some(client) => everyone.clone(),
            _ => self.vip.backends.clone(),
        }
    }

    fn next(&mut self, backends: &[BackendAddress], failed: &[BackendAddress]) -> Choice {
        let at = self.turn;
        self.turn = self.turn.wrapping_add(1);
        let turns = (0..backends.len()).map(|n| backends[at.wrapping_add(n) % backends.len()]);
        match (turns.into_iter().find(|backend| !failed.contains(backend)), self.vip.unserved) {
            (Some(backend), _) => Choice::Backend(backend),
            (None, Unserved::Drop) if failed.is_empty() => Choice::Ignore,
            (None, _) => Choice::Refuse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Kind;

    fn backend(n: u8) -> BackendAddress {
        BackendAddress { address: [10, 1, 0, n].into(), port: 80, local: false }
    }

    fn vip(list: &[u8]) -> Vip {
        Vip { backends: list.iter().map(|n| backend(*n)).collect(), ..Vip::new("default/web:80", Kind::ClusterIp) }
    }

    fn inside() -> Inside {
        Inside { pods: vec!["10.1.0.0/16".parse().unwrap()], node: vec!["10.240.0.11".parse().unwrap()] }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn selected(selector: &mut BackendSelector, client: &str, times: usize) -> Vec<Choice> {
        (0..times).map(|_| selector.choose(ip(client), &inside(), Instant::now(), &[])).collect()
    }

    #[test]
    fn selector_rotates_backends_and_skips_failed_ones() {
        let mut selector = BackendSelector::new(Arc::new(vip(&[1, 2, 3])), None);
        assert_eq!(selected(&mut selector, "10.9.0.1", 4), [1, 2, 3, 1].map(|n| Choice::Backend(backend(n))));
        let failed = [backend(2), backend(3)];
        assert_eq!(selector.choose(ip("10.9.0.1"), &inside(), Instant::now(), &failed), Choice::Backend(backend(1)));
        assert_eq!(selector.choose(ip("10.9.0.1"), &inside(), Instant::now(), &[1, 2, 3].map(backend)), Choice::Refuse);
    }

    #[test]
    fn sticky_clients_keep_their_backend_until_timeout_or_removal() {
        let sticky = |list: &[u8]| Arc::new(Vip { affinity: Some(60), ..vip(list) });
        let mut selector = BackendSelector::new(sticky(&[1, 2, 3]), None);
        let (start, client) = (Instant::now(), ip("10.9.0.1"));
        let at = |selector: &mut BackendSelector, seconds| selector.choose(client, &inside(), start + Duration::from_secs(seconds), &[]);
        assert_eq!(
            [at(&mut selector, 0), at(&mut selector, 59), at(&mut selector, 100)],
            [Choice::Backend(backend(1)); 3],
            "each connection renews it"
        );
        assert_eq!(at(&mut selector, 160), Choice::Backend(backend(2)), "it ended");
        selector.update(sticky(&[1, 3]));
        assert_ne!(at(&mut selector, 161), Choice::Backend(backend(2)));
        assert!(selector.admits(client, &inside(), &backend(1)) && !selector.admits(client, &inside(), &backend(2)));
    }

    #[test]
    fn traffic_policy_and_source_ranges_restrict_clients() {
        let local = Vip { inside: Some(vip(&[7]).backends), unserved: Unserved::Drop, ..vip(&[]) };
        let mut selector = BackendSelector::new(Arc::new(local), Some(ip("192.0.2.7")));
        for (client, expected) in [
            ("10.9.0.1", Choice::Ignore),
            ("10.1.0.9", Choice::Backend(backend(7))),
            ("10.240.0.11", Choice::Backend(backend(7))),
            ("127.0.0.1", Choice::Backend(backend(7))),
            ("192.0.2.7", Choice::Backend(backend(7))),
        ] {
            assert_eq!(selected(&mut selector, client, 1), [expected], "{client}");
        }
        assert_eq!(selected(&mut BackendSelector::new(Arc::new(vip(&[])), None), "10.9.0.1", 1), [Choice::Refuse]);
        let guarded = Vip { sources: Some(["192.0.2.0/24".parse().unwrap()].into()), ..vip(&[1]) };
        let mut selector = BackendSelector::new(Arc::new(guarded), None);
        assert_eq!(selected(&mut selector, "192.0.2.9", 1), [Choice::Backend(backend(1))]);
        assert_eq!(selected(&mut selector, "198.51.100.9", 1), [Choice::Ignore]);
    }
}
