//! PodTopologyLabels: a pod has the zone and the region of its node as labels, which the downward API can show
//! (plugin/pkg/admission/podtopologylabels).

use super::Plugin;
use crate::kind::{Attributes, Operation};
use crate::object;
use crate::status::ApiError;
use futures::future::BoxFuture;
use serde_json::{Value, json};

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

pub struct PodTopologyLabels;

/// The node that a pod goes to: a binding's labels become the pod's.
fn node_of<'a>(attributes: &Attributes<'_>, object: &'a Value) -> &'a str {
    match attributes.subresource {
        "" => object::text(object, &["spec", "nodeName"]),
        _ if object::text(object, &["target", "kind"]) == "Node" => object::text(object, &["target", "name"]),
        _ => "",
    }
}

fn label(attributes: &Attributes<'_>, object: &mut Value) {
    let name = node_of(attributes, object);
    // A node that is not there yet has no labels.
    let Some(node) = attributes.cluster.store.get(&format!("core/nodes//{name}")).map(|entry| entry.value()) else { return };
    let known = LABELS.into_iter().filter_map(|key| Some((key.to_owned(), object::lookup(&node, &["metadata", "labels", key])?.clone())));
    let known: Vec<(String, Value)> = known.collect();
    if !known.is_empty() {
        let own = object::metadata(object).entry("labels").or_insert_with(|| json!({}));
        own.as_object_mut().into_iter().for_each(|own| own.extend(known.clone()));
    }
}

impl Plugin for PodTopologyLabels {
    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.operation == Operation::Create && ["", "binding"].contains(&attributes.subresource) && attributes.kind.is("", "pods")
    }

    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, object: &'a mut Value) -> BoxFuture<'a, Result<(), ApiError>> {
        label(attributes, object);
        Box::pin(std::future::ready(Ok(())))
    }
}
