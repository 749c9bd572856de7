//! Connection slots of a listener: their holders, and which connection is closed for a new one.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;

/// The places of one listener.
#[derive(Clone)]
pub(crate) struct Places(Arc<Inner>);

struct Inner {
    connections: usize,
    per_peer: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of the next place: older ones are smaller.
    next: u64,
    held: HashMap<u64, IpAddr>,
    per_peer: HashMap<IpAddr, usize>,
    /// Connections that may be closed to make room.
    unauthenticated: BTreeMap<u64, (IpAddr, CancellationToken)>,
}

impl State {
    fn release(&mut self, id: u64) {
        self.unauthenticated.remove(&id);
        let Some(peer) = self.held.remove(&id) else { return };
        if let Some(count) = self.per_peer.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.per_peer.remove(&peer);
            }
        }
    }

    /// Closes the oldest unauthenticated connection (of a peer, when one is given); false when there is none.
    fn evict(&mut self, of: Option<IpAddr>) -> bool {
        let oldest = self.unauthenticated.iter().find(|(_, (peer, _))| of.is_none_or(|of| of == *peer)).map(|(id, (_, token))| (*id, token.clone()));
        let Some((id, token)) = oldest else { return false };
        token.cancel();
        self.release(id);
        true
    }
}

impl Places {
    pub(crate) fn new(connections: usize, per_peer: usize) -> Self {
        Self(Arc::new(Inner { connections, per_peer, state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection; `None` when all are held by peers that are known.
    pub(crate) fn take(&self, peer: IpAddr) -> Option<Place> {
        let peer = share(peer);
        let mut state = self.state();
        if state.per_peer.get(&peer).is_some_and(|count| *count >= self.0.per_peer) && !state.evict(Some(peer)) {
            return None;
        }
        if state.held.len() >= self.0.connections && !state.evict(None) {
            return None;
        }
        let id = state.next;
        state.next += 1;
        state.held.insert(id, peer);
        *state.per_peer.entry(peer).or_default() += 1;
        let evicted = CancellationToken::new();
        state.unauthenticated.insert(id, (peer, evicted.clone()));
        Some(Place(Arc::new(Held { places: self.clone(), id, evicted, known: AtomicBool::new(false) })))
    }
}

/// Addresses that one machine can have many of count as one.
fn share(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

/// A connection's place. It is free again when the last clone is dropped.
#[derive(Clone)]
pub struct Place(Arc<Held>);

struct Held {
    places: Places,
    id: u64,
    evicted: CancellationToken,
    known: AtomicBool,
}

impl Place {
    /// The peer is authenticated: its connection is not closed for others any more.
    pub fn keep(&self) {
        if !self.0.known.swap(true, Ordering::Relaxed) {
            self.0.places.state().unauthenticated.remove(&self.0.id);
        }
    }

    /// The address of the peer, while the connection has the place.
    pub fn peer(&self) -> Option<IpAddr> {
        self.0.places.state().held.get(&self.0.id).copied()
    }

    /// Ends when the place was given to somebody else.
    pub async fn evicted(&self) {
        self.0.evicted.cancelled().await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.places.state().release(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn is_evicted(place: &Place) -> bool {
        place.0.evicted.is_cancelled()
    }

    #[test]
    fn oldest_unauthenticated_connection_makes_room() {
        let places = Places::new(3, 2);
        let (a, b) = (places.take(peer(1)).unwrap(), places.take(peer(1)).unwrap());
        let c = places.take(peer(1)).unwrap();
        assert!(is_evicted(&a) && !is_evicted(&b), "a peer makes room for itself");
        let d = places.take(peer(2)).unwrap();
        let e = places.take(peer(3)).unwrap();
        assert!(is_evicted(&b) && !is_evicted(&c) && !is_evicted(&d) && !is_evicted(&e));
    }

    #[test]
    fn authenticated_connections_are_kept() {
        let places = Places::new(2, 2);
        let (a, b) = (places.take(peer(1)).unwrap(), places.take(peer(2)).unwrap());
        a.keep();
        b.keep();
        assert!(places.take(peer(3)).is_none());
        drop(b.clone());
        assert!(places.take(peer(3)).is_none(), "a clone is not the place");
        drop(b);
        let c = places.take(peer(3)).unwrap();
        assert!(places.take(peer(4)).is_some() && is_evicted(&c) && !is_evicted(&a));
    }

    #[test]
    fn places_are_counted_once() {
        let places = Places::new(4, 2);
        for _ in 0..10 {
            let (a, b, c) = (places.take(peer(1)), places.take(peer(1)), places.take(peer(1)));
            assert!(is_evicted(a.as_ref().unwrap()));
            drop((a, b, c));
            let state = places.state();
            assert!(state.held.is_empty() && state.per_peer.is_empty() && state.unauthenticated.is_empty());
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_peer() {
        let share = |text: &str| share(text.parse().unwrap()).to_string();
        assert_eq!((share("2001:db8::1"), share("2001:db8::2:3")), ("2001:db8::".into(), "2001:db8::".into()));
        assert_eq!((share("10.1.2.3"), share("::ffff:10.1.2.3")), ("10.1.2.3".into(), "10.1.2.3".into()));
    }
}
