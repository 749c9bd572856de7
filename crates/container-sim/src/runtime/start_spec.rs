//! Start specification: translates a CRI request and an image for the shim.

use std::collections::BTreeMap;

use anyhow::Result;
use images::Image;

use super::Runtime;
use super::isolation::Isolation;
use super::kind::{self, Request};
use super::record::{ContainerRecord, SandboxRecord};
use crate::shim::{Limits, StartSpec};

impl Runtime {
    /// Everything the shim has to know to start the container. `parts` are those of images that mounts show, by the mounts' paths.
    pub(super) fn start_spec(
        &self,
        sandbox: &SandboxRecord,
        record: &ContainerRecord,
        image: &Image,
        parts: &BTreeMap<String, String>,
    ) -> Result<StartSpec> {
        let config = &record.config;
        // In a virtual machine of its own a program finds the build of its image.
        let isolation = Isolation::asked(self.config.os, &sandbox.runtime_handler, &sandbox.config.annotations).map_err(anyhow::Error::msg)?;
        let os = isolation.os(self.config.os, &image.platform);
        let request = Request { runtime: self, sandbox, config, parts, image, os };
        let (system, kind) = (kind::system(os), kind::kind(os, record.stand_in));
        Ok(StartSpec {
            os,
            host: self.config.host.clone(),
            program: kind.program(&request)?,
            root: kind.root(&request)?,
            mounts: request.mounts(system)?,
            env: system.environment(&request),
            log: Some(record.log_path.clone()).filter(|path| !path.is_empty()),
            stdin: config.stdin,
            stdin_once: config.stdin_once,
            tty: config.tty,
            pids: kind.pids(&request)?,
            limits: Limits::default(),
            account: system.account(&request),
            security: system.security(&request)?,
        })
    }
}
