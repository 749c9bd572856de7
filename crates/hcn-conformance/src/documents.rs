//! Documents: they read back as written, in both shapes, with the service's defaults.

use serde_json::{Value, json};

use crate::bench::{Bench, ensure, host, prefix_of, raw, text};
use crate::{Case, Check, Evidence, Finding, case};
use hcn::document::v1;
use hcn::document::{EndpointState, ModifyRequest};
use hcn::document::{
    HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork, HostComputeRoute, LoadBalancerFlags, NamespaceResource,
    PortMappingFlags, Protocol, Query, RequestType, SdnRoute, Subnet,
};
use hcn::guid::Guid;
use hcn::port::{Args, Function, Kind};

const GROUP: &str = "documents";

pub(crate) const CASES: &[Case] = &[
    case(GROUP, "a network comes back as it was made", Evidence::Client, network),
    case(GROUP, "the client's GUID is kept", Evidence::Client, chosen_id),
    case(GROUP, "an endpoint gets what it did not say", Evidence::Client, endpoint_defaults),
    case(GROUP, "addresses come from the subnet, all different", Evidence::Report, addresses),
    case(GROUP, "a remote endpoint may have any address", Evidence::Client, remote),
    case(GROUP, "a load balancer comes back as it was made", Evidence::Client, load_balancer),
    case(GROUP, "a node port has no address", Evidence::Client, node_port),
    case(GROUP, "a namespace gets a compartment", Evidence::Documentation, namespace),
    case(GROUP, "a routing rule comes back as it was made", Evidence::Client, route),
    case(GROUP, "names of members and types are read in any case", Evidence::Documentation, spelling),
    case(GROUP, "members that nobody knows are no error", Evidence::Inference, unknown_members),
    case(GROUP, "MACs are read with colons and written with hyphens", Evidence::Client, macs),
    case(GROUP, "a query without schema 2 answers the older shape", Evidence::Client, shapes),
    case(GROUP, "a create reads the older shape", Evidence::Client, older_create),
    case(GROUP, "an enumeration answers GUIDs, filtered by equality", Evidence::Documentation, filters),
    case(GROUP, "HNSCall lists what the newer functions made", Evidence::Client, hns_call),
];

fn network(bench: &Bench<'_>) -> Check {
    let made = bench.network()?;
    let subnet = made.subnets().next().cloned().unwrap_or_default();
    ensure!(made.network_type == bench.options.network_type, "the type comes back as {}", made.network_type);
    ensure!(subnet.prefix().is_some_and(|prefix| prefix.prefix_len() == 24), "the subnet comes back as {:?}", subnet.ip_address_prefix);
    ensure!(subnet.gateway().is_some(), "the gateway does not come back: {}", text(&subnet));
    ensure!(made.schema_version.major == 2, "schema {:?}", made.schema_version);
    ensure!(made.state == 1, "State is {}, not 1", made.state);
    ensure!(!made.mac_pool.ranges.is_empty(), "there is no pool of MACs");
    let again = bench.client.get::<HostComputeNetwork>(&made.id)?;
    ensure!(again.as_ref() == Some(&made), "a second look differs: {}", text(&again));
    Ok(())
}

fn chosen_id(bench: &Bench<'_>) -> Check {
    let network = bench.shared()?;
    let id = bench.id(Kind::Endpoint)?;
    let endpoint = bench.client.create_endpoint(&network.id, id, &bench.endpoint_document()?)?;
    bench.made(Kind::Endpoint, endpoint.id);
    ensure!(endpoint.id == id, "{id} became {}", endpoint.id);
    let id = bench.id(Kind::Namespace)?;
    let namespace = bench.client.create(id, &HostComputeNamespace::default())?;
    bench.made(Kind::Namespace, namespace.id);
    ensure!(namespace.id == id, "{id} became {}", namespace.id);
    Ok(())
}

