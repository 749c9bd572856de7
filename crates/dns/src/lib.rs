//! Cluster DNS for the embedded control plane.
