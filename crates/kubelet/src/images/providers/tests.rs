#![cfg(unix)]
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use host::NodeOs;
use serde_json::json;

use super::*;

/// Writes down each request, waits, complains, and answers what stands beside it.
const PROGRAM: &str = "#!/bin/sh\nd=$(dirname \"$0\")\nr=$(cat)\nprintf '%s %s %s %s\\n' \"$*\" \"$EXTRA\" \"$HOME\" \"$r\" >> \"$d/asked\"\n\
                       if [ -e \"$d/slow\" ]; then sleep 1; fi\ncat \"$d/complaint\" >&2 2>/dev/null\ncat \"$d/answer\"\nexit $(cat \"$d/code\")\n";

struct Node {
    _alone: MutexGuard<'static, ()>,
    dir: tempfile::TempDir,
    root: Arc<HostRoot>,
}

impl Node {
    fn new(windows: bool) -> Self {
        let _alone = crate::PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        let os = NodeOs::Windows { build: 20348 };
        let root = if windows { HostRoot::windows(os, [('C', dir.path().to_owned())]) } else { HostRoot::linux(dir.path()) };
        Node { _alone, root: Arc::new(root.unwrap()), dir }
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.dir.path().join(path), text).unwrap();
    }

    fn install(&self, name: &str) {
        self.write(&format!("bin/{name}"), PROGRAM);
        let path = self.dir.path().join("bin").join(name);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        self.write("bin/code", "0");
        self.write("bin/complaint", "");
    }

    fn answers(&self, more: serde_json::Value) {
        let mut answer = json!({"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1"});
        more.as_object().unwrap().iter().for_each(|(name, value)| answer[name] = value.clone());
        self.write("bin/answer", answer.to_string());
    }

    fn configure(&self, name: &str) {
        let provider = json!({"name": name, "matchImages": ["*.io"], "defaultCacheDuration": "1h", "args": ["a b", "$HOME"],
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "env": [{"name": "EXTRA", "value": "more"}]});
        let config = json!({"kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1", "providers": [provider]});
        self.write("config.yaml", config.to_string());
    }

    fn load(&self) -> Result<Providers, String> {
        cluster::install_crypto_provider();
        let client = kube::Client::try_from(kube::Config::new("http://127.0.0.1:9".parse().unwrap())).unwrap();
        let none = Providers::none(self.root.clone(), client.clone(), Arc::new(TokenCache::new(client)));
        let at = |path: &str| self.root.parse(path).unwrap();
        none.load(&at("/config.yaml"), &at("/bin")).map_err(|error| error.to_report_string())
    }

    fn asked(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.path().join("bin/asked")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

fn names(found: Vec<Credential>) -> Vec<String> {
    found.into_iter().map(|credential| credential.login.username).collect()
}

#[tokio::test]
async fn a_program_is_asked_once_for_what_its_answer_reaches() {
    let node = Node::new(false);
    node.install("p");
    node.configure("p");
    node.answers(json!({"cacheKeyType": "Registry", "auth": {"reg.io": {"username": "u", "password": "p"}}}));
    let providers = node.load().unwrap();
    let pod = Pod::default();
    assert_eq!(names(providers.lookup("reg.io/a", &pod).await), ["u"]);
    assert_eq!(names(providers.lookup("reg.io/b", &pod).await), ["u"]);
    assert_eq!(names(providers.lookup("other.io/b", &pod).await), [""; 0], "it gives what it gives");
    assert_eq!(names(providers.lookup("reg.com/b", &pod).await), [""; 0]);
    let request = |image: &str| {
        let home = std::env::var("HOME").unwrap_or_default();
        let version = "credentialprovider.kubelet.k8s.io/v1";
        format!("a b $HOME more {home} {{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"{version}\",\"image\":\"{image}\"}}")
    };
    assert_eq!(node.asked(), [request("reg.io/a"), request("other.io/b")]);
}

#[tokio::test]
async fn requests_for_the_same_image_share_a_process() {
    let node = Node::new(false);
    node.install("p");
    node.configure("p");
    node.write("bin/slow", "");
    node.answers(json!({"cacheKeyType": "Image", "cacheDuration": "0s", "auth": {"*.io": {"username": "u", "password": "p"}}}));
    let providers = node.load().unwrap();
    let pod = Pod::default();
    let (a, b, c) = tokio::join!(providers.lookup("reg.io/a", &pod), providers.lookup("reg.io/a", &pod), providers.lookup("reg.io/b", &pod));
    assert_eq!((names(a), names(b), names(c)), (vec!["u".to_owned()], vec!["u".to_owned()], vec!["u".to_owned()]));
    assert_eq!(node.asked().len(), 2, "{:?}", node.asked());
    assert_eq!(names(providers.lookup("reg.io/a", &pod).await), ["u"]);
    assert_eq!(node.asked().len(), 3, "what holds for no time is asked for again");
}

#[tokio::test]
async fn programs_that_fail_give_nothing_and_are_counted() {
    let node = Node::new(false);
    node.install("p");
    node.configure("p");
    node.answers(json!({"cacheKeyType": "Image", "auth": {"*.io": {"username": "u", "password": "p"}}}));
    node.write("bin/code", "3");
    node.write("bin/complaint", "no\u{7} network\n");
    let providers = node.load().unwrap();
    let plugin = &providers.plugins[0];
    let failed = |image: &'static str| async { providers.provide(plugin, image, &Pod::default()).await.unwrap_err().to_report_string() };
    let prefix = "failed to get credential from external registry credential provider: ";
    assert_eq!(
        failed("reg.io/a").await,
        format!("{prefix}error execing credential provider plugin p for image reg.io/a: exit status: 3: no  network")
    );
    node.write("bin/code", "0");
    node.write("bin/answer", "{");
    assert_eq!(failed("reg.io/a").await, format!("{prefix}error reading GVK from response: it is no JSON object with kind and apiVersion"));
    node.write("bin/answer", vec![b' '; 3 << 20]);
    assert_eq!(failed("reg.io/a").await, format!("{prefix}it has more than 1048576 bytes"));
    assert_eq!(names(providers.lookup("reg.io/a", &Pod::default()).await), [""; 0]);
    std::fs::remove_file(node.dir.path().join("bin/p")).unwrap();
    assert!(failed("reg.io/b").await.starts_with(&format!("{prefix}cannot open /bin/p: ")));

    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(Shown(providers.counts.clone())));
    let text = exposition::encode(&registry, exposition::Format::Text);
    for line in [
        "kubelet_credential_provider_plugin_errors_total{plugin_name=\"p\"} 1",
        "kubelet_credential_provider_plugin_duration_count{plugin_name=\"p\"} 4",
    ] {
        assert!(text.lines().any(|known| known == line), "{line} is missing in\n{text}");
    }
    assert!(text.contains("kubelet_credential_provider_config_info{hash=\"sha256:"), "{text}");
}

