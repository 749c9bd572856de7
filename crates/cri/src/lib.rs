//! Container Runtime Interface client.
