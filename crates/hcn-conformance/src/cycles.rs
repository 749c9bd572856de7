//! Life cycles: how a change of one object affects others, and its notifications.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::bench::{Bench, ensure, raw, refused, text};
use crate::{Case, Check, Evidence, case};
use hcn::document::{
    EndpointState, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork, ModifyRequest, NamespaceResource,
    NotificationData, Protocol, RequestType,
};
use hcn::error::{HResult, HcnError};
use hcn::guid::Guid;
use hcn::port::{Args, Event, Function, Kind, Subscription};

const GROUP: &str = "cycles";

pub(crate) const CASES: &[Case] = &[
    case(GROUP, "an endpoint goes into a namespace and out", Evidence::Client, attach),
    case(GROUP, "a namespace's endpoints stand in the order they came", Evidence::Client, order),
    case(GROUP, "a deleted namespace lets its endpoints live", Evidence::Inference, namespace_delete),
    case(GROUP, "a deleted endpoint leaves its namespace", Evidence::Client, endpoint_delete),
    case(GROUP, "a namespace notes its containers", Evidence::Client, containers),
    case(GROUP, "a network takes its endpoints with it", Evidence::Client, network_delete),
    case(GROUP, "a load balancer outlives its endpoints", Evidence::Client, stale_backend),
    case(GROUP, "an endpoint can be the host's own", Evidence::Client, host_attach),
    case(GROUP, "an object is not its handle", Evidence::Inference, handle),
    case(GROUP, "networks and namespaces announce themselves", Evidence::Documentation, events),
    case(GROUP, "what is attached and detached announces itself", Evidence::Documentation, attachment_events),
    case(GROUP, "what was deleted can be made again", Evidence::Client, again),
];

fn add(bench: &Bench<'_>, namespace: &Guid, endpoint: &Guid) -> Result<(), HcnError> {
    bench.client.add_endpoint_to_namespace(namespace, endpoint)
}

fn state(bench: &Bench<'_>, endpoint: &Guid) -> Result<(u32, Guid), HcnError> {
    let endpoint = bench.client.get::<HostComputeEndpoint>(endpoint)?.unwrap_or_default();
    Ok((endpoint.state, endpoint.host_compute_namespace))
}

fn attach(bench: &Bench<'_>) -> Check {
    let (namespace, endpoint) = (bench.namespace()?.id, bench.endpoint()?.id);
    add(bench, &namespace, &endpoint)?;
    let (attached, place) = state(bench, &endpoint)?;
    ensure!(matches!(attached, EndpointState::ATTACHED | EndpointState::ATTACHED_SHARING), "State is {attached} after the attach");
    ensure!(place == namespace, "it says it is in {place}");
    let held = bench.client.get::<HostComputeNamespace>(&namespace)?.unwrap_or_default();
    ensure!(held.resources == [NamespaceResource::endpoint(endpoint)], "the namespace holds {}", text(&held.resources));
    bench.client.remove_endpoint_from_namespace(&namespace, &endpoint)?;
    let (detached, place) = state(bench, &endpoint)?;
    ensure!(place.is_nil(), "it still says it is in {place}");
    ensure!(matches!(detached, EndpointState::CREATED | EndpointState::DETACHED), "State is {detached} after the detach");
    add(bench, &namespace, &endpoint)?;
    Ok(())
}

fn order(bench: &Bench<'_>) -> Check {
    let namespace = bench.namespace()?.id;
    let mut endpoints = [bench.endpoint()?.id, bench.endpoint()?.id, bench.endpoint()?.id];
    endpoints.sort_unstable();
    endpoints.reverse();
    for endpoint in &endpoints {
        add(bench, &namespace, endpoint)?;
    }
    let held: Vec<Guid> = bench.client.get::<HostComputeNamespace>(&namespace)?.unwrap_or_default().endpoints().collect();
    ensure!(held == endpoints, "{endpoints:?} became {held:?}");
    Ok(())
}

fn namespace_delete(bench: &Bench<'_>) -> Check {
    let (namespace, endpoint) = (bench.namespace()?.id, bench.endpoint()?.id);
    add(bench, &namespace, &endpoint)?;
    bench.client.delete::<HostComputeNamespace>(&namespace)?;
    ensure!(bench.client.get::<HostComputeNamespace>(&namespace)?.is_none(), "the namespace is still there");
    let (_, place) = state(bench, &endpoint)?;
    ensure!(place.is_nil(), "the endpoint says it is in the deleted namespace");
    ensure!(bench.client.get::<HostComputeEndpoint>(&endpoint)?.is_some(), "the endpoint is gone too");
    Ok(())
}

