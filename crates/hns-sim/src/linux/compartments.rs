//! Adapter of compartments: network namespaces, bind-mounted to files that their GUIDs name.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use hcn::Guid;
use linux_sys::ns::NetNs;

use super::LinuxKernel;
use crate::fact::Fact;

impl LinuxKernel {
    /// The file of a compartment.
    pub(super) fn compartment(&self, id: &Guid) -> PathBuf {
        self.netns_dir.join(id.to_string())
    }

    pub(super) fn make_compartment(&self, id: &Guid) -> io::Result<()> {
        NetNs::create_at(&self.compartment(id)).map(drop)
    }

    pub(super) fn remove_compartment(&self, id: &Guid) -> io::Result<()> {
        NetNs::remove_at(&self.compartment(id))
    }

    /// Removes the compartments that are not among `facts`.
    pub(super) fn remove_stray_compartments(&self, facts: &BTreeSet<Fact>) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.netns_dir)? {
            let entry = entry?;
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<Guid>().ok()) else { continue };
            if !facts.contains(&Fact::Compartment(id)) {
                NetNs::remove_at(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Makes the compartments among `facts`; those that exist stay.
    pub(super) fn make_compartments(&self, facts: &BTreeSet<Fact>) -> Result<(), (String, io::Error)> {
        facts.iter().try_for_each(|fact| match fact {
            Fact::Compartment(id) => self.make_compartment(id).map_err(|error| (fact.to_string(), error)),
            _ => Ok(()),
        })
    }
}
