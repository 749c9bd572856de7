//! The cluster's networks for pods, and each node's share of them: pure (upstream: `newNodeIpamController`, `cidrset`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Upstream's `defaultNodeMaskCIDRIPv4` and `defaultNodeMaskCIDRIPv6`.
const MASKS: (u8, u8) = (24, 64);
/// The most bits that an IPv6 network has for nodes.
const MOST_V6_BITS: u8 = 16;

/// Prefix lengths of nodes' networks, as the flags give them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeMasks {
    /// `--node-cidr-mask-size`: of the only family.
    pub only: Option<u8>,
    /// `--node-cidr-mask-size-ipv4`.
    pub ipv4: Option<u8>,
    /// `--node-cidr-mask-size-ipv6`.
    pub ipv6: Option<u8>,
}

/// Why networks are refused; the wording is upstream's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeRangesError {
    /// Not a network.
    #[error("invalid CIDR address: {0}")]
    Malformed(String),
    /// Two of one family.
    #[error("len of ClusterCIDRs=={0} and they are not configured as dual stack (at least one from each IPFamily")]
    SameFamily(usize),
    /// More than two.
    #[error("length of clusterCIDRs is:{0} more than max allowed of 2")]
    TooMany(usize),
    /// `--node-cidr-mask-size` with two families.
    #[error("usage of --node-cidr-mask-size is not allowed with dual-stack clusters")]
    OneMaskForTwo,
    /// `--node-cidr-mask-size` beside the others.
    #[error(
        "usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed if --node-cidr-mask-size is set. For dual-stack \
         clusters please unset it and use IPFamily specific flags"
    )]
    SeveralMasks,
    /// The mask of a family that the cluster has not.
    #[error("usage of --node-cidr-mask-size-{mask} is not allowed for a single-stack {family} cluster")]
    OtherFamily {
        /// Which mask.
        mask: &'static str,
        /// What the cluster has.
        family: &'static str,
    },
    /// Nodes would have more than the cluster, or more than an address.
    #[error("the node CIDR size /{mask} does not fit into {network}: choose a prefix length between {network}'s own and {longest}")]
    Outside {
        /// The prefix length asked for.
        mask: u8,
        /// The cluster's network.
        network: IpNet,
        /// The longest prefix of the family.
        longest: u8,
    },
    /// Too many IPv6 networks to keep count of.
    #[error("New CIDR set failed; the node CIDR size is too big")]
    TooBig,
}

/// The cluster's network for pods, or one of each family, each with the prefix length of a node's share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRanges(Vec<(IpNet, u8)>);

impl NodeRanges {
    /// Reads `A` or `A,B`, as `--cluster-cidr`.
    pub fn parse(text: &str, masks: NodeMasks) -> Result<Self, NodeRangesError> {
        let parse = |part: &str| part.trim().parse::<IpNet>().map_err(|_| NodeRangesError::Malformed(part.to_owned()));
        let networks = text.split(',').map(parse).collect::<Result<Vec<_>, _>>()?;
        let is_v6 = |network: &IpNet| network.addr().is_ipv6();
        let both = networks.iter().any(is_v6) && !networks.iter().all(is_v6);
        match networks.len() {
            count if count > 1 && !both => return Err(NodeRangesError::SameFamily(count)),
            count if count > 2 => return Err(NodeRangesError::TooMany(count)),
            _ => {}
        }
        let (ipv4, ipv6) = sizes(masks, networks.len() > 1, networks.first().is_some_and(is_v6))?;
        let share = |network: IpNet| {
            let mask = if is_v6(&network) { ipv6 } else { ipv4 };
            let (own, longest) = (network.prefix_len(), network.max_prefix_len());
            match mask {
                mask if !(own..=longest).contains(&mask) => Err(NodeRangesError::Outside { mask, network, longest }),
                mask if is_v6(&network) && mask - own > MOST_V6_BITS => Err(NodeRangesError::TooBig),
                mask => Ok((network.trunc(), mask)),
            }
        };
        networks.into_iter().map(share).collect::<Result<_, _>>().map(Self)
    }

    /// In each network the lowest share that overlaps none of `taken`; none when one of them is used up.
    pub(super) fn next_free(&self, taken: &[IpNet]) -> Option<Vec<IpNet>> {
        self.0.iter().map(|(network, mask)| lowest(network, *mask, taken)).collect()
    }
}

/// The lowest share of a network that overlaps none of `taken`. One pass over those in their order: a cluster has thousands.
fn lowest(network: &IpNet, mask: u8, taken: &[IpNet]) -> Option<IpNet> {
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    };
    let (first, last) = (number(network.network()), number(network.broadcast()));
    let rest = (1u128 << (network.max_prefix_len() - mask)) - 1;
    let family = |other: &&IpNet| other.addr().is_ipv6() == network.addr().is_ipv6();
    let mut held: Vec<(u128, u128)> = taken.iter().filter(family).map(|other| (number(other.network()), number(other.broadcast()))).collect();
    held.sort_unstable();
    let mut candidate = first;
    for (begin, end) in held.into_iter().filter(|(_, end)| *end >= first) {
        if begin > candidate + rest {
            break;
        }
        if end >= candidate {
            // The first share behind it; none behind the last address that there is.
            candidate = (end | rest).checked_add(1)?;
        }
    }
    let address = match network {
        IpNet::V4(_) => IpAddr::from(Ipv4Addr::from(u32::try_from(candidate).ok()?)),
        IpNet::V6(_) => IpAddr::from(Ipv6Addr::from(candidate)),
    };
    (candidate <= last).then(|| IpNet::new_assert(address, mask))
}

