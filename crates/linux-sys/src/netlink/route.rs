//! Routes and routing rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::wire::{self, Writer};
use super::{ACK, CREATE, REPLACE, Result, Rtnl, family, ip_bytes, read_ip};

const TABLE_MAIN: u32 = libc::RT_TABLE_MAIN as u32;
const TABLE_LOCAL: u32 = libc::RT_TABLE_LOCAL as u32;
const RTM_F_CLONED: u32 = 0x200;
const RTNH_F_ONLINK: u32 = 4;
const RTPROT_STATIC: u8 = 4;

fn family_of(ipv6: bool) -> u8 {
    (if ipv6 { libc::AF_INET6 } else { libc::AF_INET }) as u8
}

/// What a route does with its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RouteKind {
    /// Sends them on.
    #[default]
    Unicast,
    /// Answers "unreachable".
    Unreachable,
    /// Drops them.
    Blackhole,
    /// Takes them for this host.
    Local,
}

impl RouteKind {
    fn number(self) -> u8 {
        match self {
            Self::Unicast => libc::RTN_UNICAST,
            Self::Unreachable => libc::RTN_UNREACHABLE,
            Self::Blackhole => libc::RTN_BLACKHOLE,
            Self::Local => libc::RTN_LOCAL,
        }
    }

    fn read(number: u8) -> Option<Self> {
        [Self::Unicast, Self::Unreachable, Self::Blackhole, Self::Local].into_iter().find(|k| k.number() == number)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Route {
    /// Destination; 0.0.0.0/0 or ::/0 is the default route.
    pub dst: IpNet,
    /// Next hop.
    pub via: Option<IpAddr>,
    /// Number of the link that packets leave by.
    pub oif: Option<u32>,
    /// The next hop is reachable on that link even if no address says so.
    pub onlink: bool,
    /// Smaller wins.
    pub metric: u32,
    /// Routing table; 254 is the main one.
    pub table: u32,
    /// Origin (`RTPROT_*`): 2 the kernel, 4 an administrator; a number of one's own marks one's own routes.
    pub protocol: u8,
    /// What it does.
    pub kind: RouteKind,
    /// Source address that local programs get.
    pub source: Option<IpAddr>,
}

impl Route {
    /// A unicast route in the main table, made by an administrator, yet without a way.
    pub fn new(dst: IpNet) -> Self {
        Self {
            dst,
            via: None,
            oif: None,
            onlink: false,
            metric: 0,
            table: TABLE_MAIN,
            protocol: RTPROT_STATIC,
            kind: RouteKind::Unicast,
            source: None,
        }
    }

    /// The same route by that next hop.
    pub fn via(mut self, hop: IpAddr) -> Self {
        self.via = Some(hop);
        self
    }

    /// The same route by that link.
    pub fn oif(mut self, index: u32) -> Self {
        self.oif = Some(index);
        self
    }

    /// `struct rtmsg`.
    fn header(&self) -> [u8; 12] {
        let mut h = [0; 12];
        h[0] = family(self.dst.addr());
        h[1] = self.dst.prefix_len();
        h[4] = u8::try_from(self.table).unwrap_or(libc::RT_TABLE_UNSPEC);
        h[5] = self.protocol;
        h[6] = match (self.kind, self.via) {
            (RouteKind::Local, _) => libc::RT_SCOPE_HOST,
            (RouteKind::Unicast, None) => libc::RT_SCOPE_LINK,
            _ => libc::RT_SCOPE_UNIVERSE,
        };
        h[7] = self.kind.number();
        h[8..12].copy_from_slice(&(if self.onlink { RTNH_F_ONLINK } else { 0 }).to_ne_bytes());
        h
    }

    fn body(&self, w: &mut Writer) {
        w.attr(libc::RTA_DST, &ip_bytes(self.dst.network()));
        w.attr_u32(libc::RTA_TABLE, self.table);
        if let Some(via) = self.via {
            w.attr(libc::RTA_GATEWAY, &ip_bytes(via));
        }
        if let Some(oif) = self.oif {
            w.attr_u32(libc::RTA_OIF, oif);
        }
        if let Some(source) = self.source {
            w.attr(libc::RTA_PREFSRC, &ip_bytes(source));
        }
        if self.metric != 0 {
            w.attr_u32(libc::RTA_PRIORITY, self.metric);
        }
    }

    /// A route of the tables; what the kernel derived from one is none.
    fn read(payload: &[u8]) -> Option<Self> {
        if wire::u32_at(payload, 8)? & RTM_F_CLONED != 0 {
            return None;
        }
        Self::read_any(payload)
    }

    fn read_any(payload: &[u8]) -> Option<Self> {
        let h = payload.get(..12)?;
        let any: IpAddr = match i32::from(h[0]) {
            libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
            libc::AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return None,
        };
        let attrs = payload.get(12..)?;
        let ip = |kind| wire::attr(attrs, kind).and_then(read_ip);
        let number = |kind| wire::attr(attrs, kind).and_then(|v| wire::u32_at(v, 0));
        Some(Self {
            dst: IpNet::new(ip(libc::RTA_DST).unwrap_or(any), h[1]).ok()?,
            via: ip(libc::RTA_GATEWAY),
            oif: number(libc::RTA_OIF),
            onlink: wire::u32_at(h, 8)? & RTNH_F_ONLINK != 0,
            metric: number(libc::RTA_PRIORITY).unwrap_or(0),
            table: number(libc::RTA_TABLE).unwrap_or(u32::from(h[4])),
            protocol: h[5],
            kind: RouteKind::read(h[7])?,
            source: ip(libc::RTA_PREFSRC),
        })
    }
}

/// A routing rule: which table a packet asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Rule {
    /// Smaller is asked first.
    pub priority: u32,
    /// Packets with this mark, under this mask.
    pub fwmark: Option<(u32, u32)>,
    /// Packets from there.
    pub from: Option<IpNet>,
    /// Packets to there.
    pub to: Option<IpNet>,
    /// Packets that came in by this link.
    pub iif: Option<String>,
    /// Packets that the members above do not select.
    pub inverted: bool,
    /// The table asked.
    pub table: u32,
    /// The rule of that priority is asked next, instead of a table.
    pub goto: Option<u32>,
    /// Of IPv6; where the rule has a network, that decides.
    pub ipv6: bool,
}

impl Rule {
    const DST: u16 = 1;
    const SRC: u16 = 2;
    const IIFNAME: u16 = 3;
    const GOTO: u16 = 4;
    const PRIORITY: u16 = 6;
    const FWMARK: u16 = 10;
    const TABLE: u16 = 15;
    const FWMASK: u16 = 16;
    const TO_TABLE: u8 = 1;
    const TO_RULE: u8 = 2;
    const INVERTED: u32 = 2;

