//! A workload of any kind, through its subresource `scale`.

use cluster::Client;
use k8s_openapi::api::autoscaling::v1::Scale;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde_json::json;

/// A workload's subresource.
pub(crate) struct Target {
    api: Api<DynamicObject>,
    name: String,
    /// Its resource, as `deployments.apps`.
    pub resource: String,
    /// Whether it has that subresource.
    pub is_scalable: bool,
}

/// The resource of a kind, in the version that is named or in another one of its group, and whether it has the subresource.
async fn resource(client: &Client, api_version: &str, kind: &str) -> Result<(ApiResource, bool), String> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let mut versions = vec![api_version.to_owned()];
    if !group.is_empty() {
        let groups = client.list_api_groups().await.map_err(|error| crate::refusal(&error))?.groups;
        let others = groups.into_iter().filter(|one| one.name == group).flat_map(|one| one.versions);
        versions.retain(|version| others.clone().any(|other| other.group_version == *version));
        versions.extend(others.map(|version| version.group_version).filter(|version| version != api_version));
    }
    for version in versions {
        let list = if group.is_empty() { client.list_core_api_resources(&version).await } else { client.list_api_group_resources(&version).await };
        let resources = list.map_err(|error| crate::refusal(&error))?.resources;
        if let Some(found) = resources.iter().find(|one| one.kind == kind && !one.name.contains('/')) {
            let scale = format!("{}/scale", found.name);
            let version_alone = version.split_once('/').map_or(version.as_str(), |(_, version)| version).to_owned();
            let (group, kind, plural) = (group.to_owned(), kind.to_owned(), found.name.clone());
            let is_scalable = resources.iter().any(|one| one.name == scale);
            return Ok((ApiResource { group, version: version_alone, api_version: version, kind, plural }, is_scalable));
        }
    }
    Err(format!("no matches for kind {kind:?} in group {group:?}"))
}

/// The name of a kind's resource, as `deployments`.
pub(super) async fn plural(client: &Client, api_version: &str, kind: &str) -> Result<String, String> {
    resource(client, api_version, kind).await.map(|(resource, _)| resource.plural)
}

impl Target {
    pub async fn find(client: &Client, ns: &str, api_version: &str, kind: &str, name: &str) -> Result<Self, String> {
        let api_version = if api_version.is_empty() { "v1" } else { api_version };
        if api_version.matches('/').count() > 1 {
            return Err(format!("unexpected GroupVersion string: {api_version}"));
        }
        let (resource, is_scalable) = resource(client, api_version, kind).await?;
        let dot = if resource.group.is_empty() { "" } else { "." };
        let api = Api::namespaced_with(client.clone(), ns, &resource);
        Ok(Self { api, name: name.to_owned(), resource: format!("{}{dot}{}", resource.plural, resource.group), is_scalable })
    }

    pub async fn scale(&self) -> Result<Scale, String> {
        self.api.get_scale(&self.name).await.map_err(|error| crate::refusal(&error))
    }

    /// None: the workload is gone.
    pub async fn scale_if_there(&self) -> Result<Option<Scale>, String> {
        match self.api.get_scale(&self.name).await {
            Err(error) if cluster::is_not_found(&error) => Ok(None),
            other => other.map(Some).map_err(|error| crate::refusal(&error)),
        }
    }

    pub async fn resize(&self, replicas: i32) -> Result<(), String> {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.api.patch_scale(&self.name, &PatchParams::default(), &patch).await.map(drop).map_err(|error| crate::refusal(&error))
    }
}
