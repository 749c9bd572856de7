//! When a certificate is asked for, and what for. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::NodeAddress;
use pki::{Key, Leaf, Subject};

/// The purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The node's client certificate.
    Client,
    /// The certificate of the agent's server.
    Serving,
}

impl Purpose {
    /// Who signs it.
    pub(crate) fn signer(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// The begin of the names of its files.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Client => "kubelet-client",
            Self::Serving => "kubelet-server",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Serving => "serving",
        }
    }

    /// What it may be used for, in upstream's order (which the names of first requests follow from): only RSA keys encipher others.
    pub(crate) fn usages(self, key: &Key, is_first: bool) -> Vec<&'static str> {
        let purpose = match self {
            Self::Client => "client auth",
            Self::Serving => "server auth",
        };
        match (key.is_rsa(), is_first) {
            (false, _) => vec!["digital signature", purpose],
            (true, true) => vec!["digital signature", purpose, "key encipherment"],
            (true, false) => vec!["digital signature", "key encipherment", purpose],
        }
    }
}

/// What to do about a certificate now.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// There is nothing to ask for: the Node has no address yet.
    Idle,
    /// Use it until then.
    Use(SystemTime),
    /// Ask for one, for this reason.
    Request(String),
}

/// Certificates are replaced when 70 to 90 % of their life are over: `jitter`, from 0 to 1, says where between.
pub(crate) fn deadline(leaf: &Leaf, jitter: f64) -> SystemTime {
    let life = leaf.not_after.duration_since(leaf.not_before).unwrap_or_default();
    leaf.not_before + life.mul_f64(0.7 + 0.2 * jitter.clamp(0.0, 1.0))
}

/// What is next. `wanted` is none while the Node has no address; `deadline` is that of the certificate.
pub(crate) fn next(current: Option<&Leaf>, wanted: Option<&Subject>, deadline: Option<SystemTime>, now: SystemTime) -> Step {
    let Some(wanted) = wanted else {
        // A certificate that is there is good, whatever is not known yet.
        return deadline.filter(|deadline| now < *deadline).map_or(Step::Idle, Step::Use);
    };
    let (Some(leaf), Some(deadline)) = (current, deadline) else { return Step::Request("there is none".to_owned()) };
    if let Some(reason) = missing(leaf, wanted) {
        return Step::Request(reason);
    }
    if now < deadline { Step::Use(deadline) } else { Step::Request("it is to be replaced before its end".to_owned()) }
}

/// What a certificate lacks of what is wanted; more than that is no reason.
pub(crate) fn missing(leaf: &Leaf, wanted: &Subject) -> Option<String> {
    if leaf.common_name != wanted.common_name {
        return Some(format!("its common name is {:?}, not {:?}", leaf.common_name, wanted.common_name));
    }
    fn lack<T: Ord + ToString>(found: &[T], wanted: &[T], what: &str) -> Option<String> {
        let found: BTreeSet<_> = found.iter().collect();
        let lack: Vec<_> = wanted.iter().filter(|one| !found.contains(one)).map(ToString::to_string).collect();
        (!lack.is_empty()).then(|| format!("it lacks the {what} {}", lack.join(", ")))
    }
    lack(&leaf.dns, &wanted.dns, "DNS names")
        .or_else(|| lack(&leaf.ips, &wanted.ips, "addresses"))
        .or_else(|| lack(&leaf.organisations, &wanted.organisations, "organisations"))
}

/// Delays between attempts, as upstream's: 2 s, doubled four times with a tenth of jitter, then 32 s for ever.
pub(crate) fn delay(failures: u32, jitter: f64) -> Duration {
    let plain = backoff::exponential(Duration::from_secs(2), Duration::from_secs(32), failures);
    if failures < 4 { plain + plain.mul_f64(0.1 * jitter.clamp(0.0, 1.0)) } else { plain }
}

