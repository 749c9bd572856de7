//! Restart: the objects that survive a clean restart of the service, and those that do not.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::bench::{Bench, ensure, raw, text};
use crate::{Case, Check, Evidence, Finding, case};
use hcn::document::{HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork, Protocol};
use hcn::port::{Args, Event, Function, Kind};

const GROUP: &str = "restart";

pub(crate) const CASES: &[Case] = &[
    case(GROUP, "networks, endpoints, namespaces and load balancers are kept", Evidence::Inference, kept),
    case(GROUP, "handles die, and listeners hear of it", Evidence::Client, dead),
];

fn restart(bench: &Bench<'_>) -> Check {
    let restart = bench.options.restart.as_ref();
    let restart = restart.ok_or_else(|| Finding::NotApplicable("no way to restart the service was given".into()))?;
    restart().map_err(|error| Finding::Differs(format!("the service cannot be restarted: {error}")))?;
    let began = Instant::now();
    while let Err(error) = bench.client.features() {
        ensure!(began.elapsed() < Duration::from_secs(180), "the service does not come back: {error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn kept(bench: &Bench<'_>) -> Check {
    let network = bench.shared()?;
    let (namespace, endpoint) = (bench.namespace()?.id, bench.endpoint()?.id);
    let remote = bench.create_endpoint(&HostComputeEndpoint::remote([203, 0, 113, 12].into()))?.id;
    bench.client.add_endpoint_to_namespace(&namespace, &endpoint)?;
    let balancer = match bench.needs_vfp() {
        Ok(()) => Some(bench.create(&HostComputeLoadBalancer::new(Some([10, 255, 255, 5].into()), Protocol::TCP, 80, 80, vec![endpoint, remote]))?.0),
        Err(_) => None,
    };
    let look = || -> Result<_, Finding> {
        let balancer = balancer.map(|id| bench.client.get::<HostComputeLoadBalancer>(&id)).transpose()?.flatten();
        let endpoints = [bench.client.get::<HostComputeEndpoint>(&endpoint)?, bench.client.get::<HostComputeEndpoint>(&remote)?];
        Ok((bench.client.get::<HostComputeNetwork>(&network.id)?, endpoints, bench.client.get::<HostComputeNamespace>(&namespace)?, balancer))
    };
    let before = look()?;
    restart(bench)?;
    let after = look()?;
    ensure!(after.0 == before.0, "the network was {} and is {}", text(&before.0), text(&after.0));
    ensure!(after.1 == before.1, "the endpoints were {} and are {}", text(&before.1), text(&after.1));
    ensure!(after.2 == before.2, "the namespace was {} and is {}", text(&before.2), text(&after.2));
    ensure!(after.3 == before.3, "the load balancer was {} and is {}", text(&before.3), text(&after.3));
    Ok(())
}

fn dead(bench: &Bench<'_>) -> Check {
    let network = bench.shared()?.id;
    let heard: Arc<Mutex<Vec<u32>>> = Arc::default();
    let ears = heard.clone();
    let _subscription = bench.client.subscribe(Arc::new(move |event| ears.lock().unwrap_or_else(PoisonError::into_inner).push(event.event_type)))?;
    let handle = bench.open(Kind::Network, network).map_err(raw)?;
    restart(bench)?;
    let query = bench.call(Function::Query(Kind::Network), Args { handle: Some(handle), ..Args::default() });
    ensure!(query.is_err(), "a handle of before the restart still serves");
    let began = Instant::now();
    while !heard.lock().unwrap_or_else(PoisonError::into_inner).contains(&Event::SERVICE_DISCONNECT) {
        ensure!(began.elapsed() < Duration::from_secs(60), "listeners do not hear that the service went away");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
