//! How plug-ins make themselves known: by the agent's socket, or by one of their own below `plugins_registry` (upstream
//! cm/devicemanager/plugin/v1beta1).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use device_plugin::v1beta1::registration_server::{Registration, RegistrationServer};
use device_plugin::v1beta1::{Empty, RegisterRequest};
use device_plugin::{Plugin, VERSION};
use host::{FileKind, HostError, PodPath};
use kube_rules::requests::is_extended_resource;
use thiserror_ext::AsReport as _;
use tonic::{Request, Response, Status};

use super::{Connected, Devices};
use crate::sockets;

/// The agent's socket.
const SOCKET: &str = "kubelet.sock";
/// Resources of plug-ins that a node has at most.
const MAX_RESOURCES: usize = 256;

/// Why a plug-in is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegisterError {
    #[error("requested API version {0:?} is not supported by kubelet. Supported version is [{VERSION:?}]")]
    Version(String),
    #[error("manager version, {VERSION}, is not among plugin supported versions {0:?}")]
    Versions(Vec<String>),
    #[error("the ResourceName {0:?} is invalid")]
    Name(String),
    #[error("the endpoint {0:?} is no name of a socket beside kubelet.sock; register with the socket's file name alone")]
    Endpoint(String),
    #[error("this node has {MAX_RESOURCES} resources of device plug-ins already")]
    Full,
    #[error("failed to get device plugin options")]
    Options(#[source] csi::Error),
}

/// Serves the registration of plug-ins, for ever.
pub(crate) async fn serve(devices: Arc<Devices>) -> std::io::Result<()> {
    let incoming = match devices.listen() {
        Ok(listener) => sockets::incoming(listener)?,
        // As upstream: the node runs, but no plug-in can register.
        Err(error) => {
            tracing::error!(dir = %devices.dir, error = %error.as_report(), "listening for device plug-ins failed; none can register by {SOCKET}");
            return std::future::pending().await;
        }
    };
    let served = tonic::transport::Server::builder()
        .concurrency_limit_per_connection(8)
        .add_service(RegistrationServer::new(Registrar(devices)))
        .serve_with_incoming(incoming);
    served.await.map_err(std::io::Error::other)
}

struct Registrar(Arc<Devices>);

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let taken = async {
            if request.version != VERSION {
                return Err(RegisterError::Version(request.version.chars().take(64).collect()));
            }
            let is_name = !request.endpoint.contains(['/', '\\']) && !matches!(request.endpoint.as_str(), "" | "." | "..");
            let socket = self.0.dir.join(&request.endpoint).ok().filter(|_| is_name);
            let socket = socket.ok_or_else(|| RegisterError::Endpoint(request.endpoint.chars().take(128).collect()))?;
            self.0.connect(&request.resource_name, socket).await
        };
        match taken.await {
            Ok(()) => Ok(Response::new(Empty {})),
            Err(error) => {
                tracing::warn!(resource = request.resource_name, error = %error.as_report(), "a device plug-in was not registered");
                Err(Status::unknown(error.to_report_string()))
            }
        }
    }
}

impl Devices {
    /// The agent's socket. Sockets that are there belong to plug-ins, which make them anew when the agent's is another one: that is how they
    /// learn of a new agent.
    fn listen(&self) -> Result<host::SocketListener, HostError> {
        self.root.create_dir_all(&self.dir, 0o750)?;
        for (name, kind) in self.root.read_dir(&self.dir)? {
            if kind == FileKind::Socket {
                self.root.remove_tree(&self.dir.join(&name)?)?;
            }
        }
        // Upstream's sign that plug-ins may register by `plugins_registry`.
        self.root.create_file(&self.dir.join("DEPRECATION")?, 0o666)?;
        self.root.listen(&self.dir.join(SOCKET)?)
    }

    /// Whether a plug-in of `plugins_registry` can be taken.
    pub(crate) fn validate(resource: &str, versions: &[String]) -> Result<(), RegisterError> {
        if !versions.iter().any(|version| version == VERSION) {
            return Err(RegisterError::Versions(versions.iter().take(8).cloned().collect()));
        }
        if is_extended_resource(resource) { Ok(()) } else { Err(RegisterError::Name(resource.chars().take(256).collect())) }
    }

    /// Takes a plug-in, in place of an earlier one of the same resource, and follows its devices.
    pub(crate) async fn connect(self: &Arc<Self>, resource: &str, socket: PodPath) -> Result<(), RegisterError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        if !is_extended_resource(resource) {
            return Err(RegisterError::Name(resource.chars().take(256).collect()));
        }
        let is_full = {
            let plugins = self.plugins();
            plugins.len() >= MAX_RESOURCES && !plugins.contains_key(resource)
        };
        if is_full {
            return Err(RegisterError::Full);
        }
        let plugin = Plugin::new(sockets::connector(&self.root, &socket));
        let options = plugin.options().await.map_err(RegisterError::Options)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        self.book().connected(resource);
        // The lock is held: a list that ends at once finds what to take out.
        let mut plugins = self.plugins();
        let watch = tokio::spawn(self.clone().follow(resource.to_owned(), plugin.clone(), number)).abort_handle();
        plugins.insert(resource.to_owned(), Connected { plugin, options, number, watch });
        drop(plugins);
        tracing::info!(resource, %socket, "a device plug-in registered");
        Ok(())
    }

    /// The socket of a plug-in is gone.
    pub(crate) fn disconnect(&self, resource: &str) {
        if self.plugins().remove(resource).is_some() {
            self.stopped(resource);
        }
    }

    fn stopped(&self, resource: &str) {
        tracing::info!(resource, "a device plug-in is gone");
        self.book().disconnected(resource, Instant::now());
        self.changed.send_replace(());
    }

    /// Takes in a plug-in's lists until it ends.
    async fn follow(self: Arc<Self>, resource: String, plugin: Plugin, number: u64) {
        let ended = async {
            let mut lists = plugin.watch().await?;
            while let Some(list) = lists.next().await? {
                let count = list.len();
                let affected = self.book().update(&resource, list);
                tracing::debug!(resource, count, "a device plug-in sent its devices");
                if !affected.is_empty() {
                    let _ = self.affected.send(affected);
                }
                self.save();
                self.changed.send_replace(());
            }
            Ok::<(), csi::Error>(())
        };
        if let Err(error) = ended.await {
            tracing::warn!(resource, error = %error.as_report(), "the list of a device plug-in ended");
        }
        let mut plugins = self.plugins();
        // Another one may have taken its place.
        if plugins.get(&resource).is_some_and(|connected| connected.number == number) {
            plugins.remove(&resource);
            drop(plugins);
            self.stopped(&resource);
        }
    }
}
