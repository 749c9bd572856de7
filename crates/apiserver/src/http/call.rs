//! A request on its way to those who answer it.

use super::path::RequestInfo;
use super::query::Query;
use crate::audit::{Annotations, Completion};
use crate::authn::UserInfo;
use crate::kind::Kind;
use crate::status::ApiError;
use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Map, Value};
use std::sync::Arc;

/// A request that has been read, authenticated and authorized.
pub struct Call {
    /// What is asked for.
    pub info: RequestInfo,
    /// The user of the request.
    pub user: UserInfo,
    pub query: Query,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// What its audit event says.
    pub audit: Arc<Annotations>,
    /// Held for as long as the request lasts, by what goes on after the head of the response.
    pub completion: Option<Arc<Completion>>,
}

impl Call {
    /// Collections are created in, objects are written: anything else has no route, as upstream (`RequestInfo` has settled where a kind lies).
    pub fn check_route(&self, kind: &Kind) -> Result<(), ApiError> {
        let info = &self.info;
        let named = !info.name.is_empty();
        let no_route = match info.verb {
            "create" => named && info.subresource.is_empty(),
            "update" | "patch" => !named,
            "" => true,
            _ => false,
        };
        if no_route {
            return Err(ApiError::no_such_method());
        }
        if kind.namespaced && info.namespace.is_empty() && matches!(info.verb, "create" | "deletecollection") {
            return Err(ApiError::method_not_allowed(kind, info.verb));
        }
        Ok(())
    }

    /// The options of a write as admission sees them: from the query, of a deletion from `deletion`.
    pub fn options(&self, deletion: Option<&Value>) -> Map<String, Value> {
        let mut options = Map::new();
        if let Some(members) = deletion.and_then(Value::as_object) {
            options.extend(
                members.iter().filter(|(name, _)| !matches!(name.as_str(), "kind" | "apiVersion")).map(|(name, value)| (name.clone(), value.clone())),
            );
        }
        if self.query.get("dryRun").is_some_and(|value| !value.is_empty()) {
            options.insert("dryRun".into(), self.query.all("dryRun").collect::<Vec<_>>().into());
        }
        if deletion.is_none() {
            let texts = ["fieldManager", "fieldValidation"].into_iter().filter_map(|name| Some((name, self.query.get(name)?)));
            options.extend(texts.filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.to_owned(), value.into())));
        }
        options
    }
}
