//! Admission: what is filled in and what is refused between a request and the store, by an ordered chain of plug-ins
//! (apiserver/pkg/admission). What concerns one kind alone is the kind's own, and one of the plug-ins runs it.

mod adapt;
pub mod call;
mod lifecycle;
mod limit_ranger;
#[cfg(test)]
mod limits_tests;
mod node;
mod outside;
mod own;
mod pod_resize;
mod pod_security;
mod pod_topology_labels;
mod resource_quota;
#[cfg(test)]
mod tests;

use crate::kind::Attributes;
use crate::status::ApiError;
use ::admission::Reinvocation;
use futures::future::BoxFuture;
use outside::Outside;
use serde_json::Value;
use std::sync::Arc;

/// A part of admission. A request passes every plug-in's `mutate` before the strategy and validation, and every plug-in's `validate` after
/// them, just before the store.
pub trait Plugin: Send + Sync {
    /// Whether it has anything to do with the request.
    fn handles(&self, attributes: &Attributes<'_>) -> bool;

    /// Whether its `validate` takes something for the object, such as a part of a quota.
    fn charges(&self) -> bool {
        false
    }

    /// Fills in what is missing, or refuses. Of a deletion the object is `null`, of a connection its options.
    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a mut Value) -> BoxFuture<'a, Result<(), ApiError>> {
        let _ = (attributes, object);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Refuses what may not be.
    fn validate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a Value) -> BoxFuture<'a, Result<(), ApiError>> {
        let _ = (attributes, object);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The plug-ins of a server, in upstream's order (pkg/kubeapiserver/options/plugins.go).
pub struct Chain {
    plugins: Vec<Box<dyn Plugin>>,
    /// Mutates after all plug-ins, who see the object again when it was changed.
    outside: Option<Arc<Outside>>,
}

impl Default for Chain {
    fn default() -> Self {
        let outside = Arc::new(Outside::default());
        let plugins: Vec<Box<dyn Plugin>> = vec![
            Box::new(lifecycle::NamespaceLifecycle),
            Box::new(limit_ranger::LimitRanger),
            Box::new(node::NodeRestriction),
            Box::new(pod_security::PodSecurity::default()),
            Box::new(own::KindsOwn),
            Box::new(pod_topology_labels::PodTopologyLabels),
            Box::new(pod_resize::PodResize),
            Box::new(outside::Validating(Arc::clone(&outside))),
            Box::new(resource_quota::ResourceQuota::default()),
        ];
        Self { plugins, outside: Some(outside) }
    }
}

impl Chain {
    #[cfg(test)]
    pub fn new(plugins: Vec<Box<dyn Plugin>>) -> Self {
        Self { plugins, outside: None }
    }

    /// Before the strategy and validation.
    pub async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        self.inside(attributes, object).await?;
        let Some(outside) = &self.outside else { return Ok(()) };
        let mut round = Reinvocation::default();
        outside.mutate(attributes, object, &mut round).await?;
        if round.begin_second() {
            self.inside(attributes, object).await?;
            outside.mutate(attributes, object, &mut round).await?;
        }
        Ok(())
    }

    async fn inside(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        for plugin in self.plugins.iter().filter(|plugin| plugin.handles(attributes)) {
            plugin.mutate(attributes, object).await?;
        }
        Ok(())
    }

    /// Before the store.
    pub async fn validate(&self, attributes: &Attributes<'_>, object: &Value) -> Result<(), ApiError> {
        for plugin in self.plugins.iter().filter(|plugin| plugin.handles(attributes)) {
            plugin.validate(attributes, object).await?;
        }
        Ok(())
    }

    /// The same of an object that will not be stored: nothing is taken for it.
    pub async fn check(&self, attributes: &Attributes<'_>, object: &Value) -> Result<(), ApiError> {
        for plugin in self.plugins.iter().filter(|plugin| !plugin.charges() && plugin.handles(attributes)) {
            plugin.validate(attributes, object).await?;
        }
        Ok(())
    }

    /// Both, of what is no object of the store: connections, evictions, bindings.
    pub async fn admit(&self, attributes: &Attributes<'_>, object: &mut Value) -> Result<(), ApiError> {
        self.mutate(attributes, object).await?;
        self.validate(attributes, object).await
    }
}
