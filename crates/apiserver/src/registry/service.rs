//! Services: ClusterIPs, node ports and health-check ports, taken and given back with the object
//! (pkg/registry/core/service/storage/{alloc,storage}.go).
//!
//! The IPAddresses of a Service are written in one transaction with it: none leaks, and none is missing, when the server ends in between.

use super::create::fill_system_fields;
use super::{Registry, write_error};
use crate::alloc::ranges::family;
use crate::alloc::{AllocError, Claim, address_key};
use crate::kind::Kind;
use crate::kinds;
use crate::kinds::core::service::update::{health_check_port, keep_allocated, node_port};
use crate::kinds::core::service::{families, needs_health_check_port, needs_node_ports, service_type};
use crate::object;
use crate::status::ApiError;
use crate::store::{Expect, Write, WriteError};
use crate::validation::FieldError;
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
pub(super) const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "ipallocator.k8s.io";

fn is_service(kind: &Kind) -> bool {
    kind.is("", "services")
}

/// The addresses that a Service holds.
pub fn addresses(service: &Value) -> HashSet<IpAddr> {
    let single = object::lookup(service, &["spec", "clusterIP"]).into_iter();
    let all = object::list(service, &["spec", "clusterIPs"]).iter().chain(single);
    all.filter_map(|address| address.as_str()?.parse().ok()).collect()
}

/// The node ports and the health-check port that a Service holds.
pub fn ports(service: &Value) -> HashSet<u16> {
    let node_ports = object::list(service, &["spec", "ports"]).iter().map(node_port);
    let health = object::lookup(service, &["spec", "healthCheckNodePort"]).and_then(Value::as_u64);
    node_ports.chain(health).filter_map(|port| u16::try_from(port).ok()).filter(|port| *port != 0).collect()
}

/// The IPAddress of a Service's address.
pub fn ip_address(address: &IpAddr, service: &Value) -> Value {
    json!({
        "metadata": {"name": address.to_string(), "labels": {FAMILY: family(address), MANAGED_BY: MANAGER}},
        "spec": {"parentRef": {"namespace": object::namespace(service), "resource": "services", "name": object::name(service)}},
    })
}

/// Whether an IPAddress has the labels of the allocator.
pub(super) fn has_labels(stored: &Value, address: &IpAddr) -> bool {
    let label = |name: &str| object::text(stored, &["metadata", "labels", name]);
    label(FAMILY) == family(address) && label(MANAGED_BY) == MANAGER
}

/// The ways in which an allocation fails.
enum Refusal {
    Fields(Vec<FieldError>),
    Other(ApiError),
}

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Self {
        Self::Fields(vec![error])
    }
}

