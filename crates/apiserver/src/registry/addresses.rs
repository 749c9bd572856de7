//! Repair of IPAddresses: each address of a Service has one, and none is left without its Service
//! (pkg/registry/core/service/ipallocator/controller/repairip.go).
//!
//! The server itself keeps the two together; clients may delete, change and make IPAddresses, and stores of older releases lack them.

use super::Registry;
use super::service::{MANAGED_BY, MANAGER, addresses, has_labels, ip_address};
use crate::alloc::ranges::{Range, family, networks};
use crate::alloc::{ADDRESSES, CIDRS, address_key};
use crate::authn::{MASTERS, UserInfo};
use crate::kind::WriteContext;
use crate::kinds;
use crate::kinds::core::service::service_type;
use crate::object;
use crate::status::ApiError;
use crate::store::{Expect, Store};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Where Services are stored.
pub const SERVICES: &str = "core/services/";
const COMPONENT: &str = "ipallocator-repair-controller";
/// An address may be older than its Service by the time that a request may take.
const REQUEST_SECONDS: i64 = 60;
/// An address of a transaction that is undone is gone after this time.
const UNDO_SECONDS: i64 = 5;

/// How far the repair has come: at first, everything is to be looked at.
#[derive(Default)]
pub struct Repair {
    /// Changes up to this revision have been looked at; absent: everything is to be looked at.
    cursor: Option<u64>,
    /// Keys of IPAddresses that are looked at again.
    later: BTreeSet<String>,
}

/// What is done about an object that is not as it should be.
#[derive(Clone, Debug, PartialEq)]
enum Fix {
    /// A user has to.
    Nothing,
    /// The IPAddress is made for the Service; one that is there is deleted before.
    Make(IpAddr),
    /// The IPAddress is deleted.
    Remove,
}

/// What is wrong, with the Event that says so; without a reason nobody is told.
#[derive(Clone, Debug, PartialEq)]
struct Finding {
    reason: &'static str,
    message: String,
    fix: Fix,
}

/// What becomes of an IPAddress.
#[derive(Clone, Debug, PartialEq)]
enum Verdict {
    Fine,
    /// Looked at again: its Service may be under way.
    Later,
    Remove(Finding),
}

fn service_key(namespace: &str, name: &str) -> String {
    format!("{SERVICES}{namespace}/{name}")
}

fn reference(ip: &Value) -> (&str, &str, bool) {
    let text = |member: &str| object::text(ip, &["spec", "parentRef", member]);
    (text("namespace"), text("name"), text("group").is_empty() && text("resource") == "services")
}

fn has_address(service: &Value) -> bool {
    service_type(service) != "ExternalName" && !matches!(object::text(service, &["spec", "clusterIP"]), "" | "None")
}

/// What is wrong with the addresses of a Service.
fn check_service(service: &Value, store: &Store) -> Vec<Finding> {
    if !has_address(service) {
        return Vec::new();
    }
    let all = object::list(service, &["spec", "clusterIPs"]).iter().filter_map(Value::as_str);
    all.filter_map(|text| match text.parse::<IpAddr>() {
        Err(_) => {
            let message = format!("Cluster IP {text} is not a valid IP; please recreate Service");
            Some(Finding { reason: "ClusterIPNotValid", message, fix: Fix::Nothing })
        }
        Ok(address) => check_address_of(service, address, store),
    })
    .collect()
}

