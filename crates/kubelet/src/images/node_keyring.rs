//! The node's own credentials: docker's configuration files, which every pod's images may be pulled with
//! (upstream pkg/credentialprovider/{config,provider}.go).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use host::{HostError, HostRoot, PodPath};
use thiserror_ext::AsReport as _;

use super::keyring::{self, Credential, DockerConfig, DockerConfigError, Keyring, Source};

/// How long what was read holds.
const LIFETIME: Duration = Duration::from_secs(300);
/// Bytes of a file at most.
const MAX_FILE: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Content(#[from] DockerConfigError),
    #[error("it has more than {MAX_FILE} bytes")]
    TooLarge,
}

/// Reads one form of the file.
type Read = fn(&[u8]) -> Result<DockerConfig, DockerConfigError>;

/// The credentials of one node.
pub(crate) struct NodeKeyring {
    root: Arc<HostRoot>,
    /// Where files may be, in their order, each with its form.
    files: Vec<(PodPath, Read)>,
    read: Mutex<Option<(Instant, Arc<Keyring>)>>,
}

impl NodeKeyring {
    /// The files of upstream's kubelet: in the agent's directory `dir`, in the working directory, and in the `home` of its user; the last two
    /// are None on a simulated node, whose user they do not belong to.
    pub(crate) fn new(root: Arc<HostRoot>, dir: &PodPath, working: Option<&str>, home: Option<&str>) -> Self {
        let at = |dir: &str, name: &str| root.parse(dir).ok().and_then(|dir| dir.join(name).ok());
        let of = |name: &str, sub: Option<&str>| {
            let below = |dir: &str| match sub {
                Some(sub) => at(dir, sub).and_then(|dir| dir.join(name).ok()),
                None => at(dir, name),
            };
            [dir.join(name).ok(), working.and_then(|dir| at(dir, name)), home.and_then(below), below("/")]
        };
        let json = of("config.json", Some(".docker")).into_iter().flatten().map(|path| (path, keyring::docker_config_json as Read));
        let old = of(".dockercfg", None).into_iter().flatten().map(|path| (path, keyring::dockercfg as Read));
        let files = json.chain(old).collect();
        NodeKeyring { root, files, read: Mutex::default() }
    }

    /// The credentials for a repository. Files are read again after five minutes.
    pub(crate) fn lookup(&self, repository: &str, now: Instant) -> Vec<Credential> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let held = read.as_ref().filter(|(at, _)| now.duration_since(*at) < LIFETIME).map(|(_, keyring)| keyring.clone());
        let keyring = held.unwrap_or_else(|| {
            let mut keyring = Keyring::default();
            keyring.add(&Source::Node, self.first());
            let keyring = Arc::new(keyring);
            *read = Some((now, keyring.clone()));
            keyring
        });
        drop(read);
        keyring.lookup(repository)
    }

    /// The first file that is one.
    fn first(&self) -> DockerConfig {
        for (path, read) in &self.files {
            match self.file(path, *read) {
                Ok(Some(config)) => return config,
                Ok(None) => {}
                Err(error) => tracing::warn!(%path, error = %error.as_report(), "ignoring a docker configuration that cannot be read"),
            }
        }
        DockerConfig::default()
    }

    fn file(&self, path: &PodPath, read: Read) -> Result<Option<DockerConfig>, FileError> {
        match self.root.read(path, MAX_FILE + 1)? {
            Some(bytes) if bytes.len() as u64 > MAX_FILE => Err(FileError::TooLarge),
            Some(bytes) => Ok(Some(read(&bytes)?)),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &std::path::Path, path: &str, text: &str) {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn new(dir: &std::path::Path, users: bool) -> NodeKeyring {
        let root = Arc::new(HostRoot::linux(dir).unwrap());
        let kubelet = root.parse("/var/lib/kubelet").unwrap();
        NodeKeyring::new(root, &kubelet, users.then_some("/work"), users.then_some("/home/u"))
    }

    #[test]
    fn the_first_file_that_can_be_read_counts() {
        let dir = tempfile::tempdir().unwrap();
        let now = Instant::now();
        let found = |users| {
            let found = new(dir.path(), users).lookup("reg.io/x", now);
            found.into_iter().map(|credential| (credential.login.username, credential.source)).collect::<Vec<_>>()
        };
        let one = |name: &str| vec![(name.to_owned(), Source::Node)];
        assert_eq!(found(true), []);
        let json = |name: &str| format!(r#"{{"auths":{{"reg.io":{{"username":"{name}"}}}}}}"#);
        let old = |name: &str| format!(r#"{{"reg.io":{{"username":"{name}"}}}}"#);
        // From the last to the first.
        for (path, text, name) in [
            (".dockercfg", old("root-old"), "root-old"),
            ("home/u/.dockercfg", old("home-old"), "home-old"),
            ("var/lib/kubelet/.dockercfg", old("own-old"), "own-old"),
            (".docker/config.json", json("root"), "root"),
            ("home/u/.docker/config.json", json("home"), "home"),
            ("work/config.json", json("work"), "work"),
            ("var/lib/kubelet/config.json", json("own"), "own"),
        ] {
            write(dir.path(), path, &text);
            assert_eq!(found(true), one(name), "{path}");
        }
        write(dir.path(), "var/lib/kubelet/config.json", "{");
        assert_eq!(found(true), one("work"), "a broken file is passed over");
        assert_eq!(found(false), one("root"), "a simulated node has no user's files");
        write(dir.path(), "var/lib/kubelet/config.json", &" ".repeat(MAX_FILE as usize + 1));
        assert_eq!(found(false), one("root"), "so is one that is too large");
    }

    #[test]
    fn files_are_read_again_after_five_minutes() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = new(dir.path(), false);
        let begin = Instant::now();
        let count = |seconds| keyring.lookup("reg.io/x", begin + Duration::from_secs(seconds)).len();
        assert_eq!(count(0), 0);
        write(dir.path(), "var/lib/kubelet/config.json", r#"{"auths":{"reg.io":{"username":"u"}}}"#);
        assert_eq!((count(299), count(300)), (0, 1));
        std::fs::remove_file(dir.path().join("var/lib/kubelet/config.json")).unwrap();
        assert_eq!((count(599), count(600)), (1, 0));
    }
}
