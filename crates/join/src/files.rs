//! Content of the files that a join writes. Pure.

use node_config::KubeletConfiguration;
use node_config::document::{self, Parsed};
use serde_json::{Value, json};

use crate::settings::Settings;

const KIND: &str = "KubeletConfiguration";
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Where an agent answers health checks by default.
const HEALTHZ: (&str, u64) = ("127.0.0.1", 10248);

/// What is wrong with the cluster's KubeletConfiguration.
#[derive(Debug, thiserror::Error)]
pub enum KubeletConfigError {
    #[error("it is no YAML")]
    Yaml(#[source] serde_yaml_ng::Error),
    #[error("it is no KubeletConfiguration of kubelet.config.k8s.io/v1beta1")]
    Kind,
    #[error("the node agent cannot use it")]
    Config(#[source] document::ConfigError),
    #[error("it cannot be written")]
    Write(#[source] serde_yaml_ng::Error),
}

/// The cluster's KubeletConfiguration for this machine, and where the agent will answer health checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KubeletConfig {
    pub text: String,
    /// `http://ADDRESS:PORT/healthz`; none when the agent answers none.
    pub healthz: Option<String>,
    /// Members without effect in this node agent.
    pub warnings: Vec<String>,
}

/// Reads the ConfigMap's text, and puts in what is of this machine: the runtime, and on Windows the drive of paths, as kubeadm does.
pub(crate) fn kubelet_config(text: &str, cri_socket: &str, is_windows: bool) -> Result<KubeletConfig, KubeletConfigError> {
    let mut config: Value = serde_yaml_ng::from_str(text).map_err(KubeletConfigError::Yaml)?;
    if config["kind"] != KIND || config["apiVersion"] != API_VERSION {
        return Err(KubeletConfigError::Kind);
    }
    config["containerRuntimeEndpoint"] = cri_socket.into();
    if is_windows {
        config["resolvConf"] = "".into();
        for pointer in ["/staticPodPath", "/authentication/x509/clientCAFile"] {
            if let Some(Value::String(path)) = config.pointer_mut(pointer)
                && path.starts_with('/')
            {
                *path = format!("C:{}", path.replace('/', r"\"));
            }
        }
    }
    let Parsed { warnings, .. } = document::read::<KubeletConfiguration>(&config).map_err(KubeletConfigError::Config)?;
    let text = serde_yaml_ng::to_string(&config).map_err(KubeletConfigError::Write)?;
    let port = config["healthzPort"].as_u64().unwrap_or(HEALTHZ.1);
    let address = config["healthzBindAddress"].as_str().filter(|address| !address.is_empty()).unwrap_or(HEALTHZ.0);
    // An agent that listens everywhere is asked here.
    let address = match address {
        "0.0.0.0" => "127.0.0.1",
        "::" => "::1",
        other => other,
    };
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    Ok(KubeletConfig { text, healthz: (port != 0).then(|| format!("http://{host}:{port}/healthz")), warnings })
}

/// `instance-config.yaml`: what is of this machine alone, which upgrades by kubeadm keep.
pub(crate) fn instance_config(cri_socket: &str) -> String {
    let text = serde_yaml_ng::to_string(&json!({"apiVersion": API_VERSION, "containerRuntimeEndpoint": cri_socket, "kind": KIND}));
    text.unwrap_or_default()
}

/// `kubeadm-flags.env`: the agent's flags as one variable. Those of the file win, as in kubeadm's ArgumentsToCommand.
pub(crate) fn flags_env(settings: &Settings) -> String {
    let mut flags = Vec::new();
    if settings.node_name != settings.host_name {
        flags.push(("hostname-override", settings.node_name.clone()));
    }
    if !settings.taints.is_empty() {
        flags.push(("register-with-taints", settings.taints.join(",")));
    }
    flags.retain(|(name, _)| !settings.extra_args.iter().any(|(other, _)| other == name));
    let flags: Vec<String> = flags
        .into_iter()
        .chain(settings.extra_args.iter().map(|(name, value)| (name.as_str(), value.clone())))
        .map(|(name, value)| format!("--{name}={value}"))
        .collect();
    // As Go's %q and systemd's EnvironmentFile= have it.
    let quoted = flags.join(" ").replace('\\', r"\\").replace('"', "\\\"");
    format!("KUBELET_KUBEADM_ARGS=\"{quoted}\"\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::JoinConfiguration;
    use crate::settings::{Flags, Machine};

    const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nauthentication:\n  x509:\n    \
                          clientCAFile: /etc/kubernetes/pki/ca.crt\nclusterDNS:\n- 10.96.0.10\nhealthzBindAddress: 127.0.0.1\nhealthzPort: 10248\n\
                          resolvConf: /run/systemd/resolve/resolv.conf\nstaticPodPath: /etc/kubernetes/manifests\n";

    #[test]
    fn the_clusters_configuration_gets_what_is_of_the_machine() {
        let linux = kubelet_config(CONFIG, "unix:///a.sock", false).unwrap();
        let read: Value = serde_yaml_ng::from_str(&linux.text).unwrap();
        assert_eq!((&read["containerRuntimeEndpoint"], &read["staticPodPath"]), (&json!("unix:///a.sock"), &json!("/etc/kubernetes/manifests")));
        assert_eq!(read["clusterDNS"], json!(["10.96.0.10"]), "the rest stays");
        assert_eq!(linux.healthz.as_deref(), Some("http://127.0.0.1:10248/healthz"));
        let windows = kubelet_config(CONFIG, "npipe:////./pipe/containerd-containerd", true).unwrap();
        let read: Value = serde_yaml_ng::from_str(&windows.text).unwrap();
        assert_eq!((&read["staticPodPath"], &read["resolvConf"]), (&json!(r"C:\etc\kubernetes\manifests"), &json!("")));
        assert_eq!(read["authentication"]["x509"]["clientCAFile"], r"C:\etc\kubernetes\pki\ca.crt");
    }

    #[test]
    fn health_is_asked_for_where_the_agent_answers() {
        let of = |members: &str| {
            let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{members}\n");
            kubelet_config(&text, "unix:///a", false).unwrap().healthz
        };
        assert_eq!(of("").as_deref(), Some("http://127.0.0.1:10248/healthz"));
        assert_eq!(of("healthzBindAddress: '::'\nhealthzPort: 1").as_deref(), Some("http://[::1]:1/healthz"));
        assert_eq!(of("healthzBindAddress: 0.0.0.0").as_deref(), Some("http://127.0.0.1:10248/healthz"));
    }

    #[test]
    fn other_documents_are_no_configuration_of_an_agent() {
        for text in ["kind: Pod\n", "", "a: [", "apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration\n"] {
            assert!(kubelet_config(text, "unix:///a", false).is_err(), "{text}");
        }
        let wrong = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: many\n";
        assert!(matches!(kubelet_config(wrong, "unix:///a", false), Err(KubeletConfigError::Config(_))));
    }

    #[test]
    fn flags_are_kubeadms() {
        let settings = |node_name: &str, taints: &[&str], args: &[(&str, &str)]| {
            let flags = Flags { discovery_file: Some("a".into()), node_name: Some(node_name.into()), ..Flags::default() };
            let config = JoinConfiguration {
                taints: taints.iter().map(|taint| (*taint).to_owned()).collect(),
                kubelet_extra_args: args.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
                ..JoinConfiguration::default()
            };
            let machine = Machine { host_name: "host".into(), ..Machine::default() };
            flags_env(&Settings::new(flags.merged_into(config), &machine).unwrap())
        };
        assert_eq!(settings("host", &[], &[]), "KUBELET_KUBEADM_ARGS=\"\"\n");
        assert_eq!(
            settings("n", &["a=b:NoSchedule", "c:NoExecute"], &[("v", "2"), ("root-dir", r"C:\k")]),
            "KUBELET_KUBEADM_ARGS=\"--hostname-override=n --register-with-taints=a=b:NoSchedule,c:NoExecute --v=2 --root-dir=C:\\\\k\"\n"
        );
        assert_eq!(settings("n", &[], &[("hostname-override", "m")]), "KUBELET_KUBEADM_ARGS=\"--hostname-override=m\"\n");
    }
}
