//! What is accepted and still not as it should be (pkg/api/pod/warnings.go, pkg/api/{persistentvolume,persistentvolumeclaim,node}).

use super::field::Field;
use kube_rules::Quantity;

const NODE_LABELS: [(&str, &str); 5] = [
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    ("failure-domain.beta.kubernetes.io/region", "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead"),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
];

fn message(label: &str) -> Option<&'static str> {
    NODE_LABELS.iter().find(|(old, _)| *old == label).map(|(_, message)| *message)
}

pub fn labels(selector: &Field, found: &mut Vec<String>) {
    for (key, _) in selector.members() {
        found.extend(message(key).map(|message| format!("{}: {message}", selector.key(key).path)));
    }
}

pub fn terms(terms: &Field, found: &mut Vec<String>) {
    terms.items().iter().for_each(|term| expressions(term, found));
}

fn expressions(term: &Field, found: &mut Vec<String>) {
    for expression in term.get("matchExpressions").items() {
        let key = expression.get("key");
        found.extend(message(key.text()).map(|message| format!("{}: {} is {message}", key.path, key.text())));
    }
}

pub fn fraction(quantity: &Field, found: &mut Vec<String>) {
    let whole = |amount: Quantity| amount.milli_value() % 1000 == 0;
    if Quantity::parse(quantity.text()).is_ok_and(|amount| !whole(amount)) {
        found.push(format!("{}: fractional byte value {:?} is invalid, must be an integer", quantity.path, quantity.text()));
    }
}

/// A pod or a pod template.
pub fn pod(pod: &Field, found: &mut Vec<String>) {
    let spec = pod.get("spec");
    labels(&spec.get("nodeSelector"), found);
    let affinity = spec.get("affinity").get("nodeAffinity");
    terms(&affinity.get("requiredDuringSchedulingIgnoredDuringExecution").get("nodeSelectorTerms"), found);
    for preferred in affinity.get("preferredDuringSchedulingIgnoredDuringExecution").items() {
        expressions(&preferred.get("preference"), found);
    }
    for constraint in spec.get("topologySpreadConstraints").items() {
        let key = constraint.get("topologyKey");
        found.extend(message(key.text()).map(|message| format!("{}: {} is {message}", key.path, key.text())));
    }
    for volume in spec.get("volumes").items() {
        if volume.get("gitRepo").is_set() {
            found.push(format!("{}: deprecated in v1.11, and disabled by default in v1.33+", volume.get("gitRepo").path));
        }
    }
    for (index, secret) in spec.get("imagePullSecrets").items().iter().enumerate() {
        if secret.get("name").is_empty() {
            found.push(format!("{}.imagePullSecrets[{index}]: invalid empty name \"\"", spec.path));
        }
    }
    let annotations = pod.get("metadata").get("annotations");
    for (key, message) in [
        ("scheduler.alpha.kubernetes.io/critical-pod", "non-functional in v1.16+; use the \"priorityClassName\" field instead"),
        ("seccomp.security.alpha.kubernetes.io/pod", "non-functional in v1.27+; use the \"seccompProfile\" field instead"),
    ] {
        if annotations.value.get(key).is_some() {
            found.push(format!("{}: {message}", annotations.key(key).path));
        }
    }
    for list in ["initContainers", "containers"] {
        spec.get(list).items().iter().for_each(|container| self::container(container, found));
    }
    let grace = spec.get("terminationGracePeriodSeconds");
    if grace.number().is_some_and(|seconds| seconds < 0) {
        found.push(format!("{}: must be >= 0; negative values are invalid and will be treated as 1", grace.path));
    }
}

fn container(container: &Field, found: &mut Vec<String>) {
    for amounts in ["limits", "requests"] {
        let amounts = container.get("resources").get(amounts);
        for name in ["memory", "ephemeral-storage"] {
            fraction(&amounts.key(name), found);
        }
    }
    let variables = container.get("env").items();
    for (index, variable) in variables.iter().enumerate() {
        let name = variable.get("name");
        if variables[..index].iter().any(|earlier| earlier.get("name").text() == name.text()) {
            found.push(format!("{}: hides previous definition of {:?}, which may be dropped when using apply", variable.path, name.text()));
        }
    }
    let ports = container.get("ports").items();
    for (index, port) in ports.iter().enumerate() {
        let same = |member: &str, earlier: &Field| earlier.get(member).value == port.get(member).value;
        let twin =
            ports[..index].iter().find(|earlier| ["containerPort", "protocol", "hostPort", "hostIP"].iter().all(|member| same(member, earlier)));
        if let Some(twin) = twin {
            found.push(format!("{}: duplicate port definition with {}", port.path, twin.path));
        }
    }
}

/// An object with a pod template at `spec.template`.
pub fn template(object: &Field, found: &mut Vec<String>) {
    pod(&object.get("spec").get("template"), found);
}

pub fn old_class(object: &Field, found: &mut Vec<String>) {
    const KEY: &str = "volume.beta.kubernetes.io/storage-class";
    let annotations = object.get("metadata").get("annotations");
    if annotations.value.get(KEY).is_some() {
        found.push(format!("{}: deprecated since v1.8; use \"storageClassName\" attribute instead", annotations.key(KEY).path));
    }
}

#[cfg(test)]
mod tests {
    use crate::kinds::by_resource;
    use serde_json::json;

    #[test]
    fn old_labels_and_twins_are_named() {
        let set = json!({"spec": {"template": {"spec": {
            "nodeSelector": {"beta.kubernetes.io/os": "windows", "kubernetes.io/arch": "amd64"},
            "containers": [{"name": "a", "env": [{"name": "A"}, {"name": "B"}, {"name": "A"}], "resources": {"limits": {"memory": "100m", "cpu": "100m"}},
                "ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP"}]}],
        }}}});
        let expected = "\
spec.template.spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead
spec.template.spec.containers[0].resources.limits[memory]: fractional byte value \"100m\" is invalid, must be an integer
spec.template.spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply
spec.template.spec.containers[0].ports[1]: duplicate port definition with spec.template.spec.containers[0].ports[0]";
        assert_eq!(by_resource("apps", "v1", "daemonsets").unwrap().warnings_of(&set).join("\n"), expected);
        assert!(by_resource("", "v1", "pods").unwrap().warnings_of(&json!({"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}})).is_empty());
    }
}
