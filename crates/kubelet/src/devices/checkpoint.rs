//! The file in which node agents keep who has which device, in upstream's form (cm/devicemanager/checkpoint): upstream's kubelet reads
//! ours and we read its.
//!
//! Its checksum is the FNV-1a hash of the text that Go's `spew` prints of the data, types included.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use device_plugin::Message as _;
use device_plugin::v1beta1::ContainerAllocateResponse;
use serde::{Deserialize, Serialize};

use super::book::{Allocation, Book};

/// The file in the directory of plug-ins.
pub(super) const FILE: &str = "kubelet_internal_checkpoint";
/// Bytes that are read of it.
pub(super) const MAX_FILE: u64 = 64 << 20;

/// Why a checkpoint is not used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckpointError {
    #[error("it is not the JSON of a checkpoint")]
    Json(#[from] serde_json::Error),
    #[error("checkpoint is corrupted: its checksum is {found}, that of its content {wanted}")]
    Checksum { found: u64, wanted: u64 },
}

/// Absent values differ from empty ones in the checksum, as Go's nil does.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(default, rename = "PodUID")]
    pod_uid: String,
    #[serde(default)]
    container_name: String,
    #[serde(default)]
    resource_name: String,
    #[serde(default, rename = "DeviceIDs")]
    device_ids: Option<BTreeMap<i64, Option<Vec<String>>>>,
    #[serde(default, with = "bytes")]
    alloc_resp: Option<Vec<u8>>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    #[serde(default)]
    pod_device_entries: Option<Vec<Entry>>,
    #[serde(default)]
    registered_devices: Option<BTreeMap<String, Option<Vec<String>>>>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    #[serde(default)]
    data: Data,
    #[serde(default)]
    checksum: u64,
}

/// Go's JSON of bytes: base64, or null.
mod bytes {
    use super::*;

    pub(super) fn serialize<S: serde::Serializer>(bytes: &Option<Vec<u8>>, to: S) -> Result<S::Ok, S::Error> {
        bytes.as_ref().map(|bytes| STANDARD.encode(bytes)).serialize(to)
    }

    pub(super) fn deserialize<'d, D: serde::Deserializer<'d>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| STANDARD.decode(text).map_err(serde::de::Error::custom)).transpose()
    }
}

/// What a checkpoint says.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Pod, container, resource.
    pub entries: Vec<(String, String, String, Allocation)>,
    pub registered: Vec<String>,
}

/// Reads a checkpoint. An allocation whose answer cannot be read is left out, as upstream does.
pub(super) fn read(bytes: &[u8]) -> Result<Kept, CheckpointError> {
    let checkpoint: Checkpoint = serde_json::from_slice(bytes)?;
    let wanted = checksum(&checkpoint.data);
    if checkpoint.checksum != wanted {
        return Err(CheckpointError::Checksum { found: checkpoint.checksum, wanted });
    }
    let allocation = |entry: Entry| {
        let devices = entry.device_ids.unwrap_or_default().into_iter().map(|(node, ids)| (node, ids.unwrap_or_default())).collect();
        let response = ContainerAllocateResponse::decode(entry.alloc_resp.unwrap_or_default().as_slice()).ok()?;
        Some((entry.pod_uid, entry.container_name, entry.resource_name, Allocation { devices, response }))
    };
    let entries = checkpoint.data.pod_device_entries.unwrap_or_default().into_iter().filter_map(allocation).collect();
    let registered = checkpoint.data.registered_devices.unwrap_or_default().into_keys().collect();
    Ok(Kept { entries, registered })
}

/// The checkpoint of what is known.
pub(super) fn write(book: &Book) -> Vec<u8> {
    let entry = |(pod, container, resource, allocation): (&String, &String, &String, &Allocation)| Entry {
        pod_uid: pod.clone(),
        container_name: container.clone(),
        resource_name: resource.clone(),
        device_ids: Some(allocation.devices.iter().map(|(node, ids)| (*node, Some(ids.clone()))).collect()),
        alloc_resp: Some(allocation.response.encode_to_vec()),
    };
    let entries: Vec<Entry> = book.allocations().map(entry).collect();
    let registered = book.registered().into_iter().map(|(name, ids)| (name, Some(ids))).collect();
    let data = Data { pod_device_entries: Some(entries).filter(|all| !all.is_empty()), registered_devices: Some(registered) };
    let checksum = checksum(&data);
    serde_json::to_vec(&Checkpoint { data, checksum }).unwrap_or_default()
}

/// Upstream's `checksum.New`.
fn checksum(data: &Data) -> u64 {
    let start = 0x811c_9dc5_u32;
    u64::from(spew(data).bytes().fold(start, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)))
}

