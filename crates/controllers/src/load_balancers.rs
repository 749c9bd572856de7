//! Load balancers without a cloud: an address of a given range for each Service of type LoadBalancer.
//!
//! Inputs: Services, the range. Outputs: `status.loadBalancer.ingress` (nodes serve that address as a VIP), Events. Events and conditions
//! for touching a Service mirror `k8s.io/cloud-provider/controllers/service`.
//! Guarantees: no two Services get the same address; a Service keeps its address until it asks for another one, changes its type or goes
//! away; Services of another load-balancer class are never touched.

mod plan;

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context as _;
use cluster::{ApiServer, Client, EventRecorder, EventType, Informer, Key, Selection, is_conflict, is_not_found};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{ObjectReference, Service};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::runner::{Next, Queue};
use plan::{Action, Row, plan};

struct Context {
    client: Client,
    services: Informer<Row>,
    events: EventRecorder,
    range: Ipv4Net,
    /// Addresses given but perhaps not yet seen on their Service, by its uid.
    given: Mutex<BTreeMap<String, Ipv4Addr>>,
}

impl Context {
    fn given(&self) -> MutexGuard<'_, BTreeMap<String, Ipv4Addr>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, api: ApiServer, range: Ipv4Net, shutdown: CancellationToken) {
    let services = Informer::start(Api::<Service>::all(client.clone()), Selection::all().of(&api), Row::new);
    tokio::select! {
        () = services.synced() => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Key>::default();
    let (keys, all) = (queue.clone(), services.clone());
    services.subscribe(move |change| {
        keys.add(change.key.clone());
        let address = |row: Option<&Arc<Row>>| row.and_then(|row| row.addresses.first().cloned());
        // What one gives back another may wait for.
        if change.old.is_some() && address(change.old) != address(change.new) {
            keys.extend(all.snapshot().into_iter().filter(|(_, row)| row.wanted && row.addresses.is_empty()).map(|(key, _)| key));
        }
    });
    let events = EventRecorder::new(client.clone(), "service-controller", "");
    let context = Arc::new(Context { client, services, events, range, given: Mutex::default() });
    // One at a time: each sees what the one before took.
    queue.run("loadbalancer", 1, shutdown, |key| sync(context.clone(), key)).await;
}

async fn sync(context: Arc<Context>, key: Key) -> anyhow::Result<Next> {
    let services = context.services.snapshot();
    context.given().retain(|uid, _| services.iter().any(|(_, row)| row.uid == *uid));
    let Some(row) = context.services.get(&key) else { return Ok(Next::Change) };
    let taken = services.iter().filter(|(other, _)| *other != key).filter_map(|(_, row)| row.own_address(context.range));
    let taken: Vec<Ipv4Addr> = {
        let given = context.given();
        taken.chain(given.iter().filter(|(uid, _)| **uid != row.uid).map(|(_, address)| *address)).collect()
    };
    let object = reference(&key, &row);
    match plan(&row, context.range, &taken) {
        Action::Nothing => {
            if !row.wanted {
                context.given().remove(&row.uid);
            }
            Ok(Next::Change)
        }
        Action::Refuse(reason) => {
            let message = format!("Error syncing load balancer: failed to ensure load balancer: {reason}");
            context.events.event(&object, EventType::Warning, "SyncLoadBalancerFailed", None, message);
            Ok(Next::Change)
        }
        Action::Give(address) => {
            context.given().insert(row.uid.clone(), address);
            context.events.event(&object, EventType::Normal, "EnsuringLoadBalancer", None, "Ensuring load balancer");
            write(&context, &key, &row, json!({"ingress": [{"ip": address, "ipMode": "VIP"}]})).await?;
            context.events.event(&object, EventType::Normal, "EnsuredLoadBalancer", None, "Ensured load balancer");
            Ok(Next::Change)
        }
        Action::Release => {
            context.events.event(&object, EventType::Normal, "DeletingLoadBalancer", None, "Deleting load balancer");
            write(&context, &key, &row, json!({"ingress": null})).await?;
            context.given().remove(&row.uid);
            context.events.event(&object, EventType::Normal, "DeletedLoadBalancer", None, "Deleted load balancer");
            Ok(Next::Change)
        }
    }
}

async fn write(context: &Context, key: &Key, row: &Row, status: Value) -> anyhow::Result<()> {
    let api: Api<Service> = Api::namespaced(context.client.clone(), &key.ns);
    let patch = json!({"metadata": {"uid": row.uid, "resourceVersion": row.version}, "status": {"loadBalancer": status}});
    match api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) if is_conflict(&error) => anyhow::bail!("{key} changed meanwhile; it will be looked at again"),
        other => other.map(drop).with_context(|| format!("writing the load balancer of {key}")),
    }
}

fn reference(key: &Key, row: &Row) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(key.ns.to_string()),
        name: Some(key.name.to_string()),
        uid: Some(row.uid.clone()),
        resource_version: Some(row.version.clone()),
        ..Default::default()
    }
}
