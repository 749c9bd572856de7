//! Values of configuration members that are text in the file: addresses, networks, lists.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serializer, de};

/// Serializes a type by its `Display` and reads it by its `FromStr`.
macro_rules! as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use as_text;

/// An optional value whose absence is the empty text, as in Go.
pub(crate) mod empty_is_none {
    use super::*;

    pub fn serialize<T: fmt::Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.collect_str(value),
            None => serializer.serialize_str(""),
        }
    }

    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: fmt::Display>,
        D: Deserializer<'de>,
    {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(de::Error::custom) }
    }
}

/// Where a server listens: `10.0.0.5:10256`, `[::]:10256`, an address alone (the port is the server's default), or empty for nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenAddress {
    /// Nowhere.
    #[default]
    Off,
    /// At the server's default port.
    Address(IpAddr),
    /// At this address and port.
    Socket(SocketAddr),
}

impl ListenAddress {
    /// The address and port, where an address alone gets `default_port`.
    pub fn socket(self, default_port: u16) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::Address(ip) => Some(SocketAddr::new(ip, default_port)),
            Self::Socket(at) => Some(at),
        }
    }

    /// The same at another port; port 0 is nowhere.
    pub fn with_port(self, port: u16) -> Self {
        match self.socket(port) {
            Some(at) if port != 0 => Self::Socket(SocketAddr::new(at.ip(), port)),
            _ => Self::Off,
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => Ok(()),
            Self::Address(ip) => ip.fmt(f),
            Self::Socket(at) => at.fmt(f),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let ip = || text.parse().map(Self::Address).ok();
        let socket = text.parse().map(Self::Socket).ok();
        let off = text.is_empty().then_some(Self::Off);
        off.or(socket).or_else(ip).ok_or_else(|| ValueError::Address(text.to_owned()))
    }
}
as_text!(ListenAddress);

/// A text that is not the value it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Neither an address nor an address with a port.
    #[error("{0:?} is no address and port")]
    Address(String),
    /// Neither a network nor the name of some.
    #[error("{0:?} is no network, write it as 192.168.0.0/16")]
    Network(String),
    /// Not what one of a list must be.
    #[error("{text:?} is no {what}")]
    NoMember {
        text: String,
        /// With an example.
        what: &'static str,
    },
    /// More than one of a family.
    #[error("{first} and {second} are of one address family: write one, or one of IPv4 and one of IPv6")]
    SameFamily { first: String, second: String },
}

/// What an address family has one of.
pub trait OfFamily: Copy + fmt::Display + FromStr {
    /// With an example, for messages.
    const WHAT: &'static str;

    fn is_ipv6(&self) -> bool;
}

impl OfFamily for IpAddr {
    const WHAT: &'static str = "address, write it as 10.0.0.5";

    fn is_ipv6(&self) -> bool {
        IpAddr::is_ipv6(self)
    }
}

impl OfFamily for IpNet {
    const WHAT: &'static str = "network, write it as 192.168.0.0/16";

    fn is_ipv6(&self) -> bool {
        self.addr().is_ipv6()
    }
}

/// At most one address or network of each family, in one text with a comma between. The first one's family is the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families<T> {
    first: Option<T>,
    second: Option<T>,
}

impl<T> Default for Families<T> {
    fn default() -> Self {
        Self { first: None, second: None }
    }
}

impl<T> From<T> for Families<T> {
    fn from(only: T) -> Self {
        Self { first: Some(only), second: None }
    }
}

impl<T: OfFamily> Families<T> {
    /// # Errors
    /// [`ValueError::SameFamily`].
    pub fn new(members: impl IntoIterator<Item = T>) -> Result<Self, ValueError> {
        members.into_iter().try_fold(Self::default(), |all, next| match (all.first, all.second) {
            (None, _) => Ok(next.into()),
            (Some(first), None) if first.is_ipv6() != next.is_ipv6() => Ok(Self { second: Some(next), ..all }),
            (Some(first), _) => {
                let same = all.of(next.is_ipv6()).unwrap_or(first);
                Err(ValueError::SameFamily { first: same.to_string(), second: next.to_string() })
            }
        })
    }

    /// That of the primary family.
    pub fn first(&self) -> Option<T> {
        self.first
    }

    /// That of one family.
    pub fn of(&self, ipv6: bool) -> Option<T> {
        self.iter().find(|member| member.is_ipv6() == ipv6)
    }

    /// The primary family's first.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<T> {
        [self.first, self.second].into_iter().flatten()
    }

    /// Whether there is one of each family.
    pub fn both(&self) -> bool {
        self.second.is_some()
    }
}

impl<T: OfFamily> fmt::Display for Families<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().map(|member| member.to_string()).collect::<Vec<_>>().join(","))
    }
}

impl<T: OfFamily> FromStr for Families<T> {
    type Err = ValueError;

