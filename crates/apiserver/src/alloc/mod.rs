//! ClusterIPs and ports that Services hold. Kept in memory; rebuilt from the stored Services at start
//! (pkg/registry/core/service/{ipallocator,portallocator}).

use ipnet::IpNet;
use rand::Rng;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why an address or port cannot be had; the wording is upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// Taken by another Service.
    #[error("provided IP is already allocated")]
    AddressTaken,
    /// Not within the service CIDR.
    #[error("the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}")]
    AddressOutside {
        /// What was asked for.
        address: IpAddr,
        /// The service CIDR.
        range: IpNet,
    },
    /// No address is left.
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
    addresses: HashSet<IpAddr>,
    ports: HashSet<u16>,
}

/// All addresses and ports of Services.
pub struct Allocators {
    cidr: IpNet,
    ports: RangeInclusive<u16>,
    taken: Mutex<Taken>,
}

impl Allocators {
    /// Allocators for a service CIDR and a range of node ports.
    pub fn new(cidr: IpNet, ports: RangeInclusive<u16>) -> Self {
        Self { cidr: cidr.trunc(), ports, taken: Mutex::new(Taken::default()) }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The service CIDR.
    pub fn network(&self) -> IpNet {
        self.cidr
    }

    /// The first usable address of the service CIDR: the `kubernetes` Service's.
    pub fn first_address(&self) -> IpAddr {
        self.nth(1)
    }

    /// Notes what a stored Service holds, whatever its range.
    pub fn adopt(&self, addresses: impl IntoIterator<Item = IpAddr>, ports: impl IntoIterator<Item = u16>) {
        let mut taken = self.lock();
        taken.addresses.extend(addresses);
        taken.ports.extend(ports);
    }

    pub fn take_address(&self, address: IpAddr) -> Result<(), AllocError> {
        let edges = [self.cidr.network(), self.cidr.broadcast()];
        if !self.cidr.contains(&address) || edges.contains(&address) {
            return Err(AllocError::AddressOutside { address, range: self.cidr });
        }
        if self.lock().addresses.insert(address) { Ok(()) } else { Err(AllocError::AddressTaken) }
    }

    /// Takes any free address: from the upper part of the range first, as upstream, so that fixed ones seldom collide.
    pub fn take_any_address(&self) -> Result<IpAddr, AllocError> {
        let size = self.size();
        let band = if size < 16 { 1 } else { (size / 16).clamp(16, 256) };
        let mut taken = self.lock();
        let start = if size > band { rand::rng().random_range(band..size) } else { 1 };
        let upper = (start..size).chain(band..start);
        let free = upper.chain(1..band).map(|offset| self.nth(offset)).find(|address| !taken.addresses.contains(address));
        let address = free.ok_or(AllocError::Full)?;
        taken.addresses.insert(address);
        Ok(address)
    }

    pub fn take_port(&self, port: u16) -> Result<(), AllocError> {
        if !self.ports.contains(&port) {
            return Err(AllocError::PortOutside { first: *self.ports.start(), last: *self.ports.end() });
        }
        if self.lock().ports.insert(port) { Ok(()) } else { Err(AllocError::PortTaken) }
    }

    /// Takes any free port.
    pub fn take_any_port(&self) -> Result<u16, AllocError> {
        let mut taken = self.lock();
        let start = rand::rng().random_range(self.ports.clone());
        let free = (start..=*self.ports.end()).chain(*self.ports.start()..start).find(|port| !taken.ports.contains(port));
        let port = free.ok_or(AllocError::Full)?;
        taken.ports.insert(port);
        Ok(port)
    }

    /// Gives addresses and ports back.
    pub fn release(&self, addresses: &[IpAddr], ports: &[u16]) {
        let mut taken = self.lock();
        taken.addresses.retain(|address| !addresses.contains(address));
        taken.ports.retain(|port| !ports.contains(port));
    }

    /// Usable offsets are 1 (inclusive) to this (exclusive): neither the network's address nor the broadcast address.
    fn size(&self) -> u128 {
        let bits = u32::from(self.cidr.max_prefix_len() - self.cidr.prefix_len()).min(32);
        (1_u128 << bits).saturating_sub(1)
    }

    fn nth(&self, offset: u128) -> IpAddr {
        match self.cidr.network() {
            IpAddr::V4(base) => Ipv4Addr::from(u32::from(base).wrapping_add(u32::try_from(offset).unwrap_or_default())).into(),
            IpAddr::V6(base) => Ipv6Addr::from(u128::from(base).wrapping_add(offset)).into(),
        }
    }
}

/// What one request has taken: given back unless the request comes to an end that keeps it.
#[must_use = "dropping a claim gives back what it holds"]
pub struct Claim<'a> {
    allocators: &'a Allocators,
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
}

