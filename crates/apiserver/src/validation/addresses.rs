//! Addresses and networks as texts (apimachinery pkg/util/validation/ip.go), in the strict form of today's releases.

use ipnet::IpNet;
use std::net::IpAddr;

/// How an address may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// In any form without ambiguity: fields that are older than the rule.
    Any,
    /// In the shortest form alone.
    Canonical,
}

fn mapped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// The address without leading zeros, when they are what keeps it from being read.
fn without_zeros(text: &str) -> Option<IpAddr> {
    let parts: Vec<String> = text.split('.').map(|part| part.trim_start_matches('0').to_string()).collect();
    let digits = text.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    let filled: Vec<&str> = parts.iter().map(|part| if part.is_empty() { "0" } else { part }).collect();
    if digits { filled.join(".").parse().ok() } else { None }
}

/// What is wrong with an address.
pub fn ip(text: &str, form: Form) -> Vec<String> {
    let Ok(address) = text.parse::<IpAddr>() else {
        let problem = match without_zeros(text) {
            Some(_) => "must not have leading 0s",
            None => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        };
        return vec![problem.into()];
    };
    if mapped(address) {
        return vec!["must not be an IPv4-mapped IPv6 address".into()];
    }
    if form == Form::Canonical && address.to_string() != text {
        return vec![format!("must be in canonical form ({:?})", address.to_string())];
    }
    Vec::new()
}

/// What is wrong with a network.
pub fn cidr(text: &str, form: Form) -> Vec<String> {
    let (address, length) = text.split_once('/').unwrap_or((text, ""));
    let bits = if address.contains(':') { 128 } else { 32 };
    let length_value = length.parse::<u8>().ok().filter(|value| *value <= bits && length.bytes().all(|byte| byte.is_ascii_digit()));
    // `ipnet` reads numbers with zeros in front.
    let strict = address.parse::<IpAddr>().ok();
    let network = strict.or_else(|| without_zeros(address)).zip(length_value).and_then(|(address, length)| IpNet::new(address, length).ok());
    let Some(network) = network else {
        return vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".into()];
    };
    if strict.is_none() || (length.len() > 1 && length.starts_with('0')) {
        return vec!["must not have leading 0s in IP or prefix length".into()];
    }
    if mapped(network.addr()) {
        return vec!["must not have an IPv4-mapped IPv6 address".into()];
    }
    if network.addr() != network.network() {
        return vec!["must not have bits set beyond the prefix length".into()];
    }
    if form == Form::Canonical && network.to_string() != text {
        return vec![format!("must be in canonical form ({:?})", network.to_string())];
    }
    Vec::new()
}

/// Whether there are addresses (or networks) of both families.
pub fn both_families<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> bool {
    let is_v6 = |text: &'a str| text.contains(':');
    texts.clone().any(is_v6) && !texts.clone().all(is_v6)
}

