//! Property of all documents: what is read is written so that it reads the same.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::document::{Document, read, to_document, to_yaml};
use crate::{KubeProxyConfiguration, KubeletConfiguration, NodeConfig, NodeConfiguration};

/// Values as people and programs write them, right and wrong.
const VALUES: [&str; 30] = [
    "null",
    "\"\"",
    "\"0\"",
    "\"0s\"",
    "\"0h\"",
    "0",
    "true",
    "false",
    "[]",
    "{}",
    "\"x\"",
    "\"10.0.0.0/8\"",
    "[\"10.0.0.0/8\", \"localhost\"]",
    "\"::1\"",
    "\"10.0.0.5\"",
    "\"[::]:9000\"",
    "-1",
    "7",
    "1e9",
    "1.5",
    "\"a: b\"",
    "\"\\u0085 #\"",
    "\"1m30s\"",
    "\"nftables\"",
    "\"windows:17763\"",
    "[\"proxy\"]",
    "{\"HyperVContainer\": true}",
    "{\"imagefs.available\": \"1%\"}",
    "{\"memory.available\": 5}",
    "\"true\"",
];

/// The paths of all members of a document, sections and unknown ones among them.
fn paths(value: &Value, prefix: &str, all: &mut Vec<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        paths(value, &path, all);
        all.push(path);
    }
}

fn members<T: Document>() -> Vec<String> {
    let mut all: Vec<String> = T::ALIASES.iter().map(|(path, _)| (*path).to_owned()).collect();
    all.push("surprise".to_owned());
    paths(&serde_json::to_value(T::default()).unwrap(), "", &mut all);
    all
}

/// A document with a few members set to any of the values.
fn documents<T: Document>() -> impl Strategy<Value = Value> {
    let pair = (prop::sample::select(members::<T>()), prop::sample::select(VALUES.to_vec()));
    prop::collection::vec(pair, 0..4).prop_map(|pairs| {
        let mut document = json!({"apiVersion": T::API_VERSION, "kind": T::KIND});
        for (path, value) in pairs {
            let mut place = &mut document;
            for part in path.split('.') {
                if !place.is_object() {
                    *place = json!({});
                }
                place = &mut place[part];
            }
            *place = serde_json::from_str(value).unwrap();
        }
        document
    })
}

fn reads_as_itself<T: Document + PartialEq + std::fmt::Debug>(document: &Value) -> Result<(), TestCaseError> {
    let Ok(parsed) = read::<T>(document) else { return Ok(()) };
    let again = read::<T>(&to_document(&parsed.config)).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(&again.config, &parsed.config);
    prop_assert_eq!(again.warnings, Vec::<String>::new());
    let yaml = crate::document::read_text::<T>(&to_yaml(&parsed.config)).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(yaml.config, parsed.config);
    Ok(())
}

#[test]
fn a_zero_duration_stands_for_the_default_as_a_number_too() {
    for zero in [json!(0), json!("0"), json!("0ms"), json!("0s")] {
        let document =
            json!({"apiVersion": KubeProxyConfiguration::API_VERSION, "kind": KubeProxyConfiguration::KIND, "iptables": {"syncPeriod": zero}});
        assert_eq!(read::<KubeProxyConfiguration>(&document).unwrap().config, KubeProxyConfiguration::default(), "{zero}");
        reads_as_itself::<KubeProxyConfiguration>(&document).unwrap();
    }
}

proptest! {
    #[test]
    fn kubelet_configurations_read_as_they_were_written(document in documents::<KubeletConfiguration>()) {
        reads_as_itself::<KubeletConfiguration>(&document)?;
    }

    #[test]
    fn kube_proxy_configurations_read_as_they_were_written(document in documents::<KubeProxyConfiguration>()) {
        reads_as_itself::<KubeProxyConfiguration>(&document)?;
    }

    #[test]
    fn node_configurations_read_as_they_were_written(document in documents::<NodeConfiguration>()) {
        reads_as_itself::<NodeConfiguration>(&document)?;
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[ -~\n]{0,80}") {
        if let Ok(parsed) = NodeConfig::read(&text) {
            prop_assert_eq!(NodeConfig::read(&parsed.config.to_yaml()).unwrap().config, parsed.config);
        }
    }
}
