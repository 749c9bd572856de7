//! `--feature-gates A=true,B=false`: switches by upstream's names.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The switches there are, with what each does.
const KNOWN: [(&str, &str); 1] = [("HyperVContainer", "annotation experimental.windows.kubernetes.io/isolation-type=hyperv is obeyed")];

/// Which features are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates(BTreeMap<String, bool>);

impl FeatureGates {
    /// Whether Hyper-V isolation may be asked for by annotation, as upstream's kubelet allowed from 1.10 to 1.20.
    pub fn hyper_v_container(&self) -> bool {
        self.0.get("HyperVContainer").copied().unwrap_or(false)
    }
}

impl FromStr for FeatureGates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = || KNOWN.map(|(name, what)| format!("{name} ({what})")).join(", ");
        let gate = |pair: &str| {
            let (name, value) = pair.split_once('=').ok_or_else(|| format!("missing bool value for {pair}: write NAME=true or NAME=false"))?;
            if !KNOWN.iter().any(|(known, _)| *known == name) {
                return Err(format!("unrecognized feature gate: {name}; there is {}", known()));
            }
            let value = value.parse().map_err(|_| format!("invalid value of {name}={value}: write true or false"))?;
            Ok((name.to_owned(), value))
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

    #[test]
    fn gates_are_read_as_upstream_reads_them() {
        let gates: FeatureGates = "HyperVContainer=true".parse().unwrap();
        assert!(gates.hyper_v_container());
        assert_eq!(gates.to_string(), "HyperVContainer=true");
        assert!(!FeatureGates::default().hyper_v_container());
        for (text, part) in [
            ("HyperVContainer", "missing bool value for HyperVContainer"),
            ("HyperVContainer=maybe", "write true or false"),
            ("Windows=true", "unrecognized feature gate: Windows; there is HyperVContainer"),
        ] {
            let error = text.parse::<FeatureGates>().unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
