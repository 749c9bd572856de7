//! A user's own Windows image from archive to program, as an ordinary user would run it. Wine is required; the template is
//! built when it is missing.

#[allow(dead_code, reason = "shared with tests/lab.rs, which uses the rest")]
mod support;
mod template;

use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cri::v1;
use images::LoadOptions;
use images::blob::digest_of;
use serde_json::{Value, json};
use support::{Node, container, describe, play, windows_sandbox};

/// `HKLM\Software\A` with a number `d`, among keys of every kind.
const HIVE: &[u8] = include_bytes!("../../../fuzz/seeds/hive/kinds");
const NAME: &str = "docker.io/example/app:1";

fn main() -> ExitCode {
    play(
        &[
            ("an_image_of_layers_hives_and_a_base_runs", |dir| Box::pin(own(dir))),
            ("a_pods_own_command_runs_in_the_image_of_a_stand_in", |dir| Box::pin(command(dir))),
            ("host_process_containers_share_the_nodes_drive", |dir| Box::pin(host_process(dir))),
            ("what_needs_a_real_windows_is_refused_with_the_reason", |dir| Box::pin(refused(dir))),
        ],
        template::build,
    )
}

async fn node(dir: &Path) -> Node {
    template::share(dir);
    Node::windows(dir, 20348, true).await
}

fn tarball(files: &[(String, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, data) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *data).unwrap();
    }
    builder.into_inner().unwrap()
}

/// An OCI archive of an image over a base that it does not hold.
fn archive(dir: &Path, layers: &[&[(&str, &[u8])]], mut config: Value) -> PathBuf {
    let mut blobs: Vec<(String, Vec<u8>)> = Vec::new();
    let mut blob = |data: Vec<u8>| {
        let (digest, size) = (digest_of(&data), data.len());
        blobs.push((digest.replacen("sha256:", "blobs/sha256/", 1), data));
        json!({ "digest": digest, "size": size })
    };
    let base = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
    let mut descriptors = vec![json!({ "mediaType": base, "digest": digest_of(b"base"), "size": 1 })];
    let mut diff_ids = vec![digest_of(b"unpacked base")];
    for files in layers {
        let files: Vec<(String, &[u8])> = files.iter().map(|(name, data)| ((*name).to_owned(), *data)).collect();
        let tar = tarball(&files);
        diff_ids.push(digest_of(&tar));
        descriptors.push(blob(tar));
    }
    config["os"] = "windows".into();
    config["architecture"] = "amd64".into();
    config["os.version"] = "10.0.20348.1".into();
    config["rootfs"] = json!({ "type": "layers", "diff_ids": diff_ids });
    let config = blob(serde_json::to_vec(&config).unwrap());
    let mut manifest = blob(serde_json::to_vec(&json!({ "schemaVersion": 2, "config": config, "layers": descriptors })).unwrap());
    manifest["mediaType"] = "application/vnd.oci.image.manifest.v1+json".into();
    manifest["annotations"] = json!({ "io.containerd.image.name": NAME });
    let index = serde_json::to_vec(&json!({ "schemaVersion": 2, "manifests": [manifest] })).unwrap();
    let mut files: Vec<(String, &[u8])> = vec![("index.json".to_owned(), &index)];
    files.extend(blobs.iter().map(|(name, data)| (name.clone(), data.as_slice())));
    let path = dir.join("image.tar");
    std::fs::write(&path, tarball(&files)).unwrap();
    path
}

fn log(dir: &Path, pod: &str) -> String {
    std::fs::read_to_string(dir.join(format!("host/var/log/pods/{pod}/main/0.log"))).unwrap().replace('\r', "")
}

async fn own(dir: PathBuf) {
    let node = node(&dir).await;
    let script = b"@echo off\r\necho %WHO% in %CD%\r\ntype C:\\App\\data.txt\r\nif exist C:\\App\\gone.txt echo not gone\r\n\
        reg query HKLM\\Software\\A /v d\r\nver\r\nwhoami\r\necho x>C:\\Windows\\x.txt\r\n\
        if not exist C:\\Windows\\x.txt echo no administrator\r\nexit 7\r\n";
    let first: &[(&str, &[u8])] = &[("Files/App/run.bat", script), ("Files/App/data.txt", b"old\r\n"), ("Files/App/gone.txt", b"")];
    let second: &[(&str, &[u8])] = &[("Files/APP/DATA.txt", b"new\r\n"), ("Files/app/.wh.gone.txt", b""), ("Hives/Software_Delta", HIVE)];
    let command = json!(["cmd", "/c", "C:\\APP\\RUN.BAT"]);
    let config = json!({ "config": { "Entrypoint": command, "WorkingDir": "C:\\app", "Env": ["WHO=image"], "User": "ContainerUser" } });
    let images = node.store().load(&archive(&dir, &[first, second], config), &LoadOptions::default()).unwrap();
    assert_eq!((images[0].tags.as_slice(), images[0].layers.len()), ([NAME.to_owned()].as_slice(), 2), "without the base");
    let pod = node.run(windows_sandbox("own")).await;
    let id = node.start(&pod, container("main", NAME, &[])).await;
    let status = node.wait_exit(&id).await;
    let log = log(&dir, "own");
    assert_eq!(status.exit_code, 7, "{} {log}", describe(&status));
    for words in ["image in C:\\App\n", "new\n", "REG_DWORD", "0x1\n", "10.0.20348", "user manager\\containeruser\n", "no administrator\n"] {
        assert!(log.to_lowercase().contains(&words.to_lowercase()), "{words:?} is missing in {log}");
    }
    assert!(!log.contains("old") && !log.contains("not gone"), "{log}");
    node.remove(&pod).await;
}

