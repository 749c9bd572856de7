//! Features: a version does what it claims, and refuses or ignores the rest as clients know it.

use std::net::IpAddr;

use serde_json::json;

use crate::bench::{Bench, ensure, refused, text};
use crate::{Case, Check, Evidence, case};
use hcn::document::{
    DistributionType, EndpointPolicy, EndpointPolicyType, HostComputeEndpoint, HostComputeLoadBalancer, IpConfiguration, L4Proxy, LoadBalancerFlags,
    NetworkFlags, NetworkType, Protocol, Route, Subnet,
};
use hcn::error::HResult;
use hcn::features::HnsVersion;
use hcn::guid::Guid;

const GROUP: &str = "features";

pub(crate) const CASES: &[Case] = &[
    case(GROUP, "a load balancer is changed in place, or not at all", Evidence::Client, modify_balancer),
    case(GROUP, "direct server return is kept", Evidence::Client, dsr),
    case(GROUP, "affinity is kept", Evidence::Client, affinity),
    case(GROUP, "an endpoint can have both address families", Evidence::Client, dual_stack),
    case(GROUP, "a proxy is kept", Evidence::Client, proxy),
    case(GROUP, "a network can do without a host port", Evidence::Client, no_host_port),
    case(GROUP, "an object says which version wrote it", Evidence::Report, version),
];

fn balancer(bench: &Bench<'_>, number: u8) -> Result<HostComputeLoadBalancer, hcn::error::HcnError> {
    let endpoint = bench.endpoint()?.id;
    Ok(HostComputeLoadBalancer::new(Some([10, 255, 254, number].into()), Protocol::TCP, 80, 80, vec![endpoint]))
}

fn modify_balancer(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    let (id, mut made) = bench.create(&balancer(bench, 1)?)?;
    let before = made.host_compute_endpoints.clone();
    made.host_compute_endpoints = vec![bench.endpoint()?.id];
    let outcome = bench.client.modify_load_balancer(&id, &made);
    let after = bench.client.get::<HostComputeLoadBalancer>(&id)?.unwrap_or_default().host_compute_endpoints;
    let backends_are = |expected: &[Guid]| -> Check {
        ensure!(after == expected, "the backends are {after:?}, not {expected:?}");
        Ok(())
    };
    if bench.features.modify_load_balancer {
        outcome?;
        return backends_are(&made.host_compute_endpoints);
    }
    if bench.features.version == HnsVersion::new(15, 4) {
        outcome?;
        return backends_are(&before);
    }
    refused("a change in place", outcome, &[HResult::NOT_IMPLEMENTED])?;
    backends_are(&before)
}

fn dsr(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    bench.needs(bench.features.dsr, "DSR")?;
    let mut document = balancer(bench, 2)?;
    document.flags = LoadBalancerFlags::DSR;
    let (_, made) = bench.create(&document)?;
    ensure!(made.flags == LoadBalancerFlags::DSR, "Flags come back as {}", made.flags);
    Ok(())
}

fn affinity(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    bench.needs(bench.features.session_affinity, "SessionAffinity")?;
    let mut document = balancer(bench, 3)?;
    document.port_mappings[0].distribution_type = DistributionType::SOURCE_IP;
    let (_, made) = bench.create(&document)?;
    let found = made.port_mappings.first().map(|mapping| mapping.distribution_type);
    ensure!(found == Some(DistributionType::SOURCE_IP), "DistributionType comes back as {found:?}");
    Ok(())
}

fn dual_stack(bench: &Bench<'_>) -> Check {
    bench.only_on(&[NetworkType::L2Bridge])?;
    bench.needs(bench.features.ipv6_dual_stack, "IPv6DualStack")?;
    let gateway: IpAddr = [0xfd00, 0x213, 0, 0, 0, 0, 0, 1].into();
    let address: IpAddr = [0xfd00, 0x213, 0, 0, 0, 0, 0, 9].into();
    let second = ipnet::IpNet::new_assert(gateway, 64);
    let prefix = bench.subnet();
    let mut document = bench.network_document(&bench.name("network"), prefix);
    for ipam in &mut document.ipams {
        ipam.subnets.push(Subnet::new(second, gateway));
    }
    let (network, _) = bench.create(&document)?;
    let v4 = IpAddr::V4(crate::bench::host(prefix, 9));
    let mut endpoint = HostComputeEndpoint { name: bench.name("endpoint"), ..HostComputeEndpoint::default() };
    endpoint.ip_configurations = [(v4, 24), (address, 64)]
        .map(|(address, prefix_length)| IpConfiguration { ip_address: address.to_string(), prefix_length, ..IpConfiguration::default() })
        .into();
    let default = Route { next_hop: gateway.to_string(), destination_prefix: "::/0".into(), ..Route::default() };
    endpoint.routes = vec![Route::default_via(crate::bench::host(prefix, 1)), default];
    let made = bench.create_endpoint_on(&network, &endpoint)?;
    let found: Vec<IpAddr> = made.ip_configurations.iter().filter_map(|ip| ip.ip_address.parse().ok()).collect();
    ensure!(found == [v4, address], "the addresses come back as {found:?}");
    Ok(())
}

fn proxy(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    bench.needs(bench.features.l4_proxy, "L4Proxy")?;
    let settings = L4Proxy { port: "15001".into(), protocol: Protocol::TCP, destination: "10.254.0.0/16".into(), ..L4Proxy::default() };
    let policy = EndpointPolicy::new(EndpointPolicyType::L4Proxy, &settings);
    let made = bench.create_endpoint(&bench.endpoint_document()?.with_policy(policy))?;
    let found = made.policies.iter().find_map(|policy| policy.settings_as::<L4Proxy>(&EndpointPolicyType::L4Proxy));
    ensure!(found.as_ref().is_some_and(|found| found.port == settings.port), "the proxy comes back as {}", text(&made.policies));
    Ok(())
}

fn no_host_port(bench: &Bench<'_>) -> Check {
    bench.only_on(&[NetworkType::L2Bridge, NetworkType::Overlay])?;
    bench.needs(bench.features.disable_host_port, "DisableHostPort")?;
    let mut document = bench.network_document(&bench.name("network"), bench.subnet());
    document.flags = NetworkFlags::DISABLE_HOST_PORT;
    let (_, made) = bench.create(&document)?;
    ensure!(made.flags.contains(NetworkFlags::DISABLE_HOST_PORT), "Flags come back as {}", made.flags);
    Ok(())
}

fn version(bench: &Bench<'_>) -> Check {
    let made = bench.endpoint()?;
    let expected = bench.features.version.packed();
    ensure!(made.version == expected, "Version is {}, and that of the service {expected} ({})", made.version, json!(bench.features.version));
    Ok(())
}
