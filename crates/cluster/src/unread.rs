//! Writes whose answer is not parsed: the server answers with the whole object, which these callers do not need.

use kube::api::{Patch, PatchParams, PostParams, Request};
use kube::{Api, Error, Resource};
use serde::Serialize;

/// Makes an object.
///
/// # Errors
/// As [`Api::create`].
pub async fn create<K: Resource + Clone + Serialize>(api: &Api<K>, object: &K) -> kube::Result<()> {
    let bytes = serde_json::to_vec(object).map_err(Error::SerdeError)?;
    send(api, Request::new(api.resource_url()).create(&PostParams::default(), bytes)).await
}

/// Patches an object.
///
/// # Errors
/// As [`Api::patch`].
pub async fn patch<K: Resource + Clone, P: Serialize>(api: &Api<K>, name: &str, patch: &Patch<P>) -> kube::Result<()> {
    send(api, Request::new(api.resource_url()).patch(name, &PatchParams::default(), patch)).await
}

/// Patches an object's status.
///
/// # Errors
/// As [`Api::patch_status`].
pub async fn patch_status<K: Resource + Clone, P: Serialize>(api: &Api<K>, name: &str, patch: &Patch<P>) -> kube::Result<()> {
    send(api, Request::new(api.resource_url()).patch_subresource("status", name, &PatchParams::default(), patch)).await
}

async fn send<K: Resource + Clone>(api: &Api<K>, request: Result<http::Request<Vec<u8>>, kube::core::request::Error>) -> kube::Result<()> {
    let request = request.map_err(Error::BuildRequest)?;
    let client = api.clone().into_client();
    // On the heap: a request under way holds many times what its caller does.
    Box::pin(async move { client.request_text(request).await.map(drop) }).await
}