/// What Go's spew prints of the data with `%#v`.
fn spew(data: &Data) -> String {
    let list = |ids: &Option<Vec<String>>| ids.as_ref().map_or_else(|| "<nil>".to_owned(), |ids| format!("[{}]", ids.join(" ")));
    let entry = |entry: &Entry| {
        let ids = entry.device_ids.as_ref().map_or_else(
            || "<nil>".to_owned(),
            |all| format!("map[{}]", all.iter().map(|(node, ids)| format!("{node}:{}", list(ids))).collect::<Vec<_>>().join(" ")),
        );
        let response = entry
            .alloc_resp
            .as_ref()
            .map_or_else(|| "<nil>".to_owned(), |bytes| format!("[{}]", bytes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")));
        format!(
            "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} DeviceIDs:(checkpoint.DevicesPerNUMA){ids} AllocResp:([]uint8){response}}}",
            entry.pod_uid, entry.container_name, entry.resource_name
        )
    };
    let entries = data.pod_device_entries.as_ref();
    let entries = entries.map_or_else(|| "<nil>".to_owned(), |all| format!("[{}]", all.iter().map(entry).collect::<Vec<_>>().join(" ")));
    let mut text =
        format!("(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries} RegisteredDevices:(map[string][]string)");
    match &data.registered_devices {
        None => text.push_str("<nil>"),
        Some(all) => {
            let all: Vec<String> = all.iter().map(|(name, ids)| format!("{name}:{}", list(ids))).collect();
            let _ = write!(text, "map[{}]", all.join(" "));
        }
    }
    text.push('}');
    text
}

/// Reads what a foreign program may have written, for fuzzing.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(kept) = read(bytes) else { return };
    let book = Book::restored(kept.entries, kept.registered, std::time::Instant::now());
    let again = read(&write(&book)).expect("what was written can be read");
    assert_eq!(again.entries.len(), book.allocations().count());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(text: &str) -> u64 {
        u64::from(text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)))
    }

    #[test]
    fn the_hash_is_upstreams() {
        // Every kubelet writes this checksum into cpu_manager_state when it pins nothing (by the same functions).
        let text = "(*state.CPUManagerCheckpoint){PolicyName:(string)none DefaultCPUSet:(string) Entries:(map[string]map[string]string)map[] \
                    Checksum:(checksum.Checksum)0}";
        assert_eq!(hash(text), 1_353_318_690);
    }

    #[test]
    fn data_prints_as_spew_prints_it() {
        let text = r#"{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"a.b/gpu","DeviceIDs":{"-1":["d 1","d2"],"0":null},
            "AllocResp":"AQI="},{"PodUID":"v","ContainerName":"","ResourceName":"r","DeviceIDs":null,"AllocResp":null}],
            "RegisteredDevices":{"a.b/gpu":["d1"],"a.b/none":[]}}"#;
        let data: Data = serde_json::from_str(text).unwrap();
        assert_eq!(
            spew(&data),
            "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)[{PodUID:(string)u ContainerName:(string)c \
             ResourceName:(string)a.b/gpu DeviceIDs:(checkpoint.DevicesPerNUMA)map[-1:[d 1 d2] 0:<nil>] AllocResp:([]uint8)[1 2]} \
             {PodUID:(string)v ContainerName:(string) ResourceName:(string)r DeviceIDs:(checkpoint.DevicesPerNUMA)<nil> AllocResp:([]uint8)<nil>}] \
             RegisteredDevices:(map[string][]string)map[a.b/gpu:[d1] a.b/none:[]]}"
        );
        let empty: Data = serde_json::from_str(r#"{"PodDeviceEntries":null,"RegisteredDevices":null}"#).unwrap();
        assert_eq!(
            spew(&empty),
            "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)<nil> RegisteredDevices:(map[string][]string)<nil>}"
        );
    }

    #[test]
    fn a_checkpoint_is_read_again_and_a_changed_one_refused() {
        let response = ContainerAllocateResponse { envs: [("A".to_owned(), "1".to_owned())].into(), ..Default::default() };
        let allocation = Allocation { devices: BTreeMap::from([(-1, vec!["d1".to_owned()])]), response };
        let entry = ("pod".to_owned(), "c".to_owned(), "a.b/gpu".to_owned(), allocation);
        let book = Book::restored([entry.clone()], vec!["a.b/gpu".into(), "a.b/other".into()], std::time::Instant::now());
        let bytes = write(&book);
        let kept = read(&bytes).unwrap();
        assert_eq!((kept.entries, kept.registered), (vec![entry], vec!["a.b/gpu".to_owned(), "a.b/other".to_owned()]));
        let changed = String::from_utf8(bytes).unwrap().replace("\"d1\"", "\"d2\"");
        assert!(matches!(read(changed.as_bytes()), Err(CheckpointError::Checksum { .. })));
        assert!(matches!(read(b"x"), Err(CheckpointError::Json(_))));
    }
}
