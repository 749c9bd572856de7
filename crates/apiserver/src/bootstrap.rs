//! The objects that every cluster has from its first start: namespaces, roles, the system's priority classes, the `kubernetes` Service
//! (pkg/controlplane/controller/{systemnamespaces,kubernetesservice}, RBAC's post-start hook).

use crate::alloc::ranges::family;
use crate::authn::{MASTERS, UserInfo};
use crate::authz::bootstrap;
use crate::health::{Hook, Started};
use crate::kind::{Kind, WriteContext};
use crate::kinds;
use crate::kinds::scheduling::priority_class;
use crate::object;
use crate::registry::Registry;
use crate::registry::create::Owner;
use crate::registry::service::ip_address;
use crate::status::ApiError;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
const RBAC: &str = "rbac.authorization.k8s.io";

fn kind(group: &str, plural: &str) -> Result<&'static Arc<Kind>, ApiError> {
    kinds::by_resource(group, "v1", plural).ok_or_else(|| ApiError::internal(format!("{plural} are not served")))
}

/// Writes what is missing, and points the `kubernetes` Service at `advertise`. What does not need one another is written at once, so that the
/// disk is waited for a few times, not once an object.
pub async fn run(registry: &Registry, advertise: (IpAddr, u16), ca_pem: &str, started: &Started) -> Result<(), ApiError> {
    let step = async |hook: Hook, work: BoxFuture<'_, Result<(), ApiError>>| work.await.inspect(|()| started.finish(hook));
    tokio::try_join!(
        step(Hook::SystemNamespaces, namespaces(registry).boxed()),
        step(Hook::ClusterAuthentication, client_authorities(registry, ca_pem).boxed()),
        step(Hook::Roles, roles(registry).boxed()),
        step(Hook::PriorityClasses, priority_classes(registry).boxed()),
        step(Hook::KubernetesService, kubernetes(registry, advertise).boxed()),
        step(Hook::ServiceCidr, service_cidr(registry).boxed()),
    )?;
    Ok(())
}

async fn namespaces(registry: &Registry) -> Result<(), ApiError> {
    let kind = kind("", "namespaces")?;
    try_join_all(NAMESPACES.map(|name| registry.ensure(kind, "", json!({"metadata": {"name": name}})))).await.map(drop)
}

async fn roles(registry: &Registry) -> Result<(), ApiError> {
    let wanted = bootstrap::objects().into_iter();
    try_join_all(wanted.map(|(plural, object)| async move { reconcile(registry, kind(RBAC, plural)?, object).await })).await?;
    registry.aggregate_roles().await
}

async fn priority_classes(registry: &Registry) -> Result<(), ApiError> {
    let kind = kind("scheduling.k8s.io", "priorityclasses")?;
    try_join_all(priority_class::system_classes().map(|class| registry.ensure(kind, "", class))).await.map(drop)
}

/// Writes what is missing of the default ServiceCIDR and of the `kubernetes` Service, and points it at `advertise`.
pub async fn kubernetes_service(registry: &Registry, advertise: (IpAddr, u16)) -> Result<(), ApiError> {
    tokio::try_join!(kubernetes(registry, advertise), service_cidr(registry)).map(drop)
}

async fn kubernetes(registry: &Registry, advertise: (IpAddr, u16)) -> Result<(), ApiError> {
    let address = registry.allocators.configured().first_address();
    let wanted = service(address, advertise.1);
    let ip = ip_address(&address, &wanted);
    tokio::try_join!(registry.ensure(kind("networking.k8s.io", "ipaddresses")?, "", ip), registry.ensure(kind("", "services")?, "default", wanted),)?;
    tokio::try_join!(
        point(registry, kind("", "endpoints")?, endpoints_object(advertise)),
        point(registry, kind("discovery.k8s.io", "endpointslices")?, slice(advertise)),
    )?;
    Ok(())
}

/// Writes where the `kubernetes` Service leads.
async fn point(registry: &Registry, kind: &Arc<Kind>, wanted: Value) -> Result<(), ApiError> {
    registry.ensure(kind, "default", wanted.clone()).await?;
    let set = |object: &mut Value| {
        for member in ["subsets", "endpoints", "ports"] {
            if let (Some(value), Some(map)) = (wanted.get(member), object.as_object_mut()) {
                map.insert(member.into(), value.clone());
            }
        }
        Ok(())
    };
    registry.edit(&own_context(), kind, ("default", "kubernetes"), Owner::Server, set).await.map(drop)
}

