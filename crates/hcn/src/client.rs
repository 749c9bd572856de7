//! Client of the Host Networking Service: one bounded pool of threads, one deadline, cancellation and counts, with an async and a
//! blocking face.
//!
//! A process makes one [`HcnClient`] and passes clones of it to its parts, which share the pool and the counts. An operation of the async
//! face may make several calls; on the blocking face ([`HcnClient::blocking`]) each call is an operation.
//!
//! The service is known to hang: a call then never returns, and nothing can end its thread. The caller of an operation gets an error at
//! the deadline, or goes away earlier by dropping the future. The operation keeps its place until its call returns; then it makes no
//! further call, and what was opened is closed. When every place is held by such a call, operations are refused at once.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::blocking::Client;
use crate::error::{HResult, HcnError};
use crate::pool::{Delivery, GivenUp, Place, Pool, Reason, Refusal, Ticket};
use crate::port::{HostNetwork, RawError};
use counts::Counts;
use ports::{BlockingPort, OperationPort};

mod calls;
mod counts;
mod ports;
#[cfg(test)]
mod tests;

pub use crate::pool::{Called, Hung, Limits};
pub use counts::{Snapshot, Tally};

/// The client; clones share the pool and the counts. The async face needs a tokio runtime with time enabled.
#[derive(Clone)]
pub struct HcnClient {
    core: Arc<Core>,
    blocking: Client,
    deadline: Duration,
}

/// Why a caller that waited has no answer.
enum Silence {
    Refused(Refusal),
    NotBegun,
    /// This call had begun.
    UnderWay(Option<Called>),
    /// The job ended without one.
    Lost,
}

/// What clones share.
struct Core {
    port: Arc<dyn HostNetwork>,
    pool: Pool,
    limits: Limits,
    counts: Arc<Counts>,
    /// The port has no other user.
    exclusive: bool,
}

impl HcnClient {
    /// A client of `port` within the default limits.
    pub fn new(port: Arc<dyn HostNetwork>) -> Self {
        Self::with_limits(port, Limits::default())
    }

    /// A client of `port` within `limits`.
    pub fn with_limits(port: Arc<dyn HostNetwork>, limits: Limits) -> Self {
        Self::over(port, limits, false)
    }

    /// The service that the environment names: `MULLION_HCN` (with `MULLION_HCN_TOKEN`), else the DLL on Windows. An address that begins
    /// with `dll:` is for the DLL of a Wine prefix, and the way to it leads through that DLL.
    pub fn from_env() -> Result<Self, HcnError> {
        match std::env::var("MULLION_HCN") {
            Ok(address) if !address.starts_with(crate::blocking::DLL) => Self::connect(&address),
            _ => Self::of_this_host(),
        }
    }

    /// The service at `address` (`unix:PATH` or `tcp:HOST:PORT`). It need not run yet: each call connects when it must.
    pub fn connect(address: &str) -> Result<Self, HcnError> {
        Ok(Self::exclusive(Arc::new(crate::remote::RemoteHcn::connect(address)?)))
    }

    /// This host's own service, by its DLL, whatever the environment says.
    #[cfg(windows)]
    pub fn of_this_host() -> Result<Self, HcnError> {
        Ok(Self::exclusive(Arc::new(crate::windows::ComputeNetwork::load()?)))
    }

    /// This host's own service: there is none on this system.
    #[cfg(not(windows))]
    pub fn of_this_host() -> Result<Self, HcnError> {
        Err(HcnError::Unavailable(
            "this system has no Host Networking Service: set MULLION_HCN to a simulator's address (unix:PATH or tcp:HOST:PORT), or run on Windows Server".into(),
        ))
    }

    /// A client of a port without other users: the port's connection ends with the last clone of the client.
    pub(crate) fn exclusive(port: Arc<dyn HostNetwork>) -> Self {
        Self::over(port, Limits::default(), true)
    }

    fn over(port: Arc<dyn HostNetwork>, limits: Limits, exclusive: bool) -> Self {
        let core = Arc::new(Core { port, pool: Pool::new(limits), limits, counts: Arc::default(), exclusive });
        Self::of(core, limits.deadline)
    }

