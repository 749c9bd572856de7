//! Pure rules about pods and nodes that several parts share.