/// What the serving certificate of a node with these addresses says; none as long as there is no IP address.
pub(crate) fn serving_subject(node_name: &str, addresses: &[NodeAddress]) -> Option<Subject> {
    let (mut dns, mut ips) = (BTreeSet::new(), BTreeSet::new());
    for NodeAddress { address, type_ } in addresses {
        let ip = address.parse::<IpAddr>().ok();
        match (type_.as_str(), ip) {
            ("Hostname" | "InternalIP" | "ExternalIP", Some(ip)) => drop(ips.insert(ip)),
            ("Hostname" | "InternalDNS" | "ExternalDNS", _) if !address.is_empty() => drop(dns.insert(address.clone())),
            _ => {}
        }
    }
    let subject = super::client_subject(node_name);
    (!ips.is_empty()).then(|| Subject { dns: dns.into_iter().collect(), ips: ips.into_iter().collect(), ..subject })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(hours: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + HOUR * hours
    }

    fn leaf() -> Leaf {
        Leaf {
            common_name: "system:node:win01".into(),
            organisations: vec!["system:nodes".into()],
            dns: vec!["win01".into()],
            ips: vec!["10.0.0.5".parse().unwrap()],
            not_before: at(100),
            not_after: at(200),
        }
    }

    fn wanted() -> Subject {
        Subject { dns: vec!["win01".into()], ips: vec!["10.0.0.5".parse().unwrap()], ..crate::certificates::client_subject("win01") }
    }

    #[test]
    fn certificates_are_replaced_when_seventy_to_ninety_percent_of_their_life_are_over() {
        let hours = |jitter: f64| deadline(&leaf(), jitter).duration_since(at(0)).unwrap().as_secs_f64() / 3600.0;
        for (jitter, expected) in [(0.0, 170.0), (0.5, 180.0), (1.0, 190.0), (7.0, 190.0)] {
            assert!((hours(jitter) - expected).abs() < 0.001, "{jitter}: {}", hours(jitter));
        }
    }

    #[test]
    fn the_next_step_follows_from_certificate_subject_and_time() {
        let (leaf, wanted, due) = (leaf(), wanted(), Some(at(180)));
        let other = Subject { common_name: "system:node:win02".into(), ..wanted.clone() };
        let more = Subject { ips: vec!["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()], ..wanted.clone() };
        let fewer = Subject { ips: Vec::new(), ..wanted.clone() };
        let asks = |text: &str| Step::Request(text.to_owned());
        for (name, current, wanted, deadline, now, expected) in [
            ("no address yet", None, None, None, at(150), Step::Idle),
            ("no address, but a certificate", Some(&leaf), None, due, at(150), Step::Use(at(180))),
            ("no address, and it is time", Some(&leaf), None, due, at(185), Step::Idle),
            ("the first", None, Some(&wanted), None, at(150), asks("there is none")),
            ("in use", Some(&leaf), Some(&wanted), due, at(150), Step::Use(at(180))),
            ("due", Some(&leaf), Some(&wanted), due, at(180), asks("it is to be replaced before its end")),
            ("over", Some(&leaf), Some(&wanted), due, at(300), asks("it is to be replaced before its end")),
            ("another name", Some(&leaf), Some(&other), due, at(150), asks("its common name is \"system:node:win01\", not \"system:node:win02\"")),
            ("a new address", Some(&leaf), Some(&more), due, at(150), asks("it lacks the addresses fd00::5")),
            ("an address less", Some(&leaf), Some(&fewer), due, at(150), Step::Use(at(180))),
        ] {
            assert_eq!(next(current, wanted, deadline, now), expected, "{name}");
        }
    }

    #[test]
    fn attempts_are_as_far_apart_as_upstreams() {
        let seconds = |jitter: f64| (0..7).map(|failures| delay(failures, jitter).as_secs_f64()).collect::<Vec<_>>();
        assert_eq!(seconds(0.0), [2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 32.0]);
        let most = seconds(1.0);
        assert!(most.iter().zip([2.2, 4.4, 8.8, 17.6, 32.0, 32.0, 32.0]).all(|(found, expected)| (found - expected).abs() < 0.001), "{most:?}");
    }

    #[test]
    fn a_serving_certificate_has_the_nodes_addresses() {
        let address = |type_: &str, address: &str| NodeAddress { type_: type_.into(), address: address.into() };
        let all = [
            address("InternalIP", "10.0.0.5"),
            address("InternalIP", "fd00::5"),
            address("ExternalIP", "192.0.2.1"),
            address("ExternalIP", "no address"),
            address("Hostname", "win01"),
            address("InternalDNS", "win01.example"),
            address("ExternalDNS", "win01"),
            address("Other", "x"),
            address("InternalDNS", ""),
        ];
        let subject = serving_subject("win01", &all).unwrap();
        assert_eq!((subject.common_name.as_str(), &subject.organisations[..]), ("system:node:win01", &["system:nodes".to_owned()][..]));
        assert_eq!(subject.dns, ["win01", "win01.example"]);
        assert_eq!(subject.ips.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.0.5", "192.0.2.1", "fd00::5"]);
        assert_eq!(serving_subject("win01", &[address("Hostname", "win01")]), None, "at least one address");
        let named = serving_subject("10.0.0.7", &[address("Hostname", "10.0.0.7")]).unwrap();
        assert_eq!((named.dns.len(), named.ips.len()), (0, 1));
    }

    #[test]
    fn only_rsa_keys_encipher() {
        let key = Key::generate().unwrap();
        assert_eq!(Purpose::Client.usages(&key, true), ["digital signature", "client auth"]);
        assert_eq!(Purpose::Serving.usages(&key, false), ["digital signature", "server auth"]);
        let rsa = Key::from_pem(include_str!("../../../pki/tests/keys/rsa-pkcs1.pem")).unwrap();
        assert_eq!(Purpose::Client.usages(&rsa, true), ["digital signature", "client auth", "key encipherment"]);
        assert_eq!(Purpose::Client.usages(&rsa, false), ["digital signature", "key encipherment", "client auth"]);
    }
}
