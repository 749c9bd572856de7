//! Discovery documents: the aggregated form (`apidiscovery.k8s.io/v2`) and the legacy lists (k8s.io/apiserver/pkg/endpoints/discovery).

use crate::kind::{Group, Kind, Set, Subresource};
use serde_json::{Map, Value, json};

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_string() } else { format!("{group}/{version}") }
}

/// `/api` (`core`) or `/apis` as `APIGroupDiscoveryList`.
pub fn discovery_aggregated(kinds: &Set, core: bool) -> Value {
    let items: Vec<Value> = kinds
        .groups()
        .iter()
        .filter(|group| group.name.is_empty() == core)
        .map(|group| {
            let mut metadata = Map::new();
            if !group.name.is_empty() {
                metadata.insert("name".into(), group.name.as_str().into());
            }
            metadata.insert("creationTimestamp".into(), Value::Null);
            let versions: Vec<Value> = group
                .versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> =
                        kinds.of_group_version(&group.name, version).into_iter().map(|kind| aggregated_resource(kind)).collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn aggregated_resource(info: &Kind) -> Value {
    let mut resource = json!({
        "resource": info.plural,
        "responseKind": {"group": info.group, "version": info.version, "kind": info.kind},
        "scope": if info.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": info.singular,
        "verbs": info.verbs,
    });
    add_names(&mut resource, info);
    let subresources: Vec<Value> = info
        .subresources
        .iter()
        .map(|Subresource { name, body, verbs, .. }| {
            json!({
                "subresource": name,
                "responseKind": {"group": body.group, "version": body.version, "kind": body.kind},
                "verbs": verbs,
            })
        })
        .collect();
    if !subresources.is_empty() {
        resource["subresources"] = subresources.into();
    }
    resource
}

fn add_names(resource: &mut Value, info: &Kind) {
    if !info.short_names.is_empty() {
        resource["shortNames"] = json!(info.short_names);
    }
    if !info.categories.is_empty() {
        resource["categories"] = json!(info.categories);
    }
}

/// `/api`: the core group's versions, and where this server is (`HOST:PORT`).
pub fn discovery_api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

/// `/apis`: the named groups.
pub fn discovery_group_list(kinds: &Set) -> Value {
    let groups: Vec<Value> = kinds.groups().iter().filter(|group| !group.name.is_empty()).map(group_members).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
pub fn discovery_group(kinds: &Set, group: &str) -> Option<Value> {
    let group = kinds.groups().iter().find(|found| found.name == group && !found.name.is_empty())?;
    let mut document = json!({"kind": "APIGroup", "apiVersion": "v1"});
    if let (Value::Object(document), Value::Object(members)) = (&mut document, group_members(group)) {
        document.extend(members);
    }
    Some(document)
}

fn group_members(group: &Group) -> Value {
    let version = |version: &String| json!({"groupVersion": group_version(&group.name, version), "version": version});
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    json!({"name": group.name, "versions": versions, "preferredVersion": versions.first()})
}

/// `/api/VERSION` and `/apis/GROUP/VERSION`.
pub fn discovery_resource_list(kinds: &Set, group: &str, version: &str) -> Option<Value> {
    let found = kinds.of_group_version(group, version);
    if found.is_empty() {
        return None;
    }
    let mut resources = Vec::new();
    for info in found {
        let mut main = json!({
            "name": info.plural, "singularName": info.singular, "namespaced": info.namespaced, "kind": info.kind, "verbs": info.verbs,
        });
        add_names(&mut main, info);
        resources.push(main);
        resources.extend(info.subresources.iter().map(|subresource| legacy_subresource(info, subresource)));
    }
    let mut list = json!({"kind": "APIResourceList", "groupVersion": group_version(group, version), "resources": resources});
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

fn legacy_subresource(info: &Kind, Subresource { name, body, verbs, .. }: &Subresource) -> Value {
    let mut resource = json!({
        "name": format!("{}/{name}", info.plural), "singularName": "", "namespaced": info.namespaced, "kind": body.kind, "verbs": verbs,
    });
    if (&body.group, &body.version) != (&info.group, &info.version) {
        resource["group"] = body.group.as_str().into();
        resource["version"] = body.version.as_str().into();
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::builtin;

    fn find<'a>(list: &'a Value, member: &str, name: &str) -> &'a Value {
        list.as_array().unwrap().iter().find(|item| item[member] == name).unwrap()
    }

    #[test]
    fn aggregated_discovery_lists_resources_with_subresources() {
        let core = discovery_aggregated(builtin(), true);
        assert_eq!(core["items"].as_array().unwrap().len(), 1);
        assert!(core["items"][0]["metadata"].get("name").is_none());
        let pods = find(&core["items"][0]["versions"][0]["resources"], "resource", "pods");
        assert_eq!(pods["shortNames"], json!(["po"]));
        assert_eq!(pods["categories"], json!(["all"]));
        assert_eq!(
            find(&pods["subresources"], "subresource", "eviction")["responseKind"],
            json!({"group": "policy", "version": "v1", "kind": "Eviction"})
        );
        let named = discovery_aggregated(builtin(), false);
        assert_eq!(named["items"][0]["metadata"]["name"], "apps");
        assert!(named["items"].as_array().unwrap().iter().all(|item| item["versions"][0]["freshness"] == "Current"));
    }

    #[test]
    fn legacy_lists_agree_with_the_kinds() {
        let list = discovery_resource_list(builtin(), "apps", "v1").unwrap();
        let scale = find(&list["resources"], "name", "deployments/scale");
        assert_eq!(
            scale,
            &json!({"name": "deployments/scale", "singularName": "", "namespaced": true, "kind": "Scale",
            "verbs": ["get", "patch", "update"], "group": "autoscaling", "version": "v1"})
        );
        assert!(discovery_resource_list(builtin(), "apps", "v1beta1").is_none());
        assert!(discovery_resource_list(builtin(), "extensions", "v1beta1").is_none());
        assert_eq!(discovery_group(builtin(), "apps").unwrap()["preferredVersion"]["groupVersion"], "apps/v1");
        assert!(discovery_group(builtin(), "extensions").is_none() && discovery_group(builtin(), "").is_none());
        assert_eq!(discovery_group_list(builtin())["groups"].as_array().unwrap().len(), builtin().groups().len() - 1);
    }
}
