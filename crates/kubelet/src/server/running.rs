//! `/run`, which runs a program in a container and answers with its output, and `/runningpods/`, the pods as the runtime has them (upstream
//! `getRun`, `getRunningPods`).

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use cri::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};
use cri::v1;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use thiserror_ext::AsReport as _;

use super::handlers::parameter;
use super::{Body, Server, json as answer_json, streams, text};

/// Runs `cmd` of the query in the container that a path names: NAMESPACE/POD[/UID]/CONTAINER.
pub(super) async fn run(server: &Server, place: &str, query: &str) -> Response<Body> {
    let (namespace, name, uid, container) = match place.split('/').collect::<Vec<_>>()[..] {
        [namespace, name, container] => (namespace, name, None, container),
        [namespace, name, uid, container] => (namespace, name, Some(uid), container),
        _ => return text(StatusCode::NOT_FOUND, "404 page not found"),
    };
    let agent = &server.agent;
    let pod = agent.pod(&cluster::Key::new(namespace, name));
    let Some(pod) = pod.filter(|pod| uid.is_none_or(|uid| pod.metadata.uid.as_deref() == Some(uid))) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let failed = |why: String| text(StatusCode::INTERNAL_SERVER_ERROR, why);
    let id = match streams::running(&agent.cri, pod.metadata.uid.clone().unwrap_or_default(), container).await {
        Ok(Some(id)) => id,
        Ok(None) => return failed(format!("container not found ({container:?})")),
        Err(error) => return failed(error.to_report_string()),
    };
    // Upstream splits at blanks and knows no quotes.
    let command: Vec<String> = parameter(query, "cmd").unwrap_or_default().split(' ').map(str::to_owned).collect();
    match agent.cri.exec_sync(&id, &command, Duration::ZERO).await {
        Ok(done) if done.exit_code == 0 => output(done),
        Ok(done) => {
            let words = String::from_utf8_lossy(&done.stderr).into_owned();
            failed(format!("command '{}' exited with {}: {words}", command.join(" "), done.exit_code))
        }
        Err(error) => failed(error.to_report_string()),
    }
}

fn output(done: v1::ExecSyncResponse) -> Response<Body> {
    let all = [done.stdout, done.stderr].concat();
    let mut answer = Response::new(Full::new(Bytes::from(all)).boxed_unsync());
    // Upstream says so of whatever a program writes.
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// The pods of which the runtime runs something.
pub(super) async fn pods(server: &Server) -> Response<Body> {
    let filter =
        v1::ContainerFilter { state: Some(v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 }), ..Default::default() };
    match server.agent.cri.list_containers(v1::ListContainersRequest { filter: Some(filter) }).await {
        Ok(containers) => answer_json(&list(containers)),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_report_string()),
    }
}

/// Containers as a list of their pods.
fn list(containers: Vec<v1::Container>) -> Value {
    let mut pods: BTreeMap<String, (Value, Vec<Value>)> = BTreeMap::new();
    for container in containers {
        let label = |name: &str| container.labels.get(name).map(String::as_str).unwrap_or_default();
        let uid = label(POD_UID);
        if uid.is_empty() {
            continue;
        }
        let meta = || json!({"name": label(POD_NAME), "namespace": label(POD_NAMESPACE), "uid": uid});
        let (_, all) = pods.entry(uid.to_owned()).or_insert_with(|| (meta(), Vec::new()));
        let image = container.image.as_ref().map(|image| image.image.as_str()).filter(|image| !image.is_empty());
        all.push(json!({"name": label(CONTAINER_NAME), "image": image.unwrap_or(&container.image_ref), "resources": {}}));
    }
    let items = pods.into_values().map(|(metadata, containers)| json!({"metadata": metadata, "spec": {"containers": containers}, "status": {}}));
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_shown_by_their_pods() {
        let of = |pod: &str, name: &str| v1::Container {
            labels: [(POD_UID, pod), (POD_NAME, pod), (POD_NAMESPACE, "ns"), (CONTAINER_NAME, name)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            image_ref: format!("{name}:1"),
            ..Default::default()
        };
        let pods = list(vec![of("a", "one"), of("b", "one"), of("a", "two"), v1::Container::default()]);
        assert_eq!(pods["items"].as_array().unwrap().len(), 2, "{pods}");
        assert_eq!(pods["items"][0]["metadata"], json!({"name": "a", "namespace": "ns", "uid": "a"}));
        assert_eq!(pods["items"][0]["spec"]["containers"][1], json!({"name": "two", "image": "two:1", "resources": {}}));
    }
}
