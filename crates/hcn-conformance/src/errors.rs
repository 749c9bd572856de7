//! Errors: refused calls, their codes and records, and that a refusal changes nothing.

use serde_json::{Value, json};

use crate::bench::{Bench, ensure, host, prefix_of, raw, refused, refused_raw, text};
use crate::{Case, Check, Evidence, case};
use hcn::document::{
    EndpointPolicy, EndpointPolicyType, ErrorRecord, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork,
    HostComputeRoute, IpConfiguration, ModifyRequest, NetworkType, PortMapping, Protocol, Query, RequestType,
};
use hcn::error::HResult;
use hcn::guid::Guid;
use hcn::port::{Args, Function, Kind};

const GROUP: &str = "errors";

pub(crate) const CASES: &[Case] = &[
    case(GROUP, "what does not exist cannot be opened or deleted", Evidence::Report, missing),
    case(GROUP, "an error record says the code and the system's text", Evidence::Client, record),
    case(GROUP, "text that is no document is refused", Evidence::Documentation, bad_json),
    case(GROUP, "a network's name is unique", Evidence::Report, network_name),
    case(GROUP, "a type that nobody knows is refused", Evidence::Inference, network_type),
    case(GROUP, "a prefix that is none is refused", Evidence::Report, prefix),
    case(GROUP, "an overlay needs a number of 4096 or more", Evidence::Report, low_vsid),
    case(GROUP, "an address outside the subnets is refused", Evidence::Report, outside),
    case(GROUP, "an address belongs to one local endpoint", Evidence::Report, duplicate_address),
    case(GROUP, "a local and a remote endpoint may share an address", Evidence::Report, twin_address),
    case(GROUP, "endpoints may share a name", Evidence::Client, same_name),
    case(GROUP, "prefixes behind the host's address do not overlap", Evidence::Report, nat_prefix),
    case(GROUP, "the gateway's address is the service's", Evidence::Client, gateway),
    case(GROUP, "a load balancer needs endpoints that exist", Evidence::Report, empty_balancer),
    case(GROUP, "a load balancer's frontend is unique", Evidence::Report, duplicate_frontend),
    case(GROUP, "a host port belongs to one endpoint", Evidence::Report, duplicate_port),
    case(GROUP, "a host port needs a port inside", Evidence::Documentation, zero_port),
    case(GROUP, "a policy of a type that nobody knows is refused", Evidence::Inference, policy_type),
    case(GROUP, "an endpoint is in one namespace at a time", Evidence::Client, twice_attached),
    case(GROUP, "a remote endpoint cannot be attached", Evidence::Client, remote_attach),
    case(GROUP, "what is not attached cannot be detached", Evidence::Report, not_attached),
    case(GROUP, "a handle serves its own kind until it is closed", Evidence::Inference, handles),
    case(GROUP, "a refused call changes nothing", Evidence::Inference, unchanged),
];

fn missing(bench: &Bench<'_>) -> Check {
    let id = Some(bench.nobody());
    let codes = |kind| match kind {
        Kind::Network => vec![HResult::NETWORK_NOT_FOUND, HResult::ELEMENT_NOT_FOUND],
        Kind::Endpoint => vec![HResult::ENDPOINT_NOT_FOUND, HResult::ELEMENT_NOT_FOUND],
        _ => vec![HResult::ELEMENT_NOT_FOUND],
    };
    for kind in [Kind::Network, Kind::Endpoint, Kind::Namespace, Kind::LoadBalancer, Kind::SdnRoute] {
        for function in [Function::Open(kind), Function::Delete(kind)] {
            let outcome = bench.call(function, Args { id, ..Args::default() });
            refused_raw(&function.to_string(), outcome, &codes(kind))?;
        }
    }
    Ok(())
}

fn record(bench: &Bench<'_>) -> Check {
    let outcome = bench.call(Function::Open(Kind::Namespace), Args { id: Some(bench.nobody()), ..Args::default() });
    let error = outcome.err().map(|error| (error.hresult, error.record.unwrap_or_default()));
    let (hresult, record) = error.unwrap_or((HResult::OK, String::new()));
    let read: ErrorRecord = serde_json::from_str(&record).unwrap_or_default();
    ensure!(!read.success && read.hresult() == Some(hresult), "{hresult:?} comes with the record {record:?}");
    ensure!(!read.error.is_empty(), "the record has no text: {record}");
    Ok(())
}