    fn header(&self) -> [u8; 12] {
        let net = self.from.or(self.to);
        let mut h = [0; 12];
        h[0] = net.map_or(family_of(self.ipv6), |n| family(n.addr()));
        h[1] = self.to.map_or(0, |n| n.prefix_len());
        h[2] = self.from.map_or(0, |n| n.prefix_len());
        h[7] = if self.goto.is_some() { Self::TO_RULE } else { Self::TO_TABLE };
        h[8..12].copy_from_slice(&(if self.inverted { Self::INVERTED } else { 0 }).to_ne_bytes());
        h
    }

    fn body(&self, w: &mut Writer) {
        match self.goto {
            Some(priority) => w.attr_u32(Self::GOTO, priority),
            None => w.attr_u32(Self::TABLE, self.table),
        }
        w.attr_u32(Self::PRIORITY, self.priority);
        if let Some((mark, mask)) = self.fwmark {
            w.attr_u32(Self::FWMARK, mark);
            w.attr_u32(Self::FWMASK, mask);
        }
        if let Some(from) = self.from {
            w.attr(Self::SRC, &ip_bytes(from.network()));
        }
        if let Some(to) = self.to {
            w.attr(Self::DST, &ip_bytes(to.network()));
        }
        if let Some(iif) = &self.iif {
            w.attr_str(Self::IIFNAME, iif);
        }
    }