async fn host_process(dir: PathBuf) {
    let node = node(&dir).await;
    let script = b"@echo off\r\necho %CD% %CONTAINER_SANDBOX_MOUNT_POINT% %MARK%\r\ntype C:\\etc\\data\\a.txt\r\n\
        type etc\\data\\a.txt\r\nif exist C:\\made.txt type C:\\made.txt\r\necho %MARK%>C:\\made.txt\r\necho x>own.txt\r\n";
    let layer: &[(&str, &[u8])] = &[("Files/run.bat", script)];
    let config = json!({ "config": { "Env": ["MARK=one"] } });
    node.store().load(&archive(&dir, &[layer], config), &LoadOptions::default()).unwrap();
    std::fs::create_dir_all(dir.join("host/volumes")).unwrap();
    std::fs::write(dir.join("host/volumes/a.txt"), "data\r\n").unwrap();
    let mut sandbox = windows_sandbox("hosted");
    let security = v1::WindowsSandboxSecurityContext { host_process: true, ..Default::default() };
    sandbox.windows = Some(v1::WindowsPodSandboxConfig { security_context: Some(security) });
    let pod = node.run(sandbox).await;
    let run = async |name: &str, mark: &str| {
        let mut request = container(name, NAME, &["cmd", "/c", "run.bat"]);
        request.envs.push(v1::KeyValue { key: "MARK".into(), value: mark.into() });
        let security = v1::WindowsContainerSecurityContext { host_process: true, ..Default::default() };
        request.windows = Some(v1::WindowsContainerConfig { security_context: Some(security), ..Default::default() });
        request.mounts.push(v1::Mount { container_path: r"C:\etc\data".into(), host_path: r"C:\volumes".into(), ..Default::default() });
        let id = node.start(&pod, request).await;
        let status = node.wait_exit(&id).await;
        let text = std::fs::read_to_string(dir.join(format!("host/var/log/pods/hosted/{name}/0.log"))).unwrap().replace('\r', "");
        assert_eq!(status.exit_code, 0, "{} {text}", describe(&status));
        text.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(run("main", "two").await, [r"C:\hpc C:\hpc\ two", "data", "data"]);
    assert_eq!(run("next", "three").await, [r"C:\hpc C:\hpc\ three", "data", "data", "two"], "a file that the first one made on the node's drive");
    assert_eq!(std::fs::read_to_string(dir.join("host/made.txt")).unwrap().trim_end(), "three");
    // The node's machine, and the domain of an account.
    let switch = dir.join("power/request");
    nix::unistd::mkfifo(&switch, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut requests = std::fs::File::options().read(true).write(true).custom_flags(nix::libc::O_NONBLOCK).open(&switch).unwrap();
    let own = async |name: &str, host_process: bool, line: &str| {
        let mut request = container(name, NAME, &["cmd", "/c", line]);
        let credential_spec = r#"{"DomainJoinConfig":{"DnsName":"contoso.org"}}"#.into();
        let security = v1::WindowsContainerSecurityContext { host_process, credential_spec, ..Default::default() };
        request.windows = Some(v1::WindowsContainerConfig { security_context: Some(security), ..Default::default() });
        let id = node.start(&pod, request).await;
        let status = node.wait_exit(&id).await;
        (status.exit_code, std::fs::read_to_string(dir.join(format!("host/var/log/pods/hosted/{name}/0.log"))).unwrap())
    };
    let (code, text) = own("power", true, "shutdown.exe -r -t 60").await;
    assert_eq!(code, 0, "{text}");
    let mut asked = [0; 64];
    let length = std::io::Read::read(&mut requests, &mut asked).unwrap();
    assert_eq!(std::str::from_utf8(&asked[..length]).unwrap(), "\nrestart 60\n");
    std::fs::write(dir.join("power/pending"), "").unwrap();
    let (code, text) = own("again", true, "shutdown /s").await;
    assert!(code == 1 && text.contains("A system shutdown has already been scheduled.(1190)"), "{code} {text}");
    let (code, text) = own("domain", false, "nltest /PARENTDOMAIN&shutdown /a").await;
    assert!(code == 1 && text.contains("contoso.org. (1)") && text.contains("The command completed successfully"), "{code} {text}");
    assert!(text.contains("Access is denied.(5)"), "a container that is not the node's own: {text}");
    assert!(!dir.join("host/hpc/own.txt").exists() && !dir.join("host/Windows/System32").exists(), "Windows and the image are the container's own");
    node.remove(&pod).await;
}

async fn command(dir: PathBuf) {
    let node = node(&dir).await;
    node.pull("redis:3.0-nanoserver").await.unwrap();
    let pod = node.run(windows_sandbox("command")).await;
    let id = node.start(&pod, container("main", "redis:3.0-nanoserver", &["cmd", "/c", "echo mine& exit 3"])).await;
    assert_eq!(node.wait_exit(&id).await.exit_code, 3);
    assert!(log(&dir, "command").contains("mine"));
    node.remove(&pod).await;
}

async fn refused(dir: PathBuf) {
    let node = node(&dir).await;
    let config = json!({ "config": { "Entrypoint": ["C:\\ServiceMonitor.exe", "w3svc"] } });
    node.store().load(&archive(&dir, &[&[("Files/ServiceMonitor.exe", b"MZ")]], config), &LoadOptions::default()).unwrap();
    let pod = node.run(windows_sandbox("refused")).await;
    let error = node.create(&pod, container("main", NAME, &[])).await.unwrap_err().to_string();
    assert!(error.contains("it is part of IIS") && error.contains("microsoft/iis"), "{error}");
    node.remove(&pod).await;
}
