//! Model test: random clusters, policies and packets. A straightforward reader of the objects says which packets pass; the world's
//! evaluator, the access rules for HNS and, with real packets, the rules in the kernel have to agree.

mod cluster;
#[cfg(target_os = "linux")]
mod kernel;
mod oracle;
mod switch;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use crate::hns::boxes::by_port;
use crate::hns::rules::{self, Abilities, Context};
use crate::policy::Direction;
use cluster::{Cluster, packets};

/// Clusters of one run, and packets of each.
const CLUSTERS: u64 = 150;
const PACKETS: usize = 250;

#[test]
fn evaluator_agrees_with_a_plain_reading_of_the_policies() {
    for seed in 0..CLUSTERS {
        let cluster = Cluster::random(seed);
        let world = cluster.world(None);
        for packet in packets(&cluster, seed, PACKETS) {
            let (decision, expected) = (world.decide(&packet), oracle::passes_with_nodes(&cluster, &packet));
            assert_eq!(decision.is_allowed(), expected, "seed {seed}: {packet:?}: {decision:?} in {cluster:#}");
        }
    }
}

#[test]
fn changes_lead_to_the_world_that_a_restart_would_read() {
    for seed in 0..CLUSTERS {
        let (before, after) = (Cluster::random(seed), Cluster::random(seed + 1));
        let mut world = before.world(Some("node0"));
        world.take_changes();
        after.replace(&before, &mut world);
        let fresh = after.world(Some("node0"));
        let endpoints = |world: &crate::World| world.endpoints().map(|(key, endpoint)| (key.clone(), endpoint.clone())).collect::<Vec<_>>();
        assert_eq!(endpoints(&world), endpoints(&fresh), "seed {seed}");
        let groups = |world: &crate::World| {
            let groups = world.groups().map(|group| (group.clone(), world.members(group).collect::<Vec<_>>()));
            groups.collect::<BTreeMap<_, _>>()
        };
        assert_eq!(groups(&world), groups(&fresh), "seed {seed}");
    }
}

#[test]
fn rules_for_hns_agree_on_every_version() {
    let versions =
        [Abilities::default(), Abilities { sets: true, tiers: false }, Abilities { sets: true, tiers: true }, Abilities { sets: false, tiers: true }];
    for seed in 0..CLUSTERS {
        let cluster = Cluster::random(seed);
        let world = cluster.world(None);
        let members = |group: &_| Rc::new(by_port(world.members(group)));
        for abilities in versions {
            let profiles: Vec<Arc<crate::Profile>> = world.endpoints().flat_map(|(_, endpoint)| endpoint.all().cloned()).collect();
            let sets = rules::sets(&profiles, &|_| true, &members, abilities.tiers);
            let rules: BTreeMap<IpAddr, _> = world
                .endpoints()
                .flat_map(|(_, endpoint)| {
                    let context = Context { abilities, own: &endpoint.ips, host: &[], members: &members };
                    let rules = rules::policies(&endpoint.profiles, &context).unwrap();
                    endpoint.ips.iter().map(move |ip| (*ip, rules.clone())).collect::<Vec<_>>()
                })
                .collect();
            for packet in packets(&cluster, seed, PACKETS / 2) {
                let passes = |ip: IpAddr, peer: IpAddr, direction| {
                    rules.get(&ip).is_none_or(|rules| switch::passes(rules, &sets, direction, (ip, peer), packet.port))
                };
                let both =
                    passes(packet.source, packet.destination, Direction::Egress) && passes(packet.destination, packet.source, Direction::Ingress);
                assert_eq!(both, oracle::passes(&cluster, &packet), "seed {seed}, {abilities:?}: {packet:?} in {cluster:#} with {rules:#?} {sets:?}");
            }
        }
    }
}
