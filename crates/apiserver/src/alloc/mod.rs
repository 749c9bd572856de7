//! ClusterIPs and ports that Services hold (pkg/registry/core/service/{ipallocator,portallocator}).
//!
//! An address is taken when an IPAddress of that name is stored, or while a request that will store one is under way. Ports are kept in
//! memory and rebuilt from the stored Services at start.

pub mod ranges;

use crate::store::Store;
use rand::Rng;
use ranges::{Range, ServiceRanges, ready_networks};
use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where IPAddresses are stored.
pub const ADDRESSES: &str = "networking.k8s.io/ipaddresses/";
/// Where ServiceCIDRs are stored.
pub const CIDRS: &str = "networking.k8s.io/servicecidrs/";

/// The store's key of an IPAddress.
pub fn address_key(address: &IpAddr) -> String {
    format!("{ADDRESSES}/{address}")
}

/// Why an address or port cannot be had; the wording is upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// Taken by another Service.
    #[error("provided IP is already allocated")]
    AddressTaken,
    /// Within no ServiceCIDR that is ready.
    #[error("the provided network does not match the current range")]
    AddressOutside,
    /// No address or port is left.
    #[error("range is full")]
    Full,
    /// Taken by another Service.
    #[error("provided port is already allocated")]
    PortTaken,
    /// Not within the range of node ports.
    #[error("provided port is not in the valid range. The range of valid ports is {first}-{last}")]
    PortOutside {
        /// First port of the range.
        first: u16,
        /// Last port of the range.
        last: u16,
    },
}

#[derive(Default)]
struct Taken {
    /// Addresses of requests that are under way.
    addresses: HashSet<IpAddr>,
    ports: HashSet<u16>,
    /// The ranges of ready ServiceCIDRs, and the revision of the last change of one when they were read.
    ranges: Option<(u64, Arc<[Range]>)>,
}

/// All addresses and ports of Services.
pub struct Allocators {
    configured: ServiceRanges,
    ports: RangeInclusive<u16>,
    taken: Mutex<Taken>,
}

impl Allocators {
    /// Allocators for the networks of a configuration and a range of node ports.
    pub fn new(configured: ServiceRanges, ports: RangeInclusive<u16>) -> Self {
        Self { configured, ports, taken: Mutex::new(Taken::default()) }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The networks of the configuration.
    pub fn configured(&self) -> &ServiceRanges {
        &self.configured
    }

    /// Notes the ports that a stored Service holds, whatever the range.
    pub fn adopt(&self, ports: impl IntoIterator<Item = u16>) {
        self.lock().ports.extend(ports);
    }

    /// The ranges of ready ServiceCIDRs: the default one's first, then by name.
    fn ranges(taken: &mut Taken, store: &Store) -> Arc<[Range]> {
        let changed = store.last_change(CIDRS);
        if let Some((read, ranges)) = &taken.ranges
            && *read == changed
        {
            return Arc::clone(ranges);
        }
        let mut rows = store.list(CIDRS).1;
        rows.sort_by_key(|(key, _)| !key.ends_with("/kubernetes"));
        let ranges: Arc<[Range]> = rows.iter().flat_map(|(_, entry)| ready_networks(&entry.value())).map(Range::new).collect();
        taken.ranges = Some((changed, Arc::clone(&ranges)));
        ranges
    }

    fn take_address(&self, store: &Store, address: IpAddr) -> Result<(), AllocError> {
        let mut taken = self.lock();
        if !Self::ranges(&mut taken, store).iter().any(|range| range.contains(&address)) {
            return Err(AllocError::AddressOutside);
        }
        let is_free = store.get(&address_key(&address)).is_none() && taken.addresses.insert(address);
        if is_free { Ok(()) } else { Err(AllocError::AddressTaken) }
    }

    /// Takes any free address: from the upper part of a range first, so that chosen ones seldom collide.
    fn take_any_address(&self, store: &Store, family: &str) -> Result<IpAddr, AllocError> {
        let mut taken = self.lock();
        let ranges = Self::ranges(&mut taken, store);
        let mut candidates = ranges.iter().filter(|range| range.family() == family).flat_map(|range| range.candidates(rand::rng().random()));
        let free = candidates.find(|address| !taken.addresses.contains(address) && store.get(&address_key(address)).is_none());
        let address = free.ok_or(AllocError::Full)?;
        taken.addresses.insert(address);
        Ok(address)
    }

    fn take_port(&self, port: u16) -> Result<(), AllocError> {
        if !self.ports.contains(&port) {
            return Err(AllocError::PortOutside { first: *self.ports.start(), last: *self.ports.end() });
        }
        if self.lock().ports.insert(port) { Ok(()) } else { Err(AllocError::PortTaken) }
    }

    /// Takes any free port: from the upper part of the range first, so that chosen ones seldom collide.
    fn take_any_port(&self) -> Result<u16, AllocError> {
        let (first, last) = (*self.ports.start(), *self.ports.end());
        let size = u32::from(last.saturating_sub(first)) + 1;
        let band = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
        let mut taken = self.lock();
        let start = rand::rng().random_range(band..size);
        let mut offsets = (start..size).chain(band..start).chain(0..band);
        let port = |offset: u32| first.saturating_add(u16::try_from(offset).unwrap_or(u16::MAX));
        let free = offsets.find(|offset| !taken.ports.contains(&port(*offset))).ok_or(AllocError::Full)?;
        taken.ports.insert(port(free));
        Ok(port(free))
    }

    /// Gives ports back.
    pub fn release_ports(&self, ports: &[u16]) {
        self.lock().ports.retain(|port| !ports.contains(port));
    }
}

/// What one request has taken: given back unless the request comes to an end that keeps it.
#[must_use = "dropping a claim gives back what it holds"]
pub struct Claim<'a> {
    allocators: &'a Allocators,
    store: &'a Store,
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

impl<'a> Claim<'a> {
    /// An empty claim.
    pub fn new(allocators: &'a Allocators, store: &'a Store) -> Self {
        Self { allocators, store, addresses: Vec::new(), ports: Vec::new() }
    }

