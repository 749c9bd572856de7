//! The pod network between nodes.
