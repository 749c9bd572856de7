//! The typed calls of the async client, each one operation.

use super::HcnClient;
use crate::blocking::Client;
use crate::document::{
    EndpointStats, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork, HostComputeRoute, ModifyRequest, Query, v1,
};
use crate::error::HcnError;
use crate::features::SupportedFeatures;
use crate::guid::Guid;
use crate::port::{EventSink, Subscription};

impl HcnClient {
    /// The ids of all networks, by one call.
    pub async fn network_ids(&self) -> Result<Vec<Guid>, HcnError> {
        self.typed(|| "listing the ids of networks".into(), |client| client.ids::<HostComputeNetwork>(&Query::default())).await
    }

    /// The ids of all namespaces, by one call.
    pub async fn namespace_ids(&self) -> Result<Vec<Guid>, HcnError> {
        self.typed(|| "listing the ids of namespaces".into(), |client| client.ids::<HostComputeNamespace>(&Query::default())).await
    }

    pub async fn networks(&self) -> Result<Vec<HostComputeNetwork>, HcnError> {
        self.typed(|| "listing networks".into(), |client| client.list(&Query::default())).await
    }

    pub async fn network(&self, id: &Guid) -> Result<Option<HostComputeNetwork>, HcnError> {
        let id = *id;
        self.typed(|| format!("reading network {id}"), move |client| client.get(&id)).await
    }

    pub async fn network_by_name(&self, name: &str) -> Result<Option<HostComputeNetwork>, HcnError> {
        let owned = name.to_owned();
        self.typed(|| format!("reading network {name}"), move |client| client.get_by_name(&owned)).await
    }

    /// Creates a network with that id and reads it back.
    pub async fn create_network(&self, id: Guid, network: &HostComputeNetwork) -> Result<HostComputeNetwork, HcnError> {
        let network = network.clone();
        self.typed(|| format!("creating network {id}"), move |client| client.create(id, &network)).await
    }

    pub async fn modify_network(&self, id: &Guid, request: ModifyRequest) -> Result<(), HcnError> {
        let id = *id;
        self.typed(|| format!("modifying network {id}"), move |client| client.modify::<HostComputeNetwork>(&id, &request)).await
    }

    /// Deletes a network with its endpoints. Its absence is success.
    pub async fn delete_network(&self, id: &Guid) -> Result<(), HcnError> {
        let id = *id;
        self.typed(|| format!("deleting network {id}"), move |client| client.delete::<HostComputeNetwork>(&id)).await
    }

    /// All endpoints, local and remote.
    pub async fn endpoints(&self) -> Result<Vec<HostComputeEndpoint>, HcnError> {
        self.typed(|| "listing endpoints".into(), |client| client.list(&Query::default())).await
    }

    /// All endpoints as the first version of the API shows them: with the containers that are at each.
    pub async fn v1_endpoints(&self) -> Result<Vec<v1::Endpoint>, HcnError> {
        self.typed(|| "listing endpoints and their containers".into(), |client| client.v1_endpoints()).await
    }

    pub async fn endpoints_of(&self, network: &Guid) -> Result<Vec<HostComputeEndpoint>, HcnError> {
        let query = Query::by_network(network);
        self.typed(|| format!("listing endpoints of network {network}"), move |client| client.list(&query)).await
    }

    pub async fn endpoint(&self, id: &Guid) -> Result<Option<HostComputeEndpoint>, HcnError> {
        let id = *id;
        self.typed(|| format!("reading endpoint {id}"), move |client| client.get(&id)).await
    }

    /// The first endpoint of that name.
    pub async fn endpoint_by_name(&self, name: &str) -> Result<Option<HostComputeEndpoint>, HcnError> {
        let owned = name.to_owned();
        self.typed(|| format!("reading endpoint {name}"), move |client| client.get_by_name(&owned)).await
    }

    /// Creates an endpoint on `network` with that id and reads it back.
    pub async fn create_endpoint(&self, network: &Guid, id: Guid, endpoint: &HostComputeEndpoint) -> Result<HostComputeEndpoint, HcnError> {
        let network = *network;
        let endpoint = endpoint.clone();
        self.typed(|| format!("creating endpoint {id}"), move |client| client.create_endpoint(&network, id, &endpoint)).await
    }

    pub async fn modify_endpoint(&self, id: &Guid, request: ModifyRequest) -> Result<(), HcnError> {
        let id = *id;
        self.typed(|| format!("modifying endpoint {id}"), move |client| client.modify::<HostComputeEndpoint>(&id, &request)).await
    }

    /// Deletes an endpoint; it is detached first. Its absence is success.
    pub async fn delete_endpoint(&self, id: &Guid) -> Result<(), HcnError> {
        let id = *id;
        self.typed(|| format!("deleting endpoint {id}"), move |client| client.delete::<HostComputeEndpoint>(&id)).await
    }

    /// Gives an endpoint a vNIC in the host's own compartment (`HNSCall POST /endpoints/ID/attach`). Having it already is success.
    pub async fn attach_endpoint_to_host(&self, id: &Guid) -> Result<(), HcnError> {
        let id = *id;
        self.typed(|| format!("attaching endpoint {id} to the host"), move |client| client.attach_endpoint_to_host(&id)).await
    }

    /// Takes an endpoint's vNIC out of the host's own compartment. Having none is success.
    pub async fn detach_endpoint_from_host(&self, id: &Guid) -> Result<(), HcnError> {
        let id = *id;
        self.typed(|| format!("detaching endpoint {id} from the host"), move |client| client.detach_endpoint_from_host(&id)).await
    }

