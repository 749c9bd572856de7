//! A stand-in: a program of ours in the place of the image's own, on nodes of either system.

use anyhow::Result;
use images::stand_in::StandIn;
use wine::template::Missing;

use super::{Kind, Request, System};
use crate::shim::{Pids, Program, RootSpec};

/// A container that runs a stand-in.
pub(super) struct StandInContainer {
    pub(super) program: StandIn,
    pub(super) system: &'static dyn System,
}

impl Kind for StandInContainer {
    fn program(&self, request: &Request<'_>) -> Result<Program> {
        let dns = request.sandbox.config.dns_config.clone().unwrap_or_default();
        let dns = guest::Dns { servers: dns.servers, searches: dns.searches, options: dns.options };
        Ok(Program::StandIn { name: self.program.program().to_owned(), dns })
    }

    fn root(&self, request: &Request<'_>) -> Result<RootSpec> {
        match self.system.root(request) {
            // A program of ours needs drives only.
            Err(error) if error.is::<Missing>() => Ok(RootSpec::Drives),
            root => root,
        }
    }

    fn pids(&self, request: &Request<'_>) -> Result<Pids> {
        self.system.stand_in_pids(request)
    }
}
