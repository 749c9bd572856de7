//! What a pod may need of a node beyond resources (upstream lifecycle/handlers.go and component-helpers/nodedeclaredfeatures), and what this
//! agent does not have.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kube_rules::{NodeOs, Refusal, admission};

/// A feature of the list that pods can ask for when they are placed; resizes ask for others.
const RESTARTS_ALL: &str = "RestartAllContainersOnContainerExits";
const USER_NAMESPACES_ON_HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";

/// What scheduler and API server may count on, in upstream's names, sorted. Of those that upstream 1.36 declares the agent has no
/// ExtendWebSocketsToKubelet, and no InPlacePodLevelResourcesVerticalScaling as long as a pod whose resources as a whole change alone is said
/// to be resized before that is so. No pod is resized on Windows.
pub(crate) fn declared(os: NodeOs) -> &'static [&'static str] {
    const ALL: [&str; 2] = ["InPlacePodVerticalScalingInitContainers", RESTARTS_ALL];
    if os.is_windows() { &ALL[1..] } else { &ALL }
}

/// Refuses what the agent would otherwise leave out in silence. The order is upstream's.
pub(crate) fn admit(pod: &Pod, os: NodeOs) -> Result<(), Refusal> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    if os.is_windows() && has_pod_resources(spec) {
        return refuse("PodLevelResourcesNotSupported", "pod-level resources are not supported on Windows".to_owned());
    }
    let missing: Vec<_> = required(spec).into_iter().filter(|feature| !declared(os).contains(feature)).collect();
    if !missing.is_empty() {
        return refuse("PodFeatureUnsupported", format!("Pod requires node features that are not available: {}", missing.join(", ")));
    }
    admit_claims(pod)?;
    if os.is_windows() { admit_host_process(pod) } else { Ok(()) }
}

fn refuse(reason: &'static str, message: String) -> Result<(), Refusal> {
    Err(Refusal { reason: reason.into(), message })
}

/// Whether the pod as a whole has resources of a kind that it can have.
fn has_pod_resources(spec: &PodSpec) -> bool {
    let all = spec.resources.iter().flat_map(|resources| resources.requests.iter().chain(&resources.limits));
    all.flat_map(|list| list.keys()).any(|name| name == "cpu" || name == "memory" || name.starts_with("hugepages-"))
}

/// The features that the pod needs, sorted.
fn required(spec: &PodSpec) -> Vec<&'static str> {
    let restarts_all = |container: &Container| container.restart_policy_rules.iter().flatten().any(|rule| rule.action == "RestartAllContainers");
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut needed = Vec::new();
    if containers.any(restarts_all) {
        needed.push(RESTARTS_ALL);
    }
    if spec.host_network == Some(true) && spec.host_users == Some(false) {
        needed.push(USER_NAMESPACES_ON_HOST_NETWORK);
    }
    needed
}

/// The agent has no plug-ins that prepare claims: containers would run without their devices, as they do under upstream's kubelet on Windows.
fn admit_claims(pod: &Pod) -> Result<(), Refusal> {
    let named = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()).map(|claim| format!("{:?}", claim.name));
    let extended = pod.status.iter().filter_map(|status| status.extended_resource_claim_status.as_ref());
    let claims: Vec<_> = named.chain(extended.map(|claim| format!("{:?} of extended resources", claim.resource_claim_name))).collect();
    if claims.is_empty() {
        return Ok(());
    }
    refuse(
        "ResourceClaimsNotSupported",
        format!(
            "cannot prepare resource claims {}: this node agent does not prepare claims of dynamic resource allocation; request devices of a \
             device plug-in, or place the pod on a node whose kubelet prepares claims",
            claims.join(", ")
        ),
    )
}