fn endpoint_delete(bench: &Bench<'_>) -> Check {
    let (namespace, endpoint) = (bench.namespace()?.id, bench.endpoint()?.id);
    add(bench, &namespace, &endpoint)?;
    bench.client.delete::<HostComputeEndpoint>(&endpoint)?;
    let held = bench.client.get::<HostComputeNamespace>(&namespace)?.unwrap_or_default();
    ensure!(held.endpoints().next().is_none(), "the namespace still holds {}", text(&held.resources));
    Ok(())
}

fn containers(bench: &Bench<'_>) -> Check {
    let namespace = bench.namespace()?.id;
    let change = |request| bench.modify::<HostComputeNamespace>(&namespace, &ModifyRequest::namespace_container(request, "conformance"));
    change(RequestType::Add)?;
    let held = bench.client.get::<HostComputeNamespace>(&namespace)?.unwrap_or_default();
    ensure!(held.resources == [NamespaceResource::container("conformance")], "the namespace holds {}", text(&held.resources));
    let outcome = bench.client.delete::<HostComputeNamespace>(&namespace);
    refused("deleting a namespace that holds a container", outcome, &[HResult::REQUEST_UNSUPPORTED])?;
    change(RequestType::Remove)?;
    bench.client.delete::<HostComputeNamespace>(&namespace)?;
    Ok(())
}

fn network_delete(bench: &Bench<'_>) -> Check {
    let network = bench.network()?;
    let endpoint = HostComputeEndpoint { name: bench.name("endpoint"), ..HostComputeEndpoint::default() };
    let local = bench.create_endpoint_on(&network.id, &endpoint)?.id;
    let remote = bench.create_endpoint_on(&network.id, &HostComputeEndpoint::remote([203, 0, 113, 11].into()))?.id;
    bench.client.delete::<HostComputeNetwork>(&network.id)?;
    for id in [local, remote] {
        ensure!(bench.client.get::<HostComputeEndpoint>(&id)?.is_none(), "endpoint {id} outlives its network");
    }
    Ok(())
}

fn stale_backend(bench: &Bench<'_>) -> Check {
    bench.needs_vfp()?;
    let backends = vec![bench.endpoint()?.id, bench.endpoint()?.id];
    let (id, _) = bench.create(&HostComputeLoadBalancer::new(Some([10, 255, 255, 4].into()), Protocol::TCP, 80, 80, backends.clone()))?;
    bench.client.delete::<HostComputeEndpoint>(&backends[0])?;
    let balancer = bench.client.get::<HostComputeLoadBalancer>(&id)?.unwrap_or_default();
    ensure!(balancer.host_compute_endpoints == backends, "the backends are {:?}", balancer.host_compute_endpoints);
    bench.client.delete::<HostComputeLoadBalancer>(&id)?;
    ensure!(bench.client.get::<HostComputeLoadBalancer>(&id)?.is_none(), "the load balancer is still there");
    Ok(())
}

fn host_attach(bench: &Bench<'_>) -> Check {
    let endpoint = bench.endpoint()?.id;
    let body = r#"{"SystemType":"Host","CompartmentId":1}"#;
    bench.client.hns_call("POST", &format!("/endpoints/{endpoint}/attach"), body)?;
    let (attached, _) = state(bench, &endpoint)?;
    ensure!(matches!(attached, EndpointState::ATTACHED | EndpointState::ATTACHED_SHARING), "State is {attached} after the attach");
    let second = bench.client.hns_call("POST", &format!("/endpoints/{endpoint}/attach"), body);
    refused("attaching it again", second, &[HResult::ENDPOINT_ALREADY_ATTACHED])?;
    bench.client.hns_call("POST", &format!("/endpoints/{endpoint}/detach"), "")?;
    Ok(())
}

