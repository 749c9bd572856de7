//! A CRI v1 runtime for simulated hosts.
