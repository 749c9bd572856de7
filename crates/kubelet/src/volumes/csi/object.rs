//! CSIDriver objects: what a driver says of itself to the cluster.

use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use tokio::sync::OnceCell;

use cluster::{ApiServer, Informer, Key, Selection};

use super::CsiError;

/// What of a CSIDriver the agent obeys.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DriverRow {
    pub attaches: bool,
    pub wants_pod_info: bool,
    pub modes: Vec<String>,
    pub group_policy: String,
    /// Audiences, and how long the tokens live.
    pub tokens: Vec<(String, Option<i64>)>,
    /// Tokens come as secrets, not among the attributes.
    pub secret_tokens: bool,
    pub republishes: bool,
}

impl DriverRow {
    pub(super) fn of(driver: &CSIDriver) -> Self {
        let spec = &driver.spec;
        let tokens = spec.token_requests.iter().flatten().map(|token| (token.audience.clone(), token.expiration_seconds));
        DriverRow {
            attaches: spec.attach_required != Some(false),
            wants_pod_info: spec.pod_info_on_mount == Some(true),
            modes: spec.volume_lifecycle_modes.clone().unwrap_or_default(),
            group_policy: spec.fs_group_policy.clone().unwrap_or_default(),
            tokens: tokens.collect(),
            secret_tokens: spec.service_account_token_in_secrets == Some(true),
            republishes: spec.requires_republish == Some(true),
        }
    }
}

/// The objects, watched from the first time one is asked for.
pub(super) struct Objects {
    client: kube::Client,
    api: ApiServer,
    informer: OnceCell<Informer<DriverRow>>,
}

impl Objects {
    pub(super) fn new(client: kube::Client, api: ApiServer) -> Self {
        Objects { client, api, informer: OnceCell::new() }
    }

    /// The object of a driver; None when it has none.
    pub(super) async fn get(&self, driver: &str) -> Result<Option<DriverRow>, CsiError> {
        let api: Api<CSIDriver> = Api::all(self.client.clone());
        let start = async || Informer::start(api.clone(), Selection::all().of(&self.api), |driver| Some(DriverRow::of(driver)));
        let informer = self.informer.get_or_init(start).await;
        informer.synced().await;
        if let Some(row) = informer.get(Key::cluster(driver)) {
            return Ok(Some((*row).clone()));
        }
        // A driver that was just installed may not have come by the watch yet.
        let found = api.get_opt(driver).await.map_err(|error| CsiError::Object { driver: driver.to_owned(), source: error.into() })?;
        Ok(found.as_ref().map(DriverRow::of))
    }
}
