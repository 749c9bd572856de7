//! `pods/resize`: which resources of a pod may change while it runs (pkg/registry/core/pod/strategy.go `podResizeStrategy`,
//! pkg/apis/core/validation `ValidatePodResize`).

use super::status;
use crate::object;
use crate::validation::field::{Errors, Field};
use crate::validation::pod;
use serde_json::{Map, Value};

const MIRROR: &str = "kubernetes.io/config.mirror";
const LISTS: [&str; 2] = ["containers", "initContainers"];
const SIDES: [&str; 2] = ["limits", "requests"];
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// Puts back everything but the resources and resize policies of containers and the resources of the pod. Containers that were added, removed
/// or renamed are left for validation to refuse.
pub(super) fn prepare(old: &Value, new: &mut Value) {
    let counts = |pod: &Value| LISTS.map(|list| object::list(pod, &["spec", list]).len());
    if counts(old) != counts(new) {
        return;
    }
    let mut kept = old.clone();
    let spec = object::map_mut(&mut kept, "spec");
    take(new, "resources", spec);
    for list in LISTS {
        let found = object::list(new, &["spec", list]);
        let before = object::list(old, &["spec", list]);
        if found.iter().map(object::name_of).ne(before.iter().map(object::name_of)) {
            spec.insert(list.into(), found.into());
            continue;
        }
        for (container, wanted) in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().zip(found) {
            for member in ["resources", "resizePolicy"] {
                object::copy_member(wanted, container, member);
            }
        }
    }
    *new = kept;
}

/// Copies a member of the specification; one that is missing or empty is removed.
fn take(from: &Value, member: &str, spec: &mut Map<String, Value>) {
    match object::lookup(from, &["spec", member]) {
        Some(value) => drop(spec.insert(member.into(), value.clone())),
        None => drop(spec.shift_remove(member)),
    }
}

/// Whether a pod, prepared by [`prepare`], may be resized so.
pub(super) fn check(new: &Field, old: &Field, errors: &mut Errors) {
    // Go prints a path without a name so.
    let whole = Field { path: "[]".into(), value: new.value };
    if object::lookup(old.value, &["metadata", "annotations", MIRROR]).is_some() {
        return errors.forbidden(&whole, "static pods cannot be resized");
    }
    if object::text(old.value, &["spec", "os", "name"]) == "windows" {
        return errors.forbidden(&whole, "windows pods cannot be resized");
    }
    let (spec, before) = (new.get("spec"), old.get("spec"));
    pod::check_spec(&spec, errors);
    let class = match object::text(old.value, &["status", "qosClass"]) {
        "" => status::qos_class(old.value),
        stored => stored,
    };
    if class != status::qos_class(new.value) {
        let shown = object::text(new.value, &["status", "qosClass"]);
        errors.invalid_value(&spec, shown, "Pod QOS Class may not change as a result of resizing");
    }
    if !is_supported(old.value) {
        errors.forbidden(&spec, "Pod running on node without support for resize");
    }
    pod_level(&spec, &before, errors);
    if !object::list(old.value, &["status", "nodeAllocatableResourceClaimStatuses"]).is_empty() {
        errors.forbidden(&spec, "pods with node allocatable resource claims cannot be resized");
    }
    if !same_containers(&spec, &before, errors) {
        return;
    }
    for list in ["initContainers", "containers"] {
        for (container, before) in spec.get(list).items().iter().zip(before.get(list).items()) {
            let (resources, before) = (container.get("resources"), before.get("resources"));
            removed(&resources, &before, "resource requests cannot be removed", "resource limits cannot be removed", errors);
        }
    }
    only_amounts(&spec, &before, errors);
}

/// A node that says what a running container has can resize it.
fn is_supported(pod: &Value) -> bool {
    let running = object::list(pod, &["status", "containerStatuses"]).iter().find(|one| object::lookup(one, &["state", "running"]).is_some());
    running.is_none_or(|one| object::lookup(one, &["resources"]).is_some())
}

/// Containers stay, with their names and their order.
fn same_containers(spec: &Field, before: &Field, errors: &mut Errors) -> bool {
    let mut same = true;
    for list in LISTS {
        let (found, was) = (spec.get(list), before.get(list).items());
        let items = found.items();
        if items.len() != was.len() {
            errors.forbidden(&found, format!("{list} may not be added or removed on resize"));
            same = false;
            continue;
        }
        for name in items.iter().zip(&was).map(|(item, was)| (item.get("name"), was.get("name"))).filter(|(name, was)| name.value != was.value) {
            errors.forbidden(&name.0, format!("{list} may not be renamed or reordered on resize"));
            same = false;
        }
    }
    same
}

/// What had an amount keeps one.
fn removed(resources: &Field, before: &Field, requests: &str, limits: &str, errors: &mut Errors) {
    for (side, why) in [("requests", requests), ("limits", limits)] {
        let found = resources.get(side);
        if before.get(side).members().any(|(name, _)| found.value.get(name).is_none()) {
            errors.forbidden(&found, why);
        }
    }
}

