//! `mullion node explain`: why a pod is not Ready, asked of its node's agent through the API server.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, anyhow, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::cli::ExplainArgs;
use crate::exit::Failure;

pub fn main(args: &ExplainArgs) -> Result<(), Failure> {
    let document = crate::agent_runtime()?.block_on(explain(args))?;
    if args.output.is_some() {
        println!("{}", serde_json::to_string_pretty(&document).context("the explanation cannot be printed")?);
    } else {
        print!("{}", render(&document));
    }
    Ok(())
}

async fn explain(args: &ExplainArgs) -> Result<Value> {
    cluster::install_crypto_provider();
    let client = match &args.kubeconfig {
        Some(path) => cluster::client_from_kubeconfig(path).await?,
        None => Client::try_default().await.context("no cluster to ask: give its kubeconfig with --kubeconfig, or in KUBECONFIG")?,
    };
    let namespace = args.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    let pod = Api::<Pod>::namespaced(client.clone(), &namespace).get(&args.pod).await;
    let pod = pod.map_err(|error| refused(format!("cannot read pod {} of namespace {namespace}", args.pod), error))?;
    let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) else {
        return Ok(unscheduled(&pod));
    };
    let path = format!("/api/v1/nodes/{node}/proxy/explain/{namespace}/{}", args.pod);
    let request = http::Request::get(path).body(Vec::new()).context("the request cannot be made")?;
    match client.request::<Value>(request).await {
        Ok(document) => Ok(document),
        Err(kube::Error::Api(status)) if status.code == 404 && status.message.contains("page not found") => {
            bail!("the agent of node {node} explains no pods: it is not Mullion's; `kubectl describe pod {}` has the pod's events", args.pod)
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {
            Err(anyhow!("the agent of node {node} does not have pod {}: it is new, or ends just now; ask again", args.pod))
        }
        Err(error) => Err(refused(format!("cannot ask the agent of node {node}"), error)),
    }
}

/// An error of a request, with the API server's own words where it answered.
fn refused(what: String, error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow!("{what}: {}", status.message.trim_end()),
        error => anyhow::Error::new(error).context(what),
    }
}

/// The document of a pod that no node has: what the scheduler says of it.
fn unscheduled(pod: &Pod) -> Value {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let said = conditions.filter(|c| c.type_ == "PodScheduled").find_map(|c| c.message.clone());
    let gates: Vec<&str> = pod.spec.iter().flat_map(|spec| spec.scheduling_gates.iter().flatten()).map(|gate| gate.name.as_str()).collect();
    let detail = match (said, gates.as_slice()) {
        (_, gates) if !gates.is_empty() => format!("scheduling gates hold it: {}", gates.join(", ")),
        (Some(said), _) if !said.is_empty() => said,
        _ => "the scheduler has not said anything about it: is one running?".to_owned(),
    };
    json!({
        "namespace": pod.metadata.namespace,
        "pod": pod.metadata.name,
        "node": null,
        "phase": "Pending",
        "ready": false,
        "steps": [{"step": "scheduling", "progress": "waiting", "detail": detail}],
    })
}

/// One line of what a document says, each text of others without line ends or control characters.
fn plain(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    text.split(|c: char| c.is_control()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The screen of a document.
fn render(document: &Value) -> String {
    let place = match document["node"].as_str() {
        Some(node) => format!("on {node}"),
        None => "on no node".to_owned(),
    };
    let ready = if document["ready"] == true { "Ready" } else { "not Ready" };
    let (namespace, pod, phase) = (plain(&document["namespace"]), plain(&document["pod"]), plain(&document["phase"]));
    let mut out = format!("pod {namespace}/{pod} {place} is {ready} ({phase})\n\n");
    let rows: Vec<[String; 3]> = document["steps"].as_array().into_iter().flatten().map(row).collect();
    let width = rows.iter().map(|[_, step, _]| step.chars().count()).max().unwrap_or_default();
    for [progress, step, detail] in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", format!("  {progress:<8} {step:<width$}  {detail}").trim_end());
    }
    if let Some(action) = document["busy"]["action"].as_str() {
        let _ = writeln!(out, "  The agent is held up for {} s by: {action}", document["busy"]["seconds"]);
    }
    for call in document["runtimeCalls"].as_array().into_iter().flatten() {
        let _ = writeln!(out, "  The container runtime has not answered {} for {} s.", plain(&call["call"]), call["seconds"]);
    }
    if let Some(at) = document["nextLook"].as_str().and_then(|at| at.parse::<Timestamp>().ok()) {
        let _ = writeln!(out, "\n  Without news the agent looks again at {at:.0}.");
    }
    out
}

fn row(step: &Value) -> [String; 3] {
    let of = plain(&step["of"]);
    let name = if of.is_empty() { plain(&step["step"]) } else { format!("{} {of}", plain(&step["step"])) };
    [plain(&step["progress"]), name, plain(&step["detail"])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_has_a_line_for_each_step() {
        let steps = json!([
            {"step": "admission", "progress": "done", "detail": "the node took the pod"},
            {"step": "image", "of": "web", "progress": "failed", "detail": "ErrImagePull:\n\u{1b}[31m not found"},
            {"step": "start", "of": "web", "progress": "not-yet", "detail": ""},
        ]);
        let calls = json!([{"call": "PullImage", "seconds": 40}]);
        let mut document = json!({"namespace": "shop", "pod": "iis", "node": "win01", "phase": "Pending", "ready": false, "steps": steps});
        document["runtimeCalls"] = calls;
        document["nextLook"] = json!("2026-11-25T01:54:56.998429Z");
        let want = "pod shop/iis on win01 is not Ready (Pending)\n\n  done     admission  the node took the pod\n  failed   image web  ErrImagePull: [31m not found\n  not-yet  start web\n  The container runtime has not answered PullImage for 40 s.\n\n  Without news the agent looks again at 2026-11-25T01:54:56Z.\n";
        assert_eq!(render(&document), want);
    }

    #[test]
    fn an_error_has_the_words_of_the_api_server_once() {
        let status = kube::core::Status::failure("pods \"nosuch\" not found", "NotFound").with_code(404).boxed();
        let error = refused("cannot read pod nosuch of namespace default".to_owned(), kube::Error::Api(status));
        assert_eq!(format!("{error:#}"), "cannot read pod nosuch of namespace default: pods \"nosuch\" not found");
    }

    #[test]
    fn a_pod_without_a_node_says_what_the_scheduler_says() {
        let status = json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]});
        let pod = |spec: Value| serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec, "status": status})).unwrap();
        let detail = |pod: &Pod| unscheduled(pod)["steps"][0]["detail"].as_str().unwrap().to_owned();
        assert_eq!(detail(&pod(json!({"containers": []}))), "0/3 nodes are available");
        let gated = pod(json!({"containers": [], "schedulingGates": [{"name": "example.com/quota"}]}));
        assert_eq!(detail(&gated), "scheduling gates hold it: example.com/quota");
    }
}
