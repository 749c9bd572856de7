//! serviceaccounts/token: TokenRequest (pkg/registry/core/serviceaccount/storage/token.go).

use super::typed;
use crate::authn::token::{self, Binding, ISSUER};
use crate::authz::{Attributes as Asked, Decision};
use crate::http::call::Call;
use crate::kind::{Attributes, Kind, Operation, WriteContext};
use crate::kinds;
use crate::object;
use crate::server::Api;
use crate::status::ApiError;
use crate::store::Store;
use serde_json::{Value, json};
use std::sync::Arc;

const DEFAULT_SECONDS: i64 = 3600;
const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;

pub(super) async fn create(api: &Api, call: &Call, kind: &Arc<Kind>, context: &WriteContext) -> Result<Value, ApiError> {
    let mut request = typed(call, kind, context)?;
    let (namespace, name) = (call.info.namespace.as_str(), call.info.name.as_str());
    check_node_binding(call, kind, object::lookup(&request, &["spec", "boundObjectRef"]))?;
    let attributes = Attributes::create(&api.registry, context, kind, namespace, name).below(Operation::Create, "token");
    api.registry.admission.mutate(&attributes, &mut request).await?;
    check_target(&request, namespace, name)?;
    let account = api.registry.get(kind, namespace, name)?.value();
    check_uid(&request, &account)?;
    let metadata = json!({"name": name, "namespace": namespace, "uid": object::uid(&account), "creationTimestamp": object::now()});
    let seconds = object::integer(&request, &["spec", "expirationSeconds"]).unwrap_or(DEFAULT_SECONDS);
    check_seconds(seconds)?;
    let given: Vec<String> = object::list(&request, &["spec", "audiences"]).iter().filter_map(Value::as_str).map(str::to_string).collect();
    let audiences = if given.is_empty() { vec![ISSUER.to_string()] } else { given.clone() };
    request["metadata"] = metadata.clone();
    request["spec"]["audiences"] = json!(audiences);
    request["spec"]["expirationSeconds"] = seconds.into();
    api.registry.admission.validate(&attributes, &request).await?;
    let binding = object::lookup(&request, &["spec", "boundObjectRef"]);
    check_node_binding(call, kind, binding)?;
    let binding = binding.map(|reference| bind(api, namespace, &account, reference)).transpose()?;
    restrict_node(call, kind, binding.as_ref())?;
    check_audience(api, call, kind, binding.as_ref(), &given)?;
    let now = jiff::Timestamp::now().as_second();
    let claims = token::claims(namespace, &account, &audiences, binding.as_ref(), now, seconds);
    let signed = api.tokens.sign(&claims).map_err(ApiError::internal)?;
    Ok(json!({
        "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
        "metadata": metadata, "spec": request["spec"],
        "status": {"token": signed, "expirationTimestamp": object::seconds_from_now(seconds)},
    }))
}

/// What the request says of its account must be what its path says.
fn check_target(request: &Value, namespace: &str, name: &str) -> Result<(), ApiError> {
    for (member, wanted, what) in [("name", name, "name"), ("namespace", namespace, "namespace")] {
        let given = object::text(request, &["metadata", member]);
        if !given.is_empty() && given != wanted {
            let why = format!("metadata.{member}: Invalid value: {given:?}: must match the service account {what} if specified");
            return Err(ApiError::new(422, "Invalid", format!("TokenRequest.authentication.k8s.io {name:?} is invalid: {why}")));
        }
    }
    Ok(())
}

fn check_uid(request: &Value, account: &Value) -> Result<(), ApiError> {
    let (asked, live) = (object::uid(request), object::uid(account));
    if asked.is_empty() || asked == live {
        return Ok(());
    }
    let name = object::name(account);
    let why = format!("the UID in the token request ({asked}) does not match the UID of the service account ({live})");
    let message = format!("Operation cannot be fulfilled on TokenRequest.authentication.k8s.io {name:?}: {why}");
    let details = json!({"name": name, "group": "authentication.k8s.io", "kind": "TokenRequest"});
    Err(ApiError { details: Some(details), ..ApiError::new(409, "Conflict", message) })
}

fn check_seconds(seconds: i64) -> Result<(), ApiError> {
    let refuse = |why: &str| {
        let message = format!("TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: Invalid value: {seconds}: {why}");
        Err(ApiError::new(422, "Invalid", message))
    };
    match seconds {
        ..SHORTEST => refuse("may not specify a duration less than 10 minutes"),
        _ if seconds > LONGEST => refuse("may not specify a duration larger than 2^32 seconds"),
        _ => Ok(()),
    }
}