fn endpoint_defaults(bench: &Bench<'_>) -> Check {
    let network = bench.shared()?;
    let endpoint = bench.create_endpoint(&HostComputeEndpoint { name: bench.name("endpoint"), ..HostComputeEndpoint::default() })?;
    let configuration = endpoint.ip_configurations.first().cloned().unwrap_or_default();
    let prefix = prefix_of(&network);
    let address = endpoint.ip();
    ensure!(address.is_some_and(|address| ipnet::IpNet::from(prefix).contains(&address)), "{address:?} is not of {prefix}");
    ensure!(address != Some(host(prefix, 1).into()), "the gateway's own address {address:?} was given away");
    ensure!(configuration.prefix_length == 24, "the prefix's length is {}", configuration.prefix_length);
    ensure!(!endpoint.mac_address.is_empty(), "there is no MAC");
    ensure!(endpoint.host_compute_network == network.id, "the network is {}", endpoint.host_compute_network);
    ensure!(endpoint.state == EndpointState::CREATED, "State is {}, not 1", endpoint.state);
    ensure!(endpoint.host_compute_namespace.is_nil(), "it is in namespace {} already", endpoint.host_compute_namespace);
    Ok(())
}

fn addresses(bench: &Bench<'_>) -> Check {
    let mut seen = std::collections::BTreeSet::new();
    let mut macs = std::collections::BTreeSet::new();
    for _ in 0..6 {
        let endpoint = bench.create_endpoint(&HostComputeEndpoint { name: bench.name("endpoint"), ..HostComputeEndpoint::default() })?;
        ensure!(seen.insert(endpoint.ip()), "{:?} was given twice", endpoint.ip());
        ensure!(macs.insert(endpoint.mac_address.to_uppercase()), "{} was given twice", endpoint.mac_address);
    }
    Ok(())
}

fn remote(bench: &Bench<'_>) -> Check {
    let elsewhere = [203, 0, 113, 7].into();
    let endpoint = bench.create_endpoint(&HostComputeEndpoint::remote(elsewhere))?;
    ensure!(endpoint.is_remote(), "Flags come back as {}", endpoint.flags);
    ensure!(endpoint.ip() == Some(elsewhere), "the address comes back as {:?}", endpoint.ip());
    ensure!(endpoint.state == EndpointState::CREATED, "State is {}, not 1", endpoint.state);
    Ok(())
}

fn load_balancer(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    let backends = vec![bench.endpoint()?.id, bench.create_endpoint(&HostComputeEndpoint::remote([203, 0, 113, 8].into()))?.id];
    let document = HostComputeLoadBalancer::new(Some([10, 255, 255, 1].into()), Protocol::TCP, 80, 8080, backends.clone());
    let (id, made) = bench.create(&document)?;
    ensure!(made.host_compute_endpoints == backends, "the backends come back as {:?}", made.host_compute_endpoints);
    ensure!(made.frontend_vips == ["10.255.255.1"], "the addresses come back as {:?}", made.frontend_vips);
    let mapping = made.port_mappings.first().cloned().unwrap_or_default();
    ensure!(
        (mapping.protocol, mapping.external_port, mapping.internal_port) == (Protocol::TCP, 80, 8080),
        "the ports come back as {}",
        text(&mapping)
    );
    ensure!(bench.client.get::<HostComputeLoadBalancer>(&id)?.is_some(), "it cannot be found by its id");
    Ok(())
}

fn node_port(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    let mut document = HostComputeLoadBalancer::new(None, Protocol::UDP, 31999, 53, vec![bench.endpoint()?.id]);
    document.flags = LoadBalancerFlags::DSR;
    document.port_mappings[0].flags = PortMappingFlags::LOCAL_ROUTED_VIP | PortMappingFlags::VIP_EXTERNAL_IP;
    let (_, made) = bench.create(&document)?;
    ensure!(made.frontend_vips.is_empty(), "it got the addresses {:?}", made.frontend_vips);
    ensure!(made.flags == document.flags, "Flags come back as {}", made.flags);
    ensure!(made.port_mappings.first().map(|mapping| mapping.flags.0) == Some(18), "the mapping's Flags: {}", text(&made.port_mappings));
    Ok(())
}

fn namespace(bench: &Bench<'_>) -> Check {
    let namespace = bench.namespace()?;
    ensure!(namespace.namespace_id > 1, "NamespaceId is {}: 1 is the host's own", namespace.namespace_id);
    ensure!(namespace.resources.is_empty(), "it holds {}", text(&namespace.resources));
    let second = bench.namespace()?;
    ensure!(second.namespace_id != namespace.namespace_id, "two namespaces are compartment {}", second.namespace_id);
    Ok(())
}