/// The pod's own resources, above its containers'.
fn pod_level(spec: &Field, before: &Field, errors: &mut Errors) {
    let (resources, was) = (spec.get("resources"), before.get("resources"));
    if was.is_set() && !resources.is_set() {
        return errors.forbidden(&resources, "pod-level resources cannot be removed");
    }
    removed(&resources, &was, "pod-level resource requests cannot be removed", "pod-level resource limits cannot be removed", errors);
    if masked(resources.value, was.value, true) != masked(was.value, was.value, true) {
        errors.forbidden(spec, "only cpu and memory resources are mutable at pod-level");
    }
}

/// Resources with the processors and memory of `old`, without empty members. A resize of containers drops claims, so that a container with
/// claims cannot be resized, as upstream.
fn masked(resources: &Value, old: &Value, claims: bool) -> Value {
    let mut result = Map::new();
    for side in SIDES {
        let of = |resources: &Value| resources.get(side).and_then(Value::as_object).cloned().unwrap_or_default();
        let (mut amounts, before) = (of(resources), of(old));
        for name in RESIZABLE {
            match before.get(name) {
                Some(amount) => drop(amounts.insert(name.into(), amount.clone())),
                None => drop(amounts.shift_remove(name)),
            }
        }
        if !amounts.is_empty() {
            result.insert(side.into(), amounts.into());
        }
    }
    if let Some(claims) = resources.get("claims").filter(|found| claims && found.as_array().is_some_and(|list| !list.is_empty())) {
        result.insert("claims".into(), claims.clone());
    }
    result.into()
}

/// A container with the resizable amounts of the old one.
fn masked_container(container: &Value, old: &Value) -> Value {
    let mut container = container.clone();
    let none = Value::Null;
    let of = |container: &Value| container.get("resources").cloned().unwrap_or_default();
    let amounts = masked(&of(&container), old.get("resources").unwrap_or(&none), false);
    object::set(&mut container, "resources", amounts);
    container
}

/// The old container in the form that [`masked_container`] gives, with its claims.
fn plain(container: &Value) -> Value {
    let mut plain = container.clone();
    let resources = container.get("resources").cloned().unwrap_or_default();
    object::set(&mut plain, "resources", masked(&resources, &resources, true));
    plain
}

