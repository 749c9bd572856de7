//! Feature gates (upstream component-base/featuregate): all of Kubernetes 1.36 are known, and ours; few have an effect here.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize as _, Deserializer, de};

use super::FlagError;

/// Upstream's 1.36: name, default, and `locked` where no other value is accepted.
const UPSTREAM: &str = include_str!("gates.txt");

/// The feature gates that have an effect on the node agent: name, default, what it does.
pub const FEATURE_GATES: [(&str, bool, &str); 6] = [
    ("CustomCPUCFSQuotaPeriod", true, "cpuCFSQuotaPeriod may be set"),
    ("HyperVContainer", false, "annotation experimental.windows.kubernetes.io/isolation-type=hyperv is obeyed"),
    ("KubeletCrashLoopBackOffMax", true, "crashLoopBackOff.maxContainerRestartPeriod may be set"),
    ("KubeletEnsureSecretPulledImages", true, "private images that are on the node are only for pods that may pull them"),
    ("QOSReserved", false, "qosReserved is obeyed"),
    ("ReduceDefaultCrashLoopBackOffDecay", false, "containers restart after 1 s at first, and not after 10 s"),
];

/// Upstream's default of a gate, and whether it is locked.
fn upstream(name: &str) -> Option<(bool, bool)> {
    UPSTREAM.lines().find_map(|line| {
        let mut words = line.split(' ');
        (words.next() == Some(name)).then(|| (words.next() == Some("on"), words.next() == Some("locked")))
    })
}

fn default(name: &str) -> Option<bool> {
    FEATURE_GATES.iter().find(|(known, ..)| *known == name).map(|(_, default, _)| *default)
}

/// Whether a gate of [`FEATURE_GATES`] is on.
pub(super) fn is_on(gates: &BTreeMap<String, bool>, name: &str) -> bool {
    gates.get(name).copied().or_else(|| default(name)).unwrap_or(false)
}

/// Refuses gates that there are not, and other values of locked ones, as upstream.
fn check(name: &str, value: bool) -> Result<(), FlagError> {
    match (default(name), upstream(name)) {
        (None, None) => Err(FlagError::UnknownGate(name.to_owned())),
        (_, Some((locked, true))) if locked != value => Err(FlagError::LockedGate { name: name.to_owned(), value, locked }),
        _ => Ok(()),
    }
}

/// Takes out what has no effect, with a warning for what upstream would do otherwise.
pub(super) fn drop_idle(gates: &mut BTreeMap<String, bool>, warnings: &mut Vec<String>) {
    let is_idle = |name: &str| default(name).is_none();
    for (name, value) in gates.iter().filter(|(name, _)| is_idle(name)) {
        if upstream(name).is_none_or(|(default, _)| default != *value) {
            warnings.push(format!("featureGates.{name} has no effect: there are {}", known()));
        }
    }
    gates.retain(|name, _| !is_idle(name));
}

/// The gates with an effect, for messages.
pub(super) fn known() -> String {
    FEATURE_GATES.map(|(name, _, what)| format!("{name} ({what})")).join(", ")
}

/// The member `featureGates` of a document.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, bool>, D::Error> {
    let gates = BTreeMap::<String, bool>::deserialize(from)?;
    for (name, value) in &gates {
        check(name, *value).map_err(de::Error::custom)?;
    }
    Ok(gates)
}

/// `--feature-gates A=true,B=false`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates(pub BTreeMap<String, bool>);

impl FromStr for FeatureGates {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Self, FlagError> {
        let gate = |pair: &str| {
            let (name, value) = pair.split_once('=').ok_or_else(|| FlagError::NoGateValue(pair.to_owned()))?;
            let parsed = value.parse::<bool>();
            check(name, parsed.clone().unwrap_or_default()).or_else(|error| match error {
                // A value that cannot be read is not that of a locked gate.
                FlagError::LockedGate { .. } if parsed.is_err() => Ok(()),
                error => Err(error),
            })?;
            Ok((name.to_owned(), parsed.map_err(|_| FlagError::GateValue(pair.to_owned()))?))
        };
        text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).map(gate).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for FeatureGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<_> = self.0.iter().map(|(name, on)| format!("{name}={on}")).collect();
        f.write_str(&pairs.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{ConfigError, read_text};
    use crate::kubelet::KubeletConfiguration;

    fn read(gates: &str) -> Result<(BTreeMap<String, bool>, Vec<String>), ConfigError> {
        let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfeatureGates: {gates}\n");
        read_text::<KubeletConfiguration>(&text).map(|parsed| (parsed.config.feature_gates, parsed.warnings))
    }

    #[test]
    fn gates_are_those_of_upstream() {
        let names: Vec<_> = UPSTREAM.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert!(names.is_sorted() && names.len() > 200, "{}", names.len());
        for (name, default, _) in FEATURE_GATES.iter().filter(|(name, ..)| *name != "HyperVContainer") {
            assert_eq!(upstream(name), Some((*default, false)), "{name}");
        }
        assert_eq!(upstream("NodeSwap"), Some((true, true)));
        assert_eq!(upstream("HyperVContainer"), None, "removed upstream");
    }

    #[test]
    fn unknown_gates_and_other_values_of_locked_ones_are_refused() {
        let refused = |gates: &str| format!("{:?}", read(gates).unwrap_err());
        assert!(refused("{SidecarContainers: false}").contains("cannot set feature gate SidecarContainers to false, feature is locked to true"));
        assert!(refused("{Sidecars: true}").contains("unrecognized feature gate: Sidecars"));
        assert!("NodeSwap=false".parse::<FeatureGates>().unwrap_err().to_string().contains("feature is locked to true"));
        assert!("NodeSwap=x".parse::<FeatureGates>().unwrap_err().to_string().contains("write true or false"));
    }

    #[test]
    fn gates_without_an_effect_are_named_when_upstream_has_another_default() {
        let (gates, warnings) =
            read("{SidecarContainers: true, PLEGOnDemandRelist: false, KubeletEnsureSecretPulledImages: false, AllAlpha: true}").unwrap();
        assert_eq!(gates, BTreeMap::from([("KubeletEnsureSecretPulledImages".to_owned(), false)]));
        assert!(is_on(&gates, "KubeletCrashLoopBackOffMax") && !is_on(&gates, "KubeletEnsureSecretPulledImages"));
        let named: Vec<_> = warnings.iter().map(|warning| warning.split(' ').next().unwrap()).collect();
        assert_eq!(named, ["featureGates.AllAlpha", "featureGates.PLEGOnDemandRelist"]);
    }
}