fn check_address_of(service: &Value, address: IpAddr, store: &Store) -> Option<Finding> {
    let (namespace, name) = (object::namespace(service), object::name(service));
    let family = family(&address);
    let cidrs = store.list(CIDRS).1;
    if !cidrs.iter().flat_map(|(_, entry)| networks(&entry.value())).any(|network| Range::new(network).contains(&address)) {
        let message = format!("Cluster IP [{family}]: {address} is not within any configured Service CIDR; please recreate service");
        return Some(Finding { reason: "ClusterIPOutOfRange", message, fix: Fix::Nothing });
    }
    let make = |message: String| Some(Finding { reason: "ClusterIPNotAllocated", message, fix: Fix::Make(address) });
    let Some(stored) = store.get(&address_key(&address)).map(|entry| entry.value()) else {
        return make(format!("Cluster IP [{family}]: {address} is not allocated; repairing"));
    };
    let wrong = || format!("the ClusterIP [{family}]: {address} for Service {namespace}/{name} has a wrong reference; repairing");
    let (of, by, is_service) = reference(&stored);
    if !is_service {
        return make(wrong());
    }
    if (of, by) != (namespace, name) {
        let Some(other) = store.get(&service_key(of, by)).map(|entry| entry.value()) else { return make(wrong()) };
        if addresses(&other).contains(&address) {
            let message = format!("Cluster IP [{family}]:{address} was assigned to multiple services; please recreate service");
            return Some(Finding { reason: "ClusterIPAlreadyAllocated", message, fix: Fix::Nothing });
        }
        return make(wrong());
    }
    (!has_labels(&stored, &address)).then(|| Finding { reason: "", message: String::new(), fix: Fix::Make(address) })
}

/// What becomes of an IPAddress. Only those of the allocator are looked at.
fn check_address(ip: &Value, store: &Store, now: Timestamp) -> Verdict {
    if object::text(ip, &["metadata", "labels", MANAGED_BY]) != MANAGER {
        return Verdict::Fine;
    }
    let (name, (namespace, service_name, is_service)) = (object::name(ip), reference(ip));
    let remove = |reason: &'static str, message: String| Verdict::Remove(Finding { reason, message, fix: Fix::Remove });
    if !is_service {
        let shown = object::lookup(ip, &["spec", "parentRef"]).cloned().unwrap_or_default();
        let message = format!("IPAddress {name} appears to have been modified, not referencing a Service {shown}: cleaning up");
        return remove("IPAddressNotAllocated", message);
    }
    let created = |object: &Value| object::text(object, &["metadata", "creationTimestamp"]).parse().unwrap_or(Timestamp::UNIX_EPOCH);
    let age = now.as_second() - created(ip).as_second();
    let Some(service) = store.get(&service_key(namespace, service_name)).map(|entry| entry.value()) else {
        let message = format!("IPAddress: {name} for Service {namespace}/{service_name} appears to have leaked: cleaning up");
        return if age > REQUEST_SECONDS { remove("IPAddressNotAllocated", message) } else { Verdict::Later };
    };
    if name.parse().is_ok_and(|address| addresses(&service).contains(&address)) {
        return Verdict::Fine;
    }
    let changes_type = service_type(&service) == "ExternalName" && age < REQUEST_SECONDS;
    if changes_type || (created(ip) > created(&service) && age < UNDO_SECONDS) {
        return Verdict::Later;
    }
    // Upstream names the Service before its namespace here.
    remove("IPAddressWrongReference", format!("IPAddress: {name} for Service {service_name}/{namespace} has a wrong reference; cleaning up"))
}

impl Registry {
    /// Looks at the Services and IPAddresses that have changed since the last time and repairs what is wrong.
    pub async fn repair_addresses(&self, repair: &mut Repair, now: Timestamp) {
        let reached = *self.store.published().borrow();
        let mut services = BTreeSet::new();
        let mut ips = std::mem::take(&mut repair.later);
        self.changed(repair.cursor, &mut services, &mut ips);
        repair.cursor = Some(reached);
        for service in services.iter().filter_map(|key| self.store.get(key)).map(|entry| entry.value()) {
            for finding in check_service(&service, &self.store) {
                self.mend("Service", &service, &finding).await;
            }
        }
        for key in ips {
            let Some(ip) = self.store.get(&key).map(|entry| entry.value()) else { continue };
            match check_address(&ip, &self.store, now) {
                Verdict::Fine => {}
                Verdict::Later => drop(repair.later.insert(key)),
                Verdict::Remove(finding) => self.mend("IPAddress", &ip, &finding).await,
            }
        }
    }