fn route(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    let rule = SdnRoute { destination_prefix: "10.255.0.0/24".into(), next_hop: "10.213.0.2".into(), need_encap: true, ..SdnRoute::default() };
    let endpoint = bench.endpoint()?.id;
    let document = HostComputeRoute { host_compute_endpoints: vec![endpoint], routes: vec![rule.clone()], ..HostComputeRoute::default() };
    let (_, made) = bench.create(&document)?;
    let back = made.routes.first().cloned().unwrap_or_default();
    ensure!((&back.destination_prefix, &back.next_hop) == (&rule.destination_prefix, &rule.next_hop), "the rule comes back as {}", text(&back));
    ensure!(back.need_encap && made.host_compute_endpoints == [endpoint], "the rule comes back as {}", text(&made));
    Ok(())
}

fn spelling(bench: &Bench<'_>) -> Check {
    let id = bench.id(Kind::Network)?;
    let document = bench.network_document(&bench.name("network"), bench.subnet());
    let mut value = serde_json::to_value(&document).unwrap_or_default();
    value["Type"] = Value::from(document.network_type.as_str().to_lowercase());
    let lower =
        value.as_object().map(|members| members.iter().map(|(key, value)| (key.to_lowercase(), value.clone())).collect::<serde_json::Map<_, _>>());
    let handle = bench.create_text(Kind::Network, id, None, &text(&lower)).map_err(raw)?;
    bench.shut(Kind::Network, handle).map_err(raw)?;
    let made = bench.client.get::<HostComputeNetwork>(&id)?.unwrap_or_default();
    ensure!(made.network_type == document.network_type, "the type comes back as {}", made.network_type);
    ensure!(made.subnets().next().and_then(Subnet::gateway).is_some(), "the subnet was not read: {}", text(&made));
    Ok(())
}

fn unknown_members(bench: &Bench<'_>) -> Check {
    let mut document = bench.endpoint_document()?;
    document.extra.insert("MullionUnknown".into(), json!({"a": [1, null]}));
    bench.create_endpoint(&document)?;
    Ok(())
}

fn macs(bench: &Bench<'_>) -> Check {
    let mut document = bench.endpoint_document()?;
    document.mac_address = "0e:2a:0a:d5:00:63".into();
    let made = bench.create_endpoint(&document)?;
    ensure!(made.mac_address.eq_ignore_ascii_case("0E-2A-0A-D5-00-63"), "the MAC comes back as {}", made.mac_address);
    Ok(())
}

