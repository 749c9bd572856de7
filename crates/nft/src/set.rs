//! Sets, maps and their elements.

use std::net::IpAddr;
use std::time::Duration;

use super::Verdict;
use linux_sys::netlink::wire::Writer;

/// Type of a part of a key or value, with the numbers by which nft(8) knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataType {
    /// 4 bytes.
    Ipv4Addr,
    /// 16 bytes.
    Ipv6Addr,
    /// 6 bytes.
    EtherAddr,
    /// 1 byte: 6 TCP, 17 UDP.
    InetProto,
    /// A port: 2 bytes in network order.
    InetService,
    /// A mark, or any number of ours: 4 bytes in host order.
    Mark,
    /// A class of traffic: 4 bytes in host order.
    ClassId,
    /// A link's name, 16 bytes filled with zeroes.
    IfName,
}

impl DataType {
    const fn number(self) -> u32 {
        match self {
            Self::Ipv4Addr => 7,
            Self::Ipv6Addr => 8,
            Self::EtherAddr => 9,
            Self::InetProto => 12,
            Self::InetService => 13,
            Self::Mark => 19,
            Self::ClassId => 23,
            Self::IfName => 41,
        }
    }

    const fn len(self) -> u32 {
        match self {
            Self::InetProto => 1,
            Self::InetService => 2,
            Self::Ipv4Addr | Self::Mark | Self::ClassId => 4,
            Self::EtherAddr => 6,
            Self::Ipv6Addr | Self::IfName => 16,
        }
    }
}

/// The number and length of a type, concatenated as nft(8) does it: 6 bits a part, parts in whole slots.
pub(super) fn concatenated(parts: &[DataType]) -> (u32, u32) {
    match parts {
        [one] => (one.number(), one.len()),
        many => many.iter().fold((0, 0), |(number, len), t| (number << 6 | t.number(), len + t.len().next_multiple_of(4))),
    }
}

/// What a map maps to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapData {
    /// Values that go into registers.
    Values(Vec<DataType>),
    Verdict,
}

/// A set or map to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetSpec {
    pub name: String,
    /// Parts of its keys.
    pub key: Vec<DataType>,
    /// What it maps to; `None` for a set.
    pub data: Option<MapData>,
    /// Elements are ranges ([`Element::range`], [`Element::area`]).
    pub interval: bool,
    /// Rules add elements ([`super::Expr::Dynset`]).
    pub dynamic: bool,
    /// Elements end after this time.
    pub timeout: Option<Duration>,
    /// Most elements; dynamic sets need it.
    pub size: Option<u32>,
}

impl SetSpec {
    pub fn set(name: impl Into<String>, key: impl Into<Vec<DataType>>) -> Self {
        Self { name: name.into(), key: key.into(), data: None, interval: false, dynamic: false, timeout: None, size: None }
    }

    /// A map to values.
    pub fn map(name: impl Into<String>, key: impl Into<Vec<DataType>>, data: impl Into<Vec<DataType>>) -> Self {
        Self { data: Some(MapData::Values(data.into())), ..Self::set(name, key) }
    }

    /// A map to verdicts.
    pub fn vmap(name: impl Into<String>, key: impl Into<Vec<DataType>>) -> Self {
        Self { data: Some(MapData::Verdict), ..Self::set(name, key) }
    }

    /// Elements are ranges.
    pub fn interval(mut self) -> Self {
        self.interval = true;
        self
    }

    /// Rules add elements, at most `size`, which end after `timeout` unless renewed.
    pub fn dynamic(mut self, size: u32, timeout: Option<Duration>) -> Self {
        (self.dynamic, self.size, self.timeout) = (true, Some(size), timeout);
        self
    }

    /// nft(8)'s notes (type, length, value) on the byte order of key and data; without them it shows
    /// links' names and marks the wrong way round.
    fn byte_order(&self) -> Vec<u8> {
        const HOST: u32 = 1;
        const NETWORK: u32 = 2;
        let order = |parts: &[DataType]| match parts {
            [DataType::Mark | DataType::ClassId | DataType::IfName] => HOST,
            _ => NETWORK,
        };
        let mut notes = vec![0, 4];
        notes.extend(order(&self.key).to_ne_bytes());
        if let Some(MapData::Values(parts)) = &self.data {
            notes.extend([1, 4]);
            notes.extend(order(parts).to_ne_bytes());
        }
        notes
    }

