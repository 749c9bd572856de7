//! Services: ClusterIPs, node ports and health-check ports, taken and given back with the object
//! (pkg/registry/core/service/storage/{alloc,storage}.go, pkg/registry/core/service/strategy.go).

use super::Registry;
use super::delete::DeleteOptions;
use crate::alloc::{AllocError, Claim};
use crate::kind::{Kind, WriteContext};
use crate::kinds::core::service::{needs_health_check_port, needs_node_ports, service_type};
use crate::object;
use crate::status::ApiError;
use crate::validation::FieldError;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::net::IpAddr;

fn is_service(kind: &Kind) -> bool {
    kind.is("", "services")
}

/// The addresses and ports a Service holds.
pub fn holdings(service: &Value) -> (HashSet<IpAddr>, HashSet<u16>) {
    let single = object::lookup(service, &["spec", "clusterIP"]).into_iter();
    let addresses = object::list(service, &["spec", "clusterIPs"]).iter().chain(single);
    let addresses = addresses.filter_map(|address| address.as_str()?.parse().ok()).collect();
    let node_ports = object::list(service, &["spec", "ports"]).iter().filter_map(|port| port.get("nodePort"));
    let health = object::lookup(service, &["spec", "healthCheckNodePort"]).into_iter();
    let ports = node_ports.chain(health).filter_map(Value::as_u64).filter_map(|port| u16::try_from(port).ok());
    (addresses, ports.filter(|port| *port != 0).collect())
}

impl Registry {
    /// Takes what a new or changed Service needs and does not hold yet, and writes it into the object.
    pub(super) fn allocate_service(&self, kind: &Kind, old: Option<&Value>, service: &mut Value) -> Result<Claim<'_>, ApiError> {
        let mut claim = Claim::new(&self.allocators);
        if !is_service(kind) {
            return Ok(claim);
        }
        let held = old.map(holdings).unwrap_or_default();
        let name = object::name(service).to_string();
        let outcome = claim_addresses(&mut claim, &held.0, service).and_then(|()| claim_ports(&mut claim, &held.1, service));
        match outcome {
            Ok(()) => Ok(claim),
            Err(error) => Err(ApiError::invalid(kind, &name, &[*error])),
        }
    }

    /// Gives back what `old` held and `new` does not.
    pub(super) fn release_service(&self, kind: &Kind, old: Option<&Value>, new: Option<&Value>) {
        if !is_service(kind) {
            return;
        }
        let (before, after) = (old.map(holdings).unwrap_or_default(), new.map(holdings).unwrap_or_default());
        let addresses: Vec<IpAddr> = before.0.difference(&after.0).copied().collect();
        let ports: Vec<u16> = before.1.difference(&after.1).copied().collect();
        self.allocators.release(&addresses, &ports);
    }

    /// After a deletion: gives back what a Service held, and deletes the Endpoints of its name, whoever wrote them.
    pub(super) fn service_is_gone<'a>(&'a self, context: &'a WriteContext, kind: &Kind, last: &'a Value) -> BoxFuture<'a, ()> {
        if !is_service(kind) {
            return Box::pin(std::future::ready(()));
        }
        self.release_service(kind, Some(last), None);
        Box::pin(async move {
            let Some(endpoints) = self.kinds.find("", "v1", "endpoints") else { return };
            let (namespace, name) = (object::namespace(last), object::name(last));
            match self.delete_admitted(context, &endpoints, namespace, name, &DeleteOptions::default()).await {
                Err(error) if !error.is_not_found() => {
                    tracing::warn!(namespace, service = name, %error, "the Endpoints of a deleted Service were not deleted");
                }
                _ => {}
            }
        })
    }
}