    /// Collects the keys of what has changed after a revision: the Service of a deleted or changed IPAddress too.
    fn changed(&self, cursor: Option<u64>, services: &mut BTreeSet<String>, ips: &mut BTreeSet<String>) {
        for (prefix, keys) in [(SERVICES, &mut *services), (ADDRESSES, &mut *ips)] {
            if cursor.is_some_and(|cursor| self.store.last_change(prefix) <= cursor) {
                continue;
            }
            match cursor.map(|cursor| self.store.events(prefix, cursor, usize::MAX)) {
                Some(Ok((events, _))) => keys.extend(events.iter().map(|event| event.key.to_string())),
                Some(Err(_)) | None => keys.extend(self.store.list(prefix).1.iter().map(|(key, _)| key.to_string())),
            }
        }
        let Some(Ok((events, _))) = cursor.map(|cursor| self.store.events(ADDRESSES, cursor, usize::MAX)) else {
            // Events are missing: an IPAddress may be gone without one.
            return services.extend(self.store.list(SERVICES).1.iter().map(|(key, _)| key.to_string()));
        };
        for previous in events.iter().filter_map(|event| event.previous.as_ref()) {
            let ip = previous.value();
            let (namespace, name, _) = reference(&ip);
            services.insert(service_key(namespace, name));
        }
    }

    async fn mend(&self, kind: &'static str, object: &Value, finding: &Finding) {
        let outcome = match &finding.fix {
            Fix::Nothing => Ok(()),
            Fix::Make(address) => self.make_address(address, object).await,
            Fix::Remove => self.drop_address(&address_key_of(object)).await,
        };
        if let Err(error) = outcome {
            tracing::warn!(error = %error.message, about = object::name(object), "repairing an address of a Service failed; it is tried again at its next change");
        }
        if !finding.reason.is_empty() {
            tracing::warn!(reason = finding.reason, "{}", finding.message);
            self.tell(kind, object, finding).await;
        }
    }

    async fn make_address(&self, address: &IpAddr, service: &Value) -> Result<(), ApiError> {
        self.drop_address(&address_key(address)).await?;
        let Some(kind) = kinds::by_resource("networking.k8s.io", "v1", "ipaddresses") else { return Ok(()) };
        self.ensure(kind, "", ip_address(address, service)).await
    }

    async fn drop_address(&self, key: &str) -> Result<(), ApiError> {
        let Some(entry) = self.store.get(key) else { return Ok(()) };
        let dropped = self.store.delete(key, Expect::Revision(entry.revision), entry.value()).await;
        dropped.map(drop).map_err(ApiError::internal)
    }

