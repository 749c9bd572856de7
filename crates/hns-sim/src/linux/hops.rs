//! Next hops: a routing table for each, selected by a mark. A gate lets all other packets skip their rules in one step.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use linux_sys::netlink::{Route, RouteKind, Rule};

use super::LinuxKernel;
use super::links::gone_is_fine;
use crate::fact::{Fact, Hop, Link};

/// Places of rules: the gate, the hops behind it, and the main table's (linux/fib_rules.h), where the gate leads to.
const GATE: u32 = 200;
const BEHIND_GATE: u32 = 201;
const MAIN: u32 = 32766;

/// Hops that stay after the last fact that needs them: established connections outlive the change of a load balancer.
const STAYING: usize = 64;

/// Hops that stay, the oldest first.
pub(super) type Staying = VecDeque<Hop>;

fn gate(ipv6: bool) -> Rule {
    Rule { priority: GATE, fwmark: Some((Hop::MARKS, Hop::MASK)), inverted: true, goto: Some(MAIN), ipv6, ..Rule::default() }
}

fn rule_of(hop: Hop) -> Rule {
    Rule { priority: BEHIND_GATE, fwmark: Some((hop.mark(), u32::MAX)), table: hop.mark(), ipv6: hop.address.is_ipv6(), ..Rule::default() }
}

fn everywhere(ipv6: bool) -> IpNet {
    if ipv6 { IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0) } else { IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0) }
}

impl LinuxKernel {
    pub(super) fn make_gate(&self, ipv6: bool) -> io::Result<()> {
        Ok(self.rtnl.add_rule(&gate(ipv6))?)
    }

    /// Without a gate no packet is marked: hops that stayed are removed.
    pub(super) fn unmake_gate(&self, ipv6: bool) -> io::Result<()> {
        let (gone, staying): (Staying, Staying) = self.staying.take().into_iter().partition(|hop| hop.address.is_ipv6() == ipv6);
        self.staying.replace(staying);
        gone.into_iter().try_for_each(|hop| self.drop_hop(hop.mark(), ipv6))?;
        gone_is_fine(self.rtnl.del_rule(&gate(ipv6)))
    }

    /// The way is the one that leads there now. Where none does, packets are lost.
    pub(super) fn make_hop(&self, hop: Hop) -> io::Result<()> {
        self.staying.borrow_mut().retain(|other| *other != hop);
        let route = Route { table: hop.mark(), ..Route::new(everywhere(hop.address.is_ipv6())) };
        let way = self.rtnl.route_to(hop.address)?.filter(|way| !hop.neighbour || way.via.is_none());
        let route = match way {
            Some(Route { kind: RouteKind::Unicast, via, oif, .. }) => Route { onlink: true, oif, ..route.via(via.unwrap_or(hop.address)) },
            _ => Route { kind: RouteKind::Blackhole, ..route },
        };
        self.rtnl.replace_route(&route)?;
        Ok(self.rtnl.add_rule(&rule_of(hop))?)
    }

    pub(super) fn unmake_hop(&self, hop: Hop) -> io::Result<()> {
        let mut staying = self.staying.borrow_mut();
        staying.push_back(hop);
        let oldest = if staying.len() > STAYING { staying.pop_front() } else { None };
        oldest.map_or(Ok(()), |hop| self.drop_hop(hop.mark(), hop.address.is_ipv6()))
    }

    fn drop_hop(&self, mark: u32, ipv6: bool) -> io::Result<()> {
        let rule = Rule { priority: BEHIND_GATE, fwmark: Some((mark, u32::MAX)), table: mark, ipv6, ..Rule::default() };
        gone_is_fine(self.rtnl.del_rule(&rule))?;
        gone_is_fine(self.rtnl.del_route_to(everywhere(ipv6), mark))
    }

    /// Removes the rules and tables of hops without a fact.
    pub(super) fn remove_stray_hops(&self, facts: &BTreeSet<Fact>) -> io::Result<()> {
        self.staying.borrow_mut().clear();
        for ipv6 in [false, true] {
            for rule in self.rtnl.rules_of(ipv6)? {
                let needed = facts.iter().any(|fact| match fact {
                    Fact::Link(Link::Hop(hop)) => rule_of(*hop) == rule,
                    Fact::Link(Link::Hops { ipv6 }) => gate(*ipv6) == rule,
                    _ => false,
                });
                match rule.priority {
                    GATE if !needed && rule == gate(ipv6) => gone_is_fine(self.rtnl.del_rule(&rule))?,
                    BEHIND_GATE if !needed && rule.table & Hop::MASK == Hop::MARKS => self.drop_hop(rule.table, ipv6)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