    const INTERVAL: u32 = 4;
    const MAP: u32 = 8;
    const TIMEOUT: u32 = 0x10;
    const EVAL: u32 = 0x20;
    const CONCAT: u32 = 0x80;
    /// The flags that sets of ours have.
    pub(super) const FLAGS: u32 = Self::INTERVAL | Self::MAP | Self::TIMEOUT | Self::EVAL | Self::CONCAT;

    /// Only ranges over several parts need to know the parts; the kernel refuses them elsewhere.
    fn has_areas(&self) -> bool {
        self.interval && self.key.len() > 1
    }

    /// `NFT_SET_*`.
    pub(super) fn flags(&self) -> u32 {
        let flags = [
            (self.interval, Self::INTERVAL),
            (self.data.is_some(), Self::MAP),
            (self.timeout.is_some(), Self::TIMEOUT),
            (self.dynamic, Self::EVAL),
            (self.has_areas(), Self::CONCAT),
        ];
        flags.iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag)
    }

    pub(super) fn write(&self, w: &mut Writer, id: u32) {
        let areas = self.has_areas();
        w.attr_str(2, &self.name);
        w.attr_be32(3, self.flags());
        let (number, len) = concatenated(&self.key);
        w.attr_be32(4, number);
        w.attr_be32(5, len);
        match &self.data {
            Some(MapData::Verdict) => {
                w.attr_be32(6, 0xffff_ff00);
                w.attr_be32(7, 0);
            }
            Some(MapData::Values(parts)) => {
                let (number, len) = concatenated(parts);
                w.attr_be32(6, number);
                w.attr_be32(7, len);
            }
            None => {}
        }
        if areas || self.size.is_some() {
            w.nest(9, |w| {
                if let Some(size) = self.size {
                    w.attr_be32(1, size);
                }
                if areas {
                    w.nest(2, |w| self.key.iter().for_each(|part| w.nest(1, |w| w.attr_be32(1, part.len()))));
                }
            });
        }
        w.attr_be32(10, id);
        w.attr(13, &self.byte_order());
        if let Some(timeout) = self.timeout {
            w.attr_be64(11, timeout.as_millis() as u64);
        }
    }
}

/// Builds keys and values part by part.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Key {
    bytes: Vec<u8>,
    /// Length before filling up, while there is one part only.
    single: Option<usize>,
}

impl Key {
    /// Without parts.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn ip(self, ip: IpAddr) -> Self {
        self.part(&linux_sys::netlink::ip_bytes(ip))
    }

    /// A transport protocol number.
    pub fn proto(self, number: u8) -> Self {
        self.part(&[number])
    }

    pub fn port(self, port: u16) -> Self {
        self.part(&port.to_be_bytes())
    }

    /// A mark or number.
    pub fn mark(self, mark: u32) -> Self {
        self.part(&mark.to_ne_bytes())
    }

    pub fn mac(self, mac: [u8; 6]) -> Self {
        self.part(&mac)
    }

    /// A link's name.
    pub fn ifname(self, name: &str) -> Self {
        self.part(&ifname(name))
    }

    fn part(mut self, bytes: &[u8]) -> Self {
        self.single = self.bytes.is_empty().then_some(bytes.len());
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// As the kernel wants it: parts in whole slots, a single part as it is.
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.bytes.truncate(self.single.unwrap_or(self.bytes.len()));
        self.bytes
    }
}

impl From<Key> for Vec<u8> {
    fn from(key: Key) -> Self {
        key.into_bytes()
    }
}

/// A link's name as 16 bytes.
pub(super) fn ifname(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    // IFNAMSIZ counts the closing zero.
    for (to, from) in bytes.iter_mut().take(15).zip(name.bytes()) {
        *to = from;
    }
    bytes
}

/// What an element maps to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Data {
    /// Bytes for registers.
    Value(Vec<u8>),
    Verdict(Verdict),
}

impl From<Key> for Data {
    fn from(key: Key) -> Self {
        Self::Value(key.into_bytes())
    }
}

impl From<Verdict> for Data {
    fn from(verdict: Verdict) -> Self {
        Self::Verdict(verdict)
    }
}

/// An element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Element {
    /// Its key, or the first of its range.
    pub key: Vec<u8>,
    /// The last key of its range.
    pub key_end: Option<Vec<u8>>,
    /// What it maps to.
    pub data: Option<Data>,
    /// The range is over several parts, each by itself.
    pub(super) area: bool,
}

