//! The pod of a request, and its annotations from the API server.

use std::time::Duration;

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use thiserror_ext::AsReport as _;
use tokio::time::Instant;

use super::switch::Settings;
use super::{Config, PodNetwork, later};
use crate::plugin::Request;
use crate::spec::{CniError, code};

/// Delays between looks at the pod.
const DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// On the mirror of a pod from a file: that pod's UID.
const MIRROR: &str = "kubernetes.io/config.mirror";
const KNOWN: &[&str] = &["K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_INFRA_CONTAINER_ID", "K8S_POD_UID", "MAC"];

/// The pod that a runtime asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub namespace: String,
    pub name: String,
    /// Empty where the runtime does not say.
    pub uid: String,
}

impl Pod {
    pub fn of(request: &Request) -> Result<Self, CniError> {
        request.refuse_unknown_args(KNOWN)?;
        let needed = |key: &str| {
            let value = request.args.get(key).filter(|value| !value.is_empty());
            value
                .cloned()
                .ok_or_else(|| CniError::new(code::INVALID_ENVIRONMENT, format!("CNI_ARGS has no {key}: the runtime has to say which pod it is")))
        };
        let uid = request.args.get("K8S_POD_UID").cloned().unwrap_or_default();
        Ok(Self { namespace: needed("K8S_POD_NAMESPACE")?, name: needed("K8S_POD_NAME")?, uid })
    }

    /// Whether the API's pod of its name is this one. Of a pod from a file the API has a mirror with a UID of its own, which names the pod's.
    fn is(&self, found: &ObjectMeta) -> bool {
        let mirrored = || found.annotations.as_ref()?.get(MIRROR);
        self.uid.is_empty() || found.uid.as_ref() == Some(&self.uid) || mirrored() == Some(&self.uid)
    }

    /// The name of its logical port.
    pub fn port_name(&self) -> String {
        format!("{}_{}", self.namespace, self.name)
    }
}

/// Waits for the pod's annotation.
pub(super) async fn network(pod: &Pod, config: &Config, settings: &Settings) -> Result<PodNetwork, CniError> {
    let api = Api::<v1::Pod>::namespaced(client(config, settings).await?, &pod.namespace);
    let end = Instant::now() + config.limit();
    let mut delay = DELAYS.0;
    loop {
        let missing = match tokio::time::timeout_at(end, api.get_metadata_opt(&pod.name)).await {
            Err(_) => "the API server does not answer".to_owned(),
            Ok(Ok(None)) => return Err(later(format!("there is no pod {}/{}", pod.namespace, pod.name))),
            Ok(Ok(Some(found))) if !pod.is(&found.metadata) => {
                return Err(later(format!("pod {}/{} is another one now", pod.namespace, pod.name)));
            }
            Ok(Ok(Some(found))) => match PodNetwork::read(&found.metadata.annotations.unwrap_or_default()) {
                Ok(Some(network)) => return Ok(network),
                Ok(None) => "it has none yet; look whether the watcher (mullion ovn watcher) runs, and what it logs of the pod".to_owned(),
                Err(error) => return Err(CniError::new(code::DECODE, error.to_string())),
            },
            Ok(Err(error)) if cluster::is_forbidden(&error) => {
                return Err(CniError::config(format!(
                    "cannot read pod {}/{}: {}; let the plug-in's user get pods",
                    pod.namespace,
                    pod.name,
                    error.as_report()
                )));
            }
            Ok(Err(error)) => error.to_report_string(),
        };
        if Instant::now() + delay >= end {
            return Err(later(format!("no annotation of pod {}/{} within {} s: {missing}", pod.namespace, pod.name, config.timeout)));
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 3 / 2).min(DELAYS.1);
    }
}

async fn client(config: &Config, settings: &Settings) -> Result<cluster::Client, CniError> {
    if let Some(path) = &config.kubeconfig {
        return cluster::client_from_kubeconfig(path).await.map_err(|e| CniError::config(e.to_report_string()));
    }
    let Settings { server, token, authority } = settings;
    let Some(server) = server else {
        let text = "no API server is known: give kubeconfig in the network configuration, or set external_ids:k8s-api-server of the local switch";
        return Err(CniError::config(text));
    };
    let server = match (server.contains("://"), authority) {
        (true, _) => server.clone(),
        (false, Some(_)) => format!("https://{server}"),
        (false, None) => format!("http://{server}"),
    };
    if token.is_some() && !server.starts_with("https://") {
        return Err(CniError::config(format!("{server} would be sent a token in the clear: let external_ids:k8s-api-server be https")));
    }
    cluster::client_with_token(&server, token.as_deref(), authority.as_deref()).await.map_err(|e| CniError::config(e.to_report_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_known_by_its_uid_or_by_its_mirror() {
        let meta = |uid: &str, mirrors: Option<&str>| ObjectMeta {
            uid: Some(uid.to_owned()),
            annotations: mirrors.map(|of| [(MIRROR.to_owned(), of.to_owned())].into()),
            ..ObjectMeta::default()
        };
        let pod = |uid: &str| Pod { namespace: "default".into(), name: "web".into(), uid: uid.into() };
        assert!(pod("a").is(&meta("a", None)) && pod("").is(&meta("b", None)) && pod("a").is(&meta("b", Some("a"))));
        assert!(!pod("a").is(&meta("b", None)) && !pod("a").is(&meta("b", Some("c"))));
    }
}