fn bad_json(bench: &Bench<'_>) -> Check {
    let network = bench.shared()?.id;
    for kind in [Kind::Network, Kind::Endpoint, Kind::Namespace, Kind::LoadBalancer, Kind::SdnRoute] {
        for settings in ["{", "[]", "42", "\"text\"", r#"{"SchemaVersion":{"Major":2},"Policies":"none","Resources":7,"HostComputeEndpoints":{}}"#] {
            let opened = if kind == Kind::Endpoint { Some(bench.open(Kind::Network, network).map_err(raw)?) } else { None };
            let outcome = bench.create_text(kind, bench.id(kind)?, opened, settings);
            if let Some(handle) = opened {
                bench.shut(Kind::Network, handle).map_err(raw)?;
            }
            let what = format!("creating a {} from {settings}", kind.as_str());
            refused_raw(&what, outcome, &[HResult::INVALID_JSON, HResult::INVALID_PARAMETER])?;
        }
    }
    Ok(())
}

fn network_name(bench: &Bench<'_>) -> Check {
    let first = bench.network()?;
    let document = bench.network_document(&first.name, bench.subnet());
    refused("a second network of that name", bench.create(&document), &[HResult::NETWORK_ALREADY_EXISTS])
}

fn network_type(bench: &Bench<'_>) -> Check {
    let mut document = bench.network_document(&bench.name("network"), bench.subnet());
    document.network_type = NetworkType::Other("Warp".into());
    refused("a network of type Warp", bench.create(&document), &[HResult::INVALID_NETWORK_TYPE, HResult::INVALID_JSON])
}

fn prefix(bench: &Bench<'_>) -> Check {
    for wrong in ["10.213.300.0/24", "10.213.7.0/33", "here"] {
        let mut document = bench.network_document(&bench.name("network"), bench.subnet());
        for subnet in document.ipams.iter_mut().flat_map(|ipam| &mut ipam.subnets) {
            subnet.ip_address_prefix = wrong.into();
        }
        let codes = [HResult::INVALID_PREFIX, HResult::INVALID_PARAMETER, HResult::INVALID_SUBNET];
        refused(&format!("a network with prefix {wrong}"), bench.create(&document), &codes)?;
    }
    Ok(())
}

fn low_vsid(bench: &Bench<'_>) -> Check {
    bench.only_on(&[NetworkType::Overlay])?;
    let mut document = bench.network_document(&bench.name("network"), bench.subnet());
    for policy in document.ipams.iter_mut().flat_map(|ipam| &mut ipam.subnets).flat_map(|subnet| &mut subnet.policies) {
        policy.settings = json!({"IsolationId": 7});
    }
    refused("an overlay with VSID 7", bench.create(&document), &[HResult::INVALID_PARAMETER, HResult::INVALID_POLICY, HResult::INVALID_PREFIX])
}

fn at(bench: &Bench<'_>, address: std::net::IpAddr) -> Result<HostComputeEndpoint, hcn::error::HcnError> {
    let mut document = bench.endpoint_document()?;
    document.ip_configurations = vec![IpConfiguration { ip_address: address.to_string(), prefix_length: 24, ..IpConfiguration::default() }];
    document.routes.clear();
    Ok(document)
}

fn outside(bench: &Bench<'_>) -> Check {
    let document = at(bench, [203, 0, 113, 9].into())?;
    refused("a local endpoint outside the subnets", bench.create_endpoint(&document), &[HResult::INVALID_IP])
}

fn duplicate_address(bench: &Bench<'_>) -> Check {
    let first = bench.endpoint()?;
    let document = at(bench, first.ip().unwrap_or([0, 0, 0, 0].into()))?;
    let codes = [HResult::OBJECT_ALREADY_EXISTS, HResult::ADDR_INVALID_OR_RESERVED];
    refused("a second local endpoint at that address", bench.create_endpoint(&document), &codes)
}

fn twin_address(bench: &Bench<'_>) -> Check {
    let local = bench.endpoint()?;
    let address = local.ip().unwrap_or([0, 0, 0, 0].into());
    let remote = bench.create_endpoint(&HostComputeEndpoint::remote(address))?;
    ensure!(remote.id != local.id && remote.ip() == Some(address), "the remote one came back as {}", text(&remote));
    Ok(())
}

fn same_name(bench: &Bench<'_>) -> Check {
    let first = bench.endpoint()?;
    let document = HostComputeEndpoint { name: first.name.clone(), ..bench.endpoint_document()? };
    let second = bench.create_endpoint(&document)?;
    ensure!(first.id != second.id, "both have the identifier {}", first.id);
    let found = bench.client.ids::<HostComputeEndpoint>(&Query::by_name(&first.name))?;
    ensure!([first.id, second.id].iter().all(|id| found.contains(id)), "a filter by that name finds {found:?}");
    Ok(())
}

