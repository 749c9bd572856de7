//! A model of the service in this process, behind one lock, for `make bench`: what a caller makes of a service that does one call at a
//! time, through the DLL's own interface and without a socket in between.
//!
//! `MULLION_HCN=dll:model:NETWORK,write=2ms,read=100us,stats=FILE`. The service has one L2Bridge network of that name. What was called
//! is written to FILE as `WRITES READS LAST_WRITE` (milliseconds of Unix time) whenever it changed, ten times a second at most.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hcn::blocking::Client;
use hcn::{Guid, HnsVersion, HostComputeNetwork, HostNetwork, NetworkType, Subnet};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::latency::duration;
use hns_sim::one_lock::{OneLock, Tally};
use hns_sim::switches::Switches;

/// Windows Server 2025, which can modify load balancers.
const VERSION: HnsVersion = HnsVersion::new(15, 5);

/// Starts the model.
pub fn start(settings: &str) -> Result<Box<dyn HostNetwork>, String> {
    let mut parts = settings.split(',');
    let name = parts.next().unwrap_or_default();
    let (mut write, mut read, mut stats) = (Duration::ZERO, Duration::ZERO, None);
    for part in parts {
        match part.split_once('=') {
            Some(("write", value)) => write = duration(value)?,
            Some(("read", value)) => read = duration(value)?,
            Some(("stats", file)) => stats = Some(file.to_owned()),
            _ => return Err(format!("{part:?} of a model is none of write=DURATION, read=DURATION, stats=FILE")),
        }
    }
    let kernel = NoKernel { management: "10.0.0.1".parse().ok(), survived: true };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(VERSION), None).map_err(|error| format!("{error:#}"))?;
    let subnet = "192.168.4.0/24".parse().map_err(|_| "no subnet")?;
    let gateway = "192.168.4.1".parse().map_err(|_| "no gateway")?;
    let network = HostComputeNetwork::new(name, NetworkType::L2Bridge, Subnet::new(subnet, gateway));
    Client::new(simulator.session()).create(Guid::random(), &network).map_err(|error| error.to_string())?;
    let lock = Arc::new(OneLock::new(simulator.session(), write, read));
    if let Some(file) = stats {
        let lock = lock.clone();
        std::thread::spawn(move || report(&lock, &file));
    }
    Ok(Box::new(Shared(lock)))
}

fn report(lock: &OneLock, file: &str) {
    // The lock was made a moment ago.
    let begin = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut reported = Tally::default();
    loop {
        let tally = lock.tally();
        let line = format!("{} {} {}\n", tally.writes, tally.reads, (begin + tally.last_write).as_millis());
        if tally != reported && std::fs::write(file, line).is_ok() {
            reported = tally;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

struct Shared(Arc<OneLock>);

impl HostNetwork for Shared {
    fn call(&self, function: hcn::Function, args: hcn::Args<'_>) -> Result<hcn::Reply, hcn::RawError> {
        self.0.call(function, args)
    }

    fn subscribe(&self, sink: hcn::port::EventSink) -> Result<hcn::Subscription, hcn::RawError> {
        self.0.subscribe(sink)
    }
}
