//! What a container's devices add to its request (upstream `deviceRunContainerOptions`).

use std::collections::BTreeMap;

use cri::v1;

use super::book::OfContainer;

/// Parts of a request. Of two plug-ins that set the same thing, the first by its resource's name counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Options {
    pub envs: Vec<(String, String)>,
    pub mounts: Vec<v1::Mount>,
    pub devices: Vec<v1::Device>,
    pub annotations: BTreeMap<String, String>,
    pub cdi_devices: Vec<v1::CdiDevice>,
}

pub(super) fn of(all: &OfContainer) -> Options {
    let mut options = Options::default();
    for (resource, allocation) in all {
        let conflict = |what: &str, name: &str| tracing::error!(resource, name, "two device plug-ins set the same {what} of a container differently");
        let response = &allocation.response;
        for (name, value) in &response.envs {
            match options.envs.iter().find(|(known, _)| known == name) {
                Some((_, known)) if known != value => conflict("variable", name),
                Some(_) => {}
                None => options.envs.push((name.clone(), value.clone())),
            }
        }
        for device in &response.devices {
            match options.devices.iter().find(|known| known.container_path == device.container_path) {
                // On Windows a device has no path in the container.
                Some(known) if !known.container_path.is_empty() => {
                    if known.host_path != device.host_path {
                        conflict("device", &device.container_path);
                    }
                }
                Some(known) if known.host_path == device.host_path => {}
                _ => options.devices.push(v1::Device {
                    container_path: device.container_path.clone(),
                    host_path: device.host_path.clone(),
                    permissions: device.permissions.clone(),
                }),
            }
        }
        for mount in &response.mounts {
            match options.mounts.iter().find(|known| known.container_path == mount.container_path) {
                Some(known) if known.host_path != mount.host_path => conflict("mount", &mount.container_path),
                Some(_) => {}
                None => options.mounts.push(v1::Mount {
                    container_path: mount.container_path.clone(),
                    host_path: mount.host_path.clone(),
                    readonly: mount.read_only,
                    ..Default::default()
                }),
            }
        }
        for (name, value) in &response.annotations {
            match options.annotations.get(name) {
                Some(known) if known != value => conflict("annotation", name),
                Some(_) => {}
                None => drop(options.annotations.insert(name.clone(), value.clone())),
            }
        }
        for device in &response.cdi_devices {
            if !options.cdi_devices.iter().any(|known| known.name == device.name) {
                options.cdi_devices.push(v1::CdiDevice { name: device.name.clone() });
            }
        }
    }
    options
}
