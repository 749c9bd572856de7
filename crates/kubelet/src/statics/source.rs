//! Sources of static pods: a manifest or a directory of them on the node, and a web server (upstream pkg/kubelet/config/{file,http}.go).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cluster::{EventType, Key};
use host::{FileKind, HostError, HostRoot, PodPath};
use http_body_util::{BodyExt as _, Limited};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube_rules::static_pod::{self, MAX_MANIFEST, ManifestError, Origin, SEEN};
use serde::de::Deserialize as _;
use serde_json::Value;
use thiserror_ext::AsReport as _;

use super::Source;
use super::adoption::{self, Earlier};
use crate::agent::{Agent, uid};
use crate::config::StaticPods;

/// How often names, sizes and times of the manifests are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long the web server may take.
const ANSWER: Duration = Duration::from_secs(10);

/// Why a manifest, or the whole source, gives no pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Path(#[from] host::PathError),
    #[error("it is neither a file nor a directory")]
    Kind,
    #[error("it is a directory; manifests lie beside each other")]
    Directory,
    #[error("it has more than {MAX_MANIFEST} bytes")]
    TooLarge,
    #[error("it is no YAML")]
    Yaml(#[from] serde_yaml_ng::Error),
    #[error("it holds {0} documents: write one pod to a file")]
    Documents(usize),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("{first} has a pod {pod} too: give one of them another name or namespace")]
    Twice { pod: Key, first: String },
    #[error(transparent)]
    Client(#[from] kube::Error),
    #[error("no request can be made of it")]
    Request(#[from] http::Error),
    #[error("the web server answered {0}")]
    Status(http::StatusCode),
    #[error("the web server sent nothing")]
    Empty,
    #[error("the answer cannot be read: {0}")]
    Body(String),
    #[error("the web server did not answer within {ANSWER:?}")]
    Silent,
}

/// The pods of a text, which is YAML or JSON.
fn parse(bytes: &[u8], origin: Origin<'_>, node: &str) -> Result<Vec<Arc<Pod>>, SourceError> {
    let documents = serde_yaml_ng::Deserializer::from_slice(bytes).map(Value::deserialize).collect::<Result<Vec<_>, _>>()?;
    let documents: Vec<Value> = documents.into_iter().filter(|document| !document.is_null()).collect();
    let [document] = documents.as_slice() else { return Err(SourceError::Documents(documents.len())) };
    let now = Timestamp::now().to_string();
    let seen = |mut pod: Pod| {
        pod.metadata.annotations.get_or_insert_default().insert(SEEN.to_owned(), now.clone());
        Arc::new(pod)
    };
    Ok(static_pod::pods(document, origin, node)?.into_iter().map(seen).collect())
}

/// Size and times of a file: of its content, and of anything about it.
type Signature = (u64, Option<SystemTime>, Option<SystemTime>);

#[derive(Debug)]
struct Known {
    signature: Signature,
    /// The last pod that the file gave.
    pod: Option<Arc<Pod>>,
    problem: Option<String>,
}

/// Manifests on the node.
struct Files {
    root: Arc<HostRoot>,
    path: String,
    node: String,
    known: BTreeMap<String, Known>,
    /// Problems that were told: by file, the text.
    told: BTreeMap<String, String>,
    /// What runs of an earlier agent, until the first look is over.
    earlier: Vec<Earlier>,
    /// UIDs of pods that run under another one: by the UID that their manifest would give them.
    adopted: BTreeMap<String, String>,
}

/// What a look at the manifests gives.
#[derive(Debug, Default)]
struct Look {
    pods: Vec<Arc<Pod>>,
    /// New problems: file and text.
    problems: Vec<(String, String)>,
}

impl Files {
    fn new(root: Arc<HostRoot>, path: String, node: String, earlier: Vec<Earlier>) -> Self {
        Files { root, path, node, known: BTreeMap::new(), told: BTreeMap::new(), earlier, adopted: BTreeMap::new() }
    }

    /// Looks at the manifests. Files whose size and time are as before are read only when `all` are. A file that cannot be read keeps the
    /// pod that it gave before; one that is gone does not.
    fn look(&mut self, all: bool) -> Look {
        let mut look = Look::default();
        let mut problems = BTreeMap::new();
        let names = match self.list() {
            Ok(names) => names,
            Err(error) => {
                problems.insert(self.path.clone(), error.to_report_string());
                // What cannot be listed may still be there.
                self.known.keys().cloned().collect()
            }
        };
        self.known.retain(|name, _| names.contains(name));
        let mut taken: BTreeMap<Key, String> = BTreeMap::new();
        for name in names {
            self.refresh(&name, all);
            let Some(known) = self.known.get(&name) else { continue };
            if let Some(problem) = &known.problem {
                problems.insert(name.clone(), problem.clone());
            }
            let Some(pod) = &known.pod else { continue };
            let key = Key::of(&**pod);
            match taken.get(&key) {
                Some(first) => {
                    let error = SourceError::Twice { pod: key, first: first.clone() };
                    problems.insert(name.clone(), error.to_string());
                }
                None => {
                    taken.insert(key, name.clone());
                    look.pods.push(pod.clone());
                }
            }
        }
        self.earlier.clear();
        look.problems = problems.iter().filter(|(file, text)| self.told.get(*file) != Some(*text)).map(|(f, t)| (f.clone(), t.clone())).collect();
        self.told = problems;
        look
    }

    /// Paths of the manifests, in order.
    fn list(&self) -> Result<BTreeSet<String>, SourceError> {
        let path = self.root.parse(&self.path)?;
        match self.root.kind(&path)? {
            None => Ok(BTreeSet::new()),
            Some(FileKind::File) => Ok(BTreeSet::from([self.path.clone()])),
            Some(FileKind::Directory) => {
                let names = self.root.read_dir(&path)?.into_iter().filter(|(name, _)| !name.starts_with('.'));
                Ok(names.filter_map(|(name, _)| Some(path.join(&name).ok()?.to_string())).collect())
            }
            Some(_) => Err(SourceError::Kind),
        }
    }

    /// Reads a file anew where that is due.
    fn refresh(&mut self, name: &str, all: bool) {
        let before = self.known.get(name).map(|known| (known.signature, known.pod.clone()));
        let read = self.read(name, before.as_ref().map(|(signature, _)| *signature).filter(|_| !all));
        let (signature, result) = match read {
            Ok(None) => return,
            Ok(Some((signature, bytes))) => {
                let changed = signature.2.filter(|_| !self.is_link(name));
                let parsed = parse(&bytes, Origin::File(name), &self.node);
                (signature, parsed.map(|pods| pods.into_iter().map(|pod| self.adopt(pod, changed)).collect::<Vec<_>>()))
            }
            // It went away since it was listed.
            Err(SourceError::Host(error)) if error.is_not_found() => {
                self.known.remove(name);
                return;
            }
            Err(error) => ((u64::MAX, None, None), Err(error)),
        };
        let before = before.and_then(|(_, pod)| pod);
        let known = match result {
            Ok(pods) => {
                let pod = pods.into_iter().next();
                // The same pod keeps the time at which it was seen first.
                let same = |old: &Arc<Pod>| pod.as_ref().is_some_and(|new| uid(new) == uid(old));
                let pod = before.filter(same).or(pod.clone());
                Known { signature, pod, problem: None }
            }
            Err(error) => Known { signature, pod: before, problem: Some(error.to_report_string()) },
        };
        self.known.insert(name.to_owned(), known);
    }

    /// Gives a pod the UID under which it runs already.
    fn adopt(&mut self, pod: Arc<Pod>, changed: Option<SystemTime>) -> Arc<Pod> {
        let own = uid(&pod);
        let found = changed.and_then(|changed| adoption::uid_of(&pod, changed, &self.earlier)).filter(|found| *found != own);
        if let Some(found) = found {
            tracing::info!(pod = %Key::of(&*pod), uid = found, "a static pod goes on that an earlier agent started");
            self.adopted.insert(own.clone(), found);
        }
        let Some(uid) = self.adopted.get(&own) else { return pod };
        let mut pod = Arc::unwrap_or_clone(pod);
        adoption::adopt(&mut pod, uid);
        Arc::new(pod)
    }

    /// Whether a manifest is a link: it may lead elsewhere than before without a change of what it leads to.
    fn is_link(&self, name: &str) -> bool {
        let listed = self.root.parse(name).ok().and_then(|path| Some((path.parent()?, path)));
        let Some((directory, path)) = listed else { return true };
        let names = self.root.read_dir(&directory).unwrap_or_default();
        !names.iter().any(|(name, kind)| *kind == FileKind::File && directory.join(name).is_ok_and(|found| found == path))
    }

    /// Signature and content of a file; None when its signature is `known`.
    fn read(&self, name: &str, known: Option<Signature>) -> Result<Option<(Signature, Vec<u8>)>, SourceError> {
        let path: PodPath = self.root.parse(name)?;
        match self.root.kind(&path)? {
            Some(FileKind::File) | None => {}
            Some(FileKind::Directory) => return Err(SourceError::Directory),
            Some(_) => return Err(SourceError::Kind),
        }
        let file = self.root.open_read(&path)?;
        let metadata = file.metadata().map_err(|source| HostError::Io { operation: "read", path: name.to_owned(), source })?;
        let signature = (metadata.len(), metadata.modified().ok(), host::last_changed(&metadata));
        if known == Some(signature) {
            return Ok(None);
        }
        let bytes = self.root.read(&path, MAX_MANIFEST + 1)?.unwrap_or_default();
        if bytes.len() as u64 > MAX_MANIFEST { Err(SourceError::TooLarge) } else { Ok(Some((signature, bytes))) }
    }
}

/// Follows the manifests on the node, for ever.
pub(crate) async fn follow_files(agent: Arc<Agent>, settings: StaticPods) {
    let node = agent.side.node_name.clone();
    let mut files = Files::new(agent.root.clone(), settings.path.clone(), node, adoption::find(&agent).await);
    let mut read_all = tokio::time::Instant::now();
    let mut all = true;
    loop {
        let look = files.look(all);
        for (file, problem) in &look.problems {
            report(&agent, file, problem);
        }
        agent.statics.set(Source::File, look.pods);
        tokio::time::sleep(LOOK.min(settings.file_check)).await;
        all = read_all.elapsed() >= settings.file_check;
        if all {
            read_all = tokio::time::Instant::now();
        }
    }
}

/// Says what is wrong with a manifest, in the log and as an event of the Node.
fn report(agent: &Agent, place: &str, problem: &str) {
    tracing::warn!("cannot run the static pod of {place}: {problem}; correct it: other pods run, and one that ran from it goes on");
    let node = Some(agent.side.node_name.clone());
    let about = ObjectReference { kind: Some("Node".into()), name: node.clone(), uid: node, ..ObjectReference::default() };
    agent.recorder.event(&about, EventType::Warning, "InvalidStaticPod", None, format!("{place}: {problem}"));
}

/// A web server with manifests.
struct Web {
    client: kube::Client,
    url: String,
    request: http::Request<()>,
}

impl Web {
    fn new(settings: &StaticPods) -> Result<Self, SourceError> {
        let url: http::Uri = settings.url.parse().map_err(http::Error::from)?;
        let path = url.path_and_query().map_or_else(|| "/".to_owned(), ToString::to_string);
        let mut base = url.into_parts();
        base.path_and_query = Some("/".parse().map_err(http::Error::from)?);
        let mut request = http::Request::get(path);
        for (name, value) in &settings.headers {
            request = request.header(name, value);
        }
        let config = kube::Config::new(http::Uri::from_parts(base).map_err(http::Error::from)?);
        Ok(Self { client: kube::Client::try_from(config)?, url: settings.url.clone(), request: request.body(())? })
    }

    async fn fetch(&self) -> Result<Vec<u8>, SourceError> {
        let answer = async {
            let answer = self.client.send(self.request.clone().map(|()| kube::client::Body::empty())).await?;
            if answer.status() != http::StatusCode::OK {
                return Err(SourceError::Status(answer.status()));
            }
            let body = Limited::new(answer.into_body(), MAX_MANIFEST as usize).collect().await;
            let bytes = body.map_err(|error| SourceError::Body(error.to_string()))?.to_bytes();
            Ok(bytes.to_vec())
        };
        tokio::time::timeout(ANSWER, answer).await.unwrap_or(Err(SourceError::Silent))
    }
}

/// Asks the web server again and again, for ever. Without a usable answer its pods stay.
pub(crate) async fn follow_url(agent: Arc<Agent>, settings: StaticPods) {
    let web = match Web::new(&settings) {
        Ok(web) => web,
        Err(error) => {
            report(&agent, &settings.url, &error.to_report_string());
            return std::future::pending().await;
        }
    };
    let mut last: Option<Vec<u8>> = None;
    let mut told = None;
    loop {
        let problem = match web.fetch().await {
            Ok(bytes) if last.as_ref() == Some(&bytes) => None,
            Ok(bytes) if bytes.is_empty() => {
                agent.statics.set(Source::Url, Vec::new());
                last = None;
                Some(SourceError::Empty)
            }
            Ok(bytes) => match parse(&bytes, Origin::Url(&web.url), &agent.side.node_name) {
                Ok(pods) => {
                    agent.statics.set(Source::Url, pods);
                    last = Some(bytes);
                    None
                }
                Err(error) => Some(error),
            },
            Err(error) => Some(error),
        };
        let problem = problem.map(|error| error.to_report_string());
        if let Some(text) = problem.as_ref().filter(|_| problem != told) {
            report(&agent, &web.url, text);
        }
        told = problem;
        tokio::time::sleep(settings.http_check).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, image: &str) -> String {
        format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: c\n    image: {image}\n")
    }

    struct Place {
        dir: tempfile::TempDir,
        files: Files,
    }

    impl Place {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("manifests")).unwrap();
            let root = Arc::new(HostRoot::linux(dir.path()).unwrap());
            let files = Files::new(root, "/manifests".into(), "n".into(), vec![]);
            Place { dir, files }
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.dir.path().join("manifests").join(name), text).unwrap();
        }

        /// Images of the pods, and problems.
        fn look(&mut self) -> (Vec<String>, Vec<String>) {
            let look = self.files.look(false);
            let image = |pod: &Arc<Pod>| pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
            (look.pods.iter().map(image).collect(), look.problems.iter().map(|(file, text)| format!("{file}: {text}")).collect())
        }
    }

    #[test]
    fn a_wrong_manifest_is_named_once_and_leaves_the_others_alone() {
        let mut place = Place::new();
        assert_eq!(place.look(), (vec![], vec![]));
        place.write("a.yaml", &manifest("a", "a:1"));
        place.write("b.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: b}\nspec: {containers: [{name: c}]}\n");
        place.write(".hidden.yaml", "no");
        let problem = "/manifests/b.yaml: spec.containers[0].image: an image is needed";
        assert_eq!(place.look(), (vec!["a:1".into()], vec![problem.into()]));
        assert_eq!(place.look(), (vec!["a:1".into()], vec![]), "it was told");
        place.write("b.yaml", &manifest("b", "b:1"));
        assert_eq!(place.look(), (vec!["a:1".into(), "b:1".into()], vec![]));
        place.write("b.yaml", "spec: [");
        let (pods, problems) = place.look();
        assert_eq!(pods, ["a:1", "b:1"], "a pod that runs goes on");
        assert!(problems[0].starts_with("/manifests/b.yaml: it is no YAML: "), "{problems:?}");
        std::fs::remove_file(place.dir.path().join("manifests/b.yaml")).unwrap();
        assert_eq!(place.look(), (vec!["a:1".into()], vec![]));
    }

    #[test]
    fn two_manifests_of_one_name_give_one_pod() {
        let mut place = Place::new();
        place.write("1.yaml", &manifest("a", "first:1"));
        place.write("2.yaml", &manifest("a", "second:1"));
        place.write("3.yaml", &format!("{}---\n{}", manifest("x", "x:1"), manifest("y", "y:1")));
        std::fs::create_dir(place.dir.path().join("manifests/sub")).unwrap();
        let (pods, problems) = place.look();
        assert_eq!(pods, ["first:1"]);
        assert_eq!(
            problems,
            [
                "/manifests/2.yaml: /manifests/1.yaml has a pod default/a-n too: give one of them another name or namespace",
                "/manifests/3.yaml: it holds 2 documents: write one pod to a file",
                "/manifests/sub: it is a directory; manifests lie beside each other",
            ]
        );
    }

    #[test]
    fn a_pod_keeps_the_time_at_which_it_was_seen() {
        let mut place = Place::new();
        place.write("a.yaml", &manifest("a", "a:1"));
        let seen = |place: &mut Place| place.files.look(true).pods[0].metadata.annotations.clone().unwrap()[SEEN].clone();
        let first = seen(&mut place);
        assert_eq!(seen(&mut place), first);
        place.write("a.yaml", &manifest("a", "a:22"));
        assert_ne!(seen(&mut place), first, "another pod");
    }

    #[test]
    fn a_single_file_and_a_link_are_manifests_too() {
        let mut place = Place::new();
        place.write("a.yaml", &manifest("a", "a:1"));
        std::fs::write(place.dir.path().join("real"), manifest("b", "b:1")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("../real", place.dir.path().join("manifests/b.yaml")).unwrap();
        assert_eq!(place.look().0, ["a:1", "b:1"]);
        place.files.path = "/manifests/a.yaml".into();
        assert_eq!(place.look(), (vec!["a:1".into()], vec![]));
        place.files.path = "/none".into();
        assert_eq!(place.look(), (vec![], vec![]));
    }
}
