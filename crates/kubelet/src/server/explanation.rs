//! `/explain/NAMESPACE/POD`: why a pod of this node is not Ready, from its worker, and what the runtime has not answered yet.

use std::sync::Arc;
use std::time::Duration;

use cluster::Key;
use serde_json::{Value, json};

use crate::agent::{Agent, Explained, uid};

/// Calls that are younger are no news.
const NEWS: Duration = Duration::from_secs(5);

/// The document of a pod; None when the node does not have it.
pub(super) async fn document(agent: &Arc<Agent>, key: &Key) -> Option<Value> {
    let pod = agent.pod(key)?;
    let mut document = match agent.workers.explain(&uid(&pod)).await {
        Explained::Whole(explanation) => json!(explanation),
        Explained::Busy(action, age) => {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
            json!({"phase": phase, "ready": false, "steps": [], "busy": {"action": action, "seconds": age.as_secs()}})
        }
        Explained::Unknown => return None,
    };
    document["namespace"] = json!(pod.metadata.namespace);
    document["pod"] = json!(pod.metadata.name);
    document["node"] = json!(agent.side.node_name);
    let calls = agent.cri.waiting().into_iter().filter(|waiting| waiting.age >= NEWS);
    document["runtimeCalls"] = calls.map(|waiting| json!({"call": waiting.call, "seconds": waiting.age.as_secs()})).collect();
    Some(document)
}
