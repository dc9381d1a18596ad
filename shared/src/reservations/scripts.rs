//! The scripts in `lua/`, one for each verb.

use redis::Script;

macro_rules! scripts {
    ($($verb:ident),+ $(,)?) => {
        /// Each script with its digest.
        pub(super) struct Scripts {
            $(pub(super) $verb: Script,)+
        }

        impl Scripts {
            pub(super) fn new() -> Self {
                Self { $($verb: Script::new(include_str!(concat!("../../../lua/", stringify!($verb), ".lua"))),)+ }
            }
        }
    };
}

scripts!(archive, claim, find, load, notice, postpone, recount, release, resend, reserve, restore, settle, withdraw);
