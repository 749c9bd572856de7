//! The CNI specification (both sides), host-local IPAM and the plug-ins.
