//! Other documents of the service: error records, notifications, answers of `HNSCall`, counters and addresses of endpoints.

use serde_json::Value;

use crate::error::HResult;
use crate::guid::Guid;

document! {
    /// An error record, and an unsuccessful answer of `HNSCall`.
    pub struct ErrorRecord {
        /// Always false.
        success: bool = "Success", always;
        /// The message, as FormatMessage gives it: with a blank at its end.
        error: String = "Error";
        /// The code, unsigned and in decimal.
        error_code: u32 = "ErrorCode";
    }
}

impl ErrorRecord {
    /// The code, where the record has one.
    pub fn hresult(&self) -> Option<HResult> {
        (self.error_code != 0).then_some(HResult(self.error_code))
    }
}

document! {
    /// What an event carries.
    pub struct NotificationData {
        id: Guid = "ID";
        /// The network's switches.
        flags: u32 = "Flags";
        /// More, by type of event.
        data: Value = "Data";
    }
}

document! {
    /// An answer of `HNSCall`.
    pub struct HnsResponse {
        /// Whether it did what was asked.
        success: bool = "Success", always;
        /// Why not.
        error: String = "Error";
        /// Why not, as a code.
        error_code: u32 = "ErrorCode";
        /// What was asked for.
        output: Value = "Output";
    }
}

document! {
    /// Counters of an endpoint (`GET /endpointstats/ID`, `HcnQueryEndpointStats`).
    pub struct EndpointStats {
        endpoint_id: Guid = "EndpointId";
        instance_id: Guid = "InstanceId";
        /// Bytes to the endpoint.
        bytes_received: u64 = "BytesReceived", always;
        /// Bytes from the endpoint.
        bytes_sent: u64 = "BytesSent", always;
        /// Packets to the endpoint.
        packets_received: u64 = "PacketsReceived", always;
        /// Packets from the endpoint.
        packets_sent: u64 = "PacketsSent", always;
        /// Packets to the endpoint that were dropped.
        dropped_packets_incoming: u64 = "DroppedPacketsIncoming", always;
        /// Packets from the endpoint that were dropped.
        dropped_packets_outgoing: u64 = "DroppedPacketsOutgoing", always;
    }
}
