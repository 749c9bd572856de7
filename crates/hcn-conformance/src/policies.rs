//! Policies: adding, removing, replacing, and references.

use serde::Serialize;
use serde_json::json;

use crate::bench::{Bench, ensure, refused, text};
use crate::{Case, Check, Evidence, case};
use hcn::document::{
    Acl, Action, Direction, EndpointPolicy, EndpointPolicyType, HostComputeEndpoint, HostComputeNetwork, Isolation, ModifyRequest, NetworkPolicy,
    NetworkPolicyType, NetworkType, PortName, Qos, RemoteSubnetRoute, RequestType, RuleType, SetPolicy, SetPolicyType, TierAcl, TierAclRule,
};
use hcn::error::{HResult, HcnError};
use hcn::guid::Guid;

const GROUP: &str = "policies";

pub(crate) const CASES: &[Case] = &[
    case(GROUP, "policies of a pod come back as they were given", Evidence::Client, kept),
    case(GROUP, "a loopback policy stands beside the outgoing translation", Evidence::Client, loopback),
    case(GROUP, "a policy is added and removed by its settings", Evidence::Client, add_remove),
    case(GROUP, "an update replaces an endpoint's policies", Evidence::Client, update),
    case(GROUP, "access rules come back as they were given", Evidence::Client, acls),
    case(GROUP, "a set in use cannot be removed", Evidence::Client, sets),
    case(GROUP, "a set of sets needs its members first", Evidence::Client, nested_sets),
    case(GROUP, "tiers of rules come back as they were given", Evidence::Client, tiers),
    case(GROUP, "rules of a network come back as they were given", Evidence::Documentation, network_acl),
    case(GROUP, "routes to other hosts are added and removed", Evidence::Client, remote_subnets),
    case(GROUP, "an overlay's router has a MAC of its own", Evidence::Client, router_mac),
    case(GROUP, "a number of the VLAN, a limit and a port's name are kept", Evidence::Documentation, stored),
];

fn policies_of(bench: &Bench<'_>, endpoint: &Guid) -> Result<Vec<EndpointPolicy>, HcnError> {
    Ok(bench.client.get::<HostComputeEndpoint>(endpoint)?.unwrap_or_default().policies)
}

fn change(bench: &Bench<'_>, endpoint: &Guid, request: RequestType, policies: &[EndpointPolicy]) -> Result<(), HcnError> {
    bench.modify::<HostComputeEndpoint>(endpoint, &ModifyRequest::endpoint_policies(request, policies))
}

fn change_network(bench: &Bench<'_>, network: &Guid, request: RequestType, policies: &[NetworkPolicy]) -> Result<(), HcnError> {
    bench.modify::<HostComputeNetwork>(network, &ModifyRequest::network_policies(request, policies))
}

/// Whether a policy of the expected type is there with at least the expected settings.
fn has(policies: &[EndpointPolicy], expected: &EndpointPolicy) -> bool {
    let settings = |policy: &EndpointPolicy| {
        let members = expected.settings.as_object().into_iter().flatten();
        members.into_iter().all(|(key, value)| policy.settings.get(key) == Some(value))
    };
    policies.iter().any(|policy| policy.policy_type == expected.policy_type && settings(policy))
}

fn nat() -> EndpointPolicy {
    EndpointPolicy::outbound_nat(["10.96.0.0/12", "10.213.0.0/16"].into_iter().filter_map(|prefix| prefix.parse().ok()))
}

fn route(prefix: &str) -> EndpointPolicy {
    EndpointPolicy::new(EndpointPolicyType::SdnRoute, &json!({"DestinationPrefix": prefix, "NeedEncap": true}))
}

fn kept(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    let expected = [nat(), route("10.96.0.0/12")];
    let document = expected.iter().cloned().fold(bench.endpoint_document()?, HostComputeEndpoint::with_policy);
    let made = bench.create_endpoint(&document)?;
    for policy in &expected {
        ensure!(has(&made.policies, policy), "{} became {}", text(policy), text(&made.policies));
    }
    Ok(())
}

/// As win-bridge, Calico and Azure's plug-in have it for direct server return.
fn loopback(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    bench.needs(bench.features.dsr, "DSR")?;
    let expected = [nat(), EndpointPolicy::outbound_nat_to([ipnet::IpNet::from(std::net::IpAddr::from([10, 255, 3, 9]))])];
    let document = expected.iter().cloned().fold(bench.endpoint_document()?, HostComputeEndpoint::with_policy);
    let made = bench.create_endpoint(&document)?;
    ensure!(expected.iter().all(|policy| has(&made.policies, policy)), "they became {}", text(&made.policies));
    Ok(())
}