/// Nothing but amounts of processors and memory may differ.
fn only_amounts(spec: &Field, before: &Field, errors: &mut Errors) {
    for (container, was) in spec.get("containers").items().iter().zip(before.get("containers").items()) {
        if masked_container(container.value, was.value) != plain(was.value) {
            errors.forbidden(spec, "only cpu and memory resources are mutable");
        }
    }
    for (container, was) in spec.get("initContainers").items().iter().zip(before.get("initContainers").items()) {
        if masked_container(container.value, was.value) != plain(was.value) {
            errors.forbidden(container, "only cpu and memory resources for init or sidecar containers are mutable");
        }
        if plain(container.value) == plain(was.value) || container.get("restartPolicy").text() == "Always" {
            continue;
        }
        for _ in container.get("resizePolicy").items().iter().filter(|policy| policy.get("restartPolicy").text() == "RestartContainer") {
            errors.forbidden(container, "non-sidecar init containers with a resize policy of RestartContainer cannot be resized");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn container(name: &str, cpu: &str) -> Value {
        json!({"name": name, "image": "i", "terminationMessagePolicy": "File", "imagePullPolicy": "Always",
            "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}, "limits": {"memory": "128Mi"}}})
    }

    fn pod() -> Value {
        let mut sidecar = container("side", "50m");
        sidecar["restartPolicy"] = "Always".into();
        json!({"metadata": {"name": "p", "generation": 1, "labels": {"a": "b"}},
            "spec": {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30,
                "initContainers": [sidecar, container("init", "10m")], "containers": [container("main", "100m")]},
            "status": {"qosClass": "Burstable"}})
    }

    /// What an update of the old pod makes of it, and what is wrong with it.
    fn resized(old: &Value, change: impl Fn(&mut Value)) -> (Value, String) {
        let mut new = old.clone();
        change(&mut new);
        prepare(old, &mut new);
        let mut errors = Errors::default();
        check(&Field::root(&new), &Field::root(old), &mut errors);
        let texts: Vec<String> = errors.into_list().iter().map(ToString::to_string).collect();
        (new, texts.join("; "))
    }

    fn wrong(change: impl Fn(&mut Value)) -> String {
        resized(&pod(), change).1
    }

    #[test]
    fn amounts_change_and_everything_else_stays() {
        let (new, errors) = resized(&pod(), |pod| {
            pod["metadata"]["labels"]["a"] = "c".into();
            pod["status"]["phase"] = "Failed".into();
            pod["spec"]["nodeName"] = "elsewhere".into();
            pod["spec"]["containers"][0]["image"] = "other".into();
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "200m".into();
            pod["spec"]["initContainers"][0]["resources"]["limits"]["memory"] = "1Gi".into();
            pod["spec"]["initContainers"][1]["resources"]["limits"]["memory"] = "1Gi".into();
        });
        let mut expected = pod();
        expected["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "200m".into();
        expected["spec"]["initContainers"][0]["resources"]["limits"]["memory"] = "1Gi".into();
        expected["spec"]["initContainers"][1]["resources"]["limits"]["memory"] = "1Gi".into();
        assert_eq!((new, errors), (expected, String::new()));
        let pod_level = |pod: &mut Value| pod["spec"]["resources"] = json!({"limits": {"cpu": "2"}});
        assert_eq!(wrong(pod_level), "");
    }

    #[test]
    fn what_a_resize_may_not_do_is_said_in_upstream_s_words() {
        let main = |pointer: &'static str, value: Value| {
            move |pod: &mut Value| *pod.pointer_mut(&format!("/spec/containers/0/resources{pointer}")).unwrap() = value.clone()
        };
        let removed = "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed; \
                       spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed";
        assert_eq!(wrong(main("", json!({"requests": {"cpu": "1"}}))), removed);
        let class = "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing";
        let full = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = |pod: &mut Value| {
            for pointer in ["containers/0", "initContainers/0", "initContainers/1"] {
                pod.pointer_mut(&format!("/spec/{pointer}")).unwrap()["resources"] = json!({"requests": full, "limits": full});
            }
        };
        assert_eq!(wrong(guaranteed), class);
        let only = "spec: Forbidden: only cpu and memory resources are mutable";
        assert_eq!(wrong(main("/requests", json!({"cpu": "100m", "memory": "64Mi", "ephemeral-storage": "1Gi"}))), only);
        let policy =
            |pod: &mut Value| pod["spec"]["containers"][0]["resizePolicy"] = json!([{"resourceName": "cpu", "restartPolicy": "NotRequired"}]);
        assert_eq!(wrong(policy), only);
        let added = |pod: &mut Value| pod["spec"]["containers"].as_array_mut().unwrap().push(container("more", "1"));
        assert_eq!(wrong(added), "spec.containers: Forbidden: containers may not be added or removed on resize");
        let renamed = |pod: &mut Value| pod["spec"]["initContainers"][1]["name"] = "other".into();
        assert_eq!(wrong(renamed), "spec.initContainers[1].name: Forbidden: initContainers may not be renamed or reordered on resize");
        let pages = |pod: &mut Value| pod["spec"]["resources"] = json!({"limits": {"hugepages-2Mi": "2Mi"}});
        assert!(wrong(pages).contains("spec: Forbidden: only cpu and memory resources are mutable at pod-level"));
        let storage = |pod: &mut Value| pod["spec"]["initContainers"][0]["resources"]["limits"]["ephemeral-storage"] = "1Gi".into();
        assert_eq!(wrong(storage), "spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar containers are mutable");
        assert!(wrong(main("/requests/memory", json!("1Gi"))).contains("must be less than or equal to memory limit of 128Mi"));
    }

    #[test]
    fn some_pods_cannot_be_resized() {
        let of = |change: &dyn Fn(&mut Value)| {
            let mut old = pod();
            change(&mut old);
            resized(&old, |pod| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "200m".into()).1
        };
        assert_eq!(of(&|_| {}), "");
        assert_eq!(of(&|pod| pod["spec"]["os"] = json!({"name": "windows"})), "[]: Forbidden: windows pods cannot be resized");
        assert_eq!(of(&|pod| pod["metadata"]["annotations"] = json!({MIRROR: "x"})), "[]: Forbidden: static pods cannot be resized");
        let running = json!({"name": "main", "state": {"running": {}}});
        let unable = "spec: Forbidden: Pod running on node without support for resize";
        assert_eq!(of(&|pod| pod["status"]["containerStatuses"] = json!([running])), unable);
        assert_eq!(of(&|pod| pod["status"]["containerStatuses"] = json!([{"name": "main", "state": {"running": {}}, "resources": {}}])), "");
        let claims = "spec: Forbidden: only cpu and memory resources are mutable";
        assert_eq!(of(&|pod| pod["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "gpu"}])), claims);
    }

    #[test]
    fn the_pod_s_own_resources_stay_set() {
        let mut old = pod();
        old["spec"]["resources"] = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
        let wrong = |change: &dyn Fn(&mut Value)| resized(&old, change).1;
        assert_eq!(wrong(&|pod| pod["spec"]["resources"]["requests"]["cpu"] = "2".into()), "");
        let gone = wrong(&|pod| drop(pod["spec"].as_object_mut().unwrap().shift_remove("resources")));
        assert_eq!(gone, "spec.resources: Forbidden: pod-level resources cannot be removed");
        let less = wrong(&|pod| pod["spec"]["resources"] = json!({"requests": {"cpu": "1"}}));
        assert_eq!(less, "spec.resources.requests: Forbidden: pod-level resource requests cannot be removed");
    }

    #[test]
    fn init_containers_that_would_restart_cannot_be_resized() {
        let mut old = pod();
        old["spec"]["initContainers"][1]["resizePolicy"] = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
        let found = resized(&old, |pod| pod["spec"]["initContainers"][1]["resources"]["requests"]["cpu"] = "20m".into()).1;
        assert!(
            found.ends_with(
                "spec.initContainers[1]: Forbidden: non-sidecar init containers with a resize policy of RestartContainer cannot be resized"
            ),
            "{found}"
        );
    }
}