    /// Takes this address.
    pub fn address(&mut self, address: IpAddr) -> Result<(), AllocError> {
        self.allocators.take_address(self.store, address)?;
        self.addresses.push(address);
        Ok(())
    }

    /// Takes any address of a family.
    pub fn any_address(&mut self, family: &str) -> Result<IpAddr, AllocError> {
        let address = self.allocators.take_any_address(self.store, family)?;
        self.addresses.push(address);
        Ok(address)
    }

    /// Takes a port: the one asked for, or any.
    pub fn port(&mut self, wanted: Option<u16>) -> Result<u16, AllocError> {
        let port = match wanted {
            Some(port) => self.allocators.take_port(port).map(|()| port)?,
            None => self.allocators.take_any_port()?,
        };
        self.ports.push(port);
        Ok(port)
    }

    /// The addresses that were taken.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The Service that holds the ports is stored, and so are the IPAddresses.
    pub fn keep(mut self) {
        self.ports.clear();
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut taken = self.allocators.lock();
        taken.addresses.retain(|address| !self.addresses.contains(address));
        taken.ports.retain(|port| !self.ports.contains(port));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Expect;
    use serde_json::json;

    async fn store(cidrs: &[&str]) -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        store.put(&format!("{CIDRS}/kubernetes"), Expect::Absent, json!({"spec": {"cidrs": cidrs}})).await.unwrap();
        (dir, store)
    }

    fn allocators() -> Allocators {
        Allocators::new("10.96.0.0/29".parse().unwrap(), 30000..=30002)
    }

    #[tokio::test]
    async fn addresses_are_unique_inside_and_of_their_family() {
        let (_dir, store) = store(&["10.96.0.0/29", "fd00::/126"]).await;
        let allocators = allocators();
        let mut claim = Claim::new(&allocators, &store);
        let four: HashSet<IpAddr> = (0..6).map(|_| claim.any_address("IPv4").unwrap()).collect();
        assert_eq!((four.len(), claim.any_address("IPv4")), (6, Err(AllocError::Full)));
        assert!(four.iter().all(IpAddr::is_ipv4));
        let six: HashSet<IpAddr> = (0..3).map(|_| claim.any_address("IPv6").unwrap()).collect();
        assert_eq!((six.len(), claim.any_address("IPv6")), (3, Err(AllocError::Full)));
        drop(claim);
        assert!(Claim::new(&allocators, &store).any_address("IPv4").is_ok(), "a dropped claim gives back");
    }

    #[tokio::test]
    async fn stored_addresses_are_taken_and_more_ranges_may_come() {
        let (_dir, store) = store(&["10.96.0.0/30"]).await;
        let allocators = allocators();
        let mut claim = Claim::new(&allocators, &store);
        let held: IpAddr = "10.96.0.1".parse().unwrap();
        store.put(&address_key(&held), Expect::Absent, json!({})).await.unwrap();
        assert_eq!(claim.address(held), Err(AllocError::AddressTaken));
        assert_eq!(claim.any_address("IPv4"), Ok("10.96.0.2".parse().unwrap()));
        assert_eq!(claim.any_address("IPv4"), Err(AllocError::Full));
        let other: IpAddr = "10.1.0.9".parse().unwrap();
        assert_eq!(claim.address(other), Err(AllocError::AddressOutside));
        store.put(&format!("{CIDRS}/more"), Expect::Absent, json!({"spec": {"cidrs": ["10.1.0.0/24"]}})).await.unwrap();
        assert_eq!(claim.address(other), Ok(()));
        assert!(claim.any_address("IPv4").unwrap().to_string().starts_with("10.1.0."));
    }

    #[tokio::test]
    async fn a_dropped_claim_gives_ports_back_and_a_kept_one_does_not() {
        let (_dir, store) = store(&[]).await;
        let allocators = allocators();
        let mut claim = Claim::new(&allocators, &store);
        claim.port(Some(30001)).unwrap();
        assert_eq!(claim.port(Some(30001)), Err(AllocError::PortTaken));
        drop(claim);
        let mut claim = Claim::new(&allocators, &store);
        claim.port(Some(30001)).unwrap();
        claim.keep();
        assert_eq!(Claim::new(&allocators, &store).port(Some(30001)), Err(AllocError::PortTaken));
        allocators.release_ports(&[30001]);
        assert_eq!(Claim::new(&allocators, &store).port(Some(30001)), Ok(30001));
        let outside = Claim::new(&allocators, &store).port(Some(80)).unwrap_err();
        assert_eq!(outside.to_string(), "provided port is not in the valid range. The range of valid ports is 30000-30002");
    }

    #[tokio::test]
    async fn ports_come_from_the_upper_part_first() {
        let (_dir, store) = store(&[]).await;
        let allocators = Allocators::new("10.96.0.0/29".parse().unwrap(), 30000..=30031);
        let mut claim = Claim::new(&allocators, &store);
        let upper: HashSet<u16> = (0..16).map(|_| claim.port(None).unwrap()).collect();
        assert_eq!(upper, (30016..=30031).collect());
        assert!((30000..30016).contains(&claim.port(None).unwrap()));
    }
}
