//! The scripts in `lua/`, one for each verb.

use redis::{Arg, Cmd, ToRedisArgs};

/// A script. A server that has run it knows it by its digest.
pub(super) struct Script {
    source: &'static str,
    digest: String,
}

impl Script {
    fn new(source: &'static str) -> Self {
        Self { source, digest: redis::Script::new(source).get_hash().to_owned() }
    }

    /// A call about these keys. They share a slot, and there is always one: it says which node of a cluster to ask.
    pub(super) fn on<const N: usize>(&self, keys: [&str; N]) -> Call {
        const { assert!(N > 0, "a script has keys") };
        let mut by_digest = redis::cmd("EVALSHA");
        by_digest.arg(&self.digest).arg(N).arg(&keys);
        Call { by_digest, source: self.source }
    }
}

/// A call of a script.
pub(super) struct Call {
    by_digest: Cmd,
    source: &'static str,
}

impl Call {
    pub(super) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.by_digest.arg(argument);
        self
    }

    /// For a server that knows the script.
    pub(super) fn by_digest(&self) -> &Cmd {
        &self.by_digest
    }

    /// For a server that does not know it, and then does. In a cluster this goes wherever the other went; a command that
    /// only loads the script would not follow a slot that moves.
    pub(super) fn by_source(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.source);
        for argument in self.by_digest.args_iter().skip(2) {
            if let Arg::Simple(argument) = argument {
                command.arg(argument);
            }
        }
        command
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reservations::{CLAIM_CHUNK, NOTICE_CHUNK, SETTLE_CHUNK};

    #[test]
    fn a_call_by_source_has_the_keys_and_arguments_of_the_call_by_digest() {
        let mut call = Script { source: "return 1", digest: "d1".to_owned() }.on(["{a}", "{a}:b"]);
        call.arg("x").arg(7);
        let text = |command: &Cmd| String::from_utf8(command.get_packed_command()).unwrap();
        let rest = "\r\n$1\r\n2\r\n$3\r\n{a}\r\n$5\r\n{a}:b\r\n$1\r\nx\r\n$1\r\n7\r\n";
        assert_eq!(text(call.by_digest()), format!("*7\r\n$7\r\nEVALSHA\r\n$2\r\nd1{rest}"));
        assert_eq!(text(&call.by_source()), format!("*7\r\n$4\r\nEVAL\r\n$8\r\nreturn 1{rest}"));
    }

    /// Some Redis services take no more. A script is given three keys at most, and one or two arguments about each fact;
    /// what `claim` hands out is a reply, but a script may pass on only so many values too.
    #[test]
    fn no_call_of_a_script_has_more_than_3999_arguments() {
        const { assert!(3 + 2 * SETTLE_CHUNK < 3_999) };
        const { assert!(NOTICE_CHUNK < 3_999) };
        const { assert!(3 + 2 * CLAIM_CHUNK < 3_999) };
    }
}
