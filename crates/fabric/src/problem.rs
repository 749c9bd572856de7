//! What is wrong with the pod network, as a sentence for logs, Events and conditions.

use std::fmt;

/// What kind of trouble it is: decides the reason of the Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The node has no pod CIDR.
    CidrMissing,
    /// The pod CIDR overlaps that of another node.
    CidrOverlaps,
    /// The pod CIDR is not the cluster's.
    CidrOutside,
    /// The node's backend is not the cluster's.
    BackendDiffers,
    /// The node's tunnel is in another segment.
    SegmentDiffers,
    /// Two nodes have one tunnel MAC.
    MacTaken,
    /// An annotation cannot be read.
    AnnotationNotRead,
    /// The mode has not the address family.
    FamilyNotReached,
    /// The node's pods have one address family, the cluster has two.
    FamilyMissing,
    /// The node's address is no neighbour, or no route leads to it.
    NextHopUnreachable,
    /// There is no BGP session with a peer.
    SessionDown,
    /// A route that a BGP peer told is not used.
    RouteRefused,
    /// Part of the configuration of BGP has no effect.
    BgpNotUsed,
    /// A route of someone else contradicts.
    RouteOfOthers,
    /// An HNS network of someone else has the name.
    NetworkOfOthers,
    /// The host refused or did not answer.
    Failed,
}

impl Kind {
    /// The reason of its Event.
    pub fn reason(self) -> &'static str {
        match self {
            Self::CidrMissing => "PodCIDRMissing",
            Self::CidrOverlaps => "PodCIDROverlaps",
            Self::CidrOutside => "PodCIDROutside",
            Self::BackendDiffers => "NetworkBackendDiffers",
            Self::SegmentDiffers => "NetworkSegmentDiffers",
            Self::MacTaken => "TunnelMACTaken",
            Self::AnnotationNotRead => "NetworkAnnotationNotRead",
            Self::FamilyNotReached => "AddressFamilyNotReached",
            Self::FamilyMissing => "AddressFamilyMissing",
            Self::NextHopUnreachable => "NextHopUnreachable",
            Self::SessionDown => "BGPSessionDown",
            Self::RouteRefused => "BGPRouteRefused",
            Self::BgpNotUsed => "BGPConfigurationNotUsed",
            Self::RouteOfOthers => "RouteOfOthers",
            Self::NetworkOfOthers => "HNSNetworkOfOthers",
            Self::Failed => "PodNetworkFailed",
        }
    }

    /// Whether it follows from the Nodes alone, so that every host finds it.
    pub fn is_common(self) -> bool {
        match self {
            Self::CidrMissing
            | Self::CidrOverlaps
            | Self::CidrOutside
            | Self::BackendDiffers
            | Self::SegmentDiffers
            | Self::MacTaken
            | Self::AnnotationNotRead
            | Self::FamilyNotReached
            | Self::FamilyMissing => true,
            Self::NextHopUnreachable
            | Self::SessionDown
            | Self::RouteRefused
            | Self::BgpNotUsed
            | Self::RouteOfOthers
            | Self::NetworkOfOthers
            | Self::Failed => false,
        }
    }

    /// Whether the node's pods have a network all the same, a smaller one.
    pub fn leaves_a_network(self) -> bool {
        self == Self::FamilyMissing
    }

    /// Whether it often passes without anyone's doing: a Node is given its pod CIDR, a service starts again.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::CidrMissing | Self::SessionDown | Self::Failed)
    }
}

/// One thing that is wrong. Its text names the node, the reason and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub kind: Kind,
    /// The node whose pods are not reached; none where it is about the host itself.
    pub node: Option<String>,
    pub text: String,
}

impl Problem {
    /// The pods of `node` are not reached.
    pub fn of_node(kind: Kind, node: &str, text: impl Into<String>) -> Self {
        Self { kind, node: Some(node.to_owned()), text: text.into() }
    }

    /// This host could not do its own part.
    pub fn here(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, node: None, text: text.into() }
    }

    /// A call failed that is about no node.
    pub fn failed(text: impl Into<String>) -> Self {
        Self::here(Kind::Failed, text)
    }

    /// Whether it is about that node's own part of the network.
    pub fn is_own(&self, node: &str) -> bool {
        self.node.as_deref().is_none_or(|about| about == node)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
