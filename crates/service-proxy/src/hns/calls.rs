//! The calls that the proxy makes, each as cheap as the DLL allows: the network stays open, nothing is read back that is
//! known, nothing is looked up before it is deleted. They run in the process's HCN client, which ends them at its deadline.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hcn::blocking::Object;
use hcn::document::to_text;
use hcn::{
    Args, Function, Guid, HResult, Handle, HcnClient, HcnError, HostComputeEndpoint, HostComputeLoadBalancer, HostComputeNetwork, HostNetwork, Kind,
    Query, Reply, SupportedFeatures,
};

use super::document::is_orphaned;
use super::plan::Put;

/// How many operations may be under way at once. The service does one at a time; more of ours keep it busy, also where every wake-up of
/// our threads is late because the processors are. What is urgent waits for that many at most.
pub const AT_ONCE: usize = 8;

/// One operation: a call with what belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Finds the network by its name, with what the service can do.
    Find(String),
    /// The ids of networks of a name.
    Networks(String),
    /// The ids of all load balancers.
    Balancers,
    /// The ids of the network's endpoints.
    Endpoints(Guid),
    /// One load balancer.
    ReadBalancer(Guid),
    ReadEndpoint(Guid),
    /// Creates an endpoint on the network.
    CreateEndpoint(Guid, Box<HostComputeEndpoint>),
    DeleteEndpoint(Guid),
    /// Creates or changes a load balancer. A change is read back when asked for.
    Put {
        how: Put,
        /// What it should be.
        document: Box<HostComputeLoadBalancer>,
        /// Whether to read back what a modify did.
        check: bool,
    },
    /// Deletes a load balancer.
    DeleteBalancer(Guid),
}

impl Call {
    /// What it does, for errors.
    pub fn describe(&self) -> String {
        match self {
            Self::Find(name) | Self::Networks(name) => format!("finding network {name}"),
            Self::Balancers => "enumerating load balancers".into(),
            Self::Endpoints(_) => "enumerating endpoints".into(),
            Self::ReadBalancer(id) => format!("reading load balancer {id}"),
            Self::ReadEndpoint(id) => format!("reading endpoint {id}"),
            Self::CreateEndpoint(_, document) => format!("creating endpoint {}", document.id),
            Self::DeleteEndpoint(id) => format!("deleting endpoint {id}"),
            Self::Put { document, .. } => format!("writing load balancer {}", document.id),
            Self::DeleteBalancer(id) => format!("deleting load balancer {id}"),
        }
    }
}

/// The answer of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Done,
    /// The network, and what the service can do.
    Network(Option<Box<HostComputeNetwork>>, SupportedFeatures),
    /// An enumeration, as text.
    Ids(String),
    /// A load balancer; absent when there is none of that id.
    Balancer(Option<Box<HostComputeLoadBalancer>>),
    /// An endpoint; absent when there is none of that id.
    Endpoint(Option<Box<HostComputeEndpoint>>),
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq)]
pub struct CallError {
    /// The service's answer.
    pub error: HcnError,
    /// The old load balancer was deleted before the new one failed.
    pub deleted: bool,
}

impl From<HcnError> for CallError {
    fn from(error: HcnError) -> Self {
        Self { error, deleted: false }
    }
}

/// Calls of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many there were.
    pub calls: u64,
    /// How many of them failed.
    pub failed: u64,
    /// How long they took together.
    pub time: Duration,
}

/// The service.
pub struct Calls {
    client: HcnClient,
    network: Mutex<Option<(Guid, Handle)>>,
    tallies: Mutex<BTreeMap<Function, Tally>>,
}

