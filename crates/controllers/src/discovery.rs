//! Discovery of the kinds that the API serves, for controllers that handle all of them.

use kube::{Client, api::ApiResource};

/// A kind whose objects can be listed, watched and deleted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    pub resource: ApiResource,
    pub namespaced: bool,
    /// Whether all objects of a namespace can be deleted by one request.
    pub delete_collection: bool,
}

/// Every such kind, in its preferred version.
pub(crate) async fn kinds(client: &Client) -> kube::Result<Vec<Kind>> {
    let mut lists = vec![client.list_core_api_resources("v1").await?];
    for group in client.list_api_groups().await?.groups {
        let preferred = group.preferred_version.as_ref().or(group.versions.first());
        if let Some(version) = preferred {
            lists.push(client.list_api_group_resources(&version.group_version).await?);
        }
    }
    let kinds = lists.iter().flat_map(|list| list.resources.iter().map(|one| (&list.group_version, one)));
    Ok(kinds
        .filter(|(_, one)| !one.name.contains('/'))
        .filter(|(_, one)| ["list", "watch", "delete"].iter().all(|verb| one.verbs.iter().any(|other| other == verb)))
        .map(|(group_version, one)| {
            let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
            Kind {
                resource: ApiResource {
                    group: group.to_owned(),
                    version: version.to_owned(),
                    api_version: group_version.clone(),
                    kind: one.kind.clone(),
                    plural: one.name.clone(),
                },
                namespaced: one.namespaced,
                delete_collection: one.verbs.iter().any(|verb| verb == "deletecollection"),
            }
        })
        .collect())
}