/// HostProcess is all or none, and of pods in the node's network. The API server checks it too, but sees no static pods before they run.
fn admit_host_process(pod: &Pod) -> Result<(), Refusal> {
    const REASON: &str = "HostProcessNotSupported";
    if !admission::is_host_process(pod) {
        return Ok(());
    }
    if !admission::is_wholly_host_process(pod) {
        return refuse(REASON, "pod must not contain both HostProcess and non-HostProcess containers".to_owned());
    }
    let Some(spec) = &pod.spec else { return Ok(()) };
    if spec.host_network != Some(true) {
        return refuse(REASON, "hostNetwork is required if Pod contains HostProcess containers".to_owned());
    }
    let options = spec.security_context.as_ref().and_then(|context| context.windows_options.as_ref());
    if options.and_then(|options| options.host_process) == Some(false) {
        let message = "pod must not contain any HostProcess containers if Pod's WindowsOptions.HostProcess is set to false";
        return refuse(REASON, message.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const WINDOWS: NodeOs = NodeOs::Windows { build: 20348 };

    fn refusal(spec: &Value, status: &Value, os: NodeOs) -> Option<(String, String)> {
        let mut full = json!({"containers": [{"name": "c", "image": "i"}]});
        full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let pod: Pod = serde_json::from_value(json!({"spec": full, "status": status})).unwrap();
        admit(&pod, os).err().map(|refusal| (refusal.reason.into_owned(), refusal.message))
    }

    fn of(spec: Value, os: NodeOs) -> Option<(String, String)> {
        refusal(&spec, &json!({}), os)
    }

    fn because(reason: &str, message: &str) -> Option<(String, String)> {
        Some((reason.to_owned(), message.to_owned()))
    }

    #[test]
    fn windows_has_no_resources_of_the_whole_pod() {
        let refused = because("PodLevelResourcesNotSupported", "pod-level resources are not supported on Windows");
        for (resources, want) in [
            (json!({"limits": {"cpu": "1"}}), &refused),
            (json!({"requests": {"memory": "1Gi"}}), &refused),
            (json!({"requests": {"hugepages-2Mi": "2Mi"}}), &refused),
            (json!({"requests": {"example.com/seat": "1"}}), &None),
            (json!({}), &None),
        ] {
            assert_eq!(of(json!({"resources": resources}), WINDOWS), *want, "{resources}");
            assert_eq!(of(json!({"resources": resources}), NodeOs::Linux), None, "{resources}");
        }
    }

    #[test]
    fn features_that_the_node_does_not_declare_are_refused() {
        let missing = because("PodFeatureUnsupported", "Pod requires node features that are not available: UserNamespacesHostNetworkSupport");
        let rule = |action: &str| json!([{"name": "c", "image": "i", "restartPolicyRules": [{"action": action, "exitCodes": {"operator": "In", "values": [1]}}]}]);
        for (spec, want) in [
            (json!({"hostNetwork": true, "hostUsers": false}), &missing),
            (json!({"hostNetwork": true, "hostUsers": true}), &None),
            (json!({"hostNetwork": true}), &None),
            (json!({"hostUsers": false}), &None),
            (json!({"containers": rule("RestartAllContainers")}), &None),
            (json!({"initContainers": rule("RestartAllContainers")}), &None),
            (json!({"hostNetwork": true, "hostUsers": false, "containers": rule("RestartAllContainers")}), &missing),
        ] {
            assert_eq!(of(spec.clone(), NodeOs::Linux), *want, "{spec}");
            assert_eq!(of(spec.clone(), WINDOWS), *want, "{spec}");
        }
        let needs = |spec: Value| required(&serde_json::from_value(spec).unwrap());
        assert_eq!(needs(json!({"containers": rule("RestartAllContainers")})), [RESTARTS_ALL]);
        assert_eq!(needs(json!({"containers": [], "initContainers": rule("RestartAllContainers")})), [RESTARTS_ALL]);
        assert!(needs(json!({"containers": rule("Restart")})).is_empty());
    }

    #[test]
    fn no_pod_runs_without_its_claims() {
        let message = |claims: &str| {
            format!(
                "cannot prepare resource claims {claims}: this node agent does not prepare claims of dynamic resource allocation; request \
                 devices of a device plug-in, or place the pod on a node whose kubelet prepares claims"
            )
        };
        for os in [NodeOs::Linux, WINDOWS] {
            let spec = json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}, {"name": "nic", "resourceClaimTemplateName": "y"}]});
            assert_eq!(of(spec, os), because("ResourceClaimsNotSupported", &message("\"gpu\", \"nic\"")));
            assert_eq!(of(json!({"resourceClaims": []}), os), None);
            let status = json!({"extendedResourceClaimStatus": {"resourceClaimName": "p-ext", "requestMappings": []}});
            assert_eq!(refusal(&json!({}), &status, os), because("ResourceClaimsNotSupported", &message("\"p-ext\" of extended resources")));
        }
    }

    #[test]
    fn host_process_is_all_or_none_in_the_nodes_network() {
        let container = |name: &str, host: Option<bool>| match host {
            Some(host) => json!({"name": name, "image": "i", "securityContext": {"windowsOptions": {"hostProcess": host}}}),
            None => json!({"name": name, "image": "i"}),
        };
        let spec = |pod: Option<bool>, containers: [Option<bool>; 2], network: bool| {
            json!({
                "hostNetwork": network,
                "securityContext": {"windowsOptions": {"hostProcess": pod}},
                "initContainers": [container("a", containers[0])],
                "containers": [container("b", containers[1])],
            })
        };
        let mixed = because("HostProcessNotSupported", "pod must not contain both HostProcess and non-HostProcess containers");
        let network = because("HostProcessNotSupported", "hostNetwork is required if Pod contains HostProcess containers");
        let denied =
            because("HostProcessNotSupported", "pod must not contain any HostProcess containers if Pod's WindowsOptions.HostProcess is set to false");
        for (spec, want) in [
            (spec(Some(true), [None, None], true), &None),
            (spec(None, [Some(true), Some(true)], true), &None),
            (spec(None, [None, None], false), &None),
            (spec(Some(true), [Some(false), Some(false)], false), &None),
            (spec(None, [None, Some(true)], true), &mixed),
            (spec(None, [Some(true), None], true), &mixed),
            (spec(Some(true), [None, Some(false)], true), &mixed),
            (spec(Some(true), [None, None], false), &network),
            (spec(Some(false), [Some(true), Some(true)], true), &denied),
        ] {
            assert_eq!(of(spec.clone(), WINDOWS), *want, "{spec}");
            assert_eq!(of(spec.clone(), NodeOs::Linux), None, "Linux reads none of it");
        }
    }
}