fn shapes(bench: &Bench<'_>) -> Check {
    let network = bench.shared()?.id;
    let endpoint = bench.endpoint()?.id;
    let has = |value: &Value, member: &str| value.get(member).is_some();
    let newer = text(&Query::default());
    let value = bench.properties(Kind::Network, network, Some(&newer))?;
    ensure!(has(&value, "Ipams") && !has(&value, "Subnets"), "a query of schema 2.0 answers {value}");
    for query in [None, Some(r#"{"SchemaVersion":{"Major":1,"Minor":0}}"#)] {
        let value = bench.properties(Kind::Network, network, query)?;
        ensure!(has(&value, "Subnets") && !has(&value, "Ipams"), "query {query:?} of a network answers {value}");
        let value = bench.properties(Kind::Endpoint, endpoint, query)?;
        ensure!(has(&value, "VirtualNetwork") && has(&value, "IPAddress"), "query {query:?} of an endpoint answers {value}");
    }
    Ok(())
}

fn older_create(bench: &Bench<'_>) -> Check {
    let document = v1::Network::of(&bench.network_document(&bench.name("network"), bench.subnet()));
    let id = bench.id(Kind::Network)?;
    let handle = bench.create_text(Kind::Network, id, None, &text(&document)).map_err(raw)?;
    let address = host(document.subnets.first().and_then(|subnet| subnet.address_prefix.parse().ok()).unwrap_or_default(), 20);
    let endpoint = v1::Endpoint { name: bench.name("older"), ip_address: address.to_string(), ..v1::Endpoint::default() };
    let endpoint_id = bench.id(Kind::Endpoint)?;
    let opened = bench.create_text(Kind::Endpoint, endpoint_id, Some(handle), &text(&endpoint)).map_err(raw)?;
    bench.shut(Kind::Endpoint, opened).map_err(raw)?;
    bench.shut(Kind::Network, handle).map_err(raw)?;
    let made = bench.client.get::<HostComputeNetwork>(&id)?.unwrap_or_default();
    ensure!(made.subnets().next().and_then(Subnet::gateway).is_some(), "the network was not read: {}", text(&made));
    let made = bench.client.get::<HostComputeEndpoint>(&endpoint_id)?.unwrap_or_default();
    ensure!(made.ip() == Some(address.into()), "the endpoint was not read: {}", text(&made));
    Ok(())
}

fn filters(bench: &Bench<'_>) -> Check {
    let network = bench.shared()?;
    let endpoint = bench.endpoint()?;
    let list = bench.call(Function::Enumerate(Kind::Network), Args::default()).map_err(raw)?.result.unwrap_or_default();
    let ids = serde_json::from_str::<Vec<Guid>>(&list).map_err(|error| Finding::Differs(format!("no list of GUIDs ({error}): {list}")))?;
    ensure!(ids.contains(&network.id), "an enumeration without a query does not list {}", network.id);
    for (member, value) in [("Name", network.name.clone()), ("ID", network.id.to_string())] {
        let found = bench.client.ids::<HostComputeNetwork>(&Query::by(member, &value))?;
        ensure!(found == [network.id], "{member} = {value} finds {found:?}");
    }
    let found = bench.client.ids::<HostComputeNetwork>(&Query::by_name("mullion-conformance-nobody"))?;
    ensure!(found.is_empty(), "a name that nobody has finds {found:?}");
    for query in [Query::by_network(&network.id), Query::by("VirtualNetworkName", &network.name)] {
        let found = bench.client.ids::<HostComputeEndpoint>(&query)?;
        ensure!(found.contains(&endpoint.id), "{} does not find {}", query.filter, endpoint.id);
    }
    let found = bench.client.ids::<HostComputeEndpoint>(&Query::by_network(&bench.nobody()))?;
    ensure!(found.is_empty(), "a network that does not exist has endpoints {found:?}");
    Ok(())
}

fn hns_call(bench: &Bench<'_>) -> Check {
    let network = bench.shared()?;
    let endpoint = bench.endpoint()?;
    let version = bench.client.hns_call("GET", "/globals/version", "")?;
    ensure!(version.get("Major").is_some() && version.get("Minor").is_some(), "/globals/version answers {version}");
    let listed = |value: &Value, id: Guid| {
        let entries = value.as_array().into_iter().flatten();
        entries.filter_map(|entry| entry.get("ID")?.as_str()?.parse::<Guid>().ok()).any(|found| found == id)
    };
    let networks = bench.client.hns_call("GET", "/networks/", "")?;
    ensure!(listed(&networks, network.id), "/networks/ does not list {}: {networks}", network.id);
    let endpoints = bench.client.hns_call("GET", "/endpoints/", "")?;
    ensure!(listed(&endpoints, endpoint.id), "/endpoints/ does not list {}", endpoint.id);
    let one = bench.client.hns_call("GET", &format!("/endpoints/{}", endpoint.id), "")?;
    ensure!(one.get("VirtualNetwork").is_some(), "/endpoints/ID answers {one}");
    let namespace = bench.namespace()?;
    let request = ModifyRequest::namespace_endpoint(RequestType::Add, endpoint.id);
    bench.modify::<HostComputeNamespace>(&namespace.id, &request)?;
    let stats = bench.client.hns_call("GET", &format!("/endpointstats/{}", endpoint.id), "")?;
    ensure!(stats.get("BytesReceived").is_some() && stats.get("PacketsSent").is_some(), "/endpointstats/ID answers {stats}");
    let found = bench.client.get::<HostComputeNamespace>(&namespace.id)?.unwrap_or_default();
    ensure!(found.resources == [NamespaceResource::endpoint(endpoint.id)], "the namespace holds {}", text(&found.resources));
    Ok(())
}