    /// An endpoint's counters; none where it is not attached or gone.
    pub async fn endpoint_stats(&self, id: &Guid) -> Result<Option<EndpointStats>, HcnError> {
        let id = *id;
        self.typed(|| format!("reading the counters of endpoint {id}"), move |client| client.endpoint_stats(&id)).await
    }

    pub async fn namespaces(&self) -> Result<Vec<HostComputeNamespace>, HcnError> {
        self.typed(|| "listing namespaces".into(), |client| client.list(&Query::default())).await
    }

    pub async fn namespace(&self, id: &Guid) -> Result<Option<HostComputeNamespace>, HcnError> {
        let id = *id;
        self.typed(|| format!("reading namespace {id}"), move |client| client.get(&id)).await
    }

    /// Creates a namespace with that id and reads it back.
    pub async fn create_namespace(&self, id: Guid, namespace: &HostComputeNamespace) -> Result<HostComputeNamespace, HcnError> {
        let namespace = namespace.clone();
        self.typed(|| format!("creating namespace {id}"), move |client| client.create(id, &namespace)).await
    }

    pub async fn modify_namespace(&self, id: &Guid, request: ModifyRequest) -> Result<(), HcnError> {
        let id = *id;
        self.typed(|| format!("modifying namespace {id}"), move |client| client.modify::<HostComputeNamespace>(&id, &request)).await
    }

    /// Puts an endpoint into a namespace. Being there already is success.
    pub async fn add_endpoint_to_namespace(&self, namespace: &Guid, endpoint: &Guid) -> Result<(), HcnError> {
        let (namespace, endpoint) = (*namespace, *endpoint);
        let operation = move || format!("adding endpoint {endpoint} to namespace {namespace}");
        self.typed(operation, move |client| client.add_endpoint_to_namespace(&namespace, &endpoint)).await
    }

    /// Takes an endpoint out of a namespace. Either being gone already is success.
    pub async fn remove_endpoint_from_namespace(&self, namespace: &Guid, endpoint: &Guid) -> Result<(), HcnError> {
        let (namespace, endpoint) = (*namespace, *endpoint);
        let operation = move || format!("removing endpoint {endpoint} from namespace {namespace}");
        self.typed(operation, move |client| client.remove_endpoint_from_namespace(&namespace, &endpoint)).await
    }

    /// Deletes a namespace; its endpoints are detached and survive. Its absence is success.
    pub async fn delete_namespace(&self, id: &Guid) -> Result<(), HcnError> {
        let id = *id;
        self.typed(|| format!("deleting namespace {id}"), move |client| client.delete::<HostComputeNamespace>(&id)).await
    }

    pub async fn load_balancers(&self) -> Result<Vec<HostComputeLoadBalancer>, HcnError> {
        self.typed(|| "listing load balancers".into(), |client| client.list(&Query::default())).await
    }

    pub async fn load_balancer(&self, id: &Guid) -> Result<Option<HostComputeLoadBalancer>, HcnError> {
        let id = *id;
        self.typed(|| format!("reading load balancer {id}"), move |client| client.get(&id)).await
    }

    /// Creates a load balancer with that id and reads it back.
    pub async fn create_load_balancer(&self, id: Guid, load_balancer: &HostComputeLoadBalancer) -> Result<HostComputeLoadBalancer, HcnError> {
        let load_balancer = load_balancer.clone();
        self.typed(|| format!("creating load balancer {id}"), move |client| client.create(id, &load_balancer)).await
    }

    /// Replaces a load balancer in place; only where [`SupportedFeatures::modify_load_balancer`] says so.
    pub async fn modify_load_balancer(&self, id: &Guid, load_balancer: &HostComputeLoadBalancer) -> Result<(), HcnError> {
        let id = *id;
        let load_balancer = load_balancer.clone();
        self.typed(|| format!("modifying load balancer {id}"), move |client| client.modify_load_balancer(&id, &load_balancer)).await
    }

    /// Deletes a load balancer. Its absence is success.
    pub async fn delete_load_balancer(&self, id: &Guid) -> Result<(), HcnError> {
        let id = *id;
        self.typed(|| format!("deleting load balancer {id}"), move |client| client.delete::<HostComputeLoadBalancer>(&id)).await
    }

    /// All routing rules.
    pub async fn routes(&self) -> Result<Vec<HostComputeRoute>, HcnError> {
        self.typed(|| "listing routes".into(), |client| client.list(&Query::default())).await
    }

    /// The routing rule of that id.
    pub async fn route(&self, id: &Guid) -> Result<Option<HostComputeRoute>, HcnError> {
        let id = *id;
        self.typed(|| format!("reading route {id}"), move |client| client.get(&id)).await
    }

    /// Creates a routing rule with that id and reads it back.
    pub async fn create_route(&self, id: Guid, route: &HostComputeRoute) -> Result<HostComputeRoute, HcnError> {
        let route = route.clone();
        self.typed(|| format!("creating route {id}"), move |client| client.create(id, &route)).await
    }

    /// Deletes a routing rule. Its absence is success.
    pub async fn delete_route(&self, id: &Guid) -> Result<(), HcnError> {
        let id = *id;
        self.typed(|| format!("deleting route {id}"), move |client| client.delete::<HostComputeRoute>(&id)).await
    }

    /// What this version of the service can do.
    pub async fn features(&self) -> Result<SupportedFeatures, HcnError> {
        self.typed(|| "reading the service's version".into(), Client::features).await
    }

    /// Registers for service notifications; after [`crate::Event::SERVICE_DISCONNECT`] register again and enumerate everything.
    pub async fn subscribe(&self, sink: EventSink) -> Result<Subscription, HcnError> {
        self.typed(|| "registering for events".into(), move |client| client.subscribe(sink)).await
    }
}