fn handle(bench: &Bench<'_>) -> Check {
    let endpoint = bench.endpoint()?.id;
    let handle = bench.open(Kind::Endpoint, endpoint).map_err(raw)?;
    bench.client.delete::<HostComputeEndpoint>(&endpoint)?;
    let query = bench.call(Function::Query(Kind::Endpoint), Args { handle: Some(handle), ..Args::default() });
    let codes = [HResult::ENDPOINT_NOT_FOUND, HResult::ELEMENT_NOT_FOUND, HResult::OBJECT_USED_AFTER_UNLOAD];
    crate::bench::refused_raw("a query of what was deleted meanwhile", query, &codes)?;
    bench.shut(Kind::Endpoint, handle).map_err(raw)?;
    // A handle that nobody closes must not keep the next one from opening.
    let network = bench.shared()?.id;
    for _ in 0..32 {
        bench.open(Kind::Network, network).map_err(raw)?;
    }
    Ok(())
}

fn events(bench: &Bench<'_>) -> Check {
    let (heard, subscription) = listen(bench)?;
    let network = bench.network()?.id;
    let namespace = bench.namespace()?.id;
    let endpoint = bench.endpoint()?.id;
    add(bench, &namespace, &endpoint)?;
    bench.client.remove_endpoint_from_namespace(&namespace, &endpoint)?;
    bench.client.delete::<HostComputeNamespace>(&namespace)?;
    bench.client.delete::<HostComputeNetwork>(&network)?;
    let expected = [
        (Event::NETWORK_CREATE, network),
        (Event::NETWORK_PRE_DELETE, network),
        (Event::NETWORK_DELETE, network),
        (Event::NAMESPACE_CREATE, namespace),
        (Event::NAMESPACE_DELETE, namespace),
    ];
    let is = |event: &Event, (event_type, id): (u32, Guid)| {
        let data = event.data.as_deref().and_then(|text| serde_json::from_str::<NotificationData>(text).ok());
        event.event_type == event_type && data.is_some_and(|data| data.id == id)
    };
    await_events(&heard, &|heard| {
        let missed = expected.into_iter().find(|event| !heard.iter().any(|other| is(other, *event)));
        missed.map(|(event_type, id)| format!("{event_type:#x} of {id}"))
    })?;
    drop(subscription);
    let before = heard.lock().unwrap_or_else(PoisonError::into_inner).len();
    bench.namespace()?;
    std::thread::sleep(Duration::from_millis(50));
    let after = heard.lock().unwrap_or_else(PoisonError::into_inner).len();
    ensure!(before == after, "events come after the registration ended");
    Ok(())
}

fn attachment_events(bench: &Bench<'_>) -> Check {
    let (namespace, endpoint) = (bench.namespace()?.id, bench.endpoint()?.id);
    let (heard, _subscription) = listen(bench)?;
    let await_type = |event_type: u32| {
        await_events(&heard, &|heard| (!heard.iter().any(|event| event.event_type == event_type)).then(|| format!("{event_type:#x}")))
    };
    add(bench, &namespace, &endpoint)?;
    await_type(Event::ENDPOINT_ATTACHED)?;
    bench.client.remove_endpoint_from_namespace(&namespace, &endpoint)?;
    await_type(Event::ENDPOINT_DETACHED)
}

type Heard = Arc<Mutex<Vec<Event>>>;

fn listen(bench: &Bench<'_>) -> Result<(Heard, Subscription), HcnError> {
    let heard = Heard::default();
    let ears = heard.clone();
    let subscription = bench.client.subscribe(Arc::new(move |event| ears.lock().unwrap_or_else(PoisonError::into_inner).push(event)))?;
    Ok((heard, subscription))
}

/// Waits until `missed` names no event that is still to come.
fn await_events(heard: &Heard, missed: &dyn Fn(&[Event]) -> Option<String>) -> Check {
    let began = Instant::now();
    loop {
        let heard = heard.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(missed) = missed(&heard) else { return Ok(()) };
        ensure!(began.elapsed() < Duration::from_secs(60), "no event {missed} within 60 s; heard {heard:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn again(bench: &Bench<'_>) -> Check {
    let network = bench.shared()?.id;
    let document = bench.endpoint_document()?;
    let id = bench.id(Kind::Endpoint)?;
    bench.made(Kind::Endpoint, id);
    for _ in 0..3 {
        let endpoint = bench.client.create_endpoint(&network, id, &document)?;
        bench.client.delete::<HostComputeEndpoint>(&endpoint.id)?;
        bench.client.delete::<HostComputeEndpoint>(&endpoint.id)?;
    }
    Ok(())
}