fn add_remove(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    let endpoint = bench.endpoint()?.id;
    let policy = route("10.255.1.0/24");
    change(bench, &endpoint, RequestType::Add, std::slice::from_ref(&policy))?;
    ensure!(has(&policies_of(bench, &endpoint)?, &policy), "the policy is not there after the add");
    change(bench, &endpoint, RequestType::Remove, std::slice::from_ref(&policy))?;
    ensure!(!has(&policies_of(bench, &endpoint)?, &policy), "the policy is there after the remove");
    Ok(())
}

fn update(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    let document = bench.endpoint_document()?.with_policy(nat()).with_policy(route("10.255.2.0/24"));
    let endpoint = bench.create_endpoint(&document)?.id;
    let policies = [nat(), acl(100, Action::Block)];
    change(bench, &endpoint, RequestType::Update, &policies)?;
    let found = policies_of(bench, &endpoint)?;
    ensure!(policies.iter().all(|policy| has(&found, policy)), "after the update it has {}", text(&found));
    change(bench, &endpoint, RequestType::Update, &[nat()])?;
    let found = policies_of(bench, &endpoint)?;
    ensure!(!has(&found, &policies[1]), "an update without access rules leaves {}", text(&found));
    Ok(())
}

fn acl(priority: u16, action: Action) -> EndpointPolicy {
    let rule = Acl {
        protocols: "6".into(),
        action,
        direction: Direction::In,
        remote_addresses: "10.0.0.0/8".into(),
        local_ports: "80".into(),
        rule_type: RuleType::Switch,
        priority,
        ..Acl::default()
    };
    EndpointPolicy::acl(&rule)
}

fn acls(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    let endpoint = bench.endpoint()?.id;
    let rules = [acl(200, Action::Allow), acl(300, Action::Block)];
    change(bench, &endpoint, RequestType::Add, &rules)?;
    let found = policies_of(bench, &endpoint)?;
    ensure!(rules.iter().all(|rule| has(&found, rule)), "the rules became {}", text(&found));
    change(bench, &endpoint, RequestType::Remove, &rules[..1])?;
    let found = policies_of(bench, &endpoint)?;
    ensure!(!has(&found, &rules[0]) && has(&found, &rules[1]), "after removing the first there are {}", text(&found));
    Ok(())
}

fn set(id: &str, policy_type: SetPolicyType, values: &str) -> NetworkPolicy {
    NetworkPolicy::set(&SetPolicy { id: id.into(), name: id.into(), policy_type, values: values.into(), ..SetPolicy::default() })
}

fn sets(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    bench.needs(bench.features.set_policy, "SetPolicy")?;
    let network = bench.shared()?.id;
    let members = set("conformance-set", SetPolicyType::IpSet, "10.213.0.77,10.213.0.78");
    change_network(bench, &network, RequestType::Add, std::slice::from_ref(&members))?;
    let endpoint = bench.endpoint()?.id;
    let rule = Acl { remote_addresses: "conformance-set".into(), action: Action::Block, priority: 400, ..Acl::default() };
    let rule = EndpointPolicy::acl(&rule);
    change(bench, &endpoint, RequestType::Add, std::slice::from_ref(&rule))?;
    let remove = || change_network(bench, &network, RequestType::Remove, std::slice::from_ref(&members));
    refused("removing a set that a rule names", remove(), &[HResult::ENTITY_HAS_REFERENCES])?;
    change(bench, &endpoint, RequestType::Remove, std::slice::from_ref(&rule))?;
    remove()?;
    Ok(())
}

fn nested_sets(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    bench.needs(bench.features.nested_ip_set, "NestedIpSet")?;
    let network = bench.shared()?.id;
    let inner = set("conformance-inner", SetPolicyType::IpSet, "10.213.0.79");
    let outer = set("conformance-outer", SetPolicyType::NestedIpSet, "conformance-inner");
    let one = |request, policy: &NetworkPolicy| change_network(bench, &network, request, std::slice::from_ref(policy));
    ensure!(one(RequestType::Add, &outer).is_err(), "a set of a set that does not exist is not refused");
    one(RequestType::Add, &inner)?;
    one(RequestType::Add, &outer)?;
    refused("removing a set that another names", one(RequestType::Remove, &inner), &[HResult::ENTITY_HAS_REFERENCES])?;
    one(RequestType::Remove, &outer)?;
    one(RequestType::Remove, &inner)?;
    Ok(())
}

