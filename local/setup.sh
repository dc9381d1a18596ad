#!/bin/sh
# Installs what Onrush needs to run on this machine (`run`) and to be tested on it (`test`; the default is both) and is
# not there yet: servers and tools with apt-get, cargo-lambda with pip and cargo-nextest with cargo, both of these under
# target/tools. It asks nothing, says what it will do before it does it, and is silent when there is nothing to do.
set -eu

CARGO_LAMBDA_VERSION=1.9.2

cd "$(dirname "$0")/.."
PATH="$PWD/target/tools/bin:$PWD/target/tools/venv/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin"
what=${1:-all}

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
# The first of these packages that apt can install.
available() {
    for package; do
        apt-cache show "$package" 2>/dev/null | grep -q '^Filename:' && { echo "$package"; return; }
    done
    echo "$1"
}

have cargo || die "Rust is missing; install it from https://rustup.rs, then run this again"

# 1. What is missing?
redis='' rabbitmq='' mysql='' luacheck='' plain='' cargo_lambda='' nextest='' components=''
have redis-server || have valkey-server || redis=yes
[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || have rabbitmq-server || rabbitmq=rabbitmq-server
have mariadbd || have mysqld || mysql=yes
have cc || plain="$plain gcc libc6-dev"
have curl || plain="$plain curl"
[ -e /etc/ssl/certs/ca-certificates.crt ] || plain="$plain ca-certificates"
if ! have cargo-lambda; then
    cargo_lambda=yes
    python3 -c 'import ensurepip, venv' 2>/dev/null || plain="$plain python3-venv"
fi
if [ "$what" != run ]; then
    have luacheck || luacheck=lua-check
    have cargo-nextest || nextest=yes
    cargo clippy --version >/dev/null 2>&1 || components="$components clippy"
    cargo fmt --version >/dev/null 2>&1 || components="$components rustfmt"
fi

# 2. Servers and tools, from the distribution.
if [ -n "$redis$rabbitmq$mysql$luacheck$plain" ]; then
    have apt-get || die "this machine has no apt-get; install these by hand:\
${redis:+ Redis 7 or Valkey,}${rabbitmq:+ RabbitMQ,}${mysql:+ MySQL 8 or MariaDB,}${luacheck:+ luacheck,} $plain"
    as_root=''
    if [ "$(id -u)" != 0 ]; then
        as_root='sudo -n'
        $as_root true 2>/dev/null || die "packages are missing and sudo wants a password; run: sudo local/setup.sh $what"
    fi
    say "reading the package lists (apt-get update)"
    $as_root apt-get -qq update
    [ -z "$redis" ] || redis=$(available redis-server valkey-server)
    [ -z "$mysql" ] || mysql=$(available mariadb-server mysql-server)
    packages="$redis $rabbitmq $mysql $luacheck $plain"
    say "installing with apt-get, starting none of them:$(printf ' %s' $packages)"
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        # While this file says 101, installed services are not started.
        trap '$as_root rm -f "$policy"' EXIT
        trap 'exit 130' HUP INT TERM
        printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
        $as_root chmod 755 "$policy"
    fi
    # shellcheck disable=SC2086 # words on purpose
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $packages >&2
fi

# 3. Redis 7, for its script flags.
if have redis-server; then
    case $(redis-server --version) in
    *v=[0-6].*) die "this redis-server is older than 7: $(redis-server --version); Debian 12 and Ubuntu 24.04 have 7" ;;
    esac
fi

# 4. Tools of our own.
if [ -n "$cargo_lambda" ]; then
    say "installing cargo-lambda $CARGO_LAMBDA_VERSION with pip under target/tools/venv"
    python3 -m venv target/tools/venv
    target/tools/venv/bin/pip install --quiet --disable-pip-version-check "cargo-lambda==$CARGO_LAMBDA_VERSION"
fi
if [ -n "$components" ]; then
    say "installing Rust's$components with rustup"
    have rustup || die "there is no rustup; install$components the way Rust was installed"
    # shellcheck disable=SC2086 # words on purpose
    rustup --quiet component add $components
fi
if [ -n "$nextest" ]; then
    say "building cargo-nextest with cargo under target/tools; this takes some minutes, once"
    cargo install --quiet --locked --root target/tools cargo-nextest
fi