    /// The empty text is none.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = |part: &str| ValueError::NoMember { text: part.to_owned(), what: T::WHAT };
        let parts = text.split(',').map(str::trim).filter(|_| !text.is_empty());
        Self::new(parts.map(|part| part.parse().map_err(|_| wrong(part))).collect::<Result<Vec<T>, _>>()?)
    }
}

impl<T: OfFamily> serde::Serialize for Families<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T: OfFamily> Deserialize<'de> for Families<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A network, or one of the names that stand for some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkName {
    /// `all`: every address.
    All,
    /// `localhost`: the loopback addresses.
    Localhost,
    /// `primary`: the node's primary addresses.
    Primary,
    /// A network, as 192.168.0.0/16.
    Net(IpNet),
}

impl NetworkName {
    /// The networks it stands for; none for `primary`.
    pub fn networks(self) -> Vec<IpNet> {
        let nets = |texts: [&str; 2]| texts.iter().filter_map(|text| text.parse().ok()).collect();
        match self {
            Self::All => nets(["0.0.0.0/0", "::/0"]),
            Self::Localhost => nets(["127.0.0.0/8", "::1/128"]),
            Self::Primary => Vec::new(),
            Self::Net(net) => vec![net],
        }
    }
}

impl fmt::Display for NetworkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Localhost => f.write_str("localhost"),
            Self::Primary => f.write_str("primary"),
            Self::Net(net) => net.fmt(f),
        }
    }
}

impl FromStr for NetworkName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "all" => Ok(Self::All),
            "localhost" => Ok(Self::Localhost),
            "primary" => Ok(Self::Primary),
            text => text.parse().map(Self::Net).map_err(|_| ValueError::Network(text.to_owned())),
        }
    }
}
as_text!(NetworkName);

/// Networks in one text, separated by commas (`clusterCIDR`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkList(pub Vec<NetworkName>);

impl NetworkList {
    pub fn networks(&self) -> Vec<IpNet> {
        self.0.iter().flat_map(|name| name.networks()).collect()
    }
}

impl fmt::Display for NetworkList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for NetworkList {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}
as_text!(NetworkList);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_addresses_take_ports_and_defaults() {
        let at = |text: &str| text.parse::<ListenAddress>().unwrap().socket(10256).map(|at| at.to_string());
        assert_eq!(at("10.0.0.5"), Some("10.0.0.5:10256".into()));
        assert_eq!(at("[::]:9000"), Some("[::]:9000".into()));
        assert_eq!(at(""), None);
        let moved = |text: &str, port| text.parse::<ListenAddress>().unwrap().with_port(port).to_string();
        assert_eq!(
            [moved("0.0.0.0:10256", 9001), moved("0.0.0.0", 9001), moved("0.0.0.0", 0), moved("", 9001)],
            ["0.0.0.0:9001", "0.0.0.0:9001", "", ""]
        );
        assert!("nowhere".parse::<ListenAddress>().unwrap_err().to_string().contains("is no address and port"));
    }

    #[test]
    fn networks_have_names() {
        let list: NetworkList = "localhost, 10.0.0.0/8".parse().unwrap();
        assert_eq!((list.networks().len(), list.to_string()), (3, "localhost,10.0.0.0/8".to_owned()));
        assert!("10.0.0.5".parse::<NetworkList>().unwrap_err().to_string().contains("is no network, write it as 192.168.0.0/16"));
    }

    #[test]
    fn families_have_one_member_each() {
        let read = |text: &str| text.parse::<Families<IpNet>>().map(|all| (all.to_string(), all.both())).map_err(|error| error.to_string());
        for (text, expected) in [
            ("", Ok(("", false))),
            ("10.0.0.0/8", Ok(("10.0.0.0/8", false))),
            ("fd00::/48, 10.0.0.0/8", Ok(("fd00::/48,10.0.0.0/8", true))),
            ("10.0.0.0/8,", Err("\"\" is no network, write it as 192.168.0.0/16")),
            ("10.0.0.0", Err("\"10.0.0.0\" is no network, write it as 192.168.0.0/16")),
            ("10.0.0.0/8,11.0.0.0/8", Err("10.0.0.0/8 and 11.0.0.0/8 are of one address family: write one, or one of IPv4 and one of IPv6")),
            ("10.0.0.0/8,fd00::/48,fd01::/48", Err("fd00::/48 and fd01::/48 are of one address family: write one, or one of IPv4 and one of IPv6")),
        ] {
            assert_eq!(read(text), expected.map(|(text, both)| (text.to_owned(), both)).map_err(str::to_owned), "{text}");
        }
        let ips: Families<IpAddr> = "10.0.0.5,fd00::5".parse().unwrap();
        assert_eq!((ips.of(true), ips.of(false), ips.first()), ("fd00::5".parse().ok(), "10.0.0.5".parse().ok(), "10.0.0.5".parse().ok()));
        assert!("here".parse::<Families<IpAddr>>().unwrap_err().to_string().contains("is no address, write it as 10.0.0.5"));
    }
}
