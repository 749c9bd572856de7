use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use host::NodeOs;
use k8s_openapi::api::core::v1::Pod;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::bundles::Trusted;
use crate::claims::Claims;
use crate::env::Facts;
use crate::sources::Fetched;
use crate::volumes::{Content, Places, PodDirs, Tokens, Volumes};

/// A driver that writes down what it is told, and answers what stands in files beside it.
const DRIVER: &str = "#!/bin/sh\nd=$(dirname \"$0\")\nprintf '%s\\n' \"$@\" > \"$d/$1.args\"\ncat \"$d/$1.json\"\n";

struct Node {
    _alone: std::sync::MutexGuard<'static, ()>,
    dir: tempfile::TempDir,
    root: Arc<HostRoot>,
}

impl Node {
    fn new(windows: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let os = NodeOs::Windows { build: 20348 };
        let root = if windows { HostRoot::windows(os, [('C', dir.path().to_owned())]) } else { HostRoot::linux(dir.path()) };
        let _alone = crate::PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
        Node { _alone, root: Arc::new(root.unwrap()), dir }
    }

    fn programs(&self) -> std::path::PathBuf {
        self.dir.path().join("exec/acme~disk")
    }

    fn install(&self, name: &str, answers: &[(&str, &str)]) {
        std::fs::create_dir_all(self.programs()).unwrap();
        let program = self.programs().join(name);
        std::fs::write(&program, DRIVER).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        for (call, answer) in answers {
            std::fs::write(self.programs().join(format!("{call}.json")), answer).unwrap();
        }
    }

    fn told(&self, call: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.programs().join(format!("{call}.args"))).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn volumes(&self) -> Volumes {
        cluster::install_crypto_provider();
        let client = kube::Client::try_from(kube::Config::new("http://127.0.0.1:9".parse().unwrap())).unwrap();
        let flex = Flex::new(self.root.clone(), client, self.root.parse("/exec").unwrap());
        Volumes::new(self.root.clone(), vec![Arc::new(flex)])
    }

    fn dirs(&self) -> PodDirs {
        PodDirs::new(&self.root.parse("/var/lib/kubelet").unwrap(), &self.root.parse("/var/log/pods").unwrap(), &pod()).unwrap()
    }

    async fn set_up(&self, volumes: &Volumes) -> Result<String, String> {
        use thiserror_ext::AsReport as _;
        let (pod, sources, tokens, claims, facts) = (pod(), Fetched::new(), Tokens::new(), Claims::new(), Facts::default());
        let content = Content { pod: &pod, sources: &sources, tokens: &tokens, trusted: &Trusted::default(), claims: &claims, facts: &facts };
        let mut places = Places::new();
        let done = volumes.set_up(&self.dirs(), &pod, &content, &mut places, &CancellationToken::new()).await;
        done.map(|()| places["v"].to_string()).map_err(|error| error.to_report_string())
    }
}

fn pod() -> Pod {
    serde_json::from_value(serde_json::json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u1"}, "spec": {"containers": [],
        "volumes": [{"name": "v", "flexVolume": {"driver": "acme/disk", "fsType": "ext4", "readOnly": true, "options": {"size": "1; touch /tmp/x"}}}]}}))
    .unwrap()
}

