//! metrics.k8s.io/v1beta1 for `kubectl top`: computed when somebody asks, from two readings of each kubelet's `/metrics/resource`
//! (what metrics-server does, without its clock: nothing is read while nobody looks).

mod exposition;
pub mod kept;
mod usage;

use crate::http::call::Call;
use crate::http::negotiate;
use crate::http::respond::{self, Body};
use crate::kind::Kind;
use crate::kinds;
use crate::object;
use crate::registry::read::Selection;
use crate::server::Api;
use crate::status::ApiError;
use futures::StreamExt;
use http::Response;
use kept::Pair;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;
use usage::Reading;

const GROUP: &str = "metrics.k8s.io";
/// A pair of readings is good for as long as metrics-server waits between two.
const FRESH: Duration = Duration::from_secs(15);
/// An earlier reading that may still be compared with.
const OLDEST: Duration = Duration::from_secs(120);
/// Time between two readings when there is no earlier one.
const BETWEEN: Duration = Duration::from_secs(1);
/// Readings until the counters must have moved: kubelets refresh them every few seconds.
const TRIES: usize = 10;
/// Kubelets asked at once.
const AT_ONCE: usize = 16;

/// Answers a request for metrics; `None` for anything else.
pub async fn serve(api: &Api, call: &Call) -> Result<Option<Response<Body>>, ApiError> {
    let info = &call.info;
    if info.group != GROUP {
        return Ok(None);
    }
    let kind = api.registry.kinds.find(&info.group, &info.version, &info.resource);
    let kind = &kind.filter(|_| info.subresource.is_empty()).ok_or_else(ApiError::no_such_resource)?;
    call.check_route(kind)?;
    if !kind.verbs.contains(&info.verb) {
        return Err(ApiError::method_not_allowed(kind, info.verb));
    }
    let accepted = negotiate::accept(&call.headers)?;
    let of = kinds::by_resource("", "v1", &kind.plural).ok_or_else(ApiError::no_such_resource)?;
    let namespace = if kind.namespaced { info.namespace.as_str() } else { "" };
    let objects: Vec<Value> = if info.verb == "get" {
        let found = api.registry.get(of, namespace, &info.name);
        vec![found.map_err(|_| not_found(kind, namespace, &info.name))?.value()]
    } else {
        let selection = Selection::parse(of, &call.query)?;
        let (_, rows) = api.registry.store.list(&of.prefix(namespace));
        rows.into_iter().map(|(_, entry)| entry.value()).filter(|object| selection.matches(object)).collect()
    };
    let mut items = measure(api, kind, &objects).await;
    let include = call.query.get("includeObject").unwrap_or_default();
    let answer = if info.verb == "get" {
        let item = items.pop().ok_or_else(|| not_found(kind, namespace, &info.name))?;
        respond::object(accepted, kind, 200, include, item)
    } else {
        respond::values(accepted, kind, include, &json!({}), items)
    };
    Ok(Some(answer))
}

fn not_found(kind: &Kind, namespace: &str, name: &str) -> ApiError {
    let shown = if namespace.is_empty() { name.to_string() } else { format!("{namespace}/{name}") };
    ApiError::not_found(kind, &shown)
}

/// The metrics objects of nodes or pods; those that nobody can say anything of are left out.
async fn measure(api: &Api, kind: &Kind, objects: &[Value]) -> Vec<Value> {
    let node_of = |object: &Value| match kind.kind.as_str() {
        "NodeMetrics" => object::name(object).to_string(),
        _ => object::text(object, &["spec", "nodeName"]).to_string(),
    };
    let mut nodes: Vec<String> = objects.iter().map(node_of).filter(|node| !node.is_empty()).collect();
    nodes.sort();
    nodes.dedup();
    let mut kept = api.metrics.0.lock().await;
    refresh(api, &mut kept, nodes).await;
    let pair = |object: &Value| kept.get(&node_of(object));
    objects
        .iter()
        .filter_map(|object| if kind.kind == "NodeMetrics" { of_node(pair(object)?, object) } else { of_pod(pair(object)?, object) })
        .collect()
}

fn of_node(pair: &Pair, node: &Value) -> Option<Value> {
    let usage = usage::of_node(&pair.before, &pair.after)?;
    let (timestamp, window) = usage.times();
    Some(json!({
        "kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": metadata(node),
        "timestamp": timestamp, "window": window, "usage": usage.amounts(),
    }))
}

fn of_pod(pair: &Pair, pod: &Value) -> Option<Value> {
    let containers = usage::of_pod(&pair.before, &pair.after, object::namespace(pod), object::name(pod));
    let (timestamp, window) = usage::oldest(&containers)?.times();
    let containers: Vec<Value> = containers.iter().map(|(name, usage)| json!({"name": name, "usage": usage.amounts()})).collect();
    Some(json!({
        "kind": "PodMetrics", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": metadata(pod),
        "timestamp": timestamp, "window": window, "containers": containers,
    }))
}

fn metadata(object: &Value) -> Value {
    let mut metadata = json!({"name": object::name(object), "creationTimestamp": object::now()});
    for member in ["namespace", "labels"] {
        if let Some(value) = object::lookup(object, &["metadata", member]) {
            metadata[member] = value.clone();
        }
    }
    metadata
}

/// Reads the kubelets whose readings are missing or old, several at once, and forgets nodes that are gone.
async fn refresh(api: &Api, kept: &mut HashMap<String, Pair>, nodes: Vec<String>) {
    let now = Instant::now();
    kept.retain(|_, pair| now.duration_since(pair.read) < OLDEST);
    let mut stale = nodes;
    stale.retain(|node| kept.get(node).is_none_or(|pair| now.duration_since(pair.read) >= FRESH));
    let stale: Vec<(String, Option<Reading>)> = stale
        .into_iter()
        .map(|node| {
            let last = kept.remove(&node).map(|pair| pair.after);
            (node, last)
        })
        .collect();
    let mut readings = futures::stream::iter(stale.into_iter().map(|(node, last)| async move { (read_pair(api, &node, last).await, node) }))
        .buffer_unordered(AT_ONCE);
    while let Some((pair, node)) = readings.next().await {
        match pair {
            Ok(pair) => drop(kept.insert(node, pair)),
            Err(error) => tracing::debug!(%node, %error, "a kubelet's counters cannot be read"),
        }
    }
}

/// A reading, and an earlier one to compare it with: the last one, or one made just before.
async fn read_pair(api: &Api, node: &str, last: Option<Reading>) -> Result<Pair, ApiError> {
    let before = match last {
        Some(last) => last,
        None => {
            let first = read(api, node).await?;
            tokio::time::sleep(BETWEEN).await;
            first
        }
    };
    let mut after = read(api, node).await?;
    for _ in 1..TRIES {
        if after.is_newer_than(&before) {
            break;
        }
        tokio::time::sleep(BETWEEN).await;
        after = read(api, node).await?;
    }
    Ok(Pair { before, after, read: Instant::now() })
}

async fn read(api: &Api, node: &str) -> Result<Reading, ApiError> {
    let text = api.kubelet.read(&api.kubelet_location(node)?, "/metrics/resource").await?;
    Ok(Reading::parse(&String::from_utf8_lossy(&text), jiff::Timestamp::now().as_millisecond()))
}
