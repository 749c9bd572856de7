//! ServiceCIDRs: from where Services get their addresses (pkg/apis/networking/validation, pkg/registry/networking/servicecidr).

#[cfg(test)]
mod tests;

use crate::kind::Kind;
use crate::object;
use crate::table::{AGE, NAME, age, name, text};
use crate::validation::addresses::{self, Form};
use crate::validation::field::{Errors, Field};
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::networking;
use serde_json::{Value, json};

const IMMUTABLE: &str = "field is immutable";

pub fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", "io.k8s.api.networking.v1.ServiceCIDR")
        .described_by::<networking::v1::ServiceCIDR>()
        .cluster()
        .status()
        .validate(validate)
        .validate_status(|_, _, _| ())
        .prepare_create(|cidr| object::set(cidr, "status", json!({})))
        .table([NAME, text("CIDRs"), AGE], cells)
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let cidrs: Vec<&str> = object::list(object, &["spec", "cidrs"]).iter().filter_map(Value::as_str).collect();
    vec![name(object), cidrs.join(",").into(), age(object, now)]
}

fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    let cidrs = new.get("spec").get("cidrs");
    let Some(old) = old else { return check(&cidrs, errors) };
    let (found, before) = (cidrs.items(), old.get("spec").get("cidrs").items());
    let grows = before.len() == 1 && found.len() == 2;
    if found.len() != before.len() && !grows {
        return errors.invalid(&cidrs, IMMUTABLE);
    }
    for (cidr, kept) in found.iter().zip(&before) {
        if cidr.value != kept.value {
            errors.invalid(cidr, IMMUTABLE);
        }
    }
    if grows {
        check(&cidrs, errors);
    }
}

fn check(cidrs: &Field, errors: &mut Errors) {
    let found = cidrs.items();
    match found.len() {
        0 => return errors.required(cidrs, "at least one CIDR required"),
        1 | 2 => {}
        _ => return errors.invalid_value(cidrs, json!({"CIDRs": cidrs.value}), "may only hold up to 2 values"),
    }
    for cidr in &found {
        errors.invalid_each(cidr, addresses::cidr(cidr.text(), Form::Canonical));
    }
    let is_v6: Vec<bool> = found.iter().filter_map(|cidr| cidr.text().parse::<IpNet>().ok()).map(|network| network.addr().is_ipv6()).collect();
    if let [first, second] = is_v6.as_slice()
        && first == second
    {
        errors.invalid(cidrs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64");
    }
}