    fn of(core: Arc<Core>, deadline: Duration) -> Self {
        let blocking = Client::new(Arc::new(BlockingPort::new(core.clone(), deadline)));
        Self { core, blocking, deadline }
    }

    /// The same client with another deadline an operation.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self::of(self.core, deadline)
    }

    /// The blocking face, for callers that are on a thread of their own.
    pub fn blocking(&self) -> &Client {
        &self.blocking
    }

    /// The counts, and what is under way.
    pub fn snapshot(&self) -> Snapshot {
        let load = self.core.pool.load();
        Snapshot {
            places: self.core.limits.places,
            running: load.running,
            waiting: load.waiting,
            cancelled: load.cancelled,
            hung: self.core.pool.hung(),
            ..self.core.counts.snapshot()
        }
    }

    /// Runs `job` as one operation: a thread of the pool makes its calls. `operation` names it in errors.
    ///
    /// # Errors
    /// What the job returns; an [`HcnError`] where the operation was refused, did not end within the deadline, or panicked.
    pub async fn run<T, E>(
        &self,
        operation: impl FnOnce() -> String,
        job: impl FnOnce(&Arc<dyn HostNetwork>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<HcnError> + Send + 'static,
    {
        let (sender, mut receiver) = oneshot::channel();
        // A caller that is gone needs no result.
        let submitted = self.core.submit(job, move |result, _, _| drop(sender.send(result)));
        let mut place = match submitted {
            Ok(place) => place,
            Err(refusal) => return Err(self.core.refuse_operation(&operation(), &refusal).into()),
        };
        let mut answer = tokio::time::timeout(self.deadline, &mut receiver).await;
        if answer.is_err() {
            match self.core.time_out(&mut place, self.deadline) {
                GivenUp::Ended => answer = Ok(receiver.await),
                GivenUp::NotBegun | GivenUp::UnderWay => {}
            }
        }
        place.ended();
        match answer {
            Ok(Ok(result)) => result,
            Ok(Err(_)) if place.is_refused() => Err(self.core.refuse_operation(&operation(), &Refusal::Hung).into()),
            Ok(Err(_)) => Err(HcnError::Unavailable(format!("{} ended without an answer", operation())).into()),
            Err(_) => Err(HcnError::Deadline { operation: operation(), deadline: self.deadline }.into()),
        }
    }

    /// Runs `job` as one operation and waits for it, for callers that are on a thread of their own. `operation` names it in errors. Several calls
    /// of [`Self::blocking`] would each be handed to a thread and back.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_blocking<T, E>(&self, operation: &str, job: impl FnOnce(&Client) -> Result<T, E> + Send + 'static) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<HcnError> + Send + 'static,
    {
        let work = move |port: &Arc<dyn HostNetwork>| job(&Client::new(port.clone()));
        // A caller that is gone needs no result.
        self.core.wait(self.deadline, work, |_, _| {}).unwrap_or_else(|silence| {
            Err(match silence {
                Silence::Refused(refusal) => self.core.refuse_operation(operation, &refusal),
                Silence::NotBegun => HcnError::Unavailable(format!("{operation} did not begin: {}", self.core.busy())),
                Silence::UnderWay(call) => {
                    let operation = call.map_or_else(|| operation.to_owned(), |call| format!("{call} of {operation}"));
                    HcnError::Deadline { operation, deadline: self.deadline }
                }
                Silence::Lost => HcnError::Unavailable(format!("{operation} ended without an answer")),
            }
            .into())
        })
    }

    /// Runs `job` over the typed client.
    async fn typed<T: Send + 'static>(
        &self,
        operation: impl FnOnce() -> String,
        job: impl FnOnce(&Client) -> Result<T, HcnError> + Send + 'static,
    ) -> Result<T, HcnError> {
        self.run(operation, |port| job(&Client::new(port.clone()))).await
    }
}

