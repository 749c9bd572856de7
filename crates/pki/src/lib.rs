//! The cluster's certificate authority, certificates and kubeconfigs (ECDSA).