impl Registry {
    /// Takes what a new Service needs, or a changed one that does not hold it yet, and writes it into the object.
    pub(super) fn allocate_service(&self, kind: &Kind, old: Option<&Value>, service: &mut Value) -> Result<Claim<'_>, ApiError> {
        let mut claim = Claim::new(&self.allocators, &self.store);
        if !is_service(kind) {
            return Ok(claim);
        }
        let name = object::name(service).to_string();
        let configured = self.allocators.configured().families();
        let old = old.map(|old| {
            let mut old = old.clone();
            families::complete_stored(&mut old, configured.first().copied().unwrap_or("IPv4"));
            old
        });
        if let Some(old) = &old {
            keep_allocated(old, service);
        }
        families::normalize(old.as_ref(), service);
        let outcome = families::init(old.as_ref(), service, &configured).map_err(Refusal::Fields).and_then(|()| {
            claim_addresses(&mut claim, old.as_ref(), service)?;
            match &old {
                None => claim_new_ports(&mut claim, service)?,
                Some(old) => claim_ports(&mut claim, &ports(old), service)?,
            }
            claim_health_check_port(&mut claim, old.as_ref(), service)
        });
        match outcome {
            Ok(()) => Ok(claim),
            Err(Refusal::Fields(errors)) => Err(ApiError::invalid(kind, &name, &errors)),
            Err(Refusal::Other(error)) => Err(error),
        }
    }

    /// Stores an object together with the IPAddresses that it takes and gives back.
    pub(super) async fn put_with_addresses(&self, kind: &Kind, old: Option<&Value>, write: Write, claim: Claim<'_>) -> Result<Value, ApiError> {
        let name = object::name(&write.object).to_string();
        let (key, expects_nothing) = (write.key.clone(), write.expect == Expect::Absent);
        let mut writes = self.new_addresses(&claim, &write.object);
        if is_service(kind) {
            let kept = if write.removes { HashSet::new() } else { addresses(&write.object) };
            let held = old.map(addresses).unwrap_or_default();
            writes.extend(held.difference(&kept).filter_map(|address| self.release_address(address)));
        }
        if is_service(kind) && write.removes {
            writes.extend(self.release_endpoints(&write.object));
        }
        writes.push(write);
        let mut stored = self.store.write_all(writes).await.map_err(|error| {
            // Somebody made an IPAddress by hand in the meantime.
            let lost = error == WriteError::Exists && !(expects_nothing && self.store.get(&key).is_some());
            if lost { address_taken(kind, &name, claim.addresses()) } else { write_error(kind, &name, &error) }
        })?;
        claim.keep();
        let stored = stored.pop().unwrap_or_default();
        Ok(stored)
    }

    fn new_addresses(&self, claim: &Claim<'_>, service: &Value) -> Vec<Write> {
        let Some(kind) = kinds::by_resource("networking.k8s.io", "v1", "ipaddresses") else { return Vec::new() };
        let write = |address: &IpAddr| {
            let mut object = ip_address(address, service);
            fill_system_fields(kind, &mut object);
            Write { key: address_key(address), expect: Expect::Absent, object, removes: false }
        };
        claim.addresses().iter().map(write).collect()
    }

    /// The removal of an address's object; of one that a finalizer holds its beginning.
    fn release_address(&self, address: &IpAddr) -> Option<Write> {
        self.removal(address_key(address))
    }

    /// The Endpoints go with their Service: a new one of its name must not find them.
    fn release_endpoints(&self, service: &Value) -> Option<Write> {
        self.removal(format!("core/endpoints/{}/{}", object::namespace(service), object::name(service)))
    }

    fn removal(&self, key: String) -> Option<Write> {
        let entry = self.store.get(&key)?;
        let mut object = entry.value();
        let held = !object::finalizers(&object).is_empty();
        if held {
            object::begin_deletion(&mut object, 0);
        }
        Some(Write { key, expect: Expect::Revision(entry.revision), object, removes: !held })
    }

    /// Gives back the ports that `old` held and `new` does not.
    pub(super) fn release_ports(&self, kind: &Kind, old: &Value, new: Option<&Value>) {
        if is_service(kind) {
            let kept = new.map(ports).unwrap_or_default();
            self.allocators.release_ports(&ports(old).difference(&kept).copied().collect::<Vec<u16>>());
        }
    }
}

fn address_taken(kind: &Kind, name: &str, addresses: &[IpAddr]) -> ApiError {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    let detail = format!("failed to allocate IP {}: {}", texts.join(","), AllocError::AddressTaken);
    ApiError::invalid(kind, name, &[FieldError::invalid("spec.clusterIPs", json!(texts), &detail)])
}

fn claim_addresses(claim: &mut Claim<'_>, old: Option<&Value>, service: &mut Value) -> Result<(), Refusal> {
    for (index, family, wanted) in families::missing(old, service) {
        let shown = object::lookup(service, &["spec", "clusterIPs"]).cloned().unwrap_or_default();
        let failed = |ip: &str, why: &dyn std::fmt::Display| {
            Refusal::from(FieldError::invalid("spec.clusterIPs", shown.clone(), &format!("failed to allocate IP {ip}: {why}")))
        };
        let address = match wanted {
            None => claim.any_address(&family).map_err(|error| {
                let name = object::name(service);
                Refusal::Other(ApiError::internal(format!("failed to allocate a serviceIP for Service {name:?}: {error}")))
            })?,
            Some(text) => {
                let address: IpAddr = text.parse().map_err(|error: std::net::AddrParseError| failed(&text, &error))?;
                claim.address(address).map_err(|error| failed(&text, &error))?;
                families::put(service, index, &text);
                continue;
            }
        };
        families::put(service, index, &address.to_string());
    }
    Ok(())
}

fn node_port_refused(index: usize, number: u64, error: &AllocError) -> Refusal {
    FieldError::invalid(&format!("spec.ports[{index}].nodePort"), number.into(), &error.to_string()).into()
}

fn any_port(claim: &mut Claim<'_>) -> Result<u64, Refusal> {
    let port = claim.port(None).map_err(|error| Refusal::Other(ApiError::internal(format!("failed to allocate a nodePort: {error}"))))?;
    Ok(port.into())
}

