//! What once went wrong in node agents with volumes, by its number. What links do is tested in crate `host`.

use serde_json::{Value, json};

use super::tests::{fixture, pod};
use super::*;

/// Texts that ran programs, or ended the command that they stood in.
const HOSTILE: [&str; 7] =
    ["$(New-Item C:\\ran)", "a;New-Item C:\\ran", "a&mkdir ran&", "`calc`", "a' ; mkdir ran ; '", "%COMSPEC%", "x && mklink ran"];

/// Sub-paths, paths of local volumes and texts of volumes stood in command lines of PowerShell and cmd on Windows nodes. Here they are names:
/// of a directory, or of none (`layering` proves that no other program than declared drivers is started at all).
#[test]
fn cve_2023_3676_3955_3893_5528_texts_of_the_api_are_names_and_no_commands() {
    linux_sys::ns::in_lab("volumes::cve_tests::cve_2023_3676_3955_3893_5528_texts_of_the_api_are_names_and_no_commands", || {
        let f = fixture();
        let p = pod(json!([{"name": "e", "emptyDir": {}}]));
        let places = f.set_up(&p).unwrap();
        let dirs = f.dirs(&p);
        let volume = &p.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];
        let on_disk = f.dir.path().join("c/var/lib/kubelet/pods/u1/volumes/kubernetes.io~empty-dir/e");
        for (index, text) in HOSTILE.into_iter().enumerate() {
            let mount = MountOf { volume, path: &places["e"], container: "c", index };
            // A colon is no part of a name on Windows.
            let made = mount_source(&f.root, &dirs, &mount, text).is_ok();
            assert_eq!(made, !text.contains(':'), "{text}");
            assert_eq!(on_disk.join(text).is_dir(), made, "{text}");
            let local: Value = json!([{"name": "h", "hostPath": {"path": format!("C:\\{text}"), "type": "Directory"}}]);
            assert!(f.set_up(&pod(local)).is_err(), "{text}");
        }
        let made: Vec<_> = std::fs::read_dir(f.dir.path().join("c")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(made, ["var"], "nothing ran");
    });
}

/// Cloning a repository ran its hooks, and read repositories of the node.
#[test]
fn cve_2024_10220_2025_1767_git_repositories_are_no_volumes() {
    let f = fixture();
    let error = f.set_up(&pod(json!([{"name": "g", "gitRepo": {"repository": "/var/lib/private", "directory": "../x"}}]))).unwrap_err();
    assert!(error.starts_with("MountVolume.SetUp failed for volume \"g\" : volumes of type gitRepo are not supported"), "{error}");
}
