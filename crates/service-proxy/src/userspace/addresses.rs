//! Addresses of Services on an interface of this host, held by leases.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use host::{Addresses, AddressesError};
use thiserror_ext::AsReport as _;

/// The addresses that we put on one interface.
pub struct Pool {
    interface: Option<Arc<dyn Addresses>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many need each address.
    needed: HashMap<IpAddr, usize>,
    /// Addresses that the interface has from others.
    foreign: HashSet<IpAddr>,
    /// Those that we put there in this life: not every system keeps our mark.
    added: HashSet<IpAddr>,
    /// Addresses of ours that nobody needs as far as is known: an earlier life put them there. They go when all that is needed has its lease.
    left: HashSet<IpAddr>,
}

/// An address is there while this lives.
pub struct Lease {
    pool: Arc<Pool>,
    ip: IpAddr,
}

impl Pool {
    /// Addresses go to `interface`; without one, only those that the host has anyway can be listened on.
    pub fn new(interface: Option<Arc<dyn Addresses>>) -> Arc<Self> {
        Arc::new(Self { interface, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `ip` on the interface until the lease ends.
    pub fn lease(self: &Arc<Self>, ip: IpAddr) -> Result<Lease, AddressesError> {
        let mut state = self.state();
        if !state.needed.contains_key(&ip)
            && !state.foreign.contains(&ip)
            && let Some(interface) = &self.interface
        {
            // What an earlier life left is used as it is: connections to it go on.
            if !state.left.remove(&ip) {
                interface.add(ip)?;
            }
            state.added.insert(ip);
        }
        *state.needed.entry(ip).or_default() += 1;
        Ok(Lease { pool: self.clone(), ip })
    }

    /// Whether there is an interface for addresses.
    pub fn has_interface(&self) -> bool {
        self.interface.is_some()
    }

    /// Puts back what is needed and gone, and finds what an earlier life left behind, for [`Pool::settle`]. Returns how many addresses were
    /// added.
    pub fn repair(&self) -> Result<usize, AddressesError> {
        let Some(interface) = &self.interface else { return Ok(0) };
        let mut state = self.state();
        let there = interface.list()?;
        state.foreign = there.iter().filter(|address| !address.ours && !state.added.contains(&address.ip)).map(|address| address.ip).collect();
        let lost: Vec<IpAddr> = state.needed.keys().filter(|ip| !there.iter().any(|address| address.ip == **ip)).copied().collect();
        let left = there.iter().filter(|address| address.ours && !state.needed.contains_key(&address.ip));
        state.left = left.map(|address| address.ip).collect();
        let mut count = 0;
        for ip in lost {
            interface.add(ip)?;
            state.added.insert(ip);
            count += 1;
        }
        Ok(count)
    }

    /// Takes away what an earlier life left behind, once all that is needed has its lease. Returns how many addresses were removed.
    pub fn settle(&self) -> Result<usize, AddressesError> {
        let Some(interface) = &self.interface else { return Ok(0) };
        let mut state = self.state();
        let mut count = 0;
        while let Some(ip) = state.left.iter().next().copied() {
            interface.delete(ip)?;
            state.left.remove(&ip);
            count += 1;
        }
        Ok(count)
    }

    /// Takes every address of ours away, needed or not.
    pub fn clear(&self) {
        let mut state = self.state();
        for ip in std::mem::take(&mut state.left) {
            self.remove(ip);
        }
        let foreign = std::mem::take(&mut state.foreign);
        state.added.clear();
        for ip in std::mem::take(&mut state.needed).into_keys().filter(|ip| !foreign.contains(ip)) {
            self.remove(ip);
        }
    }

    fn remove(&self, ip: IpAddr) {
        if let Some(interface) = &self.interface
            && let Err(error) = interface.delete(ip)
        {
            tracing::warn!(%ip, error = %error.as_report(), "an address of a Service stays until the proxy is started again");
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        let Some(count) = state.needed.get_mut(&self.ip) else { return };
        *count -= 1;
        if *count == 0 {
            state.needed.remove(&self.ip);
            state.added.remove(&self.ip);
            if !state.foreign.contains(&self.ip) {
                self.pool.remove(self.ip);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::mem::ManuallyDrop;
    use std::sync::atomic::{AtomicBool, Ordering};

    use host::HostAddress;

    use super::*;

    /// An interface in memory, which checks every call: addresses, whether they are ours, and the calls since they were last looked at.
    #[derive(Default)]
    struct Interface {
        addresses: Mutex<BTreeMap<IpAddr, bool>>,
        calls: Mutex<Vec<String>>,
        /// As Wine's, it reads addresses and writes none.
        read_only: AtomicBool,
    }

    impl Interface {
        fn with(addresses: impl IntoIterator<Item = (IpAddr, bool)>) -> Arc<Self> {
            Arc::new(Self { addresses: Mutex::new(addresses.into_iter().collect()), ..Self::default() })
        }

        fn there(&self) -> Vec<IpAddr> {
            self.addresses.lock().unwrap().keys().copied().collect()
        }

        fn calls(&self) -> Vec<String> {
            std::mem::take(&mut self.calls.lock().unwrap())
        }

        fn call(&self, operation: &str, ip: IpAddr) -> Result<(), AddressesError> {
            self.calls.lock().unwrap().push(format!("{operation} {ip}"));
            if self.read_only.load(Ordering::Relaxed) {
                let source = std::io::Error::from(std::io::ErrorKind::Unsupported);
                return Err(AddressesError { operation: format!("{operation} {ip}"), source });
            }
            Ok(())
        }
    }

    impl Addresses for Interface {
        fn list(&self) -> Result<Vec<HostAddress>, AddressesError> {
            Ok(self.addresses.lock().unwrap().iter().map(|(ip, ours)| HostAddress { ip: *ip, ours: *ours }).collect())
        }

        fn add(&self, ip: IpAddr) -> Result<(), AddressesError> {
            self.call("add", ip)?;
            assert_eq!(self.addresses.lock().unwrap().insert(ip, true), None, "{ip} is added once");
            Ok(())
        }

        fn delete(&self, ip: IpAddr) -> Result<(), AddressesError> {
            self.call("delete", ip)?;
            assert_eq!(self.addresses.lock().unwrap().remove(&ip), Some(true), "{ip} is ours");
            Ok(())
        }
    }

    fn ips<const N: usize>(texts: [&str; N]) -> [IpAddr; N] {
        texts.map(|ip| ip.parse().unwrap())
    }

    #[test]
    fn leased_address_goes_with_its_last_lease_and_foreign_addresses_stay() {
        let [a, b, left] = ips(["10.96.0.1", "10.96.0.2", "10.96.0.3"]);
        let interface = Interface::with([(b, false), (left, true)]);
        let pool = Pool::new(Some(interface.clone()));
        assert_eq!((pool.repair().unwrap(), pool.settle().unwrap()), (0, 1), "what an earlier life left behind goes");
        let (first, second, foreign) = (pool.lease(a).unwrap(), pool.lease(a).unwrap(), pool.lease(b).unwrap());
        drop(first);
        assert_eq!(interface.there(), [a, b]);
        interface.addresses.lock().unwrap().remove(&a);
        assert_eq!((pool.repair().unwrap(), interface.there()), (1, vec![a, b]), "taken away by another program");
        drop((second, foreign));
        assert_eq!(interface.there(), [b]);
        let _held = pool.lease(a).unwrap();
        pool.clear();
        assert_eq!(interface.there(), [b]);
    }

    #[test]
    fn a_killed_proxys_addresses_are_used_or_removed_at_the_next_start() {
        let [a, b, foreign] = ips(["10.96.0.1", "fd00:96::1", "10.0.0.5"]);
        let interface = Interface::with([(foreign, false)]);
        let pool = Pool::new(Some(interface.clone()));
        pool.repair().unwrap();
        // Killed: nothing of it is undone.
        let _leases = ManuallyDrop::new([pool.lease(a).unwrap(), pool.lease(b).unwrap(), pool.lease(foreign).unwrap()]);
        assert_eq!(interface.calls(), ["add 10.96.0.1", "add fd00:96::1"], "what another program put there is used as it is");
        let next = Pool::new(Some(interface.clone()));
        assert_eq!(next.repair().unwrap(), 0);
        let held = next.lease(b).unwrap();
        assert_eq!((next.settle().unwrap(), interface.calls()), (1, vec!["delete 10.96.0.1".to_owned()]), "what is needed stays as it is");
        assert_eq!((next.repair().unwrap(), next.settle().unwrap(), interface.there()), (0, 0, vec![foreign, b]));
        drop(held);
        assert_eq!((interface.calls(), interface.there()), (vec!["delete fd00:96::1".to_owned()], vec![foreign]), "and goes with its last lease");
    }

    #[test]
    fn a_refused_call_names_it_and_is_made_again() {
        let [a] = ips(["10.96.0.1"]);
        let interface = Interface::with([]);
        let pool = Pool::new(Some(interface.clone()));
        interface.read_only.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            let error = pool.lease(a).err().expect("the interface refuses");
            assert_eq!(error.to_string(), "cannot add 10.96.0.1");
        }
        assert_eq!(interface.calls(), ["add 10.96.0.1"; 2]);
        interface.read_only.store(false, Ordering::Relaxed);
        let lease = pool.lease(a).unwrap();
        interface.read_only.store(true, Ordering::Relaxed);
        drop(lease);
        assert_eq!((interface.calls().len(), interface.there()), (2, vec![a]), "it stays");
        interface.read_only.store(false, Ordering::Relaxed);
        assert_eq!((pool.repair().unwrap(), pool.settle().unwrap(), interface.there()), (0, 1, vec![]), "until it can be taken away");
    }
}