fn take_port(claim: &mut Claim<'_>, number: u64) -> Result<(), AllocError> {
    // A number beyond all ports is outside every range.
    claim.port(Some(u16::try_from(number).unwrap_or_default())).map(drop)
}

fn is_of_ports(service: &Value) -> bool {
    matches!(service_type(service), "NodePort" | "LoadBalancer")
}

/// The node ports of a new Service (`initNodePorts`): ports of one number share one, whatever their protocols.
fn claim_new_ports(claim: &mut Claim<'_>, service: &mut Value) -> Result<(), Refusal> {
    if !is_of_ports(service) {
        return Ok(());
    }
    let allots = needs_node_ports(service);
    let number = |port: &Value| object::integer(port, &["port"]).unwrap_or_default();
    let mut chosen: HashMap<i64, u64> = HashMap::new();
    for port in object::list(service, &["spec", "ports"]).iter().filter(|port| node_port(port) != 0) {
        chosen.entry(number(port)).or_insert(node_port(port));
    }
    let mut given: HashMap<i64, u64> = HashMap::new();
    for (index, port) in object::array_mut(object::map_mut(service, "spec"), "ports").iter_mut().enumerate() {
        let (wanted, own) = (node_port(port), number(port));
        if wanted == 0 && !allots {
            continue;
        }
        let Some(shared) = given.get(&own).copied() else {
            let taken = match chosen.get(&own).copied() {
                Some(asked) => take_port(claim, asked).map(|()| asked).map_err(|error| node_port_refused(index, asked, &error))?,
                None => any_port(claim)?,
            };
            object::set(port, "nodePort", taken.into());
            given.insert(own, taken);
            continue;
        };
        if wanted == 0 {
            object::set(port, "nodePort", shared.into());
        } else if wanted != shared {
            take_port(claim, wanted).map_err(|error| node_port_refused(index, wanted, &error))?;
        }
    }
    Ok(())
}

/// The node ports of a changed Service (`updateNodePorts`).
fn claim_ports(claim: &mut Claim<'_>, held: &HashSet<u16>, service: &mut Value) -> Result<(), Refusal> {
    if !is_of_ports(service) {
        return Ok(());
    }
    let allots = needs_node_ports(service);
    let (mut taken, mut assigned) = (HashSet::new(), HashSet::new());
    for (index, port) in object::array_mut(object::map_mut(service, "spec"), "ports").iter_mut().enumerate() {
        let mut number = node_port(port);
        if number == 0 && !allots {
            continue;
        }
        let is_held = u16::try_from(number).is_ok_and(|number| held.contains(&number)) || taken.contains(&number);
        if number == 0 {
            number = any_port(claim)?;
            object::set(port, "nodePort", number.into());
        } else if !is_held {
            take_port(claim, number).map_err(|error| node_port_refused(index, number, &error))?;
            taken.insert(number);
        }
        let protocol = object::text(port, &["protocol"]).to_string();
        if !assigned.insert((protocol.clone(), number)) {
            return Err(Refusal::Other(ApiError::new(500, "", format!("duplicate nodePort: {{{protocol} {number}}}"))));
        }
    }
    Ok(())
}

fn claim_health_check_port(claim: &mut Claim<'_>, old: Option<&Value>, service: &mut Value) -> Result<(), Refusal> {
    if !needs_health_check_port(service) || old.is_some_and(needs_health_check_port) {
        return Ok(());
    }
    let wanted = health_check_port(service);
    if wanted != 0 {
        let refused = |error| Refusal::Other(ApiError::internal(format!("failed to allocate requested HealthCheck NodePort {wanted}: {error}")));
        return take_port(claim, u64::try_from(wanted).unwrap_or_default()).map_err(refused);
    }
    let refused = |error| Refusal::Other(ApiError::internal(format!("failed to allocate a HealthCheck NodePort 0: {error}")));
    let port = claim.port(None).map_err(refused)?;
    object::map_mut(service, "spec").insert("healthCheckNodePort".into(), port.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holdings_are_addresses_and_all_ports() {
        let service = json!({"spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9", "fd00::9"], "healthCheckNodePort": 31000,
            "ports": [{"nodePort": 30080}, {"port": 1}]}});
        assert_eq!(addresses(&service).len(), 2);
        assert_eq!(ports(&service), HashSet::from([30080, 31000]));
        assert!(addresses(&json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}})).is_empty());
    }
}