/// The object a token is bound to must be there, be the one meant, and (a pod) run under the account.
fn bind(api: &Api, namespace: &str, account: &Value, reference: &Value) -> Result<Binding, ApiError> {
    let (what, name, uid) = (object::text(reference, &["kind"]), object::text(reference, &["name"]), object::text(reference, &["uid"]));
    let (plural, scope) = match what {
        "Pod" => ("pods", namespace),
        "Secret" => ("secrets", namespace),
        "Node" => ("nodes", ""),
        other => return Err(ApiError::bad_request(format!("cannot bind token to object of type {other:?}"))),
    };
    let kind = kinds::by_resource("", "v1", plural).ok_or_else(ApiError::no_such_resource)?;
    let stored = api.registry.store.get(&kind.key(scope, name)).ok_or_else(|| ApiError::not_found(kind, name))?.value();
    let live = object::uid(&stored).to_string();
    if !uid.is_empty() && uid != live {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(ApiError::conflict(kind, name, &why));
    }
    let mut node = None;
    if what == "Pod" {
        if object::text(&stored, &["spec", "serviceAccountName"]) != object::name(account) {
            let message =
                format!("cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.", object::name(account));
            return Err(ApiError::bad_request(message));
        }
        let on = object::text(&stored, &["spec", "nodeName"]);
        node = api.registry.store.get(&format!("core/nodes//{on}")).map(|entry| (on.to_string(), object::uid(&entry.value()).to_string()));
    }
    Ok(Binding { kind: what.to_string(), name: name.to_string(), uid: live, node })
}

/// NodeRestriction: a node asks for one audience at a time, which its pod's volumes or their drivers name, or which RBAC lets the node ask
/// for: the verb `request-serviceaccounts-token-audience` on a resource called as the audience (`validateNodeServiceAccountAudience`).
fn check_audience(api: &Api, call: &Call, kind: &Kind, binding: Option<&Binding>, given: &[String]) -> Result<(), ApiError> {
    let (Some(_), Some(binding)) = (call.user.node_name(), binding) else { return Ok(()) };
    let (namespace, account, user) = (call.info.namespace.as_str(), call.info.name.as_str(), call.user.name.as_str());
    let audience = match given {
        [] => "",
        [one] => one,
        _ => return Err(ApiError::forbidden(kind, account, "node may only request 0 or 1 audiences")),
    };
    let store = &api.registry.store;
    let pod = store.get(&format!("core/pods/{namespace}/{}", binding.name)).map(|entry| entry.value()).unwrap_or_default();
    if names(&pod, audience) || drivers(store, &pod, namespace).iter().any(|driver| asks_for(store, driver, audience)) {
        return Ok(());
    }
    let asked = Asked {
        user: call.user.clone(),
        verb: "request-serviceaccounts-token-audience".into(),
        is_resource: true,
        resource: audience.into(),
        namespace: namespace.into(),
        name: account.into(),
        ..Asked::default()
    };
    match api.registry.authorizer.decide(&asked) {
        Decision::Allow(_) => Ok(()),
        Decision::NoOpinion(_) => {
            let why = format!("audience {audience:?} not found in pod spec volume, {user} is not authorized to request tokens for this audience");
            Err(ApiError::forbidden(kind, account, &why))
        }
    }
}

/// Whether a projected volume of a pod names an audience: "" is the API server's own.
fn names(pod: &Value, audience: &str) -> bool {
    let volumes = object::list(pod, &["spec", "volumes"]).iter();
    let sources = volumes.flat_map(|volume| object::list(volume, &["projected", "sources"]));
    let mut tokens = sources.filter_map(|source| object::lookup(source, &["serviceAccountToken"]));
    tokens.any(|token| object::text(token, &["audience"]) == audience)
}

/// The CSI drivers of a pod's volumes: those of inline volumes, and those behind its claims.
fn drivers(store: &Store, pod: &Value, namespace: &str) -> Vec<String> {
    let behind = |claim: &str| {
        let claim = store.get(&format!("core/persistentvolumeclaims/{namespace}/{claim}"))?.value();
        let volume = store.get(&format!("core/persistentvolumes//{}", object::text(&claim, &["spec", "volumeName"])))?.value();
        let back = |member| object::text(&volume, &["spec", "claimRef", member]);
        // What a claim says of itself does not count: its owner writes it.
        let bound = back("name") == object::name(&claim) && back("namespace") == namespace;
        bound.then(|| object::text(&volume, &["spec", "csi", "driver"]).to_string())
    };
    let of = |volume: &Value| match (object::text(volume, &["csi", "driver"]), object::text(volume, &["persistentVolumeClaim", "claimName"])) {
        ("", "") => {
            object::lookup(volume, &["ephemeral"])?;
            behind(&format!("{}-{}", object::name(pod), object::name_of(volume)))
        }
        ("", claim) => behind(claim),
        (driver, _) => Some(driver.to_string()),
    };
    object::list(pod, &["spec", "volumes"]).iter().filter_map(of).filter(|driver| !driver.is_empty()).collect()
}