#[derive(Clone)]
struct Shown(Arc<Counts>);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shown")
    }
}

impl prometheus_client::collector::Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.encode(&mut encoder)
    }
}

#[tokio::test]
async fn a_program_that_does_not_end_is_killed() {
    let node = Node::new(false);
    node.install("p");
    node.configure("p");
    node.write("bin/slow", "");
    let providers = node.load().unwrap();
    let provider = &providers.plugins[0].provider;
    let program = node.dir.path().join("bin/p");
    let call = Call { program, provider, image: "reg.io/a", request: b"{}".to_vec(), token: "" };
    let late = call.run(Duration::from_millis(200)).await.unwrap_err().to_string();
    assert_eq!(late, "error execing credential provider plugin p for image reg.io/a: it did not end within 60s and was killed");
}

#[tokio::test]
async fn complaints_show_no_token() {
    let node = Node::new(false);
    node.install("p");
    node.configure("p");
    node.write("bin/code", "1");
    node.write("bin/complaint", "token s3cr3t is wrong");
    node.write("bin/answer", "");
    let providers = node.load().unwrap();
    let call = Call {
        program: node.dir.path().join("bin/p"),
        provider: &providers.plugins[0].provider,
        image: "reg.io/a",
        request: Vec::new(),
        token: "s3cr3t",
    };
    let failed = call.run(Duration::from_secs(10)).await.unwrap_err().to_string();
    assert!(failed.ends_with(": token (token) is wrong"), "{failed}");
}

#[test]
fn accounts_have_the_annotations_that_are_needed() {
    let attributes = TokenAttributes {
        audience: "a".into(),
        by_token: false,
        required: true,
        required_annotations: vec!["need".into()],
        optional_annotations: vec!["may".into(), "other".into()],
    };
    let all = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), format!("{name}'s"))).collect::<BTreeMap<_, _>>();
    assert_eq!(annotations(&attributes, &all(&["may"])), None);
    assert_eq!(annotations(&attributes, &all(&["need", "surplus"])), Some(all(&["need"])));
    assert_eq!(annotations(&attributes, &all(&["need", "may"])), Some(all(&["need", "may"])));
}

#[tokio::test]
async fn missing_programs_and_configurations_are_named() {
    let node = Node::new(false);
    let failed = || node.load().err().unwrap_or_default();
    assert_eq!(failed(), "unable to access path \"/config.yaml\": no such file or directory");
    node.configure("p");
    let missing = "plugin binary executable /bin/p did not exist; install it there, or take the provider out of --image-credential-provider-config";
    assert_eq!(failed(), missing);
    node.write("bin/p", "");
    assert_eq!(failed(), "error inspecting binary executable /bin/p: it is no file that may be executed");
    node.install("p");
    assert_eq!(failed(), "");
    std::fs::remove_file(node.dir.path().join("config.yaml")).unwrap();
    std::fs::create_dir(node.dir.path().join("config.yaml")).unwrap();
    assert_eq!(failed(), "no configuration files found in directory \"/config.yaml\"");
    node.write("config.yaml/z.txt", "no");
    node.write("config.yaml/b.yml", "kind: x");
    assert!(failed().starts_with("error decoding config \"/config.yaml/b.yml\": failed to decode \"x\" of \"\""), "{}", failed());
    std::fs::remove_dir_all(node.dir.path().join("bin")).unwrap();
    let missing = "plugin binary directory /bin did not exist; install the programs there, or give another --image-credential-provider-bin-dir";
    assert_eq!(failed(), missing);
}

#[test]
fn windows_programs_are_exes() {
    let node = Node::new(true);
    let (root, dir) = (&node.root, node.root.parse(r"C:\bin").unwrap());
    let found = |name: &str| program(root, &dir, name).map(|path| path.to_string()).map_err(|error| error.to_string());
    node.write("bin/ecr.cmd", "");
    assert_eq!(found("ecr"), Err(r"credential provider ecr is the script C:\bin\ecr.cmd, and the node agent runs no shell; install an .exe".into()));
    assert!(found("ecr.exe").unwrap_err().starts_with(r"plugin binary executable C:\bin\ecr.exe did not exist"));
    node.install("ecr.exe");
    assert_eq!((found("ecr"), found("ecr.exe")), (Ok(r"C:\bin\ecr.exe".into()), Ok(r"C:\bin\ecr.exe".into())));
}
