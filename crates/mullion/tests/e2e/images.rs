//! `mullion image`: what nodes have, by which names, and what becomes of pods.

use std::path::PathBuf;

use serde_json::Value;

use crate::busybox;
use crate::cluster::{Cluster, PATIENCE, run, until};

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
        output if output.out == "from the new name\n" => Ok(()),
        output => Err(format!("{output:?}")),
    });
    cluster.kubectl(&["delete", "pod", "boxed", "--grace-period=0", "--force"]);
    cluster.place.mullion(&["image", "rm", NEW]).ok("mullion image rm");
    assert_eq!((holders(cluster, NEW), holders(cluster, busybox::IMAGE)), (Vec::new(), vec!["lin01".to_owned()]), "one name of two is gone");
    let output = cluster.place.mullion(&["image", "rm", NEW]);
    assert_eq!(output.code, Some(83), "no node has it: {output:?}");
}

/// `MULLION_TEST_GREETER`, or where the example's README lets cargo put it.
fn greeter() -> PathBuf {
    let built = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/windows-service/target/x86_64-pc-windows-gnu/release/greeter.exe");
    let program = std::env::var_os("MULLION_TEST_GREETER").map_or_else(|| built.into(), PathBuf::from);
    let build = "tools/windows-cargo build --release --manifest-path examples/windows-service/Cargo.toml";
    assert!(program.is_file(), "{} is missing: `{build}` builds it", program.display());
    program
}

/// `examples/windows-service`, as its README says: a Windows program of the user's own answers in a pod.
pub fn own_service(cluster: &Cluster) {
    let dir = cluster.place.path().join("windows-service");
    std::fs::create_dir(&dir).expect("a directory");
    let files = [
        ("image.py", include_str!("../../../../examples/windows-service/image.py")),
        ("message.txt", include_str!("../../../../examples/windows-service/message.txt")),
    ];
    for (name, content) in files {
        std::fs::write(dir.join(name), content).expect("a written file");
    }
    let archive = dir.join("greeter.tar");
    let mut make = cluster.place.command("python3");
    make.arg(dir.join("image.py")).arg("--exe").arg(greeter()).arg("--output").arg(&archive);
    run(&mut make, "").ok("image.py");
    let loaded = cluster.place.mullion(&["image", "load", &archive.to_string_lossy()]).ok("mullion image load");
    assert!(loaded.contains("win01") && !loaded.contains("lin01"), "{loaded}");
    cluster.apply(include_str!("../../../../examples/windows-service/pod.yaml"));
    cluster.ready("pod/greeter");
    let output = cluster.kubectl(&["exec", "greeter", "--", "curl", "-s", "http://localhost:8080/"]);
    assert!(output.contains(include_str!("../../../../examples/windows-service/message.txt").trim()), "{output}");
    cluster.kubectl(&["delete", "pod/greeter", "service/greeter"]);
}