fn nat_prefix(bench: &Bench<'_>) -> Check {
    bench.only_on(&[NetworkType::Nat, NetworkType::Ics])?;
    let document = bench.network_document(&bench.name("network"), prefix_of(&bench.shared()?));
    refused("a second network of that prefix", bench.create(&document), &[HResult::DUPLICATE_NAME])
}

fn gateway(bench: &Bench<'_>) -> Check {
    bench.only_on(&[NetworkType::Nat, NetworkType::Overlay, NetworkType::Ics])?;
    let document = at(bench, host(prefix_of(&bench.shared()?), 1).into())?;
    refused("an endpoint at the gateway's address", bench.create_endpoint(&document), &[HResult::ADDR_INVALID_OR_RESERVED])
}

fn empty_balancer(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    for backends in [vec![], vec![bench.nobody()]] {
        let what = format!("a load balancer of {backends:?}");
        let document = HostComputeLoadBalancer::new(Some([10, 255, 255, 2].into()), Protocol::TCP, 80, 80, backends);
        refused(&what, bench.create(&document), &[HResult::INVALID_JSON_REFERENCE, HResult::ENDPOINT_NOT_FOUND])?;
    }
    Ok(())
}

fn duplicate_frontend(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    let endpoint = bench.endpoint()?.id;
    let document = |protocol, port| HostComputeLoadBalancer::new(Some([10, 255, 255, 3].into()), protocol, port, 80, vec![endpoint]);
    bench.create(&document(Protocol::TCP, 80))?;
    let codes = [HResult::PORT_ALREADY_EXISTS, HResult::ALREADY_EXISTS];
    refused("a second load balancer there", bench.create(&document(Protocol::TCP, 80)), &codes)?;
    bench.create(&document(Protocol::UDP, 80))?;
    bench.create(&document(Protocol::TCP, 81))?;
    Ok(())
}

fn mapped(bench: &Bench<'_>, external_port: u16, internal_port: u16) -> Result<HostComputeEndpoint, hcn::error::HcnError> {
    let mapping = PortMapping { protocol: Protocol::TCP, internal_port, external_port, ..PortMapping::default() };
    Ok(bench.endpoint_document()?.with_policy(EndpointPolicy::port_mapping(&mapping)))
}

fn duplicate_port(bench: &Bench<'_>) -> Check {
    bench.only_on(&[NetworkType::Nat, NetworkType::L2Bridge, NetworkType::Overlay])?;
    bench.create_endpoint(&mapped(bench, 31998, 80)?)?;
    let codes = [HResult::PORT_ALREADY_EXISTS, HResult::SHARING_VIOLATION];
    refused("a second endpoint with that host port", bench.create_endpoint(&mapped(bench, 31998, 81)?), &codes)
}

fn zero_port(bench: &Bench<'_>) -> Check {
    bench.only_on(&[NetworkType::Nat, NetworkType::L2Bridge, NetworkType::Overlay])?;
    let codes = [HResult::INVALID_INTERNAL_PORT, HResult::INVALID_PARAMETER];
    refused("a host port without a port inside", bench.create_endpoint(&mapped(bench, 31997, 0)?), &codes)
}

fn policy_type(bench: &Bench<'_>) -> Check {
    let wrong = EndpointPolicy { policy_type: EndpointPolicyType::Other("Warp".into()), settings: json!({"a": 1}), ..EndpointPolicy::default() };
    let document = bench.endpoint_document()?.with_policy(wrong);
    let codes = [HResult::INVALID_POLICY_TYPE, HResult::INVALID_POLICY, HResult::INVALID_PARAMETER, HResult::INVALID_JSON];
    refused("an endpoint with a policy of type Warp", bench.create_endpoint(&document), &codes)
}

/// Adds without the client's habit of taking "already there" as success.
fn add(bench: &Bench<'_>, namespace: Guid, endpoint: Guid) -> Result<(), hcn::error::HcnError> {
    bench.modify::<HostComputeNamespace>(&namespace, &ModifyRequest::namespace_endpoint(RequestType::Add, endpoint))
}

