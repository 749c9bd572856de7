use std::sync::Arc;

use host::NodeOs;
use serde_json::json;
use thiserror_ext::AsReport as _;

use super::*;
use crate::bundles::Trusted;
use crate::claims::Claims;
use crate::env::Facts;
use crate::sources::{Data, Fetched, Kind};

pub(super) struct Fixture {
    pub dir: tempfile::TempDir,
    pub root: Arc<HostRoot>,
    sources: Fetched,
    tokens: Tokens,
    trusted: Trusted,
    facts: Facts,
    claims: Claims,
}

pub(super) fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let c = dir.path().join("c");
    std::fs::create_dir(&c).unwrap();
    let root = Arc::new(HostRoot::windows(NodeOs::Windows { build: 20348 }, [('C', c)]).unwrap());
    let data = |items: &[(&str, &str)]| {
        let items = items.iter().map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec())).collect();
        Some(Arc::new(Data { items, ..Data::default() }))
    };
    let sources = Fetched::from([
        ((Kind::Secret, "s".into()), data(&[("user", "u"), ("pass", "p")])),
        ((Kind::ConfigMap, "cm".into()), data(&[("a.conf", "1")])),
        ((Kind::ConfigMap, "kube-root-ca.crt".into()), data(&[("ca.crt", "CA")])),
    ]);
    let tokens = Tokens::from([((String::new(), 3607), "jwt".to_owned())]);
    Fixture { dir, root, sources, tokens, trusted: Trusted::default(), facts: Facts::default(), claims: Claims::new() }
}

pub(super) fn pod(volumes: serde_json::Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {"containers": [], "volumes": volumes}}))
    .unwrap()
}

impl Fixture {
    pub fn dirs(&self, pod: &Pod) -> PodDirs {
        PodDirs::new(&self.root.parse("/var/lib/kubelet").unwrap(), &self.root.parse("/var/log/pods").unwrap(), pod).unwrap()
    }

    pub fn set_up(&self, pod: &Pod) -> Result<BTreeMap<String, PodPath>, String> {
        let content = Content { pod, sources: &self.sources, tokens: &self.tokens, trusted: &self.trusted, facts: &self.facts, claims: &self.claims };
        let mut places = Places::new();
        let ends = CancellationToken::new();
        let done = futures::executor::block_on(self.volumes().set_up(&self.dirs(pod), pod, &content, &mut places, &ends));
        done.map(|()| places).map_err(|e| e.to_report_string())
    }

    fn volumes(&self) -> Volumes {
        Volumes::new(self.root.clone(), Vec::new())
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.dir.path().join("c/var/lib/kubelet/pods/u1/volumes").join(path)).unwrap()
    }
}