fn own_context() -> WriteContext {
    WriteContext::new(UserInfo::new("system:apiserver", &[MASTERS]), false)
}

/// Which authorities prove clients, for programs that let the same clients in
/// (pkg/controlplane/controller/clusterauthenticationtrust).
async fn client_authorities(registry: &Registry, ca_pem: &str) -> Result<(), ApiError> {
    const NAME: &str = "extension-apiserver-authentication";
    let maps = kind("", "configmaps")?;
    registry.ensure(maps, "kube-system", json!({"metadata": {"name": NAME}, "data": {"client-ca-file": ca_pem}})).await?;
    let set = |map: &mut Value| {
        map["data"]["client-ca-file"] = ca_pem.into();
        Ok(())
    };
    registry.edit(&own_context(), maps, ("kube-system", NAME), Owner::Server, set).await.map(drop)
}

/// The ServiceCIDR of the configuration: made when it is missing, given its second family, and ready until a controller says otherwise
/// (pkg/controlplane/controller/defaultservicecidr).
async fn service_cidr(registry: &Registry) -> Result<(), ApiError> {
    let kind = kind("networking.k8s.io", "servicecidrs")?;
    let wanted: Vec<String> = registry.allocators.configured().networks().map(|network| network.to_string()).collect();
    registry.ensure(kind, "", json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": wanted}})).await?;
    let complete = |stored: &mut Value| {
        let cidrs = object::list(stored, &["spec", "cidrs"]);
        if cidrs.len() == 1 && wanted.len() == 2 && cidrs[0] == wanted[0] {
            object::map_mut(stored, "spec").insert("cidrs".into(), json!(wanted));
        }
        let matches = object::lookup(stored, &["spec", "cidrs"]) == Some(&json!(wanted));
        let conditions = object::list(stored, &["status", "conditions"]);
        let decided = conditions
            .iter()
            .any(|condition| object::text(condition, &["type"]) == "Ready" && matches!(object::text(condition, &["status"]), "True" | "False"));
        if matches && !decided && !object::is_deleting(stored) {
            let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": object::now(), "reason": "",
                "message": "Kubernetes default Service CIDR is ready"});
            object::map_mut(stored, "status").insert("conditions".into(), json!([ready]));
        }
        Ok(())
    };
    registry.edit(&own_context(), kind, ("", "kubernetes"), Owner::Server, complete).await.map(drop)
}

/// Writes a role or binding, or adds what an older version did not give it. What somebody took out comes back, unless the object says that
/// it is not to be updated (pkg/registry/rbac/reconciliation).
async fn reconcile(registry: &Registry, kind: &Arc<Kind>, wanted: Value) -> Result<(), ApiError> {
    const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
    let namespace = object::namespace(&wanted).to_owned();
    registry.ensure(kind, &namespace, wanted.clone()).await?;
    let complete = |stored: &mut Value| {
        if object::text(stored, &["metadata", "annotations", AUTOUPDATE]) == "false" {
            return Ok(());
        }
        for (key, value) in object::lookup(&wanted, &["metadata", "labels"]).and_then(Value::as_object).into_iter().flatten() {
            let labels = object::metadata(stored).entry("labels").or_insert_with(|| json!({}));
            labels[key.as_str()] = value.clone();
        }
        let Some(members) = stored.as_object_mut() else { return Ok(()) };
        if let Some(rule) = wanted.get("aggregationRule") {
            members.insert("aggregationRule".into(), rule.clone());
            return Ok(());
        }
        for list in ["rules", "subjects"] {
            let missing: Vec<Value> = {
                let own = members.get(list).and_then(Value::as_array);
                object::list(&wanted, &[list]).iter().filter(|item| own.is_none_or(|own| !own.contains(item))).cloned().collect()
            };
            if !missing.is_empty() {
                object::array_mut(members, list).extend(missing);
            }
        }
        Ok(())
    };
    registry.edit(&own_context(), kind, (&namespace, object::name(&wanted)), Owner::Server, complete).await.map(drop)
}

fn service(address: IpAddr, port: u16) -> Value {
    let family = family(&address);
    json!({
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP", "clusterIP": address.to_string(), "clusterIPs": [address.to_string()],
            "ipFamilies": [family], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}],
        },
    })
}

fn endpoints_object((address, port): (IpAddr, u16)) -> Value {
    json!({
        "metadata": {"name": "kubernetes", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": address.to_string()}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}],
    })
}

fn slice((address, port): (IpAddr, u16)) -> Value {
    json!({
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    })
}