impl Element {
    /// An element with one key.
    pub fn new(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), key_end: None, data: None, area: false }
    }

    /// From `first` to `last`, both in it, in an interval set of one part. A single key there is a
    /// range from itself to itself.
    pub fn range(first: impl Into<Vec<u8>>, last: impl Into<Vec<u8>>) -> Self {
        Self { key_end: Some(last.into()), ..Self::new(first) }
    }

    /// In each part from that of `first` to that of `last`, in an interval set of several parts.
    pub fn area(first: impl Into<Vec<u8>>, last: impl Into<Vec<u8>>) -> Self {
        Self { area: true, ..Self::range(first, last) }
    }

    /// The network's addresses, in an interval set of one part.
    pub fn net(net: ipnet::IpNet) -> Self {
        Self::range(Key::new().ip(net.network()), Key::new().ip(net.broadcast()))
    }

    /// Maps to `data`.
    pub fn data(mut self, data: impl Into<Data>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// Most bytes that its encoding takes, to bound messages: headers of nested attributes, and up to
    /// three bytes of filling for each value.
    pub(super) fn size(&self) -> usize {
        let data = match &self.data {
            Some(Data::Value(bytes)) => bytes.len() + 11,
            Some(Data::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain))) => chain.len() + 24,
            Some(Data::Verdict(_)) => 16,
            None => 0,
        };
        let end = self.key_end.as_ref().map_or(0, |end| end.len() + 23);
        self.key.len() + 15 + end + data
    }

    pub(super) fn write(&self, w: &mut Writer) {
        const INTERVAL_END: u32 = 1;
        w.nest(1, |w| {
            w.nest(1, |w| w.attr(1, &self.key));
            if let (Some(end), true) = (&self.key_end, self.area) {
                w.nest(10, |w| w.attr(1, end));
            }
            match &self.data {
                Some(Data::Value(bytes)) => w.nest(2, |w| w.attr(1, bytes)),
                Some(Data::Verdict(verdict)) => w.nest(2, |w| verdict.write(w)),
                None => {}
            }
        });
        // One-part ranges are two elements: the first key, and the key behind the last, marked as an end.
        if let (Some(end), false) = (&self.key_end, self.area)
            && let Some(behind) = successor(end)
        {
            w.nest(1, |w| {
                w.attr_be32(3, INTERVAL_END);
                w.nest(1, |w| w.attr(1, &behind));
            });
        }
    }
}

/// The next key in byte order; `None` behind the last.
fn successor(key: &[u8]) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    for byte in next.iter_mut().rev() {
        let (value, carry) = byte.overflowing_add(1);
        *byte = value;
        if !carry {
            return Some(next);
        }
    }
    None
}

/// The key before this one; `None` before the first.
pub(super) fn predecessor(key: &[u8]) -> Option<Vec<u8>> {
    let mut previous = key.to_vec();
    for byte in previous.iter_mut().rev() {
        let (value, borrow) = byte.overflowing_sub(1);
        *byte = value;
        if !borrow {
            return Some(previous);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_filled_up_only_when_concatenated() {
        assert_eq!(Key::new().port(80).into_bytes(), [0, 80]);
        assert_eq!(Key::new().ip([10, 0, 0, 1].into()).proto(6).port(80).into_bytes(), [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]);
    }

    #[test]
    fn sizes_bound_what_is_written() {
        let jump = Verdict::Jump("chain".into());
        for len in 1..=16 {
            let key = vec![7; len];
            for element in [Element::new(key.clone()), Element::range(key.clone(), key.clone()), Element::area(key.clone(), key.clone())] {
                for element in [element.clone(), element.clone().data(Key::new().port(1)), element.data(jump.clone())] {
                    let mut w = Writer::default();
                    element.write(&mut w);
                    assert!(w.len() <= element.size(), "{} bytes, bound {}: {element:?}", w.len(), element.size());
                }
            }
        }
    }

    #[test]
    fn neighbouring_keys_are_in_order() {
        assert_eq!(successor(&[1, 255]), Some(vec![2, 0]));
        assert_eq!(successor(&[255, 255]), None);
        assert_eq!(predecessor(&[2, 0]), Some(vec![1, 255]));
        assert_eq!(predecessor(&[0, 0]), None);
    }
}