fn claim_addresses(claim: &mut Claim<'_>, held: &HashSet<IpAddr>, service: &mut Value) -> Result<(), Box<FieldError>> {
    if service_type(service) == "ExternalName" {
        return Ok(());
    }
    let wanted = object::text(service, &["spec", "clusterIP"]).to_string();
    let wanted = if wanted.is_empty() {
        let first = object::list(service, &["spec", "clusterIPs"]).first().and_then(Value::as_str);
        first.unwrap_or_default().to_string()
    } else {
        wanted
    };
    let address = match wanted.as_str() {
        "None" => "None".to_string(),
        "" => claim
            .address(None)
            .map_err(|error| Box::new(FieldError::internal("spec.clusterIPs", &format!("failed to allocate a serviceIP: {error}"))))?
            .to_string(),
        text => {
            let failed = |why: &dyn std::fmt::Display| {
                Box::new(FieldError::invalid("spec.clusterIPs", json!([text]), &format!("failed to allocate IP {text}: {why}")))
            };
            let address: IpAddr = text.parse().map_err(|error: std::net::AddrParseError| failed(&error))?;
            if !held.contains(&address) {
                claim.address(Some(address)).map_err(|error| failed(&error))?;
            }
            text.to_string()
        }
    };
    let family = if address.contains(':') { "IPv6" } else { "IPv4" };
    let spec = object::map_mut(service, "spec");
    spec.insert("clusterIPs".into(), json!([address]));
    spec.insert("clusterIP".into(), address.into());
    if spec.get("ipFamilies").is_none_or(Value::is_null) {
        spec.insert("ipFamilies".into(), json!([family]));
    }
    if spec.get("ipFamilyPolicy").is_none_or(Value::is_null) {
        spec.insert("ipFamilyPolicy".into(), "SingleStack".into());
    }
    Ok(())
}

fn claim_ports(claim: &mut Claim<'_>, held: &HashSet<u16>, service: &mut Value) -> Result<(), Box<FieldError>> {
    if needs_node_ports(service) {
        let mut assigned: Vec<(String, u16)> = Vec::new();
        for (index, port) in object::array_mut(object::map_mut(service, "spec"), "ports").iter_mut().enumerate() {
            let field = format!("spec.ports[{index}].nodePort");
            let protocol = object::text(port, &["protocol"]).to_string();
            let number = object::integer(port, &["nodePort"]).unwrap_or_default();
            let number = claim_port(claim, held, &field, number)?;
            if assigned.contains(&(protocol.clone(), number)) {
                return Err(Box::new(FieldError::invalid(&field, number.into(), &AllocError::PortTaken.to_string())));
            }
            assigned.push((protocol, number));
            if let Some(port) = port.as_object_mut() {
                port.insert("nodePort".into(), number.into());
            }
        }
    }
    if needs_health_check_port(service) {
        let number = object::integer(service, &["spec", "healthCheckNodePort"]).unwrap_or_default();
        let number = claim_port(claim, held, "spec.healthCheckNodePort", number)?;
        object::map_mut(service, "spec").insert("healthCheckNodePort".into(), number.into());
    }
    Ok(())
}

fn claim_port(claim: &mut Claim<'_>, held: &HashSet<u16>, field: &str, wanted: i64) -> Result<u16, Box<FieldError>> {
    let number = u16::try_from(wanted).unwrap_or(u16::MAX);
    let result = match number {
        0 => claim.port(None).map_err(|error| FieldError::internal(field, &format!("failed to allocate a nodePort: {error}"))),
        port if held.contains(&port) => return Ok(port),
        port => claim.port(Some(port)).map_err(|error| FieldError::invalid(field, wanted.into(), &error.to_string())),
    };
    result.map_err(Box::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holdings_are_addresses_and_all_ports() {
        let service = json!({"spec": {"clusterIP": "10.96.0.9", "healthCheckNodePort": 31000, "ports": [{"nodePort": 30080}, {"port": 1}]}});
        let (addresses, ports) = holdings(&service);
        assert_eq!(addresses.len(), 1);
        assert_eq!(ports, HashSet::from([30080, 31000]));
        assert!(holdings(&json!({"spec": {"clusterIP": "None"}})).0.is_empty());
    }
}