impl std::fmt::Display for NodeRanges {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all: Vec<String> = self.0.iter().map(|(network, mask)| format!("{network} in shares of /{mask}")).collect();
        formatter.write_str(&all.join(" and "))
    }
}

/// The prefix lengths of both families (`setNodeCIDRMaskSizes`).
fn sizes(masks: NodeMasks, both: bool, first_is_v6: bool) -> Result<(u8, u8), NodeRangesError> {
    let NodeMasks { only, ipv4, ipv6 } = masks;
    let own = (ipv4.unwrap_or(MASKS.0), ipv6.unwrap_or(MASKS.1));
    match only {
        Some(_) if both => Err(NodeRangesError::OneMaskForTwo),
        Some(_) if ipv4.is_some() || ipv6.is_some() => Err(NodeRangesError::SeveralMasks),
        Some(only) => Ok((only, only)),
        None if !both && ipv4.is_some() && first_is_v6 => Err(NodeRangesError::OtherFamily { mask: "ipv4", family: "IPv6" }),
        None if !both && ipv6.is_some() && !first_is_v6 => Err(NodeRangesError::OtherFamily { mask: "ipv6", family: "IPv4" }),
        None => Ok(own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masks(only: u8, ipv4: u8, ipv6: u8) -> NodeMasks {
        let set = |mask: u8| (mask != 0).then_some(mask);
        NodeMasks { only: set(only), ipv4: set(ipv4), ipv6: set(ipv6) }
    }

    #[test]
    fn flags_are_read_as_upstream() {
        for (text, flags, expected) in [
            ("10.0.0.0/16", masks(0, 0, 0), "10.0.0.0/16 in shares of /24"),
            ("10.0.0.0/16", masks(26, 0, 0), "10.0.0.0/16 in shares of /26"),
            ("fd00::/56", masks(0, 0, 0), "fd00::/56 in shares of /64"),
            ("10.0.0.0/16,fd00::/56", masks(0, 0, 0), "10.0.0.0/16 in shares of /24 and fd00::/56 in shares of /64"),
            ("fd00::/108, 10.0.0.0/16", masks(0, 25, 120), "fd00::/108 in shares of /120 and 10.0.0.0/16 in shares of /25"),
            ("x", masks(0, 0, 0), "invalid CIDR address: x"),
            (
                "10.0.0.0/16,10.1.0.0/16",
                masks(0, 0, 0),
                "len of ClusterCIDRs==2 and they are not configured as dual stack (at least one from each IPFamily",
            ),
            ("10.0.0.0/16,fd00::/56,10.1.0.0/16", masks(0, 0, 0), "length of clusterCIDRs is:3 more than max allowed of 2"),
            ("10.0.0.0/16,fd00::/56", masks(24, 0, 0), "usage of --node-cidr-mask-size is not allowed with dual-stack clusters"),
            ("10.0.0.0/16", masks(0, 0, 64), "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster"),
            ("fd00::/56", masks(0, 24, 0), "usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster"),
            ("fd00::/40", masks(0, 0, 64), "New CIDR set failed; the node CIDR size is too big"),
            (
                "10.0.0.0/25",
                masks(0, 0, 0),
                "the node CIDR size /24 does not fit into 10.0.0.0/25: choose a prefix length between 10.0.0.0/25's own and 32",
            ),
        ] {
            let found = NodeRanges::parse(text, flags);
            assert_eq!(found.map_or_else(|error| error.to_string(), |ranges| ranges.to_string()), expected, "{text} {flags:?}");
        }
        let both = NodeRanges::parse("10.0.0.0/16", masks(24, 24, 0)).unwrap_err();
        assert_eq!(both, NodeRangesError::SeveralMasks);
    }

    #[test]
    fn shares_are_the_lowest_free_ones() {
        let ranges = NodeRanges::parse("192.168.0.0/22", NodeMasks::default()).unwrap();
        let nets = |all: &[&str]| all.iter().map(|net| net.parse().unwrap()).collect::<Vec<IpNet>>();
        for (taken, expected) in [
            (&[][..], Some("192.168.0.0/24")),
            (&["192.168.0.0/24", "192.168.2.0/24"], Some("192.168.1.0/24")),
            (&["192.168.0.0/23"], Some("192.168.2.0/24")),
            (&["192.168.0.128/25"], Some("192.168.1.0/24")),
            (&["10.0.0.0/24"], Some("192.168.0.0/24")),
            (&["192.168.0.0/22"], None),
            (&["192.168.3.0/24", "192.168.0.0/23", "192.168.2.0/26", "192.168.2.192/26"], None),
            (&["192.168.1.0/24", "0.0.0.0/1", "192.168.0.0/25", "192.168.0.64/26"], Some("192.168.2.0/24")),
            (&["0.0.0.0/0"], None),
            (&["::/0"], Some("192.168.0.0/24")),
        ] {
            let found = ranges.next_free(&nets(taken)).map(|shares| shares[0].to_string());
            assert_eq!(found.as_deref(), expected, "{taken:?}");
        }
    }

    #[test]
    fn nodes_get_a_share_of_each_network_or_none() {
        let ranges = NodeRanges::parse("10.0.0.0/24,fd00:1::/63", NodeMasks { ipv4: Some(25), ..NodeMasks::default() }).unwrap();
        let text = |shares: Vec<IpNet>| shares.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut taken = Vec::new();
        let mut given = Vec::new();
        while let Some(shares) = ranges.next_free(&taken) {
            taken.extend(&shares);
            given.push(text(shares));
        }
        assert_eq!(given, ["10.0.0.0/25,fd00:1::/64", "10.0.0.128/25,fd00:1:0:1::/64"]);
        assert_eq!(ranges.next_free(&["10.0.0.0/24".parse().unwrap()]), None, "one family alone is not given");
    }
}
