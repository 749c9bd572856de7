//! Volumes: what is mounted below them later, and images as volumes.

use std::path::PathBuf;
use std::time::Duration;

use cri::v1;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use test_lab::LIMIT;

use crate::support::{Node, container, image_archive, sandbox};

const NONE: Option<&str> = None;

pub async fn propagation(dir: PathBuf) {
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let volume = dir.join("host/volume");
    for name in ["early", "late", "inner"] {
        std::fs::create_dir_all(volume.join(name)).unwrap();
    }
    mount(Some(&volume), &volume, NONE, MsFlags::MS_BIND, NONE).unwrap();
    mount(NONE, &volume, NONE, MsFlags::MS_SHARED, NONE).unwrap();
    let tmpfs = |name: &str| {
        mount(Some("tmpfs"), &volume.join(name), Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
        std::fs::write(volume.join(name).join("seen"), "").unwrap();
    };
    tmpfs("early");
    let pod = node.run(sandbox("propagation")).await;
    let start = async |name: &str, propagation: v1::MountPropagation| {
        let mut config = container(name, "demo:1", &["/bin/sleep", "1000"]);
        let volume = v1::Mount { container_path: "/v".into(), host_path: "/volume".into(), propagation: propagation as i32, ..Default::default() };
        config.mounts.push(volume);
        let security = v1::LinuxContainerSecurityContext { privileged: true, ..Default::default() };
        config.linux = Some(v1::LinuxContainerConfig { security_context: Some(security), resources: None });
        node.start(&pod, config).await
    };
    let alone = start("alone", v1::MountPropagation::PropagationPrivate).await;
    let hears = start("hears", v1::MountPropagation::PropagationHostToContainer).await;
    let both = start("both", v1::MountPropagation::PropagationBidirectional).await;
    tmpfs("late");
    let run = async |id: &str, text: &str| {
        let command = ["/bin/sh", "-c", text].map(str::to_owned);
        node.client.exec_sync(id, &command, LIMIT).await.unwrap().exit_code == 0
    };
    for (id, early, late) in [(&alone, true, false), (&hears, true, true), (&both, true, true)] {
        assert_eq!((run(id, "test -e /v/early/seen").await, run(id, "test -e /v/late/seen").await), (early, late));
    }
    for (id, reaches) in [(&alone, false), (&hears, false), (&both, true)] {
        assert!(run(id, "mount -t tmpfs x /v/inner && touch /v/inner/seen").await);
        assert_eq!(volume.join("inner/seen").exists(), reaches);
    }
    node.remove(&pod).await;
    for path in [volume.join("inner"), volume.join("late"), volume.join("early"), volume] {
        umount2(&path, MntFlags::MNT_DETACH).unwrap();
    }
}

pub async fn images(dir: PathBuf) {
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let pod = node.run(sandbox("images")).await;
    let image = |readonly, name: &str| {
        let image = Some(v1::ImageSpec { image: name.into(), ..Default::default() });
        let volume = v1::Mount { container_path: "/v".into(), readonly, image, ..Default::default() };
        v1::ContainerConfig { mounts: vec![volume], ..container("main", "demo:1", &["/bin/sleep", "1000"]) }
    };
    let id = node.start(&pod, image(true, "demo:1")).await;
    let text = "cat /v/etc/motd; /v/bin/busybox echo runs; touch /v/x 2>/dev/null || echo read-only";
    let answer = node.client.exec_sync(&id, &["/bin/sh", "-c", text].map(str::to_owned), Duration::ZERO).await.unwrap();
    assert_eq!(String::from_utf8(answer.stdout).unwrap(), "Mullion's test image\nruns\nread-only\n");
    let error = node.create(&pod, v1::ContainerConfig { metadata: None, ..image(true, "demo:1") }).await.unwrap_err();
    assert_eq!(error.kind(), cri::Kind::Invalid);
    for (readonly, name, reason) in [(false, "demo:1", "can only be read"), (true, "demo:2", "is not here")] {
        let named = v1::ContainerMetadata { name: reason.into(), attempt: 0 };
        let error = node.create(&pod, v1::ContainerConfig { metadata: Some(named), ..image(readonly, name) }).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    image_parts(&node, &pod, image(true, "demo:1")).await;
    node.remove(&pod).await;
}

/// A directory and a file of an image, and a link of it; nothing beside them.
async fn image_parts(node: &Node, pod: &str, config: v1::ContainerConfig) {
    let ask = async |name: &str, parts: &[(&str, &str)]| {
        let mounts = parts.iter().map(|(path, _)| v1::Mount { container_path: (*path).to_owned(), ..config.mounts[0].clone() });
        let metadata = Some(v1::ContainerMetadata { name: name.into(), attempt: 0 });
        let config = v1::ContainerConfig { metadata, mounts: mounts.collect(), ..config.clone() };
        let request = v1::CreateContainerRequest { pod_sandbox_id: pod.to_owned(), config: Some(config), sandbox_config: None };
        let sub_paths = parts.iter().map(|(path, part)| ((*path).to_owned(), (*part).to_owned())).collect();
        let id = node.client.create_container_with(request, &cri::Extras { sub_paths, stop_signal: None }).await?;
        node.client.start_container(v1::StartContainerRequest { container_id: id.clone() }).await.map(|_| id)
    };
    let id = ask("parts", &[("/dir", "etc"), ("/opt/file", "etc/motd"), ("/opt/sh", "bin/sh")]).await.unwrap();
    let text = "ls /dir; cat /dir/motd /opt/file; /opt/sh -c 'echo linked'; touch /dir/x 2>/dev/null || echo read-only";
    let answer = node.client.exec_sync(&id, &["/bin/sh", "-c", text].map(str::to_owned), Duration::ZERO).await.unwrap();
    let text = String::from_utf8(answer.stdout).unwrap();
    assert_eq!(text, "motd\nMullion's test image\nMullion's test image\nlinked\nread-only\n");
    for (name, part, reason) in [
        ("lost", "nothing", "the image has no \"nothing\": correct the volumeMount's subPath"),
        ("up", "etc/../..", "sub-path \"etc/../..\" of image \"demo:1\" leads out of it"),
        ("absolute", "/etc", "sub-path \"/etc\" of image \"demo:1\" leads out of it"),
    ] {
        let error = ask(name, &[("/v", part)]).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

pub async fn devices(dir: PathBuf) {
    let node = Node::linux(&dir).await;
    node.store().load(&image_archive(&dir), &Default::default()).unwrap();
    let own = dir.join("host/own");
    std::fs::write(&own, "").unwrap();
    mount(Some("/dev/zero"), &own, NONE, MsFlags::MS_BIND, NONE).unwrap();
    std::fs::write(dir.join("host/file"), "").unwrap();
    let pod = node.run(sandbox("devices")).await;
    let device = |host: &str, inside: &str| v1::Device { host_path: host.into(), container_path: inside.into(), permissions: "rw".into() };
    let mut config = container("has", "demo:1", &["/bin/sleep", "1000"]);
    config.devices = vec![device("/dev/null", "/dev/given0"), device("/own", "/opt/deep/given1")];
    let id = node.start(&pod, config).await;
    let text = "test -c /dev/given0 && echo x > /dev/given0 && test -c /opt/deep/given1 && test $(head -c 3 /opt/deep/given1 | wc -c) = 3";
    let command = ["/bin/sh", "-c", text].map(str::to_owned);
    assert_eq!(node.client.exec_sync(&id, &command, LIMIT).await.unwrap().exit_code, 0);
    for (host, why) in [("/dev/gpu0", "the simulated host has none of that name"), ("/file", "it is no device")] {
        let mut config = container(host.trim_start_matches('/').split('/').next_back().unwrap(), "demo:1", &["/bin/sleep", "1000"]);
        config.devices = vec![device(host, "/dev/given")];
        let id = node.create(&pod, config).await.unwrap();
        let error = node.client.start_container(v1::StartContainerRequest { container_id: id }).await.unwrap_err();
        assert!(error.message().contains(&format!("cannot give device {host:?} to a container: {why}")), "{}", error.message());
    }
    node.remove(&pod).await;
    umount2(&own, MntFlags::MNT_DETACH).unwrap();
}