/// What keeps an address from being an endpoint's (`ValidateEndpointIP`).
pub fn endpoint_ip(text: &str) -> Vec<String> {
    let Some(address) = text.parse::<IpAddr>().ok().or_else(|| without_zeros(text)) else { return vec!["must be a valid IP address".into()] };
    let (link_local, link_local_multicast) = match address {
        IpAddr::V4(four) => (four.is_link_local(), four.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(six) => (six.is_unicast_link_local(), six.segments()[0] & 0xff0f == 0xff02),
    };
    let mut problems = Vec::new();
    if address.is_unspecified() {
        problems.push(format!("may not be unspecified ({text})"));
    }
    if address.is_loopback() {
        problems.push("may not be in the loopback range (127.0.0.0/8, ::1/128)".into());
    }
    if link_local {
        problems.push("may not be in the link-local range (169.254.0.0/16, fe80::/10)".into());
    }
    if link_local_multicast {
        problems.push("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".into());
    }
    problems
}

/// How an address that was accepted should be written (`GetWarningsForIP`).
pub fn ip_warning(path: &str, text: &str) -> Option<String> {
    let parsed = text.parse::<IpAddr>().ok();
    let standard = match parsed {
        Some(IpAddr::V6(six)) => six.to_ipv4_mapped().map(IpAddr::V4),
        Some(IpAddr::V4(_)) => None,
        None => without_zeros(text),
    };
    if let Some(standard) = standard {
        return Some(format!("{path}: non-standard IP address {text:?} is invalid: use {:?}", standard.to_string()));
    }
    let canonical = parsed.filter(IpAddr::is_ipv6)?.to_string();
    (canonical != text).then(|| format!("{path}: IPv6 address {text:?} should be in RFC 5952 canonical format ({canonical:?})"))
}

/// How a network that was accepted should be written (`GetWarningsForCIDR`).
pub fn cidr_warning(path: &str, text: &str) -> Option<String> {
    let network = text.trim().parse::<IpNet>().ok()?;
    (network.addr().is_ipv6() && network.to_string() != text.trim())
        .then(|| format!("{path}: IPv6 CIDR value {text:?} should be in RFC 5952 canonical format ({:?})", network.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unambiguous() {
        for (text, any, canonical) in [
            ("10.0.0.1", "", ""),
            ("2001:db8::1", "", ""),
            ("2001:DB8::1", "", "must be in canonical form (\"2001:db8::1\")"),
            ("010.0.0.1", "must not have leading 0s", "must not have leading 0s"),
            ("::ffff:1.2.3.4", "must not be an IPv4-mapped IPv6 address", "must not be an IPv4-mapped IPv6 address"),
            (
                "10.0.0",
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
        ] {
            assert_eq!((ip(text, Form::Any).join(""), ip(text, Form::Canonical).join("")), (any.to_string(), canonical.to_string()), "{text}");
        }
    }

    #[test]
    fn networks_have_no_host_bits() {
        for (text, any, canonical) in [
            ("10.0.0.0/8", "", ""),
            ("2001:DB8::/64", "", "must be in canonical form (\"2001:db8::/64\")"),
            ("10.0.0.1/8", "must not have bits set beyond the prefix length", "must not have bits set beyond the prefix length"),
            ("10.0.0.0/08", "must not have leading 0s in IP or prefix length", "must not have leading 0s in IP or prefix length"),
            ("010.0.0.0/8", "must not have leading 0s in IP or prefix length", "must not have leading 0s in IP or prefix length"),
            ("::ffff:1.2.3.0/120", "must not have an IPv4-mapped IPv6 address", "must not have an IPv4-mapped IPv6 address"),
            (
                "10.0.0.0/33",
                "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
                "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
            ),
        ] {
            assert_eq!((cidr(text, Form::Any).join(""), cidr(text, Form::Canonical).join("")), (any.to_string(), canonical.to_string()), "{text}");
        }
    }

    #[test]
    fn endpoints_have_addresses_that_others_reach() {
        for (text, problems) in [
            ("10.0.0.1", vec![]),
            ("0.0.0.0", vec!["may not be unspecified (0.0.0.0)"]),
            ("127.0.0.1", vec!["may not be in the loopback range (127.0.0.0/8, ::1/128)"]),
            ("::1", vec!["may not be in the loopback range (127.0.0.0/8, ::1/128)"]),
            ("169.254.169.254", vec!["may not be in the link-local range (169.254.0.0/16, fe80::/10)"]),
            ("fe80::1", vec!["may not be in the link-local range (169.254.0.0/16, fe80::/10)"]),
            ("224.0.0.1", vec!["may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"]),
            ("ff02::1", vec!["may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"]),
            ("web", vec!["must be a valid IP address"]),
        ] {
            assert_eq!(endpoint_ip(text), problems, "{text}");
        }
    }

    #[test]
    fn other_forms_are_warned_of() {
        let of = |text: &str| ip_warning("spec.x", text).unwrap_or_default();
        assert_eq!(of("2001:DB8::1"), "spec.x: IPv6 address \"2001:DB8::1\" should be in RFC 5952 canonical format (\"2001:db8::1\")");
        assert_eq!(of("010.0.0.1"), "spec.x: non-standard IP address \"010.0.0.1\" is invalid: use \"10.0.0.1\"");
        assert_eq!((of("10.0.0.1"), of("2001:db8::1")), (String::new(), String::new()));
        let warned = cidr_warning("spec.x", "2001:DB8::/64").unwrap();
        assert_eq!(warned, "spec.x: IPv6 CIDR value \"2001:DB8::/64\" should be in RFC 5952 canonical format (\"2001:db8::/64\")");
    }
}
