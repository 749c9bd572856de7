//! Ranges of addresses and the order in which they are tried.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use crate::spec::CniError;

/// A range as configured.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RangeConfig {
    subnet: IpNet,
    #[serde(default)]
    range_start: Option<IpAddr>,
    #[serde(default)]
    range_end: Option<IpAddr>,
    #[serde(default)]
    gateway: Option<IpAddr>,
}

/// A checked range: `start` to `end`, both included, inside `subnet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    subnet: IpNet,
    start: u128,
    end: u128,
    pub gateway: IpAddr,
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

impl Range {
    fn address(&self, number: u128) -> IpAddr {
        match self.subnet {
            // Numbers of a version 4 range come from version 4 addresses.
            IpNet::V4(_) => IpAddr::V4((number as u32).into()),
            IpNet::V6(_) => IpAddr::V6(number.into()),
        }
    }

    fn holds(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.subnet.addr().is_ipv4() && (self.start..=self.end).contains(&number(ip))
    }

    /// `ip` with the subnet's prefix length.
    pub fn with_prefix(&self, ip: IpAddr) -> IpNet {
        IpNet::new(ip, self.subnet.prefix_len()).unwrap_or(IpNet::from(ip))
    }
}

impl TryFrom<RangeConfig> for Range {
    type Error = CniError;

    fn try_from(config: RangeConfig) -> Result<Self, CniError> {
        let subnet = config.subnet;
        if subnet.trunc() != subnet {
            let text =
                format!("Network has host bits set. For a subnet mask of length {} the network address is {}", subnet.prefix_len(), subnet.network());
            return Err(CniError::config(text));
        }
        if subnet.prefix_len() > subnet.max_prefix_len() - 2 {
            return Err(CniError::config(format!("Network {subnet} too small to allocate from")));
        }
        let first = number(subnet.network()) + 1;
        let last = number(subnet.broadcast()) - u128::from(subnet.addr().is_ipv4());
        let bound = |name: &str, given: Option<IpAddr>, default: u128| match given {
            None => Ok(default),
            Some(ip) if subnet.contains(&ip) => Ok(number(ip)),
            Some(ip) => Err(CniError::config(format!("{name} {ip} not in network {subnet}"))),
        };
        let start = bound("RangeStart", config.range_start, first)?;
        let end = bound("RangeEnd", config.range_end, last)?;
        if start > end {
            return Err(CniError::config(format!("the range of {subnet} ends before it starts")));
        }
        let mut range = Self { subnet, start, end, gateway: subnet.network() };
        range.gateway = config.gateway.unwrap_or_else(|| range.address(first));
        Ok(range)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.address(self.start), self.address(self.end))
    }
}

/// Ranges from which one address is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RangeSet(Vec<Range>);

impl RangeSet {
    /// Errors: code 7 when it is empty, mixes families, or two of its ranges share an address.
    pub fn new(ranges: Vec<RangeConfig>) -> Result<Self, CniError> {
        let ranges = ranges.into_iter().map(Range::try_from).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = ranges.first() else { return Err(CniError::config("empty range set")) };
        if ranges.iter().any(|r| r.subnet.addr().is_ipv4() != first.subnet.addr().is_ipv4()) {
            return Err(CniError::config("mixed address families in a range set"));
        }
        for (i, a) in ranges.iter().enumerate() {
            if let Some(b) = ranges[i + 1..].iter().find(|b| overlap(a, b)) {
                return Err(CniError::config(format!("subnets {a} and {b} overlap")));
            }
        }
        Ok(Self(ranges))
    }

    pub fn is_v4(&self) -> bool {
        self.0[0].subnet.addr().is_ipv4()
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|a| other.0.iter().any(|b| overlap(a, b)))
    }

    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.holds(ip))
    }

    pub fn holds(&self, ip: IpAddr) -> bool {
        self.range_of(ip).is_some()
    }

    /// Every address but the gateways, once, beginning after `last` and wrapping round.
    pub fn from(&self, last: Option<IpAddr>) -> impl Iterator<Item = (IpAddr, &Range)> {
        let start = last.and_then(|ip| Some((self.0.iter().position(|r| r.holds(ip))?, number(ip))));
        let (first, after) = start.unwrap_or((0, u128::MAX));
        let begun = start.is_some();
        let tail = self.0.get(first).filter(|_| begun).map(|r| (r, after.saturating_add(1), r.end));
        let head = self.0.get(first).filter(|_| begun).map(|r| (r, r.start, after));
        let order = self.0.len();
        let between = (0..order).map(move |i| (first + i) % order).skip(usize::from(begun)).map(|i| (&self.0[i], self.0[i].start, self.0[i].end));
        tail.into_iter()
            .chain(between)
            .chain(head)
            .flat_map(|(range, from, to)| (from..=to).map(move |n| (range.address(n), range)))
            .filter(|(ip, range)| *ip != range.gateway)
    }
}

fn overlap(a: &Range, b: &Range) -> bool {
    a.subnet.addr().is_ipv4() == b.subnet.addr().is_ipv4() && a.start <= b.end && b.start <= a.end
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            write!(f, "{}{range}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}