const INIT: (&str, &str) = ("init", r#"{"status":"Success","capabilities":{"attach":false}}"#);
const DONE: &str = r#"{"status":"Success"}"#;

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

#[tokio::test]
async fn a_driver_mounts_and_unmounts_by_arguments() {
    let node = Node::new(false);
    node.install("disk", &[INIT, ("mount", DONE), ("unmount", DONE)]);
    let volumes = node.volumes();
    let place = node.set_up(&volumes).await.unwrap();
    assert_eq!(place, "/var/lib/kubelet/pods/u1/volumes/acme~disk/v");
    let told = node.told("mount");
    assert_eq!((told[0].as_str(), told[1].as_str(), told.len()), ("mount", place.as_str(), 3), "one argument each, and no shell reads them");
    let options: serde_json::Value = serde_json::from_str(&told[2]).unwrap();
    assert_eq!((&options["size"], &options["kubernetes.io/readwrite"]), (&"1; touch /tmp/x".into(), &"ro".into()));
    assert_eq!((&options["kubernetes.io/pod.uid"], &options["kubernetes.io/pvOrVolumeName"]), (&"u1".into(), &"v".into()));
    volumes.remove_all(&node.dirs()).await.unwrap();
    assert_eq!(node.told("unmount"), ["unmount", &place]);
    assert!(!exists(&node.dir.path().join("var/lib/kubelet/pods/u1")));
}

#[tokio::test]
async fn refusals_name_the_driver_and_the_way_out() {
    let node = Node::new(false);
    let volumes = node.volumes();
    let prefix = "MountVolume.SetUp failed for volume \"v\" : ";
    let refused = async || node.set_up(&volumes).await.unwrap_err().strip_prefix(prefix).unwrap().to_owned();
    assert!(refused().await.starts_with("no flexvolume driver acme/disk on the node: it has no program /exec/acme~disk/disk"), "{}", refused().await);
    node.install("disk", &[("init", DONE)]);
    assert_eq!(refused().await, "flexvolume driver acme/disk attaches volumes, which the node agent does for CSI drivers only; use its CSI driver");
    // The driver is replaced: it is asked again.
    std::fs::write(node.programs().join("disk"), format!("{DRIVER}\n# two\n")).unwrap();
    node.install("x", &[INIT, ("mount", r#"{"status":"Failure","message":"no \u001b medium"}"#)]);
    assert_eq!(refused().await, "flexvolume driver acme/disk failed at mount: no   medium");
    node.install("x", &[("mount", r#"{"status":"Not supported"}"#)]);
    assert_eq!(refused().await, "flexvolume driver acme/disk failed at mount: it is not supported");
    node.install("x", &[("mount", "Success")]);
    assert!(refused().await.starts_with("flexvolume driver acme/disk answered mount with what is no answer: it is no JSON object"));
}

#[tokio::test]
async fn windows_nodes_run_no_scripts() {
    for script in ["disk.cmd", "disk.ps1", "disk.bat", "disk"] {
        let node = Node::new(true);
        node.install(script, &[INIT]);
        let refused = node.set_up(&node.volumes()).await.unwrap_err();
        assert!(refused.contains("the node agent runs no shell; install an .exe, or use a CSI driver") && refused.contains(script), "{refused}");
        assert!(!exists(&node.programs().join("init.args")));
    }
    let node = Node::new(true);
    node.install("disk.exe", &[INIT, ("mount", DONE)]);
    assert_eq!(node.set_up(&node.volumes()).await.unwrap(), r"C:\var\lib\kubelet\pods\u1\volumes\acme~disk\v");
}

#[test]
fn names_and_answers_are_checked() {
    assert_eq!(kind_of("acme/disk").unwrap(), "acme~disk");
    assert_eq!(kind_of("disk").unwrap(), "disk");
    for wrong in ["", "a/b/c", "../x", "a/..", "a b", "a~b", "kubernetes.io/csi", "a/.b", "a\\b"] {
        assert!(kind_of(wrong).is_err(), "{wrong}");
    }
    for (bytes, wrong) in [
        (&b"{}"[..], true),
        (b"[]", true),
        (b"{\"status\":\"success\"}", true),
        (b"{\"status\":\"Success\",\"capabilities\":{\"attach\":\"no\"}}", true),
        (b"{\"status\":\"Success\",\"device\":\"/dev/x\",\"capabilities\":null}\n", false),
    ] {
        assert_eq!(check_answer(bytes).is_err(), wrong, "{}", String::from_utf8_lossy(bytes));
    }
    assert!(check_answer(&vec![b' '; answer::MAX_ANSWER + 1]).is_err());
}
