//! ServiceCIDRs: ready while they are there, and held while Services have addresses that nothing else covers.
//!
//! Inputs: ServiceCIDRs, IPAddresses of the API server's allocator. Outputs: the finalizer and the condition Ready of each ServiceCIDR.
//! Mirrors `pkg/controller/servicecidrs`.
//! Guarantees: a ServiceCIDR goes only when each address in it lies in another one, and not before the API servers have had the time to see
//! that it is being deleted.

mod plan;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use cluster::{ApiServer, Client, Informer, Selection, is_not_found};
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::runner::{Next, Queue};
use plan::{Row, Step};

const NAME: &str = "service-cidr-controller";
/// How long API servers may still allot from a ServiceCIDR whose deletion has begun.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

struct Context {
    client: Client,
    cidrs: Informer<Row>,
    addresses: Informer<std::net::IpAddr>,
    grace: Duration,
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, api: ApiServer, grace: Duration, shutdown: CancellationToken) {
    let cidrs = Informer::start(Api::<ServiceCIDR>::all(client.clone()), Selection::all().of(&api), |cidr| Some(Row::new(cidr)));
    let addresses = Informer::start(Api::<IPAddress>::all(client.clone()), Selection::all().of(&api), plan::address);
    tokio::select! {
        () = async { tokio::join!(cidrs.synced(), addresses.synced()); } => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<String>::default();
    let (keys, all) = (queue.clone(), cidrs.clone());
    cidrs.subscribe(move |change| {
        let name = &change.key.name;
        keys.add(name.clone());
        if change.old.is_none() {
            keys.extend(all.snapshot().into_iter().filter(|(_, other)| change.new.is_some_and(|new| new.overlaps(other))).map(|(key, _)| key.name));
        }
    });
    let (keys, all) = (queue.clone(), cidrs.clone());
    addresses.subscribe(move |change| {
        for address in [change.old, change.new].into_iter().flatten() {
            keys.extend(all.snapshot().into_iter().filter(|(_, cidr)| cidr.deleted.is_some() && cidr.contains(address)).map(|(key, _)| key.name));
        }
    });
    let context = Arc::new(Context { client, cidrs, addresses, grace });
    queue.run("servicecidr", 2, shutdown, |name| sync(context.clone(), name)).await;
}

async fn sync(context: Arc<Context>, name: String) -> anyhow::Result<Next> {
    let all = context.cidrs.snapshot();
    let Some((_, row)) = all.iter().find(|(key, _)| key.name == name) else { return Ok(Next::Change) };
    let others: Vec<&Row> = all.iter().filter(|(key, _)| key.name != name).map(|(_, row)| row.as_ref()).collect();
    let addresses = context.addresses.snapshot();
    for step in plan::plan(row, &others, addresses.iter().map(|(_, address)| address.as_ref()), Timestamp::now(), context.grace) {
        match step {
            Step::Wait(time) => return Ok(Next::Within(time)),
            Step::Hold => finalizer(&context, &name, json!({"finalizers": [plan::FINALIZER]})).await?,
            Step::Release => finalizer(&context, &name, json!({"$deleteFromPrimitiveList/finalizers": [plan::FINALIZER]})).await?,
            Step::Say(condition) => say(&context, &name, &condition).await?,
        }
    }
    Ok(Next::Change)
}

async fn finalizer(context: &Context, name: &str, metadata: Value) -> anyhow::Result<()> {
    let api: Api<ServiceCIDR> = Api::all(context.client.clone());
    let patched = api.patch(name, &PatchParams::default(), &Patch::Strategic(json!({"metadata": metadata}))).await;
    match patched {
        Err(error) if is_not_found(&error) => Ok(()),
        other => other.map(|_| ()).with_context(|| format!("changing the finalizers of ServiceCIDR {name}")),
    }
}

async fn say(context: &Context, name: &str, condition: &plan::Condition) -> anyhow::Result<()> {
    let api: Api<ServiceCIDR> = Api::all(context.client.clone());
    let status = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
        "status": {"conditions": [{"type": plan::READY, "status": condition.status, "reason": condition.reason, "message": condition.message,
            "lastTransitionTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()}]},
    });
    match api.patch_status(name, &PatchParams::apply(NAME).force(), &Patch::Apply(status)).await {
        Err(error) if is_not_found(&error) => Ok(()),
        other => other.map(|_| ()).with_context(|| format!("writing the status of ServiceCIDR {name}")),
    }
}
