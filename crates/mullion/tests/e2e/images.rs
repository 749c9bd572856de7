//! `mullion image`: what nodes have, by which names, and what becomes of pods.

use serde_json::Value;

use crate::busybox;
use crate::cluster::{Cluster, PATIENCE, until};

/// The nodes that have an image by a name, as `image list` prints it.
#[track_caller]
fn holders(cluster: &Cluster, name: &str) -> Vec<String> {
    let text = cluster.place.mullion(&["image", "list", "-o", "json"]).ok("mullion image list");
    let list: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("no JSON ({error}): {text}"));
    let named = |image: &&Value| image["image"]["tags"].as_array().into_iter().flatten().any(|tag| tag == name);
    let nodes = list.as_array().into_iter().flatten().filter(named).filter_map(|image| image["node"].as_str());
    nodes.map(str::to_owned).collect()
}

/// Loaded, named anew, run by the new name, and removed, name by name.
pub fn managed(cluster: &Cluster) {
    const NEW: &str = "example.org/tools/box:2";
    busybox::load(cluster);
    assert_eq!(holders(cluster, busybox::IMAGE), ["lin01"]);
    cluster.place.mullion(&["image", "tag", busybox::IMAGE, NEW]).ok("mullion image tag");
    assert_eq!((holders(cluster, NEW), holders(cluster, busybox::IMAGE)), (vec!["lin01".to_owned()], vec!["lin01".to_owned()]));
    let args = ["run", "boxed", "--restart=Never", "--image-pull-policy=Never", "--image", NEW];
    let overrides = r#"{"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}}"#;
    cluster.kubectl(&[&args[..], &["--overrides", overrides, "--", "sh", "-c", "echo from the new name"]].concat());
    until("the pod's output", PATIENCE, || match cluster.try_kubectl(&["logs", "boxed"], "") {
        said if said.out == "from the new name\n" => Ok(()),
        said => Err(format!("{said:?}")),
    });
    cluster.kubectl(&["delete", "pod", "boxed", "--grace-period=0", "--force"]);
    cluster.place.mullion(&["image", "rm", NEW]).ok("mullion image rm");
    assert_eq!((holders(cluster, NEW), holders(cluster, busybox::IMAGE)), (Vec::new(), vec!["lin01".to_owned()]), "one name of two is gone");
    let said = cluster.place.mullion(&["image", "rm", NEW]);
    assert_eq!(said.code, Some(83), "no node has it: {said:?}");
}
