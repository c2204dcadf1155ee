//! Numbers of the fields of etcd's messages, and of the values of their enumerations.

#![allow(missing_docs)] // rpc.proto has them under the same names

/// `RangeRequest`.
pub mod range {
    pub const KEY: u32 = 1;
    pub const END: u32 = 2;
    pub const LIMIT: u32 = 3;
    pub const SERIALIZABLE: u32 = 7;
    pub const KEYS_ONLY: u32 = 8;
}

/// `PutRequest`.
pub mod put {
    pub const KEY: u32 = 1;
    pub const VALUE: u32 = 2;
    pub const LEASE: u32 = 3;
}

/// `DeleteRangeRequest`.
pub mod delete {
    pub const KEY: u32 = 1;
}

/// `RequestOp` and, with the same numbers, `ResponseOp`.
pub mod operation {
    pub const RANGE: u32 = 1;
    pub const PUT: u32 = 2;
    pub const DELETE: u32 = 3;
    pub const TXN: u32 = 4;
}

/// `Compare`: revisions of the creation and of the last write, and the lease.
pub mod compare {
    pub const RESULT: u32 = 1;
    pub const IS_GREATER: u64 = 1;
    pub const TARGET: u32 = 2;
    pub const IS_CREATED: u64 = 1;
    pub const IS_WRITTEN: u64 = 2;
    pub const IS_LEASE: u64 = 4;
    pub const KEY: u32 = 3;
    pub const CREATED: u32 = 5;
    pub const WRITTEN: u32 = 6;
    pub const LEASE: u32 = 8;
    pub const END: u32 = 64;
}

/// `TxnRequest`.
pub mod txn {
    pub const COMPARE: u32 = 1;
    pub const SUCCESS: u32 = 2;
    pub const FAILURE: u32 = 3;
}

/// `KeyValue`.
pub mod key_value {
    pub const KEY: u32 = 1;
    pub const CREATED: u32 = 2;
    pub const WRITTEN: u32 = 3;
    pub const VALUE: u32 = 5;
    pub const LEASE: u32 = 6;
}

/// The answers: `ResponseHeader`, which is the first field of all others, `RangeResponse`, `DeleteRangeResponse` and
/// `TxnResponse`.
pub mod response {
    pub const HEADER: u32 = 1;
    pub const HEADER_REVISION: u32 = 3;
    pub const RANGE_KVS: u32 = 2;
    pub const RANGE_MORE: u32 = 3;
    pub const DELETED: u32 = 2;
    pub const TXN_SUCCEEDED: u32 = 2;
    pub const TXN_RESPONSES: u32 = 3;
}