impl Core {
    /// Queues an operation: `job` makes calls of the port that it gets, and `deliver` hands over or disposes of what it returned.
    fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Arc<dyn HostNetwork>) -> T + Send + 'static,
        deliver: impl FnOnce(T, Delivery, &Arc<dyn HostNetwork>) + Send + 'static,
    ) -> Result<Place, Refusal> {
        let (port, counts) = (self.port.clone(), self.counts.clone());
        self.pool.submit(Box::new(move |ticket: &Arc<Ticket>| {
            let port: Arc<dyn HostNetwork> = Arc::new(OperationPort::new(port, counts, ticket.clone()));
            let result = job(&port);
            Box::new(move |delivery| deliver(result, delivery, &port))
        }))
    }

    /// Runs `job` and waits for what it returns, at most for `deadline`. `dispose` gets what comes after that.
    fn wait<T: Send + 'static>(
        &self,
        deadline: Duration,
        job: impl FnOnce(&Arc<dyn HostNetwork>) -> T + Send + 'static,
        dispose: impl FnOnce(T, &Arc<dyn HostNetwork>) + Send + 'static,
    ) -> Result<T, Silence> {
        let until = Instant::now() + deadline;
        let (sender, receiver) = mpsc::sync_channel(1);
        let deliver = move |outcome, delivery, port: &Arc<dyn HostNetwork>| match delivery {
            Delivery::Abandoned => dispose(outcome, port),
            // The caller waits for it.
            Delivery::Awaited => drop(sender.send(outcome)),
        };
        let mut place = self.submit(job, deliver).map_err(Silence::Refused)?;
        let mut answer = receiver.recv_timeout(until.saturating_duration_since(Instant::now()));
        if let Err(RecvTimeoutError::Timeout) = answer {
            match self.time_out(&mut place, deadline) {
                GivenUp::Ended => answer = receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                GivenUp::NotBegun => return Err(Silence::NotBegun),
                GivenUp::UnderWay => return Err(Silence::UnderWay(place.call())),
            }
        }
        place.ended();
        answer.map_err(|_| if place.is_refused() { Silence::Refused(Refusal::Hung) } else { Silence::Lost })
    }

    /// The caller of `place` has waited until its deadline.
    fn time_out(&self, place: &mut Place, deadline: Duration) -> GivenUp {
        let given_up = place.give_up(Reason::Deadline);
        match given_up {
            GivenUp::Ended => {}
            GivenUp::NotBegun => self.counts.timed_out(None),
            GivenUp::UnderWay => {
                let call = place.call();
                self.counts.timed_out(call);
                let (call, seconds, hung) = (call.map(|call| call.to_string()), deadline.as_secs_f64(), self.pool.hung().len());
                tracing::warn!(call, seconds, hung, "the Host Networking Service does not answer; the call is given up");
            }
        }
        given_up
    }

    /// Why no operation can begin, and what to do.
    fn busy(&self) -> String {
        let oldest = self.pool.hung().first().map(|hung| format!("; {hung}")).unwrap_or_default();
        format!(
            "all {} calls that may be under way are{oldest}: if that lasts, end the service's process and start it again (Restart-Service hns -Force)",
            self.limits.places
        )
    }

    fn refuse(&self, call: Called, refusal: &Refusal) -> RawError {
        match refusal {
            Refusal::Hung => {
                self.counts.refused();
                RawError::with_record(HResult::TIMEOUT, &self.busy())
            }
            Refusal::NoThread(error) => RawError::with_record(HResult::OUT_OF_MEMORY, &format!("no thread for {call}: {error}")),
        }
    }

    fn refuse_operation(&self, operation: &str, refusal: &Refusal) -> HcnError {
        match refusal {
            Refusal::Hung => {
                self.counts.refused();
                HcnError::Unavailable(format!("{operation} was refused: {}", self.busy()))
            }
            Refusal::NoThread(error) => HcnError::Unavailable(format!("{operation} failed: no thread: {error}")),
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Calls that hang hold the port: without this its connection would stay.
        if self.exclusive {
            self.port.disconnect();
        }
    }
}
