//! The node agent: keeps the pods that the API binds to one node running there, and tells the
//! API how they and the node are.
mod pod;