fn twice_attached(bench: &Bench<'_>) -> Check {
    let (first, second) = (bench.namespace()?.id, bench.namespace()?.id);
    let endpoint = bench.endpoint()?.id;
    add(bench, first, endpoint)?;
    refused("adding it to the same namespace", add(bench, first, endpoint), &[HResult::ENDPOINT_ALREADY_ATTACHED])?;
    refused("adding it to another namespace", add(bench, second, endpoint), &[HResult::ENDPOINT_NAMESPACE_ALREADY_EXISTS])?;
    refused("adding to a namespace that does not exist", add(bench, bench.nobody(), endpoint), &[HResult::ELEMENT_NOT_FOUND])?;
    let codes = [HResult::ENDPOINT_NOT_FOUND, HResult::ELEMENT_NOT_FOUND];
    refused("adding an endpoint that does not exist", add(bench, second, bench.nobody()), &codes)
}

fn remote_attach(bench: &Bench<'_>) -> Check {
    let endpoint = bench.create_endpoint(&HostComputeEndpoint::remote([203, 0, 113, 10].into()))?.id;
    let namespace = bench.namespace()?.id;
    refused("attaching a remote endpoint", add(bench, namespace, endpoint), &[HResult::INVALID_REMOTE_ENDPOINT_OPERATION])
}

fn not_attached(bench: &Bench<'_>) -> Check {
    let namespace = bench.namespace()?.id;
    let endpoint = bench.endpoint()?.id;
    let remove = ModifyRequest::namespace_endpoint(RequestType::Remove, endpoint);
    let codes = [HResult::ELEMENT_NOT_FOUND, HResult::ENDPOINT_NOT_ATTACHED];
    refused("removing a detached endpoint", bench.modify::<HostComputeNamespace>(&namespace, &remove), &codes)
}

fn handles(bench: &Bench<'_>) -> Check {
    let handle = bench.open(Kind::Network, bench.shared()?.id).map_err(raw)?;
    let query = |kind| bench.call(Function::Query(kind), Args { handle: Some(handle), ..Args::default() });
    query(Kind::Network).map_err(raw)?;
    bench.shut(Kind::Network, handle).map_err(raw)?;
    let codes = [HResult::INVALID_HANDLE, HResult::OBJECT_USED_AFTER_UNLOAD, HResult::INVALID_PARAMETER];
    refused_raw("a query by a closed handle", query(Kind::Network), &codes)
}

/// Everything the service keeps, by identifier.
fn inventory(bench: &Bench<'_>) -> Result<Vec<Vec<Guid>>, hcn::error::HcnError> {
    [Kind::Network, Kind::Endpoint, Kind::Namespace, Kind::LoadBalancer, Kind::SdnRoute].into_iter().map(|kind| bench.ids(kind)).collect()
}

fn unchanged(bench: &Bench<'_>) -> Check {
    let endpoint = bench.endpoint()?;
    let (before, document) = (inventory(bench)?, bench.client.get::<HostComputeEndpoint>(&endpoint.id)?);
    let wrong: [Value; 4] = [
        json!({"ResourceType": "Warp", "RequestType": "Add", "Settings": {}}),
        json!({"ResourceType": "Policy", "RequestType": "Warp", "Settings": {"Policies": []}}),
        json!({"ResourceType": "Policy", "RequestType": "Add", "Settings": {"Policies": [{"Type": "Warp"}]}}),
        json!({"ResourceType": "Policy", "RequestType": "Add", "Settings": {"Policies": 7}}),
    ];
    for request in wrong {
        let handle = bench.open(Kind::Endpoint, endpoint.id).map_err(raw)?;
        let settings = request.to_string();
        let outcome = bench.call(Function::Modify(Kind::Endpoint), Args { handle: Some(handle), settings: Some(&settings), ..Args::default() });
        bench.shut(Kind::Endpoint, handle).map_err(raw)?;
        ensure!(outcome.is_err(), "{request} is not refused");
    }
    let twin = at(bench, endpoint.ip().unwrap_or([0, 0, 0, 0].into()))?;
    ensure!(bench.create_endpoint(&twin).is_err(), "a second endpoint at {:?} is not refused", endpoint.ip());
    let route = HostComputeRoute { host_compute_endpoints: vec![bench.nobody()], ..HostComputeRoute::default() };
    ensure!(bench.create(&route).is_err(), "a rule of an endpoint that does not exist is not refused");
    ensure!(inventory(bench)? == before, "refused calls made or removed objects");
    ensure!(bench.client.get::<HostComputeEndpoint>(&endpoint.id)? == document, "refused calls changed the endpoint");
    ensure!(bench.client.get::<HostComputeNetwork>(&endpoint.host_compute_network)?.is_some(), "refused calls removed the network");
    Ok(())
}
