//! Test bench of a case: a client, identifiers and subnets of its own, and the removal of the objects that it made.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use serde_json::Value;

use crate::{Check, Finding, MARK, Options};
use hcn::blocking::{Client, Object};
use hcn::document::{
    HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNamespace, HostComputeNetwork, HostComputeRoute, Isolation, ModifyRequest,
    NetworkPolicy, NetworkPolicyType, NetworkType, Query, Subnet, to_text,
};
use hcn::error::{HResult, HcnError};
use hcn::features::SupportedFeatures;
use hcn::guid::{Guid, owned_id};
use hcn::port::{Args, Function, Handle, Kind, RawError, Reply};

/// Fails a case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::Finding::Differs(format!($($text)+)));
        }
    };
}
pub(crate) use ensure;

/// What a case works with.
pub struct Bench<'a> {
    /// The service.
    pub client: Client,
    /// What its version can do.
    pub features: SupportedFeatures,
    /// How the suite runs.
    pub options: &'a Options,
    case: &'static str,
    last_id: Cell<u32>,
    last_subnet: Cell<u8>,
    last_address: Cell<u8>,
    made: RefCell<Vec<(Kind, Guid)>>,
    /// The network that cases share, because the first one on an adapter is slow.
    shared: RefCell<Option<HostComputeNetwork>>,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(client: Client, features: SupportedFeatures, options: &'a Options) -> Self {
        Self {
            client,
            features,
            options,
            case: "",
            last_id: Cell::new(0),
            last_subnet: Cell::new(0),
            last_address: Cell::new(9),
            made: RefCell::default(),
            shared: RefCell::default(),
        }
    }

    pub(crate) fn begin(&mut self, case: &'static str) {
        self.case = case;
        self.last_id.set(0);
    }

    /// Removes what the case made, the last first.
    pub(crate) fn end(&self) -> Check {
        let made: Vec<_> = self.made.borrow_mut().drain(..).rev().collect();
        let failed = made.into_iter().filter_map(|(kind, id)| self.remove(kind, &id).err()).next();
        failed.map_or(Ok(()), |error| Err(Finding::Differs(format!("what the case made cannot be removed: {error}"))))
    }

    pub(crate) fn close(&self) {
        if let Some(network) = self.shared.borrow_mut().take()
            && let Err(error) = self.client.delete::<HostComputeNetwork>(&network.id)
        {
            tracing::warn!(%error, "the suite's network stays behind; the next run removes it");
        }
    }

    fn remove(&self, kind: Kind, id: &Guid) -> Result<(), HcnError> {
        match kind {
            Kind::Network => self.client.delete::<HostComputeNetwork>(id),
            Kind::Endpoint => self.client.delete::<HostComputeEndpoint>(id),
            Kind::Namespace => self.client.delete::<HostComputeNamespace>(id),
            Kind::LoadBalancer => self.client.delete::<HostComputeLoadBalancer>(id),
            Kind::SdnRoute => self.client.delete::<HostComputeRoute>(id),
            Kind::GuestNetworkService => Ok(()),
        }
    }

    /// An identifier of the case: the same in each run, and free.
    pub fn id(&self, kind: Kind) -> Result<Guid, HcnError> {
        self.last_id.set(self.last_id.get() + 1);
        let id = owned_id(MARK, kind.as_str(), &format!("{}/{}", self.case, self.last_id.get()));
        self.remove(kind, &id)?;
        Ok(id)
    }

    /// An identifier that no object has.
    pub fn nobody(&self) -> Guid {
        owned_id(MARK, "nobody", self.case)
    }

    /// Notes an object for removal at the case's end.
    pub fn made(&self, kind: Kind, id: Guid) {
        self.made.borrow_mut().push((kind, id));
    }

    /// A name that only this case uses.
    pub fn name(&self, what: &str) -> String {
        format!("{MARK}-{what}-{}", self.last_id.get())
    }

    /// A subnet that nobody has used yet, until there are none.
    pub fn subnet(&self) -> Ipv4Net {
        let number = self.last_subnet.get();
        self.last_subnet.set(number.wrapping_add(1));
        let [a, b, ..] = self.options.prefix.network().octets();
        Ipv4Net::new_assert([a, b, number, 0].into(), 24)
    }

    /// The document of a network of the type under test.
    pub fn network_document(&self, name: &str, subnet: Ipv4Net) -> HostComputeNetwork {
        self.document_of(self.options.network_type.clone(), name, subnet)
    }

    fn document_of(&self, network_type: NetworkType, name: &str, prefix: Ipv4Net) -> HostComputeNetwork {
        let mut subnet = Subnet::new(prefix.into(), IpAddr::V4(host(prefix, 1)));
        if network_type == NetworkType::Overlay {
            let vsid = Isolation { isolation_id: 4096 + u32::from(prefix.network().octets()[2]), ..Isolation::default() };
            subnet.policies.push(NetworkPolicy::new(NetworkPolicyType::Vsid, &vsid));
        }
        let external = is_external(&network_type);
        let mut network = HostComputeNetwork::new(name, network_type, subnet);
        network.owner = MARK.to_owned();
        if let Some(adapter) = self.options.adapter.clone().filter(|_| external) {
            network.policies.push(NetworkPolicy::net_adapter_name(adapter));
        }
        network
    }

    /// A network of the case's own.
    pub fn network(&self) -> Result<HostComputeNetwork, HcnError> {
        let id = self.id(Kind::Network)?;
        let document = self.network_document(&self.name("network"), self.subnet());
        let network = self.client.create(id, &document)?;
        self.made(Kind::Network, network.id);
        Ok(network)
    }

    /// The network that cases share.
    pub fn shared(&self) -> Result<HostComputeNetwork, HcnError> {
        if let Some(network) = &*self.shared.borrow() {
            return Ok(network.clone());
        }
        let id = owned_id(MARK, Kind::Network.as_str(), "shared");
        let network = self.client.create(id, &self.network_document(&format!("{MARK}-shared"), self.subnet()))?;
        *self.shared.borrow_mut() = Some(network.clone());
        Ok(network)
    }

    /// A free address of the shared network.
    pub fn address(&self) -> Result<Ipv4Addr, HcnError> {
        let number = self.last_address.get() + 1;
        self.last_address.set(if number == 250 { 10 } else { number });
        Ok(host(prefix_of(&self.shared()?), number))
    }

    /// The document of a local endpoint of the shared network.
    pub fn endpoint_document(&self) -> Result<HostComputeEndpoint, HcnError> {
        let network = self.shared()?;
        let gateway = network.subnets().find_map(Subnet::gateway);
        let address = IpNet::new_assert(self.address()?.into(), 24);
        let mut endpoint = HostComputeEndpoint::local(self.name("endpoint"), address, gateway);
        endpoint.owner = MARK.to_owned();
        Ok(endpoint)
    }

    /// A local endpoint of the shared network.
    pub fn endpoint(&self) -> Result<HostComputeEndpoint, HcnError> {
        let document = self.endpoint_document()?;
        self.create_endpoint(&document)
    }

    /// An endpoint of the shared network.
    pub fn create_endpoint(&self, document: &HostComputeEndpoint) -> Result<HostComputeEndpoint, HcnError> {
        let network = self.shared()?;
        self.create_endpoint_on(&network.id, document)
    }

    pub fn create_endpoint_on(&self, network: &Guid, document: &HostComputeEndpoint) -> Result<HostComputeEndpoint, HcnError> {
        let id = self.id(Kind::Endpoint)?;
        let endpoint = self.client.create_endpoint(network, id, document)?;
        self.made(Kind::Endpoint, endpoint.id);
        Ok(endpoint)
    }

    /// Any other object.
    pub fn create<T: Object>(&self, document: &T) -> Result<(Guid, T), HcnError> {
        let id = self.id(T::KIND)?;
        let object = self.client.create(id, document)?;
        self.made(T::KIND, id);
        Ok((id, object))
    }

    /// An empty namespace.
    pub fn namespace(&self) -> Result<HostComputeNamespace, HcnError> {
        Ok(self.create(&HostComputeNamespace::default())?.1)
    }

    /// One call as it is, without the client's habits.
    pub fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        self.client.port().call(function, args)
    }

    /// Creates from text.
    pub fn create_text(&self, kind: Kind, id: Guid, network: Option<Handle>, settings: &str) -> Result<Handle, RawError> {
        let reply = self.call(Function::Create(kind), Args { network, id: Some(id), settings: Some(settings), ..Args::default() })?;
        self.made(kind, id);
        reply.handle.ok_or_else(|| HResult::FAIL.into())
    }

    pub fn open(&self, kind: Kind, id: Guid) -> Result<Handle, RawError> {
        self.call(Function::Open(kind), Args { id: Some(id), ..Args::default() })?.handle.ok_or_else(|| HResult::FAIL.into())
    }

    pub fn shut(&self, kind: Kind, handle: Handle) -> Result<(), RawError> {
        self.call(Function::Close(kind), Args { handle: Some(handle), ..Args::default() }).map(drop)
    }

    /// The properties of an object as text, for that query or none.
    pub fn properties(&self, kind: Kind, id: Guid, query: Option<&str>) -> Result<Value, Finding> {
        let handle = self.open(kind, id).map_err(raw)?;
        let reply = self.call(Function::Query(kind), Args { handle: Some(handle), query, ..Args::default() }).map_err(raw);
        self.shut(kind, handle).map_err(raw)?;
        let text = reply?.result.unwrap_or_default();
        serde_json::from_str(&text).map_err(|error| Finding::Differs(format!("the properties are no JSON ({error}): {text}")))
    }

    /// The identifiers of every object of a kind.
    pub fn ids(&self, kind: Kind) -> Result<Vec<Guid>, HcnError> {
        let all = Query::default();
        let mut ids = match kind {
            Kind::Network => self.client.ids::<HostComputeNetwork>(&all),
            Kind::Endpoint => self.client.ids::<HostComputeEndpoint>(&all),
            Kind::Namespace => self.client.ids::<HostComputeNamespace>(&all),
            Kind::LoadBalancer => self.client.ids::<HostComputeLoadBalancer>(&all),
            Kind::SdnRoute => self.client.ids::<HostComputeRoute>(&all),
            Kind::GuestNetworkService => Ok(Vec::new()),
        }?;
        ids.sort_unstable();
        Ok(ids)
    }

    /// Modifies with a request that is not typed.
    pub fn modify<T: Object>(&self, id: &Guid, request: &ModifyRequest) -> Result<(), HcnError> {
        self.client.modify::<T>(id, request)
    }

    /// The case has nothing to test unless the version has the feature.
    pub fn needs(&self, feature: bool, name: &str) -> Check {
        if feature { Ok(()) } else { Err(Finding::NotApplicable(format!("HNS {} has no {name}", self.features.version))) }
    }

    /// The case has nothing to test on other types of network.
    pub fn only_on(&self, types: &[NetworkType]) -> Check {
        if types.contains(&self.options.network_type) {
            return Ok(());
        }
        Err(Finding::NotApplicable(format!("not on {} networks", self.options.network_type)))
    }

    /// Load balancers and access rules need a switch with the packet processor.
    pub fn needs_vfp(&self) -> Check {
        self.only_on(&[NetworkType::L2Bridge, NetworkType::L2Tunnel, NetworkType::Overlay])
    }
}