/// Whether a driver asks for tokens of an audience.
fn asks_for(store: &Store, driver: &str, audience: &str) -> bool {
    let Some(driver) = store.get(&format!("storage.k8s.io/csidrivers//{driver}")).map(|entry| entry.value()) else { return false };
    object::list(&driver, &["spec", "tokenRequests"]).iter().any(|request| object::text(request, &["audience"]) == audience)
}

/// NodeRestriction: the binding of a node's token names one pod for good.
fn check_node_binding(call: &Call, kind: &Kind, reference: Option<&Value>) -> Result<(), ApiError> {
    if call.user.node_name().is_none() {
        return Ok(());
    }
    let text = |member: &str| reference.map_or("", |reference| object::text(reference, &[member]));
    let why = match (text("apiVersion"), text("kind"), text("name"), text("uid")) {
        ("v1", "Pod", name, "") if !name.is_empty() => "node requested token with a pod binding without a uid",
        ("v1", "Pod", name, _) if !name.is_empty() => return Ok(()),
        _ => "node requested token not bound to a pod",
    };
    Err(ApiError::forbidden(kind, &call.info.name, why))
}

/// NodeRestriction: a node asks only for tokens bound to pods that run on it.
fn restrict_node(call: &Call, kind: &Kind, binding: Option<&Binding>) -> Result<(), ApiError> {
    let Some(node) = call.user.node_name() else { return Ok(()) };
    let refuse = |why: &str| Err(ApiError::forbidden(kind, &call.info.name, why));
    match binding {
        Some(binding) if binding.kind == "Pod" => match &binding.node {
            Some((on, _)) if on == node => Ok(()),
            _ => refuse("node requested token bound to a pod scheduled on a different node"),
        },
        _ => refuse("node requested token not bound to a pod"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::store::Expect;

    #[test]
    fn a_node_asks_for_its_pod_s_audiences() {
        let pod = |sources: Value| json!({"spec": {"volumes": [{"projected": {"sources": sources}}]}});
        let vault = pod(json!([{"serviceAccountToken": {"audience": "vault"}}, {"configMap": {}}]));
        assert!(names(&vault, "vault"));
        assert!(!names(&vault, "bank") && !names(&vault, ""), "a source without a token names no audience");
        assert!(names(&pod(json!([{"serviceAccountToken": {"path": "token"}}])), ""));
    }

    #[tokio::test]
    async fn a_node_asks_for_the_audiences_of_its_pod_s_drivers() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let put = async |key: &str, value: Value| drop(store.put(key, Expect::Absent, value).await.unwrap());
        let volume = |claim: &str, driver: &str| json!({"spec": {"claimRef": {"namespace": "a", "name": claim}, "csi": {"driver": driver}}});
        put("core/persistentvolumeclaims/a/data", json!({"metadata": {"name": "data"}, "spec": {"volumeName": "v"}})).await;
        put("core/persistentvolumes//v", volume("data", "bound")).await;
        put("core/persistentvolumeclaims/a/p-scratch", json!({"metadata": {"name": "p-scratch"}, "spec": {"volumeName": "w"}})).await;
        put("core/persistentvolumes//w", volume("p-scratch", "made")).await;
        // Its owner wrote the name of another's volume into it.
        put("core/persistentvolumeclaims/a/false", json!({"metadata": {"name": "false"}, "spec": {"volumeName": "v"}})).await;
        put("storage.k8s.io/csidrivers//bound", json!({"spec": {"tokenRequests": [{"audience": "vault"}, {"audience": "bank"}]}})).await;
        let pod = |volumes: Value| json!({"metadata": {"name": "p"}, "spec": {"volumes": volumes}});
        let claims = |name: &str| pod(json!([{"name": "x", "persistentVolumeClaim": {"claimName": name}}]));
        assert_eq!(drivers(&store, &pod(json!([{"name": "x", "csi": {"driver": "inline"}}, {"name": "y", "emptyDir": {}}])), "a"), ["inline"]);
        assert_eq!(drivers(&store, &claims("data"), "a"), ["bound"]);
        assert_eq!(drivers(&store, &pod(json!([{"name": "scratch", "ephemeral": {}}])), "a"), ["made"]);
        assert!(drivers(&store, &claims("false"), "a").is_empty());
        assert!(asks_for(&store, "bound", "bank") && asks_for(&store, "bound", "vault"));
        assert!(!asks_for(&store, "bound", "other") && !asks_for(&store, "made", "vault"));
    }
}
