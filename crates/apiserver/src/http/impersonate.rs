//! `kubectl --as`: the requester acts as somebody else, when they may (apiserver/pkg/endpoints/filters/impersonation.go).

use crate::authn::{self, UserInfo};
use crate::authz::{Attributes, Authorizer};
use crate::status::ApiError;
use http::HeaderMap;
use serde_json::{Map, Value};

const AUTHENTICATION: &str = "authentication.k8s.io";
const EXTRA: &str = "impersonate-extra-";

/// The user that a request acts as, when not as its own: the one that its headers name and `user` may impersonate, each part of the identity
/// by itself.
pub fn apply(authorizer: &Authorizer, headers: &HeaderMap, user: &UserInfo) -> Result<Option<UserInfo>, ApiError> {
    let name = text(headers, "impersonate-user");
    let (uid, groups, extra) = (text(headers, "impersonate-uid"), texts(headers, "impersonate-group"), extra(headers));
    if name.is_empty() {
        if uid.is_empty() && groups.is_empty() && extra.is_empty() {
            return Ok(None);
        }
        // Ignoring them would act with more rights than the client asked for.
        return Err(ApiError::internal("requested to impersonate groups, a uid or extra fields without impersonating a user"));
    }
    let check = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
        authorizer.check(&Attributes {
            user: user.clone(),
            verb: "impersonate".into(),
            is_resource: true,
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..Attributes::default()
        })
    };
    let mut all = groups.clone();
    match name.strip_prefix(authn::SERVICE_ACCOUNT_USER).and_then(|account| account.split_once(':')) {
        Some((namespace, account)) => {
            check("", "serviceaccounts", "", namespace, account)?;
            if all.is_empty() {
                all = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
            }
        }
        None => check("", "users", "", "", &name)?,
    }
    for group in &groups {
        check("", "groups", "", "", group)?;
    }
    if !uid.is_empty() {
        check(AUTHENTICATION, "uids", "", "", &uid)?;
    }
    for (key, values) in &extra {
        for value in values.as_array().into_iter().flatten() {
            check(AUTHENTICATION, "userextras", key, "", value.as_str().unwrap_or_default())?;
        }
    }
    // A user who is not anonymous is authenticated; the anonymous user is not, whatever groups go with it.
    let known = all.iter().any(|group| group == authn::AUTHENTICATED || group == authn::UNAUTHENTICATED);
    if name == "system:anonymous" && !known {
        all.push(authn::UNAUTHENTICATED.into());
    }
    let groups: Vec<&str> = all.iter().map(String::as_str).collect();
    Ok(Some(UserInfo { uid, extra, ..UserInfo::new(&name, &groups) }))
}

fn text(headers: &HeaderMap, name: &str) -> String {
    texts(headers, name).into_iter().next().unwrap_or_default()
}

fn texts(headers: &HeaderMap, name: &str) -> Vec<String> {
    // Nothing is left out: whoever asks to be somebody else must not stay who they are because of a letter.
    headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
}

/// Keys are percent-encoded, since header names know no capitals and few signs.
fn extra(headers: &HeaderMap) -> Map<String, Value> {
    let keys = headers.keys().filter_map(|name| name.as_str().strip_prefix(EXTRA));
    keys.map(|key| (super::query::decode(key), texts(headers, &format!("{EXTRA}{key}")).into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Expect, Store};
    use serde_json::json;
    use std::sync::Arc;

    async fn authorizer(dir: &std::path::Path) -> Authorizer {
        let store = Arc::new(Store::open(dir).unwrap());
        let role = json!({"metadata": {"name": "r"}, "rules": [
            {"apiGroups": [""], "resources": ["users", "groups"], "verbs": ["impersonate"], "resourceNames": ["bob", "devs"]},
            {"apiGroups": [AUTHENTICATION], "resources": ["userextras/scopes"], "verbs": ["impersonate"]},
        ]});
        let binding =
            json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [{"kind": "User", "name": "alice"}]});
        store.put("rbac.authorization.k8s.io/clusterroles//r", Expect::Absent, role).await.unwrap();
        store.put("rbac.authorization.k8s.io/clusterrolebindings//b", Expect::Absent, binding).await.unwrap();
        Authorizer::new(store)
    }

    #[tokio::test]
    async fn each_part_of_an_identity_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let authorizer = authorizer(dir.path()).await;
        let acting = |headers: &[(&str, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
            }
            let alice = UserInfo::new("alice", &[]);
            apply(&authorizer, &map, &alice).map(|acting| acting.unwrap_or(alice))
        };
        assert_eq!(acting(&[]).unwrap().name, "alice");
        let bob = acting(&[("impersonate-user", "bob"), ("impersonate-group", "devs"), ("impersonate-extra-scopes", "view")]).unwrap();
        assert_eq!((bob.name.as_str(), &bob.groups[0], &bob.extra["scopes"]), ("bob", &"devs".to_string(), &json!(["view"])));
        for refused in [
            vec![("impersonate-user", "carol")],
            vec![("impersonate-user", "bob"), ("impersonate-group", "system:masters")],
            vec![("impersonate-user", "bob"), ("impersonate-uid", "1")],
            vec![("impersonate-user", "bob"), ("impersonate-extra-other", "x")],
            vec![("impersonate-user", "system:serviceaccount:a:b")],
        ] {
            assert_eq!(acting(&refused).unwrap_err().code, 403, "{refused:?}");
        }
        assert_eq!(acting(&[("impersonate-group", "devs")]).unwrap_err().code, 500);
        assert_eq!(acting(&[("impersonate-user", "b\u{f6}b")]).unwrap_err().code, 403, "no letter makes one stay oneself");
    }
}