    fn read(payload: &[u8]) -> Option<Self> {
        let h = payload.get(..12)?;
        let attrs = payload.get(12..)?;
        let net = |kind, len| wire::attr(attrs, kind).and_then(read_ip).and_then(|ip| IpNet::new(ip, len).ok());
        let number = |kind| wire::attr(attrs, kind).and_then(|v| wire::u32_at(v, 0));
        Some(Self {
            priority: number(Self::PRIORITY).unwrap_or(0),
            fwmark: number(Self::FWMARK).map(|mark| (mark, number(Self::FWMASK).unwrap_or(u32::MAX))),
            from: net(Self::SRC, h[2]),
            to: net(Self::DST, h[1]),
            iif: wire::attr(attrs, Self::IIFNAME).map(wire::text),
            inverted: wire::u32_at(h, 8)? & Self::INVERTED != 0,
            table: number(Self::TABLE).unwrap_or(u32::from(h[4])),
            goto: number(Self::GOTO).filter(|_| h[7] == Self::TO_RULE),
            ipv6: h[0] == libc::AF_INET6 as u8,
        })
    }
}

impl Rtnl {
    /// All routes but the local table's; routes with several next hops are listed without them.
    pub fn routes(&self) -> Result<Vec<Route>> {
        let all = self.dump("list routes", libc::RTM_GETROUTE, &[0; 12], Route::read)?;
        Ok(all.into_iter().filter(|r| r.table != TABLE_LOCAL).collect())
    }

    /// Adds a route; an equal destination, table and metric is an error ([`super::NetlinkError::is_exists`]).
    pub fn add_route(&self, route: &Route) -> Result<()> {
        self.change(&format!("add route {}", route.dst), libc::RTM_NEWROUTE, CREATE, &route.header(), |w| route.body(w))
    }

    /// Adds a route, or replaces the one of equal destination, table and metric.
    pub fn replace_route(&self, route: &Route) -> Result<()> {
        self.change(&format!("replace route {}", route.dst), libc::RTM_NEWROUTE, REPLACE, &route.header(), |w| route.body(w))
    }

    /// Deletes the route that has these members.
    pub fn del_route(&self, route: &Route) -> Result<()> {
        self.change(&format!("delete route {}", route.dst), libc::RTM_DELROUTE, ACK, &route.header(), |w| route.body(w))
    }

    /// The route that packets to an address take now; none where there is no way.
    pub fn route_to(&self, address: IpAddr) -> Result<Option<Route>> {
        let asked = Route::new(address.into());
        let name = format!("find the route to {address}");
        match self.request(&name, libc::RTM_GETROUTE, ACK, &asked.header(), |w| w.attr(libc::RTA_DST, &ip_bytes(address))) {
            Ok(answers) => Ok(answers.first().and_then(|answer| Route::read_any(answer))),
            Err(error) if matches!(error.errno(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL | libc::EACCES)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes the route of a table to that destination, whatever else it says.
    pub fn del_route_to(&self, dst: IpNet, table: u32) -> Result<()> {
        let route = Route { table, protocol: libc::RTPROT_UNSPEC, ..Route::new(dst) };
        let mut header = route.header();
        (header[6], header[7]) = (libc::RT_SCOPE_NOWHERE, libc::RTN_UNSPEC);
        self.change(&format!("delete route {dst} of table {table}"), libc::RTM_DELROUTE, ACK, &header, |w| route.body(w))
    }

    /// The IPv4 routing rules.
    pub fn rules(&self) -> Result<Vec<Rule>> {
        self.rules_of(false)
    }

    /// The routing rules of a family.
    pub fn rules_of(&self, ipv6: bool) -> Result<Vec<Rule>> {
        let mut head = [0; 12];
        head[0] = family_of(ipv6);
        self.dump("list rules", libc::RTM_GETRULE, &head, Rule::read)
    }

    /// Adds a routing rule; that it is there already is fine.
    pub fn add_rule(&self, rule: &Rule) -> Result<()> {
        let name = format!("add rule {} to table {}", rule.priority, rule.table);
        match self.change(&name, libc::RTM_NEWRULE, CREATE, &rule.header(), |w| rule.body(w)) {
            Err(e) if e.is_exists() => Ok(()),
            other => other,
        }
    }

    /// Deletes the routing rule that has these members.
    pub fn del_rule(&self, rule: &Rule) -> Result<()> {
        let name = format!("delete rule {} to table {}", rule.priority, rule.table);
        self.change(&name, libc::RTM_DELRULE, ACK, &rule.header(), |w| rule.body(w))
    }
}
