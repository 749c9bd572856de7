//! Mode `transparent`: the network of the alpha document of 2016. A Windows node has two adapters: others reach it by one, and the switch of
//! its pods takes the other. The host is the pods' gateway and routes between the two; each node routes the others' pods to their nodes.
//!
//! Source: the alpha document ("Route Setup"), which has the gateway's address put on the adapter of the switch; here an endpoint of the host
//! has it. Such networks have no VFP: no load balancers, no translation. Next hops are the nodes' addresses, not the pods' gateways as there
//! (`mullion fabric routes --next-hop pod-gateway` prints those), since a host need not answer for an address of another adapter.

use super::{Attachment, Desired, Inputs, Role, host_gateway};
use crate::{conf, hns};

pub(super) fn decide(inputs: &Inputs<'_>, desired: &mut Desired) {
    if inputs.settings.role == Role::Router {
        return;
    }
    if let Some((pods, conf_inputs)) = inputs.own_pods() {
        match &pods.attachment {
            Attachment::Windows { adapter, .. } => {
                desired.hns = Some(hns::Desired::transparent(&pods.cluster_uid, &pods.network_name, adapter, conf_inputs.first.pod_cidr));
                desired.cni = Some(conf::windows_transparent(&conf_inputs));
            }
            Attachment::Linux { bridge } => inputs.linux_bridge(&conf_inputs, bridge, desired),
        }
    }
    host_gateway::route_to_neighbours(inputs, desired, |peer| Ok(peer.address));
}
