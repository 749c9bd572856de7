//! Host Compute Network: the JSON documents, error codes, the HostNetwork port and a typed client over it.