    /// Writes a Warning about an object.
    async fn tell(&self, kind: &'static str, object: &Value, finding: &Finding) {
        let Some(events) = kinds::by_resource("", "v1", "events") else { return };
        let namespace = match object::namespace(object) {
            "" => "default",
            namespace => namespace,
        };
        let about = json!({"kind": kind, "apiVersion": object::text(object, &["apiVersion"]), "name": object::name(object),
            "namespace": object::namespace(object), "uid": object::uid(object), "resourceVersion": object::resource_version(object)});
        let now = object::now();
        let event = json!({
            "metadata": {"name": format!("{}.{}", object::name(object), object::random_suffix(16)), "namespace": namespace},
            "involvedObject": about, "reason": finding.reason, "message": finding.message, "type": "Warning",
            "source": {"component": COMPONENT}, "reportingComponent": COMPONENT, "reportingInstance": "",
            "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        });
        let context = WriteContext::new(UserInfo::new("system:apiserver", &[MASTERS]), false);
        if let Err(error) = self.create(&context, events, namespace, event).await {
            tracing::debug!(error = %error.message, "an Event about an address could not be written");
        }
    }
}

fn address_key_of(ip: &Value) -> String {
    format!("{ADDRESSES}/{}", object::name(ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:02:00Z";

    fn service(name: &str, address: &str) -> Value {
        json!({"metadata": {"name": name, "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address]}})
    }

    fn ip(address: &str, service: &str) -> Value {
        let mut object = ip_address(&address.parse().unwrap(), &json!({"metadata": {"name": service, "namespace": "shop"}}));
        object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        object
    }

    async fn store(services: &[Value], ips: &[Value]) -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        store.put(&format!("{CIDRS}/kubernetes"), Expect::Absent, json!({"spec": {"cidrs": ["10.0.0.0/16"]}})).await.unwrap();
        for service in services {
            store.put(&service_key("shop", object::name(service)), Expect::Absent, service.clone()).await.unwrap();
        }
        for ip in ips {
            store.put(&address_key_of(ip), Expect::Absent, ip.clone()).await.unwrap();
        }
        (dir, store)
    }

    /// The cases of upstream's comment, in its order, and those around it.
    #[tokio::test]
    async fn services_have_their_addresses() {
        let web = || service("web", "10.0.0.9");
        let mut gateway = ip("10.0.0.9", "web");
        gateway["spec"]["parentRef"] = json!({"group": "g.io", "resource": "gateways", "name": "web"});
        let mut bare = ip("10.0.0.9", "web");
        bare["metadata"]["labels"] = json!({});
        let address = || Fix::Make("10.0.0.9".parse().unwrap());
        let wrong = "the ClusterIP [IPv4]: 10.0.0.9 for Service shop/web has a wrong reference; repairing";
        for (case, services, ips, found) in [
            ("both are there", vec![web()], vec![ip("10.0.0.9", "web")], None),
            ("another kind has it", vec![web()], vec![gateway], Some(("ClusterIPNotAllocated", wrong, address()))),
            (
                "it is missing",
                vec![web()],
                vec![],
                Some(("ClusterIPNotAllocated", "Cluster IP [IPv4]: 10.0.0.9 is not allocated; repairing", address())),
            ),
            (
                "two Services have it",
                vec![web(), service("a", "10.0.0.9")],
                vec![ip("10.0.0.9", "a")],
                Some((
                    "ClusterIPAlreadyAllocated",
                    "Cluster IP [IPv4]:10.0.0.9 was assigned to multiple services; please recreate service",
                    Fix::Nothing,
                )),
            ),
            ("a Service that is gone has it", vec![web()], vec![ip("10.0.0.9", "gone")], Some(("ClusterIPNotAllocated", wrong, address()))),
            ("labels are missing", vec![web()], vec![bare], Some(("", "", address()))),
        ] {
            let (_dir, store) = store(&services, &ips).await;
            let expected = found.map(|(reason, message, fix)| Finding { reason, message: message.into(), fix });
            assert_eq!(check_service(&web(), &store), expected.into_iter().collect::<Vec<_>>(), "{case}");
        }
        let (_dir, store) = store(&[], &[]).await;
        let outside = check_service(&service("web", "10.1.0.9"), &store);
        assert_eq!(outside[0].message, "Cluster IP [IPv4]: 10.1.0.9 is not within any configured Service CIDR; please recreate service");
        assert!(check_service(&service("web", "None"), &store).is_empty());
    }

    #[tokio::test]
    async fn addresses_have_their_services() {
        let now = NOW.parse().unwrap();
        let mut young = ip("10.0.0.8", "gone");
        young["metadata"]["creationTimestamp"] = "2026-01-01T00:01:30Z".into();
        let mut foreign = ip("10.0.0.8", "gone");
        foreign["metadata"]["labels"] = json!({MANAGED_BY: "someone"});
        let mut changed = ip("10.0.0.8", "web");
        changed["spec"]["parentRef"]["resource"] = "gateways".into();
        let (_dir, store) = store(&[service("web", "10.0.0.9")], &[]).await;
        let reason = |ip: &Value| match check_address(ip, &store, now) {
            Verdict::Remove(finding) => finding.reason,
            Verdict::Later => "later",
            Verdict::Fine => "",
        };
        for (case, ip, expected) in [
            ("its Service has it", ip("10.0.0.9", "web"), ""),
            ("its Service has another one", ip("10.0.0.8", "web"), "IPAddressWrongReference"),
            ("its Service is gone", ip("10.0.0.8", "gone"), "IPAddressNotAllocated"),
            ("its Service may come", young, "later"),
            ("it is somebody else's", foreign, ""),
            ("it was changed", changed, "IPAddressNotAllocated"),
        ] {
            assert_eq!(reason(&ip), expected, "{case}");
        }
    }
}