/// Types whose switch has a physical adapter.
fn is_external(network_type: &NetworkType) -> bool {
    matches!(network_type, NetworkType::L2Bridge | NetworkType::L2Tunnel | NetworkType::Overlay | NetworkType::Transparent)
}

/// The first prefix of a network.
pub(crate) fn prefix_of(network: &HostComputeNetwork) -> Ipv4Net {
    let v4 = |subnet: &Subnet| match subnet.prefix() {
        Some(IpNet::V4(prefix)) => Some(prefix),
        _ => None,
    };
    network.subnets().find_map(v4).unwrap_or_default()
}

/// An address of a prefix by its number.
pub(crate) fn host(prefix: Ipv4Net, number: u8) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(prefix.network()) + u32::from(number))
}

pub(crate) fn raw(error: RawError) -> Finding {
    Finding::Differs(format!("{:?} {}", error.hresult, error.record.unwrap_or_default()))
}

/// Expects a refusal with one of `codes`.
pub(crate) fn refused<T>(what: &str, outcome: Result<T, HcnError>, codes: &[HResult]) -> Check {
    match outcome {
        Ok(_) => Err(Finding::Differs(format!("{what} succeeds; expected {codes:?}"))),
        Err(HcnError::Call { hresult, .. }) if codes.contains(&hresult) => Ok(()),
        Err(HcnError::Call { hresult, record, .. }) => {
            Err(Finding::Differs(format!("{what} is refused with {hresult:?}; expected {codes:?}: {}", record.unwrap_or_default())))
        }
        Err(error) => Err(Finding::Differs(format!("{what}: {error}"))),
    }
}

/// As [`refused`], of a raw call.
pub(crate) fn refused_raw<T>(what: &str, outcome: Result<T, RawError>, codes: &[HResult]) -> Check {
    let outcome = outcome.map_err(|error| HcnError::call(Function::HnsCall, what, error));
    refused(what, outcome, codes)
}

pub(crate) fn text<T: serde::Serialize>(document: &T) -> String {
    to_text(document)
}