fn tiers(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    bench.needs(bench.features.tier_acl, "TierAcl")?;
    let rule = |action, priority| TierAclRule { protocols: "6".into(), action, local_ports: "443".into(), priority, ..TierAclRule::default() };
    let tier = TierAcl {
        name: "conformance".into(),
        direction: Direction::Out,
        order: 10,
        rules: vec![rule(Action::Pass, 100), rule(Action::Block, 200)],
        ..TierAcl::default()
    };
    let policy = EndpointPolicy::new(EndpointPolicyType::TierAcl, &tier);
    let endpoint = bench.endpoint()?.id;
    change(bench, &endpoint, RequestType::Add, std::slice::from_ref(&policy))?;
    let found = policies_of(bench, &endpoint)?.iter().find_map(EndpointPolicy::as_tier_acl).unwrap_or_default();
    ensure!((&found.name, found.rules.len()) == (&tier.name, 2), "the tier became {}", text(&found));
    Ok(())
}

/// Whether a network has a policy of that type, as text that names it.
fn network_policy<T: Serialize>(bench: &Bench<'_>, network: &Guid, policy_type: NetworkPolicyType, settings: &T, member: &str) -> Check {
    let policy = NetworkPolicy::new(policy_type, settings);
    let find = || -> Result<bool, HcnError> {
        let found = bench.client.get::<HostComputeNetwork>(network)?.unwrap_or_default().policies;
        Ok(found.iter().any(|one| one.policy_type == policy.policy_type && one.settings.get(member) == policy.settings.get(member)))
    };
    change_network(bench, network, RequestType::Add, std::slice::from_ref(&policy))?;
    ensure!(find()?, "{} is not there after the add", text(&policy));
    change_network(bench, network, RequestType::Remove, std::slice::from_ref(&policy))?;
    ensure!(!find()?, "{} is there after the remove", text(&policy));
    Ok(())
}

fn network_acl(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    bench.needs(bench.features.network_acl, "NetworkACL")?;
    let network = bench.shared()?.id;
    let rule = Acl { id: "conformance".into(), action: Action::Block, remote_addresses: "192.0.2.0/24".into(), priority: 500, ..Acl::default() };
    network_policy(bench, &network, NetworkPolicyType::NetworkAcl, &rule, "RemoteAddresses")
}

fn remote_subnets(bench: &Bench<'_>) -> Check {
    bench.only_on(&[NetworkType::Overlay])?;
    let network = bench.shared()?.id;
    let route = RemoteSubnetRoute {
        destination_prefix: "10.214.7.0/24".into(),
        isolation_id: 4096,
        provider_address: "192.0.2.7".into(),
        distributed_router_mac_address: "00-15-5D-11-22-33".into(),
        ..RemoteSubnetRoute::default()
    };
    network_policy(bench, &network, NetworkPolicyType::RemoteSubnetRoute, &route, "DestinationPrefix")
}

fn router_mac(bench: &Bench<'_>) -> Check {
    bench.only_on(&[NetworkType::Overlay])?;
    let network = bench.shared()?;
    let mac = |network: &HostComputeNetwork| network.policies.iter().find_map(NetworkPolicy::as_dr_mac_address);
    let first = mac(&network);
    ensure!(first.as_ref().is_some_and(|mac| mac.len() == 17), "DrMacAddress is {first:?}");
    ensure!(mac(&bench.network()?) != first, "two networks have the router MAC {first:?}");
    Ok(())
}

fn stored(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    let limit = Qos { maximum_outgoing_bandwidth_in_bytes: 12_500_000, ..Qos::default() };
    let vlan = Isolation { isolation_id: 7, ..Isolation::default() };
    let name = PortName { name: "conformance".into(), ..PortName::default() };
    let mut policies = vec![EndpointPolicy::new(EndpointPolicyType::Qos, &limit), EndpointPolicy::new(EndpointPolicyType::PortName, &name)];
    // Endpoints have it since schema 2.4, which came with HNS 10 or 11.
    if bench.features.version.major >= 11 {
        policies.push(EndpointPolicy::new(EndpointPolicyType::Vlan, &vlan));
    }
    let document = policies.iter().cloned().fold(bench.endpoint_document()?, HostComputeEndpoint::with_policy);
    let made = bench.create_endpoint(&document)?;
    for policy in &policies {
        ensure!(has(&made.policies, policy), "{} became {}", text(policy), text(&made.policies));
    }
    Ok(())
}
