//! Encoders and decoders of the etcd and ZooKeeper messages that most calls of a store use.

pub mod etcd;
pub mod key;
pub mod protobuf;
pub mod zookeeper;
