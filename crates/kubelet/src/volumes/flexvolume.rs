//! Volumes of flexvolume drivers: programs of the node's operator that are called with arguments and answer in JSON (upstream
//! pkg/volume/flexvolume). No shell is between: on Windows a driver is an .exe.

mod answer;
mod call;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use host::{FileKind, HostError, HostRoot, PathError, PodPath};
use k8s_openapi::api::core::v1::{PersistentVolume, Pod, Secret, SecretReference, Volume};
use kube::Api;
use serde_json::json;

use super::VolumeError;
use super::local::owner_of;
use super::plugin::{Left, Plugin, Request};
use crate::claims::{Claimed, Source};
use crate::error::ApiError;
pub use answer::check as check_answer;
use answer::{Answer, AnswerError};
use call::Stamp;

/// Why a volume of such a driver is not mounted, or not taken down.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FlexError {
    #[error("flexvolume driver {driver:?} is no name; write VENDOR/DRIVER")]
    Name { driver: String },
    #[error("no flexvolume driver {driver} on the node: it has no program {path}; install it there, or use a CSI driver")]
    Missing { driver: String, path: PodPath },
    #[error("flexvolume driver {driver} is the script {path}, and the node agent runs no shell; install an .exe, or use a CSI driver")]
    Script { driver: String, path: PodPath },
    #[error("flexvolume driver {driver} attaches volumes, which the node agent does for CSI drivers only; use its CSI driver")]
    Attaches { driver: String },
    #[error("flexvolume driver {driver} could not be started")]
    Start { driver: String, source: std::io::Error },
    #[error("flexvolume driver {driver} did not end {call} within {}s and was killed", call::LIMIT.as_secs())]
    Late { driver: String, call: &'static str },
    #[error("flexvolume driver {driver} failed at {call}: {message}")]
    Failed { driver: String, call: &'static str, message: String },
    #[error("flexvolume driver {driver} answered {call} with what is no answer")]
    Answer { driver: String, call: &'static str, source: AnswerError },
    #[error("fetching secret {namespace}/{name} for the driver failed")]
    Secret { namespace: String, name: String, source: ApiError },
    #[error("cannot remove {path}: the driver has left something mounted there")]
    StillMounted { path: PodPath },
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Path(#[from] PathError),
}

/// A volume of a driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FlexVolume {
    /// `VENDOR/DRIVER`.
    pub driver: String,
    /// The name that its directory has.
    pub name: String,
    pub fs_type: String,
    pub read_only: bool,
    pub options: BTreeMap<String, String>,
    pub secret: Option<SecretReference>,
}

impl FlexVolume {
    /// A persistent volume; None when it is of another kind.
    pub(crate) fn persistent(volume: &PersistentVolume, read_only: bool) -> Option<Self> {
        let flex = volume.spec.as_ref()?.flex_volume.as_ref()?;
        let namespace = volume.spec.as_ref()?.claim_ref.as_ref().and_then(|claim| claim.namespace.clone());
        let secret = flex.secret_ref.clone().map(|secret| SecretReference { namespace: secret.namespace.or(namespace), ..secret });
        Some(FlexVolume {
            driver: flex.driver.clone(),
            name: volume.metadata.name.clone().unwrap_or_default(),
            fs_type: flex.fs_type.clone().unwrap_or_default(),
            read_only: read_only || flex.read_only == Some(true),
            options: flex.options.clone().unwrap_or_default(),
            secret,
        })
    }

    fn inline(pod: &Pod, volume: &Volume) -> Option<Self> {
        let flex = volume.flex_volume.as_ref()?;
        let namespace = pod.metadata.namespace.clone();
        Some(FlexVolume {
            driver: flex.driver.clone(),
            name: volume.name.clone(),
            fs_type: flex.fs_type.clone().unwrap_or_default(),
            read_only: flex.read_only == Some(true),
            options: flex.options.clone().unwrap_or_default(),
            secret: flex.secret_ref.as_ref().map(|secret| SecretReference { name: Some(secret.name.clone()), namespace }),
        })
    }

    /// What the driver is told, as a JSON object (upstream: `NewOptionsForDriver`, mounter.go `SetUpAt`).
    fn to_options(&self, pod: &Pod, secrets: &BTreeMap<String, Vec<u8>>) -> String {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone()).unwrap_or_default();
        let mut all = BTreeMap::from([
            ("kubernetes.io/fsType".to_owned(), self.fs_type.clone()),
            ("kubernetes.io/readwrite".to_owned(), if self.read_only { "ro" } else { "rw" }.to_owned()),
            ("kubernetes.io/pvOrVolumeName".to_owned(), self.name.clone()),
            ("kubernetes.io/pod.name".to_owned(), text(&pod.metadata.name)),
            ("kubernetes.io/pod.namespace".to_owned(), text(&pod.metadata.namespace)),
            ("kubernetes.io/pod.uid".to_owned(), text(&pod.metadata.uid)),
            ("kubernetes.io/serviceAccount.name".to_owned(), account),
        ]);
        if let Some(owner) = owner_of(pod, true) {
            all.insert("kubernetes.io/mounterArgs.FsGroup".to_owned(), owner.group.to_string());
        }
        let encoded = |bytes: &Vec<u8>| base64::engine::general_purpose::STANDARD.encode(bytes);
        all.extend(secrets.iter().map(|(key, value)| (format!("kubernetes.io/secret/{key}"), encoded(value))));
        all.extend(self.options.clone());
        json!(all).to_string()
    }
}

/// Volumes of flexvolume drivers.
pub(crate) struct Flex {
    pub root: Arc<HostRoot>,
    pub client: kube::Client,
    /// Where the drivers are, each in a directory `VENDOR~DRIVER`.
    pub dir: PodPath,
    /// Programs that said what they can.
    known: Mutex<BTreeMap<PodPath, (Stamp, bool)>>,
}

impl Plugin for Flex {
    fn takes(&self, volume: &Volume, claimed: Option<&Claimed>) -> bool {
        volume.flex_volume.is_some() || claimed.is_some_and(|claimed| matches!(claimed.source, Source::Flex(_)))
    }

    fn owns(&self, kind: &str) -> bool {
        !kind.starts_with("kubernetes.io~")
    }

    fn set_up<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Result<PodPath, VolumeError>> {
        async move { Ok(self.mount(&request).await?) }.boxed()
    }

    fn tear_down<'a>(&'a self, left: &'a Left) -> BoxFuture<'a, Result<(), VolumeError>> {
        async move { Ok(self.unmount(&left.dir).await?) }.boxed()
    }
}

impl Flex {
    pub(crate) fn new(root: Arc<HostRoot>, client: kube::Client, dir: PodPath) -> Self {
        Flex { root, client, dir, known: Mutex::default() }
    }

    async fn mount(&self, request: &Request<'_>) -> Result<PodPath, FlexError> {
        let inline = FlexVolume::inline(request.pod, request.volume);
        let volume = match request.claimed.map(|claimed| &claimed.source) {
            Some(Source::Flex(volume)) => Some(&**volume),
            Some(Source::Path(_) | Source::Device { .. } | Source::Csi(_)) | None => inline.as_ref(),
        };
        let Some(volume) = volume else { return Err(FlexError::Name { driver: String::new() }) };
        if let Some(place) = request.mounted {
            return Ok(place.clone());
        }
        let kind = kind_of(&volume.driver)?;
        let place = request.dirs.volume(&kind, &volume.name)?;
        let program = self.program(&kind)?;
        self.init(&volume.driver, &program).await?;
        if self.root.is_mount(&place)? {
            return Ok(place);
        }
        let secrets = self.secret(volume.secret.as_ref()).await?;
        self.root.create_dir_all(&place, 0o750)?;
        let options = volume.to_options(request.pod, &secrets);
        let done = self.call(&volume.driver, &program, "mount", &[&place.to_string(), &options]).await;
        if let Err(error) = done {
            // What failed may be half done; the driver is asked to undo it when the pod ends.
            let _ = self.root.remove_dir(&place);
            return Err(error);
        }
        if let Some(owner) = owner_of(request.pod, true).filter(|_| !volume.read_only) {
            self.root.give_to_group(&place, owner)?;
        }
        Ok(place)
    }

    async fn unmount(&self, place: &PodPath) -> Result<(), FlexError> {
        let kind = place.parent().and_then(|parent| parent.name().map(str::to_owned)).unwrap_or_default();
        let driver = kind.replace('~', "/");
        let program = self.program(&kind)?;
        self.call(&driver, &program, "unmount", &[&place.to_string()]).await?;
        if self.root.is_mount(place)? {
            return Err(FlexError::StillMounted { path: place.clone() });
        }
        Ok(self.root.remove_dir(place)?)
    }

    /// The program of a driver, where it is and is one.
    fn program(&self, kind: &str) -> Result<PodPath, FlexError> {
        let driver = kind.replace('~', "/");
        let name = kind.rsplit('~').next().unwrap_or(kind);
        let dir = self.dir.join(kind)?;
        let windows = self.root.os().is_windows();
        let path = dir.join(&if windows { format!("{name}.exe") } else { name.to_owned() })?;
        if self.root.kind(&path)? == Some(FileKind::File) {
            return Ok(path);
        }
        for script in ["", ".cmd", ".bat", ".ps1"].iter().filter(|_| windows) {
            let path = dir.join(&format!("{name}{script}"))?;
            if self.root.kind(&path)? == Some(FileKind::File) {
                return Err(FlexError::Script { driver, path });
            }
        }
        Err(FlexError::Missing { driver, path })
    }

    /// Asks a program once what it can; again when it is another program.
    async fn init(&self, driver: &str, program: &PodPath) -> Result<(), FlexError> {
        let stamp = call::stamp(&self.root, program)?;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(program).copied();
        let attaches = match known {
            Some((of, attaches)) if of == stamp => attaches,
            _ => {
                let answer = self.call(driver, program, "init", &[]).await?;
                let attaches = answer.attaches();
                self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(program.clone(), (stamp, attaches));
                attaches
            }
        };
        if attaches { Err(FlexError::Attaches { driver: driver.to_owned() }) } else { Ok(()) }
    }

    async fn call(&self, driver: &str, program: &PodPath, call: &'static str, arguments: &[&str]) -> Result<Answer, FlexError> {
        call::call(&self.root, driver, program, call, arguments).await
    }

    async fn secret(&self, reference: Option<&SecretReference>) -> Result<BTreeMap<String, Vec<u8>>, FlexError> {
        let Some(reference) = reference else { return Ok(BTreeMap::new()) };
        let (namespace, name) = (reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default());
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &namespace);
        match api.get(&name).await {
            Ok(found) => Ok(found.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect()),
            Err(error) => Err(FlexError::Secret { namespace, name, source: error.into() }),
        }
    }
}

/// The directory of a driver's volumes and of its program, `VENDOR~DRIVER`.
fn kind_of(driver: &str) -> Result<String, FlexError> {
    let part =
        |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    let parts: Vec<&str> = driver.split('/').collect();
    if parts.len() <= 2 && parts.iter().all(|text| part(text)) && parts[0] != "kubernetes.io" {
        Ok(parts.join("~"))
    } else {
        Err(FlexError::Name { driver: driver.chars().take(63).collect() })
    }
}

#[cfg(test)]
mod tests;
