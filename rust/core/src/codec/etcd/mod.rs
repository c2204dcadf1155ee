//! The etcd messages that most calls of a store send and receive, in protobuf's wire format.
//!
//! [`request`] encodes write transactions and [`answer`] decodes the answers of etcd, without an object for each nested
//! message. Unknown fields are ignored, as protobuf demands. Bytes that are not protobuf are [`Malformed`].

pub mod answer;
mod fields;
pub mod request;

pub use super::protobuf::Malformed;
