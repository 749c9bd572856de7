//! Operating-system admission of a pod at a node (upstream pkg/kubelet/lifecycle).

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Pod, WindowsSecurityContextOptions};

use crate::image::match_image;
use crate::os::NodeOs;

/// Why a node refuses a pod. Becomes `status.reason` and, after "Pod was rejected: ", the
/// message of the failed pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// CamelCase reason; of a resource that is short `OutOf` and its name.
    pub reason: Cow<'static, str>,
    /// What a person reads.
    pub message: String,
}

/// Checks `spec.os`, the pod's own `kubernetes.io/os` label (upstream reads the label here; the
/// node selector belongs to the general predicates) and the builds that image tags announce.
/// HostProcess pods may use images of any build. `isolated` is Hyper-V isolation, where older
/// images run; of any other RuntimeClass the runtime alone knows what it means.
pub fn admit_os(pod: &Pod, os: NodeOs, isolated: bool) -> Result<(), Refusal> {
    let label = pod.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/os"));
    if label.is_some_and(|l| l != os.name()) {
        return Err(Refusal {
            reason: "PodOSSelectorNodeLabelDoesNotMatch".into(),
            message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label".into(),
        });
    }
    let Some(spec) = &pod.spec else { return Ok(()) };
    if spec.os.as_ref().is_some_and(|o| o.name != os.name()) {
        return Err(Refusal { reason: "PodOSNotSupported".into(), message: "Failed to admit pod as the OS field doesn't match node OS".into() });
    }
    if (spec.runtime_class_name.is_some() && !isolated) || is_host_process(pod) {
        return Ok(());
    }
    let inits = spec.init_containers.iter().flatten();
    for container in inits.chain(&spec.containers) {
        let Some(image) = &container.image else {
            continue;
        };
        match_image(os, isolated, image)
            .map_err(|m| Refusal { reason: "ImageBuildMismatch".into(), message: format!("container {:?}: {m}", container.name) })?;
    }
    Ok(())
}

/// Whether a container of the pod runs as HostProcess.
pub fn is_host_process(pod: &Pod) -> bool {
    host_processes(pod).any(|is_one| is_one)
}

/// Whether all containers of the pod do.
pub fn is_wholly_host_process(pod: &Pod) -> bool {
    host_processes(pod).all(|is_one| is_one)
}

/// Of each container whether it runs as HostProcess: as it says, or else as its pod says.
fn host_processes(pod: &Pod) -> impl Iterator<Item = bool> {
    let says = |options: Option<&WindowsSecurityContextOptions>| options.and_then(|options| options.host_process);
    pod.spec.iter().flat_map(move |spec| {
        let of_pod = says(spec.security_context.as_ref().and_then(|context| context.windows_options.as_ref()));
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers).map(|container| &container.security_context);
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| &container.security_context);
        let all = containers.chain(ephemeral);
        all.map(move |context| says(context.as_ref().and_then(|context| context.windows_options.as_ref())).or(of_pod) == Some(true))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reason(pod: serde_json::Value, os: NodeOs) -> Option<Cow<'static, str>> {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        admit_os(&pod, os, false).err().map(|r| r.reason)
    }

    #[test]
    fn admission_follows_the_table() {
        let win = NodeOs::Windows { build: 20348 };
        let pod = |extra: serde_json::Value| {
            let mut p = json!({"metadata": {}, "spec": {"containers": [{"name": "c", "image": "microsoft/iis"}]}});
            json_merge(&mut p, extra);
            p
        };
        assert_eq!(reason(pod(json!({})), win), None);
        assert_eq!(
            reason(pod(json!({"metadata": {"labels": {"kubernetes.io/os": "linux"}}})), win),
            Some("PodOSSelectorNodeLabelDoesNotMatch".into())
        );
        assert_eq!(reason(pod(json!({"spec": {"os": {"name": "linux"}}})), win), Some("PodOSNotSupported".into()));
        assert_eq!(reason(pod(json!({"spec": {"os": {"name": "windows"}}})), NodeOs::Linux), Some("PodOSNotSupported".into()));
        let old = json!({"spec": {"containers": [{"name": "c", "image": "microsoft/nanoserver:1709"}]}});
        assert_eq!(reason(old.clone(), win), Some("ImageBuildMismatch".into()));
        assert_eq!(reason(old.clone(), NodeOs::Linux), None);
        let mut hpc = old;
        json_merge(&mut hpc, json!({"spec": {"securityContext": {"windowsOptions": {"hostProcess": true}}}}));
        assert_eq!(reason(hpc, win), None);
        for (image, refused) in [("microsoft/nanoserver:1709", false), ("mcr.microsoft.com/windows/nanoserver:ltsc2025", true)] {
            let spec = json!({"runtimeClassName": "hyperv", "containers": [{"name": "c", "image": image}]});
            let isolated: Pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            assert_eq!(admit_os(&isolated, win, true).is_err(), refused, "{image} in a virtual machine");
        }
    }

    #[test]
    fn containers_say_themselves_whether_they_are_host_processes() {
        let options = |host: Option<bool>| json!({"windowsOptions": {"hostProcess": host}});
        for (of_pod, init, own, late, any, all) in [
            (None, None, None, None, false, false),
            (Some(true), None, None, None, true, true),
            (Some(true), Some(false), Some(false), Some(false), false, false),
            (Some(true), Some(false), None, None, true, false),
            (None, Some(true), None, None, true, false),
            (None, None, None, Some(true), true, false),
            (Some(false), Some(true), Some(true), Some(true), true, true),
        ] {
            let container = |host| json!([{"name": "c", "image": "i", "securityContext": options(host)}]);
            let spec = json!({
                "securityContext": options(of_pod),
                "initContainers": container(init),
                "containers": container(own),
                "ephemeralContainers": container(late),
            });
            let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
            assert_eq!((is_host_process(&pod), is_wholly_host_process(&pod)), (any, all), "{spec}");
        }
    }

    fn json_merge(a: &mut serde_json::Value, b: serde_json::Value) {
        match (a, b) {
            (serde_json::Value::Object(a), serde_json::Value::Object(b)) => {
                for (k, v) in b {
                    json_merge(a.entry(k).or_insert(serde_json::Value::Null), v);
                }
            }
            (a, b) => *a = b,
        }
    }
}