/// One operation on its way: the calls go to `port`.
struct Operation<'a> {
    calls: &'a Calls,
    port: &'a Arc<dyn HostNetwork>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Calls {
    /// Calls of `client`.
    pub fn new(client: HcnClient) -> Self {
        Self { client, network: Mutex::default(), tallies: Mutex::default() }
    }

    pub fn client(&self) -> &HcnClient {
        &self.client
    }

    /// How often each function was called.
    pub fn tallies(&self) -> BTreeMap<Function, Tally> {
        lock(&self.tallies).clone()
    }

    /// Runs an operation on a thread of the client's pool. At the deadline its effect is unknown.
    pub async fn run(self: Arc<Self>, call: Call) -> Result<Answer, CallError> {
        let (client, operation) = (self.client.clone(), call.describe());
        client.run(|| operation, move |port| Operation { calls: &self, port }.make(&call)).await
    }

    /// Runs an operation over the client's blocking face.
    #[cfg(test)]
    pub fn make(&self, call: &Call) -> Result<Answer, CallError> {
        Operation { calls: self, port: self.client.blocking().port() }.make(call)
    }
}

impl Operation<'_> {
    fn make(&self, call: &Call) -> Result<Answer, CallError> {
        match call {
            Call::Find(name) => self.find(name),
            Call::Networks(name) => self.ids(Kind::Network, &Query::by_name(name)),
            Call::Balancers => self.ids(Kind::LoadBalancer, &Query::default()),
            Call::Endpoints(network) => self.ids(Kind::Endpoint, &Query::by_network(network)),
            Call::ReadBalancer(id) => Ok(Answer::Balancer(self.read(id)?.map(Box::new))),
            Call::ReadEndpoint(id) => Ok(Answer::Endpoint(self.read(id)?.map(Box::new))),
            Call::CreateEndpoint(network, document) => self.create_endpoint(network, document),
            Call::DeleteEndpoint(id) => self.delete(Kind::Endpoint, id),
            Call::DeleteBalancer(id) => self.delete(Kind::LoadBalancer, id),
            Call::Put { how, document, check } => self.put(*how, document, *check),
        }
    }

    fn call(&self, function: Function, object: &str, args: Args<'_>) -> Result<Reply, HcnError> {
        let start = Instant::now();
        let result = self.port.call(function, args);
        let mut tallies = lock(&self.calls.tallies);
        let tally = tallies.entry(function).or_default();
        tally.calls += 1;
        tally.failed += u64::from(result.is_err());
        tally.time += start.elapsed();
        drop(tallies);
        result.map_err(|raw| HcnError::call(function, object, raw))
    }

    fn opened(&self, function: Function, id: &Guid, args: Args<'_>) -> Result<Handle, HcnError> {
        let object = id.to_string();
        let reply = self.call(function, &object, Args { id: Some(*id), ..args })?;
        reply.handle.ok_or_else(|| HcnError::Unavailable(format!("{function} of {object} answered no handle")))
    }

    /// A handle that is not closed dies with the process; that is no reason to fail.
    fn close(&self, kind: Kind, handle: Handle) {
        if let Err(error) = self.call(Function::Close(kind), "a handle", Args { handle: Some(handle), ..Args::default() }) {
            tracing::debug!(%error, "an HCN handle could not be closed");
        }
    }

    fn query<T: Object>(&self, handle: Handle, id: &Guid) -> Result<T, HcnError> {
        let query = to_text(&Query::default());
        let function = Function::Query(T::KIND);
        let reply = self.call(function, &id.to_string(), Args { handle: Some(handle), query: Some(&query), ..Args::default() })?;
        let text = reply.result.unwrap_or_default();
        serde_json::from_str(&text).map_err(|error| HcnError::Document {
            operation: format!("{function} of {id}"),
            reason: error.to_string(),
            text: text.chars().take(200).collect(),
        })
    }

    fn read<T: Object>(&self, id: &Guid) -> Result<Option<T>, HcnError> {
        let read = || {
            let handle = self.opened(Function::Open(T::KIND), id, Args::default())?;
            let object = self.query(handle, id);
            self.close(T::KIND, handle);
            object
        };
        match read() {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn ids(&self, kind: Kind, query: &Query) -> Result<Answer, CallError> {
        let query = to_text(query);
        let reply = self.call(Function::Enumerate(kind), "all", Args { query: Some(&query), ..Args::default() })?;
        Ok(Answer::Ids(reply.result.unwrap_or_default()))
    }

    fn find(&self, name: &str) -> Result<Answer, CallError> {
        let client = hcn::blocking::Client::new(self.port.clone());
        let network = client.get_by_name::<HostComputeNetwork>(name)?;
        let features = client.features()?;
        // Handles may be dead: a second question has a cause.
        *lock(&self.calls.network) = None;
        Ok(Answer::Network(network.map(Box::new), features))
    }

    /// An open handle of the network, kept for all calls.
    fn network(&self, id: &Guid) -> Result<Handle, HcnError> {
        let kept = lock(&self.calls.network).filter(|(open, _)| open == id);
        if let Some((_, handle)) = kept {
            return Ok(handle);
        }
        // Opened without the lock: an open that hangs must not hold up the calls that come after it.
        let handle = self.opened(Function::Open(Kind::Network), id, Args::default())?;
        let mut network = lock(&self.calls.network);
        let first = network.filter(|(open, _)| open == id);
        if first.is_none() {
            *network = Some((*id, handle));
        }
        drop(network);
        match first {
            Some((_, first)) => {
                self.close(Kind::Network, handle);
                Ok(first)
            }
            None => Ok(handle),
        }
    }

    fn create_endpoint(&self, network: &Guid, document: &HostComputeEndpoint) -> Result<Answer, CallError> {
        let settings = to_text(document);
        let create = || {
            let args = Args { network: Some(self.network(network)?), settings: Some(&settings), ..Args::default() };
            self.opened(Function::Create(Kind::Endpoint), &document.id, args)
        };
        let mut made = create();
        if made.as_ref().is_err_and(|error| error.hresult() == Some(HResult::INVALID_HANDLE)) {
            // The handle died with a restart of the service.
            *lock(&self.calls.network) = None;
            made = create();
        }
        self.close(Kind::Endpoint, made?);
        Ok(Answer::Done)
    }

    /// Absence is success.
    fn delete(&self, kind: Kind, id: &Guid) -> Result<Answer, CallError> {
        match self.call(Function::Delete(kind), &id.to_string(), Args { id: Some(*id), ..Args::default() }) {
            Err(error) if !error.is_not_found() || kind == Kind::LoadBalancer && is_orphaned(&error) => Err(error.into()),
            _ => Ok(Answer::Done),
        }
    }

    fn put(&self, how: Put, document: &HostComputeLoadBalancer, check: bool) -> Result<Answer, CallError> {
        if how == Put::Modify {
            return Ok(self.modify(document, check)?);
        }
        let deleted = how == Put::Replace;
        if deleted {
            self.delete(Kind::LoadBalancer, &document.id)?;
        }
        let settings = to_text(document);
        let args = Args { settings: Some(&settings), ..Args::default() };
        let handle = self.opened(Function::Create(Kind::LoadBalancer), &document.id, args).map_err(|error| CallError { error, deleted })?;
        self.close(Kind::LoadBalancer, handle);
        Ok(Answer::Done)
    }

    fn modify(&self, document: &HostComputeLoadBalancer, check: bool) -> Result<Answer, HcnError> {
        let id = &document.id;
        let handle = self.opened(Function::Open(Kind::LoadBalancer), id, Args::default())?;
        let settings = to_text(document);
        let args = Args { handle: Some(handle), settings: Some(&settings), ..Args::default() };
        let done = self.call(Function::Modify(Kind::LoadBalancer), &id.to_string(), args);
        let now = if check && done.is_ok() { self.query(handle, id).map(Some) } else { Ok(None) };
        self.close(Kind::LoadBalancer, handle);
        done?;
        Ok(now?.map_or(Answer::Done, |now| Answer::Balancer(Some(Box::new(now)))))
    }
}