impl<'a> Claim<'a> {
    /// An empty claim.
    pub fn new(allocators: &'a Allocators) -> Self {
        Self { allocators, addresses: Vec::new(), ports: Vec::new() }
    }

    /// Takes an address: the one asked for, or any.
    pub fn address(&mut self, wanted: Option<IpAddr>) -> Result<IpAddr, AllocError> {
        let address = match wanted {
            Some(address) => self.allocators.take_address(address).map(|()| address)?,
            None => self.allocators.take_any_address()?,
        };
        self.addresses.push(address);
        Ok(address)
    }

    /// Takes a port: the one asked for, or any. A port this claim holds already may be had again (one number for TCP and UDP).
    pub fn port(&mut self, wanted: Option<u16>) -> Result<u16, AllocError> {
        let port = match wanted {
            Some(port) if self.ports.contains(&port) => return Ok(port),
            Some(port) => self.allocators.take_port(port).map(|()| port)?,
            None => self.allocators.take_any_port()?,
        };
        self.ports.push(port);
        Ok(port)
    }

    /// The object that holds all this is stored.
    pub fn keep(mut self) {
        self.addresses.clear();
        self.ports.clear();
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.allocators.release(&self.addresses, &self.ports);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocators(cidr: &str) -> Allocators {
        Allocators::new(cidr.parse().unwrap(), 30000..=30002)
    }

    #[test]
    fn addresses_are_unique_and_inside() {
        let allocators = allocators("10.96.0.0/29");
        let mut seen = HashSet::new();
        for _ in 0..6 {
            let address = allocators.take_any_address().unwrap();
            assert!(allocators.cidr.contains(&address) && seen.insert(address));
        }
        assert_eq!(allocators.take_any_address(), Err(AllocError::Full));
        assert!(!seen.contains(&"10.96.0.0".parse().unwrap()) && !seen.contains(&"10.96.0.7".parse().unwrap()));
    }

    #[test]
    fn errors_are_worded_as_upstream() {
        let allocators = allocators("10.96.0.0/12");
        allocators.take_address("10.96.0.10".parse().unwrap()).unwrap();
        let taken = allocators.take_address("10.96.0.10".parse().unwrap()).unwrap_err();
        assert_eq!(taken.to_string(), "provided IP is already allocated");
        let outside = allocators.take_address("192.168.0.1".parse().unwrap()).unwrap_err();
        assert_eq!(outside.to_string(), "the provided IP (192.168.0.1) is not in the valid range. The range of valid IPs is 10.96.0.0/12");
        assert_eq!(
            allocators.take_port(80).unwrap_err().to_string(),
            "provided port is not in the valid range. The range of valid ports is 30000-30002"
        );
    }

    #[test]
    fn a_dropped_claim_gives_back_and_a_kept_one_does_not() {
        let allocators = allocators("10.96.0.0/29");
        let mut claim = Claim::new(&allocators);
        claim.port(Some(30001)).unwrap();
        assert_eq!(claim.port(Some(30001)), Ok(30001), "the same number for another protocol");
        drop(claim);
        let mut claim = Claim::new(&allocators);
        claim.port(Some(30001)).unwrap();
        claim.keep();
        assert_eq!(allocators.take_port(30001), Err(AllocError::PortTaken));
        allocators.release(&[], &[30001]);
        assert_eq!(allocators.take_port(30001), Ok(()));
    }
}