#[tokio::test]
async fn contents_and_places() {
    let f = fixture();
    let p = pod(json!([
        {"name": "e", "emptyDir": {}},
        {"name": "s", "secret": {"secretName": "s", "items": [{"key": "user", "path": "deep/name", "mode": 256}]}},
        {"name": "c", "configMap": {"name": "cm"}},
        {"name": "o", "configMap": {"name": "absent", "optional": true}},
        {"name": "d", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"name": "kube-api-access-x", "projected": {"sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]}}
    ]));
    let places = f.set_up(&p).unwrap();
    assert_eq!(places["e"].to_string(), r"C:\var\lib\kubelet\pods\u1\volumes\kubernetes.io~empty-dir\e");
    assert_eq!(f.read("kubernetes.io~secret/s/deep/name"), "u");
    assert_eq!(f.read("kubernetes.io~configmap/c/a.conf"), "1");
    assert_eq!(f.read("kubernetes.io~downward-api/d/name"), "p");
    let api = |n: &str| f.read(&format!("kubernetes.io~projected/kube-api-access-x/{n}"));
    assert_eq!((api("token"), api("ca.crt"), api("namespace")), ("jwt".into(), "CA".into(), "ns".into()));
    f.volumes().tear_down(&f.dirs(&p)).await.unwrap();
    assert!(!f.dir.path().join("c/var/lib/kubelet/pods/u1/volumes").exists());
}

#[test]
fn the_pod_s_group_may_read_its_files() {
    let f = fixture();
    let mut p = pod(json!([{"name": "s", "secret": {"secretName": "s", "defaultMode": 256}}]));
    let volume = p.spec.clone().unwrap().volumes.unwrap().remove(0);
    let files = |p: &Pod| {
        let content = Content { pod: p, sources: &f.sources, tokens: &f.tokens, trusted: &f.trusted, facts: &f.facts, claims: &f.claims };
        let mut files = content.files(&volume).unwrap();
        content.give_to_group(&mut files);
        files.into_values().map(|file| (file.mode, file.group)).collect::<Vec<_>>()
    };
    assert!(files(&p).iter().all(|file| *file == (0o400, None)));
    p.spec.as_mut().unwrap().security_context = Some(serde_json::from_value(json!({"fsGroup": 1001})).unwrap());
    let given = files(&p);
    assert!(!given.is_empty() && given.iter().all(|file| *file == (0o440, Some(1001))));
    // Windows has no such groups.
    f.set_up(&p).unwrap();
}

#[test]
fn refusals_name_volume_and_cause() {
    let f = fixture();
    for (volume, want) in [
        (json!({"name": "s", "secret": {"secretName": "nope"}}), "secret \"nope\" not found"),
        (json!({"name": "s", "secret": {"secretName": "s", "items": [{"key": "x", "path": "x"}]}}), "references non-existent secret key: x"),
        (json!({"name": "s", "persistentVolumeClaim": {"claimName": "x"}}), "volumes of type persistentVolumeClaim are not supported"),
        (json!({"name": "s", "hostPath": {"path": "C:\\nope", "type": "Directory"}}), "hostPath type check failed: C:\\nope is not a directory"),
        (json!({"name": "s", "hostPath": {"path": "C:\\..\\x"}}), "contains '..'"),
        (json!({"name": "s", "secret": {"secretName": "s", "items": [{"key": "user", "path": "../../x"}]}}), "contains '..'"),
    ] {
        let error = f.set_up(&pod(json!([volume]))).unwrap_err();
        assert!(error.starts_with("MountVolume.SetUp failed for volume \"s\" : ") && error.contains(want), "{error}");
    }
    let missing = f.set_up(&pod(json!([{"name": "s", "secret": {"secretName": "nope"}}]))).unwrap_err();
    assert_eq!(missing, "MountVolume.SetUp failed for volume \"s\" : secret \"nope\" not found");
}

#[test]
fn host_paths() {
    let f = fixture();
    std::fs::create_dir_all(f.dir.path().join("c/etc/foo")).unwrap();
    let path = |p: &str, t: &str| f.set_up(&pod(json!([{"name": "h", "hostPath": {"path": p, "type": t}}])));
    assert_eq!(path(r"C:\etc\foo", "Directory").unwrap()["h"].to_string(), r"C:\etc\foo");
    assert_eq!(path("/etc/foo", "").unwrap()["h"].to_string(), r"C:\etc\foo");
    path("/made", "DirectoryOrCreate").unwrap();
    path("/made/file", "FileOrCreate").unwrap();
    assert!(path("/made/file", "Directory").is_err());
    assert!(f.dir.path().join("c/made/file").is_file());
}

#[test]
fn windows_refuses_huge_pages_and_leaves_nothing() {
    let f = fixture();
    let p = pod(json!([{"name": "h", "emptyDir": {"medium": "HugePages-2Mi"}}]));
    assert_eq!(
        f.set_up(&p).unwrap_err(),
        "MountVolume.SetUp failed for volume \"h\" : medium HugePages-2Mi: Windows nodes have no huge pages for volumes; leave the medium out, or \
         place the pod on a Linux node"
    );
    assert!(!f.dir.path().join("c/var/lib/kubelet/pods/u1").exists());
    assert_eq!(
        f.set_up(&pod(json!([{"name": "t", "emptyDir": {"medium": "Tape"}}]))).unwrap_err(),
        "MountVolume.SetUp failed for volume \"t\" : unknown storage medium \"Tape\""
    );
    assert!(f.set_up(&pod(json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]))).is_ok());
}

#[test]
fn sub_paths_pass_no_link() {
    linux_sys::ns::in_lab("volumes::tests::sub_paths_pass_no_link", || {
        let f = fixture();
        let p = pod(json!([{"name": "e", "emptyDir": {}}, {"name": "c", "configMap": {"name": "cm"}}]));
        let places = f.set_up(&p).unwrap();
        let dirs = f.dirs(&p);
        let volumes = p.spec.as_ref().unwrap().volumes.as_ref().unwrap();
        let source = |i: usize, sub: &str| {
            let volume = &volumes[i];
            let mount = MountOf { volume, path: &places[&volume.name], container: "c", index: i };
            mount_source(&f.root, &dirs, &mount, sub).map(|(path, _)| path.to_string()).map_err(|e| e.to_report_string())
        };
        assert!(source(0, "a/b").unwrap().ends_with(r"\u1\volume-subpaths\e\c\0"));
        assert!(source(0, "../x").is_err());
        let kubelet = f.dir.path().join("c/var/lib/kubelet/pods/u1");
        let on_disk = kubelet.join("volumes/kubernetes.io~empty-dir/e");
        std::fs::write(on_disk.join("a/b/x"), "1").unwrap();
        assert!(kubelet.join("volume-subpaths/e/c/0/x").is_file());
        std::os::unix::fs::symlink("/", on_disk.join("evil")).unwrap();
        assert!(source(0, "evil").unwrap_err().contains("is a link"));
        assert!(source(0, "EVIL/x").unwrap_err().contains("is a link"));
        let file = source(1, "a.conf").unwrap();
        assert!(file.contains(r"\c\..") && file.ends_with(r"\a.conf"), "{file}");
        assert!(source(1, "nope").is_err());
        // Unmounted before removal, so that the content under a mount is not taken twice.
        source(0, "a/b").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(f.volumes().remove_all(&dirs)).unwrap();
        assert!(!kubelet.exists());
    });
}
